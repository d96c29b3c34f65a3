"""Anthropic's conversations as chats: messages and blocks become the messages that chat templates know.

    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "sunny"},
                                 {"type": "text", "text": "And tomorrow?"}]}
    -> {"role": "tool", "tool_call_id": "a", "content": "sunny"}, {"role": "user", "content": "And tomorrow?"}

Consecutive messages of a role are one, as in Anthropic's API. Texts join as in vLLM: those of the system prompt without
anything between them, others on lines of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from hf_transformer.api.anthropic.bodies import (
    BLOCKS,
    BLOCKS_OF,
    CLIENT_TOOL,
    NO_SERVER_TOOLS,
    TURN,
    UNREAD,
    ConversationBody,
    MessagesRequest,
    OutputFormat,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from hf_transformer.api.chat_completions import ChatRequest
from hf_transformer.api.images import ChatImages, ImageBlock, from_block
from hf_transformer.api.message_form import (
    FunctionNamed,
    JsonSchema,
    JsonSchemaFormat,
    NamedTool,
    ResponseFormat,
    ToolChoice,
)
from hf_transformer.errors import InvalidInput, Path, describe
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.protocol.server_codec import note_ignored
from hf_transformer.types.fields import read_value
from hf_transformer.types.paths import EACH, TOP_LEVEL
from hf_transformer.types.request import Context, Json

if TYPE_CHECKING:
    from hf_transformer.generation.chat import ChatTemplate  # imports Jinja

BILLING: Final = "x-anthropic-billing-header"
"""Start of a block that Claude Code adds to the system prompt. It differs from request to request, so it would keep
predictors from reusing the prompt. vLLM leaves it out, too."""
SWITCH, OTHER_SWITCH = "enable_thinking", "thinking"
"""The variable of chat templates that switches reasoning on; the second in those of DeepSeek and Granite."""
FORMAT: Final = ("output_config", "format")
RENAMED: Mapping[Path, Path] = {
    ("messages", EACH): ("messages",),  # a chat has more or fewer messages
    ("tools", EACH, "function"): ("tools", EACH),
    ("tools", EACH, "function", "parameters"): ("tools", EACH, "input_schema"),
    ("tool_choice", "function"): ("tool_choice",),
    ("stop",): ("stop_sequences",),
}
"""Paths in chats, with the paths of this API."""


def to_chat(body: ConversationBody, model: GenerativeModel, context: Context, images: ChatImages) -> ChatRequest:
    """Converts a conversation to a chat. Sets the names of fields, for later errors. ``images`` knows whether the model
    takes any. Raises InvalidInput."""
    template, turns = model.chat_template, list(enumerate(body.messages))
    if is_first := template is not None and not template.takes_late_system:
        turns.sort(key=lambda turn: not _is_system(turn[1]))
    reader = _Reader(context.ignored, images, joins_system=is_first)
    reader.read_system(body.system)
    for index, message in turns:
        reader.read_turn(message, ("messages", index))
    messages = reader.joined()
    if not messages:
        raise InvalidInput("messages", "a text", "none")
    form, path = _read_format(body)
    selection = body.tool_choice
    chat = ChatRequest(
        model=body.model,
        messages=messages,
        tools=_read_tools(body.tools),
        tool_choice=_read_choice(body),
        parallel_tool_calls=None if selection is None else not selection.disable_parallel_tool_use,
        response_format=form,
        reasoning_effort=None if body.output_config is None else body.output_config.effort,
        chat_template_kwargs=_variables(body, template, context.ignored),
    )
    if messages[-1]["role"] == "assistant":
        if "tool_calls" in messages[-1]:
            hint = "the next message has a tool_result for each tool_use"
            raise InvalidInput("messages", "a last message without tool_use", "one with calls", hint)
        chat.add_generation_prompt, chat.continue_final_message = False, True
    if isinstance(body, MessagesRequest):
        chat.max_tokens, chat.stop, chat.stream = body.max_tokens, body.stop_sequences, body.stream
        chat.temperature, chat.top_k, chat.top_p = body.temperature, body.top_k, body.top_p
    context.field_names = _namer(reader.calls, path)
    return chat


def _is_system(message: Json) -> bool:
    return isinstance(message, dict) and message.get("role") == "system"


def _namer(calls: Mapping[Path, Path], form: Path) -> Callable[[Path], Path]:
    """Returns a function from canonical paths to the client's. ``calls`` has the blocks of a chat's tool calls, and
    ``form`` is the field of the text's form."""
    forms: dict[Path, Path] = {("response_format",): form, ("response_format", "json_schema"): form}
    return TOP_LEVEL.then({**RENAMED, **forms, **calls})


# Messages


class _Reader:
    """Reads messages into a chat's. ``joins_system`` joins system prompts in a row, as vLLM does for templates that
    take a system prompt at the start only.

    Attributes:
        messages: the chat's messages, whose texts may be lists.
        calls: by the path of each call's function, and of each image, in the chat the path in the conversation.
    """

    def __init__(self, ignored: list[str], images: ChatImages, *, joins_system: bool) -> None:
        self._ignored = ignored
        self._images = images
        self._joins_system = joins_system
        self.messages: list[dict[str, Json]] = []
        self.calls: dict[Path, Path] = {}

    def joined(self) -> list[dict[str, Json]]:
        """Returns the messages, with their texts joined."""
        for message in self.messages:
            if message["role"] == "system":
                message["content"] = "".join(message["content"])
            if "reasoning_content" in message:
                message["reasoning_content"] = "".join(message["reasoning_content"])
        return self.messages

    def read_system(self, system: str | list[Json] | None) -> None:
        """Reads the system prompt."""
        if system is not None:
            self._add_system(system, ("system",))

    def read_turn(self, value: Json, path: Path) -> None:
        """Reads a message. Raises InvalidInput."""
        unknown: list[str] = []
        turn = TURN.read(value, unknown, path)
        for name in unknown:
            note_ignored(f"messages.{name}", self._ignored)
        path = (*path, "content")
        if turn.role == "system":
            self._add_system(turn.content, path)
        elif isinstance(turn.content, str):
            self._add_text(turn.role, turn.content)
        else:
            self._message(turn.role)  # of an empty list, too
            kinds, with_images = BLOCKS_OF[turn.role], turn.role == "user"
            for index, block in enumerate(turn.content):
                block_path = (*path, index)
                self._add_block(
                    turn.role, self._read_block(block, block_path, kinds, with_images=with_images), block_path
                )

    def _add_system(self, content: str | list[Json], path: Path) -> None:
        if isinstance(content, str):
            texts = [content]
        else:
            texts = [self._read_block(one, (*path, index), ("text",)).text for index, one in enumerate(content)]
        kept = [text for text in texts if not text.startswith(BILLING)]
        if len(kept) < len(texts):
            note_ignored(f"system.{BILLING}", self._ignored)
        if not (text := "".join(kept)):
            return
        if self._joins_system and self.messages:
            self.messages[-1]["content"].append(text)
        else:
            self.messages.append({"role": "system", "content": [text]})

    def _read_block(self, value: Json, path: Path, kinds: tuple[str, ...], *, with_images: bool = False) -> Any:
        """Reads a block of one of the types; of a model that takes images, also one of them. Raises InvalidInput."""
        if not isinstance(value, dict):
            raise InvalidInput(path, 'a block {"type": "text", "text": string}', describe(value))
        kind = value.get("type")
        if kind == "image" and with_images and self._images.form is not None:
            return read_value(value, ImageBlock, path)
        if not isinstance(kind, str) or kind not in kinds:
            known = isinstance(kind, str) and kind in BLOCKS and kind not in UNREAD
            hint = "" if known or not isinstance(kind, str) else UNREAD.get(kind, NO_SERVER_TOOLS)
            got = "nothing" if kind is None else describe(kind, quote=True)
            raise InvalidInput((*path, "type"), f"one of the types {', '.join(kinds)}", got, hint)
        return read_value(value, BLOCKS[kind], path)

    def _message(self, role: str) -> dict[str, Json]:
        """Returns the last message if the role has written it, else a new one."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": []})
        return self.messages[-1]

    def _add_text(self, role: str, text: str) -> None:
        self._message(role)["content"].append({"type": "text", "text": text})

    def _image(self, block: ImageBlock, path: Path, message: int, index: int) -> Json:
        """Converts an image that becomes a part of a message."""
        part, source = from_block(block, path)
        in_chat: Path = ("messages", message, "content", index)
        self.calls |= {in_chat: path, (*in_chat, "image_url", "url"): source}
        return part

    def _add_block(self, role: str, block: Any, path: Path) -> None:
        if isinstance(block, TextBlock):
            self._add_text(role, block.text)
        elif isinstance(block, ImageBlock):
            content = self._message(role)["content"]
            content.append(self._image(block, path, len(self.messages) - 1, len(content)))
        elif isinstance(block, ThinkingBlock):
            self._message(role).setdefault("reasoning_content", []).append(block.thinking)
        elif isinstance(block, RedactedThinkingBlock):
            note_ignored("messages.content.redacted_thinking", self._ignored)
        elif isinstance(block, ToolUseBlock):
            calls = self._message(role).setdefault("tool_calls", [])
            function: Path = ("messages", len(self.messages) - 1, "tool_calls", len(calls), "function")
            self.calls |= {function: path, (*function, "arguments"): (*path, "input")}
            calls.append(
                {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
            )
        elif isinstance(block, ToolResultBlock):
            self._add_result(block, path)

    def _add_result(self, block: ToolResultBlock, path: Path) -> None:
        content = block.content or ""
        if not isinstance(content, str):
            path = (*path, "content")
            blocks = [
                self._read_block(one, (*path, index), ("text",), with_images=True) for index, one in enumerate(content)
            ]
        if self.messages[-1] == {"role": "user", "content": []}:
            self.messages.pop()
        if not isinstance(content, str):
            content = self._result_content(blocks, path, block.is_error or False)
        elif block.is_error:
            content = f"Error: {content}"
        self.messages.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})

    def _result_content(self, blocks: Sequence[Any], path: Path, is_error: bool) -> Json:
        """Returns the content of a tool's message: its texts in lines, or its parts if it has images."""
        error = "Error: " if is_error else ""
        if not any(isinstance(block, ImageBlock) for block in blocks):
            return error + "\n".join(block.text for block in blocks)
        parts: list[Json] = [{"type": "text", "text": error}] if is_error else []
        for index, block in enumerate(blocks):
            is_image = isinstance(block, ImageBlock)
            part_index = len(self.messages), len(parts)
            parts.append(
                self._image(block, (*path, index), *part_index) if is_image else {"type": "text", "text": block.text}
            )
        return parts


# Other fields


def _read_tools(items: list[Json] | None) -> list[Json] | None:
    """Converts tools to a chat's. Raises InvalidInput for tools of a server."""
    if items is None:
        return None
    tools: list[Json] = []
    for index, item in enumerate(items):
        tool = CLIENT_TOOL.read(item, path=("tools", index))
        function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        tools.append({"type": "function", "function": {**function, "strict": tool.strict}})
    return tools


def _read_choice(body: ConversationBody) -> ToolChoice:
    selection = body.tool_choice
    if selection is None:
        return None
    if selection.type in ("any", "tool") and not body.tools:
        raise InvalidInput("tool_choice", "no choice without tools", repr(selection.type), "add tools")
    if selection.type == "tool":
        if selection.name is None:
            raise InvalidInput(("tool_choice", "name"), "the name of a tool", "nothing")
        return NamedTool(type="function", function=FunctionNamed(name=selection.name))
    if selection.type == "auto" and not body.tools:
        return None
    return "required" if selection.type == "any" else selection.type


def _read_format(body: ConversationBody) -> tuple[ResponseFormat, Path]:
    """Returns the form of the text, and the path of its field. Raises InvalidInput for two of them."""
    form = None if body.output_config is None else body.output_config.format
    if form is not None and body.output_format is not None:
        raise InvalidInput("output_format", "output_config.format or output_format", "both", "they mean the same")
    path: Path = FORMAT if body.output_format is None else ("output_format",)
    return _in_chats(form or body.output_format), path


def _in_chats(form: OutputFormat | None) -> ResponseFormat:
    return None if form is None else JsonSchemaFormat(json_schema=JsonSchema(schema=form.schema))


def _variables(body: ConversationBody, template: ChatTemplate | None, ignored: list[str]) -> dict[str, Json] | None:
    """Returns the variables of the chat template; the client's own go first."""
    if body.thinking is None:
        return body.chat_template_kwargs
    if body.thinking.budget_tokens is not None:
        note_ignored("thinking.budget_tokens", ignored)
    names = frozenset() if template is None else template.names
    name = OTHER_SWITCH if OTHER_SWITCH in names and SWITCH not in names else SWITCH
    return {name: body.thinking.type != "disabled", **(body.chat_template_kwargs or {})}
