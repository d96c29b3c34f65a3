"""Rendering of chats to prompts with the model's chat template, as transformers does it.

Templates are read from the first of these sources: --chat_template; chat_template.jinja with
additional_chat_templates/*.jinja; chat_template in tokenizer_config.json; chat_template.json. A source may have several
named templates: tool_use renders chats with tools, and default renders all other chats.

Templates are untrusted: see sandbox.py.

Source: transformers 5.23, utils/chat_template_utils.py. Only a generative service imports this module and Jinja.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.meta import TrackingCodeGenerator

from hf_transformer.errors import InvalidInput, LoadError, TooLarge, describe
from hf_transformer.generation.sandbox import ChatEnvironment, Guards
from hf_transformer.generation.template_budget import BUDGET, OutOfTime, OverBudget, RenderBudget, check_size
from hf_transformer.generation.user_texts import UserTexts
from hf_transformer.tokenizer.files import read_file, read_json
from hf_transformer.types.request import Json

DEFAULT, TOOL_USE = "default", "tool_use"
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Message fields that contain the reasoning. Most templates read the first field, and some read the second."""

PROBE = "A question."
"""The text with which a template shows its placeholder of an image."""
CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "
"""The mark after the content of a continued message, as in transformers."""

MAX_TEMPLATE_CHARACTERS, MAX_TEMPLATE_NODES = 100_000, 10_000
"""Size limits of a template: characters, and expressions and statements. The longest of known models has 30,000
characters. The compiler holds the interpreter's lock."""
MAX_INLINE_SECONDS = 0.003
"""Time limit of a rendering on the event loop. A thread repeats a longer one: switching to it and back takes 0.1 ms,
and is slower while other threads compute."""
MAX_INLINE_BYTES = 20_000
"""Size limit of a request whose chat is rendered on the event loop."""


class CompiledTemplate:
    """One compiled template; thread-safe.

    Attributes:
        names: variables that the template reads.
        wants_parts: whether the template expects a message's content as a list of parts, not as a string.
    """

    def __init__(self, environment: ChatEnvironment, text: str, source: str) -> None:
        """Raises LoadError for an invalid or too large template; ``source`` names the template in the message."""
        if len(text) > MAX_TEMPLATE_CHARACTERS:
            expected = f"a chat template of at most {MAX_TEMPLATE_CHARACTERS} characters"
            raise LoadError(f"{source}: expected {expected}, got {len(text)}")
        try:
            tree = environment.parse(text)
            count = sum(1 for _ in tree.find_all(nodes.Node))
            if count > MAX_TEMPLATE_NODES:
                expected = f"a chat template of at most {MAX_TEMPLATE_NODES} expressions and statements"
                raise LoadError(f"{source}: expected {expected}, got {count}")
            self.names = _variables(tree)
            loops = list(tree.find_all(nodes.For))
            self.wants_parts = any(_reads_content(loop.iter) for loop in loops) and not any(
                test.name == "string" for test in tree.find_all(nodes.Test)
            )
            code = environment.compile(Guards().visit(tree))
        except jinja2.TemplateSyntaxError as exc:
            raise LoadError(f"{source}: the chat template is no valid Jinja, line {exc.lineno}: {exc.message}") from exc
        except LoadError:
            raise
        except Exception as exc:  # the compilers of Jinja and Python fail at deep nesting and large numbers
            detail = f"{type(exc).__name__}: {exc}"[:200]
            raise LoadError(f"{source}: the chat template can't be compiled: {detail}") from exc
        self._template = environment.template_class.from_code(environment, code, environment.make_globals(None))

    def render(self, variables: Mapping[str, Json], budget: RenderBudget) -> str:
        """Renders the template.

        Raises:
            InvalidInput: the template rejects the messages, or fails.
            TooLarge: it exceeds the size limit.
            OutOfTime: it exceeds the time limit.
        """
        parts, size = [], 0
        try:
            for part in self._template.generate({**variables, BUDGET: budget}):
                parts.append(part)
                size += len(part)
                check_size(size)
        except OutOfTime:
            raise
        except (OverBudget, MemoryError) as exc:
            raise too_large(exc) from exc
        except Exception as exc:  # a template can raise any exception of Python's own operations
            raise InvalidInput("messages", "a chat that the model's template accepts", hint=_reason(exc)) from exc
        return "".join(parts)


def too_large(reason: Exception) -> TooLarge:
    """The error of a rendering over a limit."""
    got = str(reason) or type(reason).__name__
    return TooLarge("messages", "a chat that its template renders within its limits", got)


def _variables(tree: nodes.Template) -> set[str]:
    """Variables that a template reads; jinja2.meta finds them too, but evaluates constant expressions."""
    generator = TrackingCodeGenerator(tree.environment)  # type: ignore[arg-type]  # a parsed template has one
    generator.optimizer = None
    generator.visit(tree)
    return generator.undeclared_identifiers


def _reason(error: Exception) -> str:
    """Error message raised by the template itself; for other errors only the type, since their text may quote the
    chat."""
    if type(error) is jinja2.TemplateError:
        return str(error)[:300]
    return "a field is missing" if isinstance(error, jinja2.UndefinedError) else f"it failed: {type(error).__name__}"


def _reads_content(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content"


# Templates of a model


class ChatTemplate:
    """A model's chat templates; thread-safe.

    Args:
        special_tokens: the tokenizer's special tokens by name (``bos_token``, ...).
        source: the text of all templates.

    Attributes:
        supports_tools: whether prompts contain the tools of a chat.
        user_texts: marks special tokens in texts of users, which are letters; None for tokens.
        names: variables that the templates read.
    """

    def __init__(
        self, templates: Mapping[str, CompiledTemplate], special_tokens: Mapping[str, str], source: str = ""
    ) -> None:
        self._templates = templates
        self.source = source
        self._special_tokens = dict(special_tokens)
        self.user_texts: UserTexts | None = None
        self.names = frozenset[str]().union(*(template.names for template in templates.values()))
        self.supports_tools = "tools" in self._choose(with_tools=True).names
        # One thread: renderings hold the interpreter's lock, so each further thread would only delay the event loop.
        self._thread = ThreadPoolExecutor(1, "chat-template")

    @cached_property
    def image_placeholder(self) -> str:
        """The text that stands for an image in a prompt; empty for a template that has no place for images."""
        text = {"type": "text", "text": PROBE}
        try:
            plain, with_image = (
                self.render([{"role": "user", "content": content}]) for content in ([text], [{"type": "image"}, text])
            )
        except (InvalidInput, TooLarge):
            return ""
        before, _, after = plain.partition(PROBE)
        image_before, probe, image_after = with_image.partition(PROBE)
        placeholder = image_before.removeprefix(before) + image_after.removesuffix(after)
        # A template that takes any content for a text shows the list itself.
        return placeholder if probe and "'type'" not in placeholder else ""

    @cached_property
    def takes_late_system(self) -> bool:
        """Whether the template renders a system prompt after other messages. Some refuse it, others leave it out."""
        roles = ("system", "user", "assistant", "user", "system", "user")
        try:
            prompt = self.render([{"role": role, "content": f"a{number}z"} for number, role in enumerate(roles)])
        except (InvalidInput, TooLarge):
            return False
        return "a4z" in prompt

    async def render_off_loop(
        self, size: int, messages: Sequence[Mapping[str, Json]], *, tools: Sequence[Json] | None = None, **options: Any
    ) -> str:
        """Renders as ``render`` does, on the event loop if that takes at most MAX_INLINE_SECONDS, else in a thread.

        ``size`` is the size of the request in bytes. Cancellation ends the rendering.
        """
        prepared = self._prepare(messages, tools, **options)
        if size <= MAX_INLINE_BYTES:
            try:
                return prepared(RenderBudget(MAX_INLINE_SECONDS))
            except OutOfTime:
                pass
        budget = RenderBudget()

        def work() -> str:
            budget.start()
            return prepared(budget)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except OutOfTime as exc:
            raise too_large(exc) from exc
        finally:
            budget.cancel()

    def render(
        self, messages: Sequence[Mapping[str, Json]], *, tools: Sequence[Json] | None = None, **options: Any
    ) -> str:
        """Renders the prompt with its special tokens; the tokenizer must not add them again.

        Contents are strings, or lists of parts with images, and no field is null. Options are ``add_generation_prompt``
        (by default true), ``continue_final_message``, which ends the prompt with the last message's content, as in
        transformers, and additional variables of the template. Raises InvalidInput and TooLarge as
        CompiledTemplate.render does.
        """
        try:
            return self._prepare(messages, tools, **options)(RenderBudget())
        except OutOfTime as exc:
            raise too_large(exc) from exc

    def _prepare(
        self,
        messages: Sequence[Mapping[str, Json]],
        tools: Sequence[Json] | None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Json,
    ) -> Callable[[RenderBudget], str]:
        """Chooses the template and its variables. Returns the rendering, which may be repeated."""
        template = self._choose(with_tools=tools is not None)
        if continue_final_message:
            *others, last = messages
            if not isinstance(last["content"], str):
                raise InvalidInput("messages", "a last message of text", "images", "it can't be continued")
            messages = [*others, {**last, "content": last["content"] + CONTINUED}]
        context = {
            "documents": None,
            **self._special_tokens,
            **variables,
            "messages": [_with_aliases(message, template.wants_parts) for message in messages],
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        texts, mark = self.user_texts, ""
        if texts is not None:
            context, mark = texts.mark(context, self._special_tokens.keys() - variables.keys())

        def rendering(budget: RenderBudget) -> str:
            prompt = template.render(context, budget)
            prompt = _cut(prompt) if continue_final_message else prompt
            return prompt if texts is None else texts.composed(prompt, mark)

        return rendering

    def _choose(self, *, with_tools: bool) -> CompiledTemplate:
        if with_tools and TOOL_USE in self._templates:
            return self._templates[TOOL_USE]
        return self._templates.get(DEFAULT) or next(iter(self._templates.values()))


def _cut(prompt: str) -> str:
    """Cuts a prompt at the mark CONTINUED, with the spaces before it if the template has trimmed the message."""
    start = prompt.rfind(CONTINUED.strip())
    if start < 0:
        raise InvalidInput("messages", "a last message whose content the template shows", hint="it can't be continued")
    return prompt[:start] if prompt.startswith(CONTINUED, start) else prompt[:start].rstrip()


def _with_aliases(message: Mapping[str, Json], in_parts: bool) -> dict[str, Json]:
    """Copies a message. Adds the aliases of its reasoning field, and converts its content to the template's format."""
    message = dict(message)
    reasoning = next((message[name] for name in REASONING if name in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    if in_parts and isinstance(message.get("content"), str):
        message["content"] = [{"type": "text", "text": message["content"]}]
    return message


def load_chat_template(
    folder: Path | str, override: str | None = None, special_tokens: Mapping[str, str] | None = None
) -> ChatTemplate | None:
    """Loads the chat templates of a model's folder; None if it has none. Raises LoadError for an invalid template.

    ``override`` is --chat_template: a file (Jinja, or JSON with a chat_template) or the template itself.
    """
    templates = _read_override(override) if override else _read_folder(Path(folder))
    if not templates:
        return None
    environment = ChatEnvironment()
    compiled = {name: CompiledTemplate(environment, text, source) for name, (text, source) in templates.items()}
    return ChatTemplate(compiled, special_tokens or {}, "\n".join(text for text, _ in templates.values()))


def _read_override(override: str) -> dict[str, tuple[str, str]]:
    """Reads --chat_template. Returns (template, source) by name."""
    path = Path(override)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a path, or with a null character
        is_file = False
    if is_file:
        if path.suffix == ".json":
            return _named(read_json(path, required=True).get("chat_template"), str(path))
        return {DEFAULT: (_read(path), str(path))}
    if "{{" in override or "{%" in override:
        return {DEFAULT: (override, "--chat_template")}
    raise LoadError(f"--chat_template: expected a file or a Jinja template, and there is no file {override!r:.200}")


def _read_folder(folder: Path) -> dict[str, tuple[str, str]]:
    """Reads the templates of a model's folder. Returns (template, source) by name."""
    templates: dict[str, tuple[str, str]] = {}
    if (single := folder / "chat_template.jinja").is_file():
        templates[DEFAULT] = _read(single), str(single)
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = _read(path), str(path)
    if DEFAULT in templates:
        return templates
    for name in ("tokenizer_config.json", "chat_template.json"):
        value = read_json(folder / name, required=False).get("chat_template")
        if value:
            return _named(value, str(folder / name)) | templates
    return templates


def _named(value: Json, source: str) -> dict[str, tuple[str, str]]:
    """Converts the value of chat_template: one template, a list of {"name", "template"}, or an object of templates by
    name."""
    if isinstance(value, str):
        return {DEFAULT: (value, source)}
    named = value
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        named = {item.get("name"): item.get("template") for item in value}
    if not isinstance(named, dict) or not all(isinstance(item, str) for pair in named.items() for item in pair):
        raise LoadError(f"{source}: chat_template: expected a template, or names with templates, got {describe(value)}")
    return {name: (text, source) for name, text in named.items()}


def _read(path: Path) -> str:
    try:
        return read_file(path, 4 * MAX_TEMPLATE_CHARACTERS).decode()
    except UnicodeDecodeError as exc:
        raise LoadError(f"{path} can't be read as text: {exc}") from exc
