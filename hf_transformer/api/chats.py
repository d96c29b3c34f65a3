"""Chats in requests: messages of all forms, and prompts that a model's chat template renders from them.

The OpenAI API, vLLM's render routes and its /tokenize read chats here.

Source: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal, Protocol, TypeAlias

import orjson
from msgspec import Meta

from hf_transformer.api.call import Call
from hf_transformer.api.chat_tools import CALL, Tools, for_template, in_order, read_tools, without_nulls
from hf_transformer.api.errors import expect
from hf_transformer.api.images import ChatImages, ImageUrl
from hf_transformer.errors import InvalidInput, Path
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.protocol.json_text import SMALL_BYTES, JsonLimits, check_depth, check_size
from hf_transformer.protocol.server_codec import note_ignored
from hf_transformer.types.fields import NO_EFFECT, Form, OpenBody, about, only, read_value
from hf_transformer.types.request import Json

if TYPE_CHECKING:
    from hf_transformer.generation.chat import ChatTemplate  # imports Jinja

TEXT_ONLY: Final = "the model reads text only"
STRINGS: Final = ("name", "tool_call_id", "reasoning_content", "reasoning")
"""String fields of a message that templates read."""
REASONING_PARTS: Final = ("thinking", "redacted_thinking", "reasoning")
"""Types of parts in an assistant's content that the model does not read."""
REASONING_FIELDS: Final = frozenset(("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks"))
"""Fields of an assistant's message without content, whose tokens were all reasoning."""
WITH_IMAGES: Final = ("user", "tool")
"""Roles of messages that may have images."""
RESERVED_VARIABLES: Final = ("messages", "tools", "add_generation_prompt", "continue_final_message", "self")
"""Template variables that the request or Jinja sets. chat_template_kwargs can't override them."""


class CacheControl(OpenBody):
    """Caching hint from clients of Anthropic's models. It has no effect."""

    type: Literal["ephemeral"] | None = None


class TextPart(OpenBody, kw_only=True):
    """A part of a message's content."""

    type: Annotated[Literal["text"] | None, about(hint=TEXT_ONLY)] = "text"
    text: str
    cache_control: Annotated[Json, NO_EFFECT] = None


class MessagePart(OpenBody, kw_only=True):
    """A part of a message's content, with the fields of all kinds, for the document alone."""

    type: Annotated[
        Literal["text", "image_url", "refusal"], about("image_url needs a model with an input for images.")
    ] = "text"
    text: str | None = None
    image_url: ImageUrl | str | None = None
    refusal: str | None = None
    cache_control: Annotated[Json, NO_EFFECT] = None


class RefusalPart(OpenBody):
    """A part of an assistant's content in place of text."""

    type: Literal["refusal"]
    refusal: str


class CalledFunction(OpenBody):
    """The call of a function in an assistant's message."""

    name: str
    arguments: Annotated[Json, about("An object, or its JSON text.", shown=(dict[str, Json], str))] = None


class AssistantCall(OpenBody, kw_only=True):
    """The call of a tool in an assistant's message."""

    id: Annotated[Json, about("Name of the call, which the tool's message repeats.")] = None
    type: Annotated[Json, about("Always function.", shown=(Literal["function"],))] = None
    function: CalledFunction


class ChatMessage(OpenBody):
    """An assistant's message. It may have fields of the server or library that made it, without effect."""

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool"],
        about("Author of the message; system is the older name of developer."),
    ]
    content: Annotated[
        str | list[Json] | None, about(expected="a string or a list of parts", shown=(str, list[MessagePart]))
    ] = None
    tool_calls: Annotated[
        list[Json] | None, about("Calls of tools by the assistant.", shown=(list[AssistantCall],))
    ] = None
    refusal: Annotated[str | None, about("The assistant's message, if it has no content.")] = None
    annotations: Annotated[Json, about("Without effect; empty unless the assistant's.", shown=(list[Json],))] = None
    cache_control: Annotated[CacheControl | None, NO_EFFECT, about(expected='{"type": "ephemeral"}')] = None
    name: Annotated[str | None, about("Name of the author.")] = None
    tool_call_id: Annotated[str | None, about("The call that a tool's message answers.")] = None
    reasoning_content: Annotated[str | None, about("The reasoning before the content.")] = None
    reasoning: Annotated[str | None, about("The same in other servers' answers.")] = None
    function_call: Annotated[Json, only(because="calls are in tool_calls")] = None


class OtherMessage(ChatMessage, forbid_unknown_fields=True):
    """A message of another role, whose unknown fields are refused."""

    tool_calls: Annotated[Json, only([], because="only the assistant calls tools")] = None
    refusal: Annotated[Json, only(because="only the assistant refuses")] = None
    annotations: Annotated[Json, only([], because="the model can't read them")] = None


PART: Final = Annotated[TextPart, about(expected='a part {"type": "text", "text": string}', hint=TEXT_ONLY)]
REFUSAL_PART, TOOL_CALL = Form(RefusalPart), Form(AssistantCall)
ASSISTANT_MESSAGE, OTHER_MESSAGE = Form(ChatMessage), Form(OtherMessage)
Messages: TypeAlias = Annotated[
    Annotated[list[Json], Meta(min_length=1)],
    about("The chat.", expected="a list of messages", shown=(Annotated[list[ChatMessage], Meta(min_length=1)],)),
]
TemplateVariables: TypeAlias = Annotated[dict[str, Json] | None, about("Further variables of the chat template.")]


# Prompts


def require_template(model: GenerativeModel) -> ChatTemplate:
    """Returns the chat template of a model. Raises InvalidInput if it has none."""
    if model.chat_template is None:
        hint = "use completions, or start the service with --chat_template"
        raise InvalidInput("model", "a model with a chat template", repr(model.name), hint)
    return model.chat_template


async def render_prompt(
    call: Call,
    template: ChatTemplate,
    messages: Sequence[Json],
    *,
    tools: Sequence[Json] = (),
    variables: Mapping[str, Json] | None = None,
    tool_form: Callable[[Json], Json] = for_template,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    images: ChatImages | None = None,
    **given: Json,
) -> str:
    """Renders a chat as a prompt that contains its special tokens.

    Args:
        messages: the messages as sent.
        tools: valid tools, see read_tools.
        variables: the client's variables of the template, ``chat_template_kwargs``.
        tool_form: converts a tool to its form in the prompt.
        add_generation_prompt: whether the prompt ends with the beginning of the assistant's message.
        continue_final_message: whether the prompt ends within the last message.
        images: gets the images of the messages; None for a route that reads texts alone.
        given: further variables.

    Raises:
        InvalidInput: a message is invalid, or the template rejects the messages.
        TooLarge: the chat exceeds a limit.
    """
    read = read_messages(messages, call.limits, call.context.ignored, images)
    if images:
        await images.load()
        if images.form == "url":
            read = [{**read[0], "content": images.ask(read, tools=bool(tools))}]
        elif not template.image_placeholder:
            hint = "the chat template has no place for images"
            raise InvalidInput(images.first_path, "text", "an image", hint)
    variables = without_nulls(variables or {})
    check_depth("chat_template_kwargs", variables, call.limits)
    for name in variables:
        if name in RESERVED_VARIABLES:
            raise InvalidInput(("chat_template_kwargs", name), "no such variable", hint="the request itself sets it")
    return await template.render_off_loop(
        call.size,
        read,
        tools=[tool_form(tool) for tool in tools] or None,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        **{**variables, **given},
    )


Documents: TypeAlias = Annotated[list[dict[str, Json]] | None, about("Documents, for templates that read them.")]
GenerationPrompt: TypeAlias = Annotated[bool, about("Whether the prompt ends with the start of an answer.")]
FinalMessage: TypeAlias = Annotated[bool, about("Whether the prompt ends within the last message.")]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""OpenAI's values, and ``max`` as in vLLM."""
ReasoningEffort: TypeAlias = Annotated[
    Effort | None, about("Variable of the chat template, which also sets enable_thinking: false for none.")
]
OwnTemplate: TypeAlias = Annotated[
    Json, only(because="the service renders only templates of its operator"), about("Refused: a template.")
]


class RenderedChat(Protocol):
    """Fields of vLLM's bodies that render a chat."""

    messages: Messages
    tools: Tools
    tool_choice: Json
    documents: Documents
    chat_template_kwargs: TemplateVariables
    add_generation_prompt: bool
    continue_final_message: bool
    reasoning_effort: ReasoningEffort


def reasoning_variables(effort: str | None, chosen: Mapping[str, Json] | None) -> dict[str, Json]:
    """Variables of the chat template for ``reasoning_effort``, as in vLLM. ``chosen`` are the client's own ones."""
    if effort is None:
        return {}
    variables: dict[str, Json] = {"reasoning_effort": effort}
    if "enable_thinking" not in (chosen or {}):
        variables["enable_thinking"] = effort != "none"
    return variables


async def render_chat(call: Call, model: GenerativeModel, chat: RenderedChat, images: ChatImages | None = None) -> str:
    """Renders a chat as the prompt that the model gets, with its special tokens. Raises InvalidInput or TooLarge.

    vLLM's server answers the chats of a model without a predictor, so its tools have vLLM's form. Otherwise the service
    answers them, so they have its own form.
    """
    template = require_template(model)
    if chat.continue_final_message and chat.add_generation_prompt:
        raise InvalidInput("continue_final_message", "false", "true", 'or send "add_generation_prompt": false')
    tools = read_tools(chat.tools, call.limits)
    variables: dict[str, Json] = {}
    if chat.documents is not None:
        variables["documents"] = chat.documents
    variables |= reasoning_variables(chat.reasoning_effort, chat.chat_template_kwargs)
    if not template.supports_tools or (model.has_predictor and chat.tool_choice == "none"):
        tools = []
    return await render_prompt(
        call,
        template,
        chat.messages,
        tools=tools,
        variables=chat.chat_template_kwargs,
        tool_form=for_template if model.has_predictor else _as_vllm,
        add_generation_prompt=chat.add_generation_prompt,
        continue_final_message=chat.continue_final_message,
        images=images,
        **variables,
    )


def _as_vllm(tool: Mapping[str, Json]) -> dict[str, Json]:
    """Returns a tool with the fields, order and nulls with which vLLM gives it to a template, its schema as sent."""
    function = tool["function"]
    names = ("name", "description", "parameters", *(("strict",) if "strict" in function else ()))
    return {"type": "function", "function": {name: function.get(name) for name in names}}


# Messages


def read_messages(
    items: Sequence[Json], limits: JsonLimits, ignored: list[str], images: ChatImages | None = None
) -> list[dict[str, Json]]:
    """Converts messages to the form that templates expect: text contents, and objects as arguments of tool calls. A
    content with images, which ``images`` gets, is a list of parts.

    Arguments are JSON in a string, so ``limits`` apply to them separately from the body. An assistant's message may
    have fields of the server or library that made it, such as ``parsed``; they have no effect, and ``ignored`` gets
    their names.

    Raises:
        InvalidInput: a message has a missing, unknown or invalid field.
        TooLarge: the arguments of all calls together exceed the limits.
    """
    functions: dict[Path, dict[str, Json]] = {}
    messages = [
        _read_message(message, ("messages", index), functions, ignored, images) for index, message in enumerate(items)
    ]
    check_depth("messages", [message.get("tool_calls") for message in messages], limits)
    texts = [function["arguments"] for function in functions.values() if isinstance(function["arguments"], str)]
    if sum(map(len, texts)) > SMALL_BYTES:
        # Parsing follows the same order: an unclosed quote hides only text after the syntax error.
        check_size(" ".join(texts).encode(), limits)
    for path, function in functions.items():
        arguments, path = function["arguments"], (*path, "arguments")
        if isinstance(arguments, str):  # OpenAI sends JSON as text; templates serialize objects themselves
            try:
                arguments = orjson.loads(arguments or "{}")
            except orjson.JSONDecodeError:
                raise InvalidInput(path, "an object as JSON text", "invalid JSON") from None
        check_depth(path, arguments, limits)
        function["arguments"] = expect(arguments, dict, path, "an object as JSON text")
    return messages


def _read_message(
    value: Json,
    path: Path,
    functions: dict[Path, dict[str, Json]],
    ignored: list[str],
    images: ChatImages | None,
) -> dict[str, Json]:
    """Reads a message. Adds each called function to ``functions`` by its path, with unparsed arguments."""
    is_assistant, unknown = isinstance(value, dict) and value.get("role") == "assistant", list[str]()
    message = (ASSISTANT_MESSAGE if is_assistant else OTHER_MESSAGE).read(value, unknown, path)
    for name in unknown:
        note_ignored(f"messages.{name}", ignored)
    calls = message.tool_calls or []
    if message.annotations not in (None, []):
        note_ignored("messages.annotations", ignored)
    text = _read_content(message, path, ignored, images if message.role in WITH_IMAGES else None)
    if text is None:
        has_reasoning = is_assistant and not REASONING_FIELDS.isdisjoint(without_nulls(value))
        if not calls and not has_reasoning:
            raise InvalidInput((*path, "content"), "a string or a list of parts", "nothing")
        text = ""
    role = "system" if message.role == "developer" else message.role
    rendered: dict[str, Json] = {"role": role, "content": text}
    for name in STRINGS:
        if (string := getattr(message, name)) is not None:
            rendered[name] = string
    if calls:  # some templates only test for the key
        rendered["tool_calls"] = _read_calls(calls, (*path, "tool_calls"), functions, ignored)
    return rendered


def _read_content(message: ChatMessage, path: Path, ignored: list[str], images: ChatImages | None) -> Json:
    """Returns the content of a message as text, or in parts if it has images; None without one. An assistant's refusal
    may replace the content."""
    text, refusal, is_assistant = message.content, message.refusal, message.role == "assistant"
    if isinstance(text, list):
        text = _read_parts(text, (*path, "content"), ignored if is_assistant else None, images)
    if refusal is None:
        return text
    if text and refusal:
        raise InvalidInput((*path, "refusal"), "a content or a refusal", "both")
    return text or refusal


def _read_parts(
    parts: Sequence[Json], path: Path, ignored: list[str] | None, images: ChatImages | None
) -> str | list[Json]:
    """Returns the parts of a content as text, on separate lines, or as parts if there are images.

    ``ignored`` is given for an assistant's content, which may have refusals, and reasoning, which has no effect; it
    gets their types. Raises InvalidInput for a part that is not text.
    """
    texts: list[Json] = []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if ignored is not None and kind in REASONING_PARTS:
            note_ignored(f"messages.content.{kind}", ignored)
        elif ignored is not None and kind == "refusal":
            texts.append(REFUSAL_PART.read(part, path=(*path, index)).refusal)
        elif kind == "image_url" and images is not None and images.form is not None:
            texts.append(images.add(part, (*path, index)))
        else:
            texts.append(read_value(part, PART, (*path, index)).text)
    if all(isinstance(text, str) for text in texts):
        return "\n".join(texts)
    return [{"type": "text", "text": text} if isinstance(text, str) else text for text in texts]


def _read_calls(
    items: Sequence[Json], path: Path, functions: dict[Path, dict[str, Json]], ignored: list[str]
) -> list[Json]:
    """Reads the tool calls of a message; see _read_message for ``functions``. Templates may render all fields of a
    call, so the result excludes others than OpenAI's."""
    calls = []
    for index, item in enumerate(items):
        unknown: list[str] = []
        function = TOOL_CALL.read(item, unknown, (*path, index)).function
        functions[*path, index, "function"] = called = {"name": function.name, "arguments": function.arguments}
        known = {name: member for name, member in without_nulls(item).items() if name in CALL}
        calls.append(in_order(known | {"function": called}, CALL))
        for name in unknown:
            note_ignored(f"messages.tool_calls.{name}", ignored)
        for name in item["function"]:
            if name not in called:
                note_ignored(f"tool_calls.function.{name}", ignored)
    return calls
