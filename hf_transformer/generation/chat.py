"""Chats to prompts, by the model's own template.

It is looked for in this order: --chat_template, chat_template.jinja with additional_chat_templates/*.jinja,
chat_template in tokenizer_config.json (one, or several with names), chat_template.json. Of several, tool_use is for
chats with tools where there is one, and default for all others. Templates run in chat_sandbox.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hf_transformer.errors import InvalidInput, LoadError
from hf_transformer.tasks.base import describe
from hf_transformer.tokenizer.files import read_json
from hf_transformer.types import Json

if TYPE_CHECKING:
    from hf_transformer.generation.chat_sandbox import CompiledTemplate

DEFAULT, TOOL_USE = "default", "tool_use"

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names under which a message has the model's thoughts; templates read the first, some the second."""


class ChatTemplate:
    """A model's chat template, or all of its templates. It does not change, and threads may share it.

    ``supports_tools`` says whether tools would appear in a prompt. ``special_tokens`` are those that templates may
    name: ``bos_token`` and so on.
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
        documents: Sequence[Json] | None = None,
        add_generation_prompt: bool = True,
        **more: Json,
    ) -> str:
        """The prompt: special tokens are in it, so the tokenizer must not add any.

        For a long chat it may take milliseconds, and belongs in a thread. ``more`` are further variables for the
        template.

        Raises:
            InvalidInput: the messages are not what the template takes; it may have conditions of its own.
            TooLarge: the template takes too long for them, or writes too much.
        """
        if not messages:
            raise InvalidInput("messages: expected at least one, got none")
        template = self._choose(with_tools=tools is not None)
        variables = {
            **self._special_tokens,
            **more,
            "messages": [self._message(one, index, template.wants_parts) for index, one in enumerate(messages)],
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        return template.render(variables)

    def _choose(self, *, with_tools: bool) -> CompiledTemplate:
        if with_tools and TOOL_USE in self._templates:
            return self._templates[TOOL_USE]
        return self._templates.get(DEFAULT) or next(iter(self._templates.values()))

    def _message(self, given: Mapping[str, Json], index: int, in_parts: bool) -> dict[str, Json]:
        """A message without fields that are null, its content in the form that the template wants."""
        if not isinstance(given, Mapping):
            raise InvalidInput(f"messages[{index}]: expected an object, got {describe(given)}")
        message = {name: value for name, value in given.items() if value is not None}
        reasoning = next((message[name] for name in REASONING if name in message), None)
        if reasoning is not None:
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        if "content" in message:
            text = read_content(message["content"], f"messages[{index}].content")
            message["content"] = [{"type": "text", "text": text}] if in_parts else text
        return message


def read_content(content: Json, where: str) -> str:
    """The text of a message, which may come in parts. Raises InvalidInput for any part that is not text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidInput(f"{where}: expected a string or a list of parts, got {describe(content)}")
    texts = []
    for number, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type", "text") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else None
            got = f"one of type {kind[:40]!r}" if isinstance(kind, str) and kind != "text" else describe(part)
            raise InvalidInput(
                f'{where}[{number}]: expected a part {{"type": "text", "text": string}}, got {got}; '
                "the model reads text alone"
            )
        texts.append(part["text"])
    return "\n".join(texts)


def load_chat_template(
    folder: Path | str, override: str | None = None, special_tokens: Mapping[str, str] | None = None
) -> ChatTemplate | None:
    """The chat template of a model's folder, None if it has none.

    Args:
        override: --chat_template, a file (Jinja, or JSON with a chat_template) or the template itself.
        special_tokens: those of the tokenizer, by name (``bos_token`` and so on).

    Raises:
        LoadError: a file can't be read, or a template is no valid Jinja.
    """
    found = _overriding(override) if override else _in_folder(Path(folder))
    if not found:
        return None
    # Here, since a model without a template needs no Jinja.
    from hf_transformer.generation.chat_sandbox import ChatEnvironment, CompiledTemplate

    environment = ChatEnvironment()
    compiled = {name: CompiledTemplate(environment, text, where) for name, (text, where) in found.items()}
    return ChatTemplate(compiled, special_tokens or {})


Found = dict[str, tuple[str, str]]
"""By name: the template, and where it comes from."""


def _overriding(given: str) -> Found:
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


def _in_folder(folder: Path) -> Found:
    found: Found = {}
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


def _named(given: Json, where: str) -> Found:
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
