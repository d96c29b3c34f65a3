"""Chats to prompts, by the model's own template, in a sandbox as transformers sets it up.

A template is looked for in this order: --chat_template, chat_template.jinja with additional_chat_templates/*.jinja,
chat_template in tokenizer_config.json (one, or several with names), chat_template.json. Of several, tool_use is for
chats with tools, and default for all others.

A template comes with a model and may be anybody's: see sandbox.py.

Source: transformers 5.23, utils/chat_template_utils.py. Only a service that generates imports this module and Jinja.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
import jinja2.meta
from jinja2 import nodes

from hf_transformer.errors import InvalidInput, LoadError, TooLarge, describe
from hf_transformer.generation import sandbox
from hf_transformer.generation.sandbox import BUDGET, ChatEnvironment, Guards, OverBudget, check_size
from hf_transformer.tokenizer.files import read_json
from hf_transformer.types.request import Json

DEFAULT, TOOL_USE = "default", "tool_use"
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of the model's thoughts in a message; templates read the first, some the second."""

TEMPLATE_ERRORS = (
    *(jinja2.TemplateError, ArithmeticError, AttributeError, LookupError),
    *(TypeError, ValueError, RecursionError),
)
"""The errors of a template that gets other messages than it expects."""


class CompiledTemplate:
    """One template; threads may share it. Raises LoadError for one that is no Jinja.

    Attributes: ``names``, the variables that it reads; ``wants_parts``, whether it takes a message's content in parts
    and not as a string.
    """

    def __init__(self, environment: ChatEnvironment, text: str, where: str) -> None:
        try:
            tree = environment.parse(text)
            self.names = jinja2.meta.find_undeclared_variables(tree)
            loops = list(tree.find_all(nodes.For))
            self.wants_parts = any(_reads_content(loop.iter) for loop in loops) and not any(
                test.name == "string" for test in tree.find_all(nodes.Test)
            )
            code = environment.compile(Guards().visit(tree))
        except jinja2.TemplateSyntaxError as exc:
            raise LoadError(f"{where}: the chat template is no valid Jinja, line {exc.lineno}: {exc.message}") from exc
        self._template = environment.template_class.from_code(environment, code, environment.make_globals(None))

    def render(self, variables: Mapping[str, Json]) -> str:
        """The template's output. Raises InvalidInput for messages that it does not take, and TooLarge if it takes too
        long for them, or writes too much."""
        parts, size = [], 0
        try:
            for part in self._template.generate({**variables, BUDGET: time.monotonic() + sandbox.MOST_SECONDS}):
                parts.append(part)
                size += len(part)
                check_size(size)
        except OverBudget as exc:
            raise TooLarge.of(f"messages: the model's chat template is given up: {exc}") from exc
        except TEMPLATE_ERRORS as exc:
            raise InvalidInput.of(f"messages: the model's chat template does not take them: {_why(exc)}") from exc
        return "".join(parts)


def _why(error: Exception) -> str:
    """The template's own message if it refuses; else the kind of error, since its text may quote the chat."""
    if type(error) is jinja2.TemplateError:
        return str(error)[:300]
    return "it needs something that they lack" if isinstance(error, jinja2.UndefinedError) else type(error).__name__


def _reads_content(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content"


# Templates of a model


class ChatTemplate:
    """A model's chat template, or all of its templates; threads may share it.

    ``supports_tools`` says whether tools would appear in a prompt. ``special_tokens`` are the tokenizer's, by name
    (``bos_token`` and so on).
    """

    def __init__(self, templates: Mapping[str, CompiledTemplate], special_tokens: Mapping[str, str]) -> None:
        self._templates = templates
        self._special_tokens = dict(special_tokens)
        self.supports_tools = "tools" in self._choose(with_tools=True).names

    def render(
        self,
        messages: Sequence[Mapping[str, Json]],
        *,
        tools: Sequence[Json] | None = None,
        add_generation_prompt: bool = True,
        **more: Json,
    ) -> str:
        """The prompt, special tokens included: the tokenizer must not add any.

        Rendering a long chat may take milliseconds, and belongs in a thread. Contents are strings, and no field is
        null. ``more`` are further variables for the template. Raises InvalidInput and TooLarge as
        CompiledTemplate.render does.
        """
        template = self._choose(with_tools=tools is not None)
        variables = {
            "documents": None,
            **self._special_tokens,
            **more,
            "messages": [_with_aliases(one, template.wants_parts) for one in messages],
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        return template.render(variables)

    def _choose(self, *, with_tools: bool) -> CompiledTemplate:
        if with_tools and TOOL_USE in self._templates:
            return self._templates[TOOL_USE]
        return self._templates.get(DEFAULT) or next(iter(self._templates.values()))


def _with_aliases(given: Mapping[str, Json], in_parts: bool) -> dict[str, Json]:
    """A message with its thoughts under each name, and its content in the template's form."""
    message = dict(given)
    reasoning = next((message[name] for name in REASONING if name in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    if in_parts and "content" in message:
        message["content"] = [{"type": "text", "text": message["content"]}]
    return message


def load_chat_template(
    folder: Path | str, override: str | None = None, special_tokens: Mapping[str, str] | None = None
) -> ChatTemplate | None:
    """The chat template of a model's folder, None if it has none. Raises LoadError for one that can't be read.

    ``override`` is --chat_template: a file (Jinja, or JSON with a chat_template) or the template itself.
    """
    found = _overriding(override) if override else _in_folder(Path(folder))
    if not found:
        return None
    environment = ChatEnvironment()
    compiled = {name: CompiledTemplate(environment, text, where) for name, (text, where) in found.items()}
    return ChatTemplate(compiled, special_tokens or {})


def _overriding(given: str) -> dict[str, tuple[str, str]]:
    """By name: the template, and its origin."""
    path = Path(given)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a name, or with a null in it
        is_file = False
    if is_file:
        if path.suffix == ".json":
            return _named(read_json(path, required=True).get("chat_template"), str(path))
        return {DEFAULT: (_read(path), str(path))}
    if "{{" in given or "{%" in given:
        return {DEFAULT: (given, "--chat_template")}
    raise LoadError(f"--chat_template: expected a file or a Jinja template, and there is no file {given!r:.200}")


def _in_folder(folder: Path) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    if (single := folder / "chat_template.jinja").is_file():
        found[DEFAULT] = _read(single), str(single)
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = _read(path), str(path)
    if DEFAULT in found:
        return found
    for name in ("tokenizer_config.json", "chat_template.json"):
        own = read_json(folder / name, required=False).get("chat_template")
        if own:
            return _named(own, str(folder / name)) | found
    return found


def _named(given: Json, where: str) -> dict[str, tuple[str, str]]:
    """One template, or a list of {"name", "template"}, or an object with a template per name."""
    if isinstance(given, str):
        return {DEFAULT: (given, where)}
    named = given
    if isinstance(given, list) and all(isinstance(one, dict) for one in given):
        named = {one.get("name"): one.get("template") for one in given}
    if not isinstance(named, dict) or not all(isinstance(one, str) for pair in named.items() for one in pair):
        raise LoadError(f"{where}: chat_template: expected a template, or names with templates, got {describe(given)}")
    return {name: (text, where) for name, text in named.items()}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise LoadError(f"{path} can't be read as text: {exc}") from exc
