"""Chat templates render as in transformers, and hostile templates do no harm."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import jinja2
import pytest
import transformers
from tokenizers import Tokenizer, models

from hf_transformer.errors import InvalidInput, LoadError, TooLarge
from hf_transformer.generation import template_budget
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
        "{% set r = range(100000) %}{% for i in r %}{% for j in r if j < 0 %}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}{{ range(100000) | select('in', [1, 2]) | list | length }}{% endfor %}",
    ],
    ids=["loops", "macros", "conditions", "tests"],
)
def test_an_endless_template_exceeds_the_time_limit(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "MAX_SECONDS", 0.05)
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
    "round": "{{ 1 | round(-100000000) }}",
    "round-floor": "{{ 1 | round(100000000, 'floor') }}",
    "round-map": "{{ [1] | map('round', -100000000) | list }}",
    "round-by-argument": "{{ 1 | round(places) }}",
    "constant-filter": "{% if 1 | round(-100000000) %}{% endif %}",
    "constant-power": "{% set x = (3 ** 100000000) // 7 %}",
    "division": "{{ ('f' * 200000) | int(base=16) // ('e' * 100000) | int(base=16) }}",
    "divisible": "{{ (('f' * 200000) | int(base=16)) is divisibleby(('e' * 100000) | int(base=16)) }}",
    **{
        f"shared-{name}": doubled("{% set ns.x = (ns.x, ns.x) %}{% set ns.y = (ns.y, ns.y) %}", then, "(1,)")
        for name, then in {
            "chain": "{{ ns.x == ns.y == 1 }}",
            "chain-middle": "{{ 1 != ns.x == ns.y }}",
            "not-in": "{{ ns.x not in [ns.y] }}",
            "difference": "{{ {1: 1}.keys() - [ns.x] }}",
            "disjoint": "{{ {1: 1}.keys().isdisjoint([ns.x]) }}",
            "count": "{{ [ns.y].count(ns.x) }}",
            "message": "{{ raise_exception(message=ns.x) }}",
            "fromkeys": "{{ dict.fromkeys([ns.x]) }}",
            "select": "{{ [ns.y] | select('in', [ns.x]) | list }}",
            "get": "{{ {}.get(ns.x) }}",
        }.items()
    },
    "strip": "{{ ('a' * 4000000).strip('b' * 3999999 ~ 'a') }}",
    "trim": "{{ ('a' * 4000000) | trim('b' * 3999999 ~ 'a') }}",
    "encode": "{{ ('x' * 100).encode('punycode') }}",
    "urlencode": "{{ ('é' * 4000000) | urlencode }}",
    "attribute": "{{ (['a'] * 100000) | map(attribute='0.' * 90000 ~ '0') | list | length }}",
    "attribute-default": "{{ (['a'] * 100000) | map(attribute='x.' * 90000, default='') | list | length }}",
    "date": "{{ strftime_now('%10000Y' * 50000) }}",
    "characters": "{{ ('\U0001f600' * 4000000) | list | length }}",
    "list-of-bytes": "{% set x = [0] * 4000000 %}",
    **{
        f"kept-{name}": "{% set x = 'é' * 3999000 %}{% set ns = namespace(kept=[]) %}"
        f"{{% for i in range(100000) %}}{{% set ns.kept = [ns.kept, {value}] %}}{{% endfor %}}"
        for name, value in {
            "plus": "x + 'y'",
            "tilde": "x ~ i",
            "slice": "x[1:]",
            "filter": "x | safe | replace('y', 'z')",
            "method": "x.swapcase()",
            "times": "'x' * 3000000",
            "numbers": "range(100000) | list",
            "keys": "dict.fromkeys(range(100000))",
            "parts": "x.splitlines()",
            "json": "[x] | tojson",
        }.items()
    },
    "kept-block": "{% set x = 'x' * 2000000 %}{% set ns = namespace(kept=[]) %}{% for i in range(100000) %}"
    "{% set b %}{{ x }}{{ x }}{% endset %}{% set ns.kept = [ns.kept, b] %}{% endfor %}",
    "kept-arguments": "{% macro f(x, n) %}{% if n %}{{ f(x ~ n, n - 1) }}{% endif %}{% endmacro %}"
    "{{ f('x' * 3900000, 150) }}",
    "kept-literals": "{% set ns = namespace(kept=[]) %}{% for i in range(100000) %}"
    "{% set ns.kept = [ns.kept, [" + "[]," * 2000 + "]] %}{% endfor %}",
}
"""Templates by their means of building a large value."""


@pytest.mark.parametrize("name", [*TOO_MUCH])
def test_a_template_with_too_large_values_is_refused(name: str) -> None:
    began, before = time.perf_counter(), peak_bytes()
    with pytest.raises((TooLarge, InvalidInput)):
        of(TOO_MUCH[name]).render([USER], places=-100_000_000)
    assert time.perf_counter() - began < template_budget.MAX_SECONDS + 5
    assert peak_bytes() - before < template_budget.MAX_BYTES + 2**27


def peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize(
    "text",
    [
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "[" * 3000 + "]" * 3000 + " }}",
        "{% for a in [1] %}" * 25 + "{% endfor %}" * 25,
        "{% if 1 %}" * 300 + "{% endif %}" * 300,
        "{{ " + "not " * 5000 + "1 }}",
        "{{ 1" + " | abs" * 5000 + " }}",
        "{{ " + "9" * 5000 + " }}",
        "{{ 0x" + "f" * 60_000 + " }}",
        "{{ messages }}" + " " * 200_000,
        "{{ x }}" * 14_000,
    ],
    ids=[
        "parentheses",
        "lists",
        "loops",
        "conditions",
        "not",
        "filters",
        "digits",
        "hexadecimal",
        "length",
        "expressions",
    ],
)
def test_a_template_that_can_not_be_compiled_is_a_load_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(LoadError, match=r"template.jinja: (the|expected a) chat template"):
        load_chat_template(".", str(write(tmp_path, template_jinja=text) / "template.jinja"))


def test_a_template_that_recurses_without_end_is_refused() -> None:
    with pytest.raises(InvalidInput, match="RecursionError"):
        of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").render([USER])


ENDLESS = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"


async def longest_pause(work: Awaitable[object]) -> float:
    """The longest time in which the event loop does nothing else while ``work`` runs."""
    task, longest = asyncio.ensure_future(work), 0.0
    while not task.done():
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        longest = max(longest, time.perf_counter() - began)
    with pytest.raises(TooLarge):
        task.result()
    return longest


async def test_an_endless_template_does_not_block_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "MAX_SECONDS", 1.0)
    assert await longest_pause(of(ENDLESS).render_off_loop(100, [USER])) < 0.3


async def test_cancellation_ends_a_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    """The template's thread is free for the next chat at once."""
    monkeypatch.setattr(template_budget, "MAX_SECONDS", 60.0)
    template = of("{% if endless %}" + ENDLESS + "{% endif %}done")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await template.render_off_loop(100, [USER], endless=True)
    async with asyncio.timeout(5.0):
        assert await template.render_off_loop(10**9, [USER], endless=False) == "done"


@pytest.mark.parametrize("size", [100, 10**6], ids=["inline", "thread"])
async def test_a_prompt_is_the_same_on_the_loop_and_in_a_thread(size: int) -> None:
    template, chat = of(TEMPLATES["qwen"]), CHATS["turns"]["messages"]
    assert await template.render_off_loop(size, chat) == template.render(chat)
    with pytest.raises(InvalidInput):
        await of("{{ raise_exception('no') }}").render_off_loop(size, chat)


def test_the_budget_is_no_variable_of_a_chat() -> None:
    more: dict[str, Any] = {template_budget.BUDGET: 0}
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
