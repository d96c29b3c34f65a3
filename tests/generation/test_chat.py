"""Chat templates render as in transformers, and hostile templates do no harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
import transformers
from tokenizers import Tokenizer, models

from hf_transformer.errors import InvalidInput, LoadError, TooLarge
from hf_transformer.generation import sandbox
from hf_transformer.generation.chat import ChatTemplate, load_chat_template
from tests.generation.chat_templates import CHATS, ONLY_PARTS, TEMPLATES, WEATHER

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": "Hi"}


def of(text: str) -> ChatTemplate:
    found = load_chat_template(".", text, SPECIAL)
    assert found is not None
    return found


@pytest.fixture(scope="session")
def theirs() -> Any:
    made: Any = transformers.PreTrainedTokenizerFast
    return made(tokenizer_object=Tokenizer(models.BPE()), **SPECIAL)


def read(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as the API reads them, without null fields."""
    return [{name: value for name, value in message.items() if value is not None} for message in messages]


@pytest.mark.parametrize("chat", [*CHATS])
@pytest.mark.parametrize("name", [*TEMPLATES])
def test_prompts_equal_those_of_transformers(theirs: Any, name: str, chat: str) -> None:
    text, options = TEMPLATES[name], {"add_generation_prompt": True, **CHATS[chat]}
    sent = options.pop("messages")
    messages = read(sent)
    try:
        wanted = theirs.apply_chat_template(sent, chat_template=text, tokenize=False, **options)
    except (jinja2.TemplateError, TypeError):
        with pytest.raises(InvalidInput, match=r"^messages: expected a chat that the model's template accepts; "):
            of(text).render(messages, **options)
    else:
        assert of(text).render(messages, **options) == wanted


def test_most_templates_accept_most_chats(theirs: Any) -> None:
    """Without it the test above might compare nothing."""
    answered = 0
    for text in TEMPLATES.values():
        for given in CHATS.values():
            try:
                answered += bool(of(text).render(**{**given, "messages": read(given["messages"])}))
            except InvalidInput:
                continue
    assert answered > 0.6 * len(TEMPLATES) * len(CHATS)


@pytest.mark.parametrize("text", [TEMPLATES["parts"], ONLY_PARTS], ids=["either", "parts-alone"])
def test_a_template_that_expects_parts_gets_the_content_as_one_part(theirs: Any, text: str) -> None:
    in_parts = {"role": "user", "content": [{"type": "text", "text": "Hi"}]} if text is ONLY_PARTS else USER
    wanted = theirs.apply_chat_template([in_parts], chat_template=text, tokenize=False, add_generation_prompt=True)
    assert of(text).render([USER]) == wanted


def test_errors_quote_the_template_and_never_the_chat() -> None:
    with pytest.raises(InvalidInput, match="Roles must alternate"):
        of(TEMPLATES["llama-2"]).render([USER, USER])
    for expression in ("messages[0].content.nothing.more", "{}['secret'].more", "messages[0].content + 1", "1 // 0"):
        with pytest.raises(InvalidInput) as caught:
            of("{{ " + expression + " }}").render([{"role": "user", "content": "secret"}])
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", [*TEMPLATES])
def test_templates_that_read_tools_support_tools(name: str) -> None:
    assert of(TEMPLATES[name]).supports_tools == (name in {"mistral", "hermes", "loops"})


HOSTILE = {
    "class": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "lambda": "{{ strftime_now.__code__ }}",
    "init": "{{ self.__init__.__globals__ }}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "format": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "format-map": "{{ '{a.__class__}'.format_map({'a': messages}) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import '/etc/passwd' as x %}",
    "extends": "{% extends '/etc/passwd' %}",
    "change": "{% do messages.append(1) %}",
    "set-namespace": "{% set ns = namespace() %}{% set ns._x = 1 %}{{ ns._x }}",
    "namespace": "{{ namespace(__class__=1).__class__ }}",
    "attr": "{{ messages|attr('__class__') }}",
    "map": "{{ [messages]|map(attribute='__class__')|list }}",
}


@pytest.mark.parametrize("name", [*HOSTILE])
def test_hostile_templates_reach_no_python_objects_and_no_files(name: str) -> None:
    try:
        written = of(HOSTILE[name]).render([USER])
    except (InvalidInput, LoadError):
        return
    assert not any(word in written for word in ("class", "uid=", "root", "module", "<function", "object at"))


@pytest.mark.parametrize(
    "text",
    [
        "{% set r = range(100000) %}{% for i in r %}{% for j in r %}{% for k in r %}{% endfor %}{% endfor %}"
        "{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}",
    ],
    ids=["loops", "macros"],
)
def test_an_endless_template_exceeds_the_time_limit(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.05)
    with pytest.raises(TooLarge, match=r"got more than 0\.05 s"):
        of(text).render([USER])


DOUBLED = "{% set ns = namespace(x=START, y=START) %}{% for i in range(60) %}TURN{% endfor %}"
NESTED = "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}"
"""Small lists with shared parts, which are 2**60 values as text or in a comparison."""


def doubled(turn: str, then: str = "", start: str = "'ab'") -> str:
    return DOUBLED.replace("START", start).replace("TURN", turn) + then


TOO_MUCH = {
    "output": "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
    "times": "{{ 'x' * 10 ** 9 }}",
    "times-list": "{{ [0] * 10 ** 9 }}",
    "power": "{{ 10 ** 100000000 }}",
    "product": "{{ (2 ** 90000) * (2 ** 90000) }}",
    "range": "{% for i in range(1000000) %}{% endfor %}",
    "plus": doubled("{% set ns.x = ns.x + ns.x %}"),
    "plus-list": doubled("{% set ns.x = ns.x + ns.x %}", start="[1]"),
    "tilde": doubled("{% set ns.x = ns.x ~ ns.x %}"),
    "block": doubled("{% set b %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = b %}"),
    "macro": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + doubled("{% set ns.x = m(ns.x) %}"),
    "filter-block": doubled("{% set ns.x %}{% filter upper %}{{ ns.x }}{{ ns.x }}{% endfilter %}{% endset %}"),
    **{
        f"nested-{name}": doubled(NESTED, then)
        for name, then in {
            "output": "{{ ns.x }}",
            "string": "{{ ns.x | string }}",
            "tilde": "{{ '' ~ ns.x }}",
            "tojson": "{{ ns.x | tojson }}",
            "tojson-indent": "{{ ns.x | tojson(indent=1) }}",
            "format-filter": "{{ '%s' | format(ns.x) }}",
            "format": "{{ '{}'.format(ns.x) }}",
            "percent": "{{ '%s' % (ns.x,) }}",
            "join": "{{ [ns.x] | join }}",
            "pprint": "{{ ns.x | pprint }}",
            "equal": "{{ ns.x == ns.y }}",
            "in": "{{ ns.x in [ns.y] }}",
            "test": "{{ ns.x is eq(ns.y) }}",
            "index": "{{ [ns.y].index(ns.x) }}",
            "sort": "{{ [ns.x, ns.y] | sort }}",
            "unique": "{{ [ns.x, ns.y] | unique | list }}",
        }.items()
    },
    "key": doubled("{% set ns.x = (ns.x, ns.x) %}", "{{ {ns.x: 1} }}", "(1,)"),
    "subscript": doubled("{% set ns.x = (ns.x, ns.x) %}", "{{ {}[ns.x] }}", "(1,)"),
    "ljust": "{{ 'x'.ljust(1000000000) }}",
    "center": "{{ 'x' | center(1000000000) }}",
    "expandtabs": "{{ ('\t' * 1000).expandtabs(1000000) }}",
    "indent": "{{ ('\n' * 100000) | indent(9000) }}",
    "indent-word": "{{ ('\n' * 100000) | indent('x' * 9000) }}",
    "replace": "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
    "replace-filter": "{{ ('x' * 100000) | replace('x', 'y' * 100000) }}",
    "replace-nothing": "{{ ('x' * 100000) | replace('', 'y' * 100000) }}",
    "join": "{{ range(100000) | join('y' * 100000) }}",
    "join-method": "{{ ('y' * 100000).join(['x'] * 100000) }}",
    "translate": "{{ ('x' * 100000).translate({120: 'y' * 100000}) }}",
    "width": "{{ '{:>999999999}'.format('x') }}",
    "width-given": "{{ '{:>{}}'.format('x', 1000000000) }}",
    "width-percent": "{{ '%*d' % (1000000000, 1) }}",
    "precision": "{{ '%.999999999f' % 1 }}",
    "format-many": "{{ ('%s' * 100000) % (('x' * 100000,) * 100000) }}",
    "wordwrap": "{{ ('x' * 100000) | wordwrap(1, wrapstring='y' * 1000) }}",
    "tojson-wide": "{{ [[1] * 1000] | tojson(indent=1000000) }}",
    "batch": "{{ [1] | batch(100000000, 'x') | list }}",
    "slice": "{{ [1] | slice(100000000, 'x') | list }}",
    "sum": "{{ ([[1] * 1000] * 10000) | sum(start=[]) | length }}",
    "striptags": "{{ ('<' * 1000000) | striptags }}",
    "title": "{{ ('a' * 1000000) | title }}",
    "lipsum": "{{ lipsum(1000000) }}",
}
"""Templates by their means of building a large value."""


@pytest.mark.parametrize("name", [*TOO_MUCH])
def test_a_template_with_too_large_values_is_refused(name: str) -> None:
    with pytest.raises((TooLarge, InvalidInput)):
        of(TOO_MUCH[name]).render([USER])


def test_the_deadline_is_no_variable_of_a_chat() -> None:
    more: dict[str, Any] = {sandbox.DEADLINE: 0}
    assert of("{{ messages|length }}").render([USER], **more) == "1"


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        stem, _, suffix = name.rpartition("_")
        path = folder / f"{stem.replace('__', '/')}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def rendered(folder: Path, override: str | None = None, **options: Any) -> str:
    found = load_chat_template(folder, override, SPECIAL)
    assert found is not None
    return found.render([USER], **options)


def test_sources_of_templates_have_an_order(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path, None) is None
    write(tmp_path, chat_template_json={"chat_template": "processor {{ bos_token }}"})
    assert rendered(tmp_path) == "processor <s>"
    write(tmp_path, tokenizer_config_json={"chat_template": "config"})
    assert rendered(tmp_path) == "config"
    write(tmp_path, additional_chat_templates__tool_use_jinja="with {{ tools|length }}")
    assert rendered(tmp_path) == "config"
    assert rendered(tmp_path, tools=[WEATHER]) == "with 1"
    write(tmp_path, chat_template_jinja="file")
    assert rendered(tmp_path) == "file"
    assert rendered(tmp_path, tools=[WEATHER]) == "with 1"
    assert rendered(tmp_path, "{{ 'given' }}", tools=[WEATHER]) == "given"
    assert rendered(tmp_path, str(write(tmp_path, mine_jinja="mine") / "mine.jinja")) == "mine"
    assert rendered(tmp_path, str(tmp_path / "chat_template.json")) == "processor <s>"


def test_the_template_tool_use_renders_chats_with_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools {{ tools|length }}"}]
    folder = write(tmp_path, tokenizer_config_json={"chat_template": named})
    assert rendered(folder) == "plain"
    assert rendered(folder, tools=[WEATHER]) == "tools 1"
    found = load_chat_template(folder)
    assert found is not None and found.supports_tools


@pytest.mark.parametrize(
    ("given", "override", "message"),
    [
        (
            {"chat_template": "{% for x in %}"},
            None,
            "tokenizer_config.json: the chat template is no valid Jinja, line 1",
        ),
        ({"chat_template": 7}, None, "tokenizer_config.json: chat_template: expected .* got a number"),
        ({"chat_template": [{"name": "default"}]}, None, "chat_template: expected .* got a list"),
        ({}, "nowhere.jinja", "--chat_template: expected a file or a Jinja template, and there is no file"),
        ({}, "x" * 5000, "--chat_template: expected a file"),
        ({}, "{{ broken", "--chat_template: the chat template is no valid Jinja"),
    ],
)
def test_an_unreadable_template_is_a_load_error(tmp_path: Path, given: Any, override: str | None, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        load_chat_template(write(tmp_path, tokenizer_config_json=given), override)
