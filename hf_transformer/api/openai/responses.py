"""OpenAI's Responses API without stored state: chat completions with other names for fields, items and events.

A stream consists of named events, and ends with response.completed, response.incomplete or response.failed. See
chat_completions.py for the other fields.

Source: https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, field

from hf_transformer.api.bodies import choose_model, read_declared
from hf_transformer.api.call import Call
from hf_transformer.api.chat_completions import ChatRequest, prepare
from hf_transformer.api.chat_tools import FunctionName
from hf_transformer.api.chats import TEXT_ONLY, ReasoningEffort, TemplateVariables
from hf_transformer.api.generated_answers import GenerationBody
from hf_transformer.api.images import ChatImages, InputImage
from hf_transformer.api.message_form import (
    FunctionNamed,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    Mode,
    NamedTool,
    ResponseFormat,
    TextFormat,
    ToolChoice,
)
from hf_transformer.api.openai.response_answer import REASONING_ID, ResponseAnswer
from hf_transformer.api.service import Service, generative
from hf_transformer.api.streaming import TextStream
from hf_transformer.errors import InvalidInput, Path, describe
from hf_transformer.generation.parameters import NewTokens, TopTokens
from hf_transformer.generation.task import GENERATIVE
from hf_transformer.protocol.server_codec import note_ignored
from hf_transformer.types.fields import NO_EFFECT, Body, Form, OpenBody, about, only, read_value
from hf_transformer.types.http import Response
from hf_transformer.types.paths import EACH, TOP_LEVEL
from hf_transformer.types.request import Json

LOGPROBS = "message.output_text.logprobs"
BUILT_IN = "the service has no built-in tools"
RENAMED: Mapping[Path, Path] = {
    ("response_format",): ("text", "format"),
    ("response_format", "json_schema"): ("text", "format"),
    ("tools", EACH, "function"): ("tools", EACH),
    ("tool_choice", "function"): ("tool_choice",),
    ("logprobs",): ("include",),
    ("max_tokens",): ("max_output_tokens",),
    ("reasoning_effort",): ("reasoning", "effort"),
}
"""Paths in chat completions, with the paths of this API."""


class InputPart(OpenBody, tag_field="type", tag="input_text"):
    """A text of the client."""

    text: str


class OutputPart(OpenBody, tag_field="type", tag="output_text"):
    """A text of the assistant."""

    text: str


class RefusedPart(OpenBody, tag_field="type", tag="refusal"):
    """A refusal of the assistant."""

    refusal: str


ContentPart: TypeAlias = InputPart | OutputPart | RefusedPart
ImageOrText: TypeAlias = ContentPart | InputImage
PART: TypeAlias = Annotated[
    ContentPart, about(expected='a part {"type": "input_text", "text": string}', hint=TEXT_ONLY)
]
CONTENT_PARTS: Final = list[PART]
WITH_IMAGES: Final = list[Annotated[ImageOrText, about(expected="a part of the type input_text or input_image")]]
Content: TypeAlias = Annotated[
    str | list[Json], about(expected="a string or a list of parts", shown=(str, list[ImageOrText]))
]


# Items of the input


class MessageItem(Body, kw_only=True):
    """A message of the client."""

    type: Literal["message"] = "message"
    id: Annotated[Json, NO_EFFECT] = None
    status: Annotated[Json, NO_EFFECT] = None
    role: Annotated[Literal["user", "assistant", "system", "developer"], about("Author of the message.")]
    content: Content
    phase: Annotated[Json, NO_EFFECT] = None


class AnswerItem(MessageItem, forbid_unknown_fields=False):
    """A message of the assistant, with further fields of the server or library that made it."""


class CallItem(OpenBody, kw_only=True):
    """The call of a function by the assistant."""

    type: Literal["function_call"]
    id: Annotated[Json, NO_EFFECT] = None
    status: Annotated[Json, NO_EFFECT] = None
    call_id: str
    name: str
    arguments: Annotated[Json, about("An object as JSON text.", shown=(str,))] = None


class OutputItem(Body, kw_only=True):
    """The result of a call."""

    type: Literal["function_call_output"]
    id: Annotated[Json, NO_EFFECT] = None
    status: Annotated[Json, NO_EFFECT] = None
    call_id: str
    output: Content


class ReasoningPart(OpenBody):
    """A text of the model's reasoning."""

    type: Literal["reasoning_text", "text"]
    text: str


class ReasoningItem(OpenBody):
    """The model's reasoning before a message or a call. Chat templates decide whether the prompt has it."""

    type: Literal["reasoning"]
    id: Annotated[Json, NO_EFFECT] = None
    status: Annotated[Json, NO_EFFECT] = None
    summary: Annotated[Json, NO_EFFECT] = None
    content: Annotated[
        list[ReasoningPart] | None,
        about(expected='a list of parts {"type": "reasoning_text", "text": string}'),
    ] = None
    encrypted_content: Annotated[Json, NO_EFFECT] = None


Item: TypeAlias = MessageItem | AnswerItem | CallItem | OutputItem | ReasoningItem
ITEMS: Mapping[str, Form[Any]] = {
    "message": Form(MessageItem),
    "function_call": Form(CallItem),
    "function_call_output": Form(OutputItem),
    "reasoning": Form(ReasoningItem),
}
ANSWER_ITEM: Final = Form(AnswerItem)


# The body


class FlatSchemaFormat(JsonSchema, tag_field="type", tag="json_schema"):
    """JSON of a schema."""


class TextOptions(Body):
    """The form of a message that calls no tool."""

    format: Annotated[TextFormat | JsonObjectFormat | FlatSchemaFormat | None, about("Form of the text.")] = None
    verbosity: Annotated[Literal["medium"] | None, NO_EFFECT, about(hint="the model has no such setting")] = None


class ReasoningOptions(Body):
    """The model's reasoning."""

    effort: ReasoningEffort = None
    summary: Annotated[
        Literal["auto", "concise", "detailed"] | None, NO_EFFECT, about("Answers have the whole reasoning.")
    ] = None
    generate_summary: Annotated[Literal["auto", "concise", "detailed"] | None, NO_EFFECT] = None


class FlatTool(Body):
    """A function that the model may call."""

    type: Annotated[Literal["function"], about(hint=BUILT_IN)]
    name: FunctionName
    description: Annotated[Json, about("Purpose of the function.")] = None
    parameters: Annotated[dict[str, Json] | None, about("JSON schema of the arguments.")] = None
    strict: Annotated[bool | None, about("Whether the arguments are held to the schema.")] = None


class FlatNamedTool(OpenBody):
    """The tool that the message calls."""

    type: Annotated[Literal["function"], about(hint=BUILT_IN)]
    name: str


NOT_STORED, ALL_ITEMS = "the service stores nothing", "the service stores nothing; send all items as input"


class ShownPart(OpenBody):
    type: str


class ShownItem(OpenBody):
    """An item of the input, with the fields of all its kinds, for the document alone."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Annotated[
        str | list[ShownPart] | None, about("A text, or parts of the types input_text, output_text and refusal.")
    ] = None
    call_id: str | None = None
    name: str | None = None
    arguments: Annotated[str | None, about("An object as JSON text.")] = None
    output: Annotated[str | list[Json] | None, about("The result of the call.")] = None


Input: TypeAlias = Annotated[
    str | Annotated[list[Json], Meta(min_length=1)],
    about(
        "A text, or all items of the conversation.",
        expected="a string or a list of items",
        shown=(str, Annotated[list[ShownItem], Meta(min_length=1)]),
    ),
]
FlatTools: TypeAlias = Annotated[
    Annotated[list[Json], Meta(max_length=128)] | None,
    about(
        "Functions that the model may call.",
        shown=(Annotated[list[FlatTool], Meta(max_length=128)],),
        limits="tools",
    ),
]


class ResponsesRequest(GenerationBody, kw_only=True):
    """A request for a response."""

    input: Input
    instructions: Annotated[str | None, about("A system message before the input.")] = None
    max_tokens: NewTokens = field(default=None, name="max_output_tokens")
    top_logprobs: TopTokens = None
    include: Annotated[
        list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None,
        about("Further fields of the answer. The second has no effect, since reasoning is not encrypted."),
    ] = None
    text: Annotated[TextOptions | None, about("Form of a message that calls no tool.")] = None
    tools: FlatTools = None
    tool_choice: Annotated[
        Mode | FlatNamedTool | None,
        about(
            "Whether the model may or must call tools; auto if the request has tools.",
            expected='none, auto, required or {"type": "function", "name": ...}',
        ),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, about("Whether an answer may have several calls.", schema={"default": True})
    ] = None
    chat_template_kwargs: TemplateVariables = None
    store: Annotated[Json, only(False, because=NOT_STORED)] = None
    background: Annotated[Json, only(False, because=NOT_STORED)] = None
    previous_response_id: Annotated[Json, only(None, because=ALL_ITEMS)] = None
    conversation: Annotated[Json, only(None, because=ALL_ITEMS)] = None
    prompt: Annotated[Json, only(None, because="the service stores no prompts")] = None
    reasoning: Annotated[ReasoningOptions | None, about("The model's reasoning.")] = None
    include_reasoning: Annotated[
        bool | None,
        about("Whether the answer has the reasoning. The model writes it anyway.", schema={"default": True}),
    ] = None
    truncation: Annotated[Json, only("disabled", because="the service drops no items of a conversation")] = None


FORM, FLAT_TOOL = Form(ResponsesRequest), Form(FlatTool)


async def create(service: Service, call: Call) -> Response | TextStream:
    """Answers one request. Raises RequestError for a missing, invalid or unsupported field."""
    body = read_declared(call, FORM)
    model = generative(choose_model(service, call, body.model, GENERATIVE), "responses")
    messages, paths = read_input(body.input, body.instructions, call.context.ignored, ChatImages(model, call.budget))
    asked = ChatRequest(
        **{name: getattr(body, name) for name in GenerationBody.__struct_fields__},
        messages=messages,
        logprobs=LOGPROBS in (body.include or ()) or bool(body.top_logprobs),
        top_logprobs=body.top_logprobs,
        response_format=None if body.text is None else in_chats(body.text.format),
        tools=read_flat_tools(body.tools),
        tool_choice=_choicein_chats(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        chat_template_kwargs=body.chat_template_kwargs,
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        include_reasoning=body.include_reasoning,
    )
    call.context.field_names = namer(paths)
    answer, stream = await prepare(call, model, asked, {"max_tokens": "max_output_tokens"}, ResponseAnswer)
    answer.describe(call.json())
    return answer if stream else await answer.whole()


# Requests as chats


def namer(paths: Mapping[Path, Path]) -> Callable[[Path], Path]:
    """Returns a function from canonical paths to the client's. ``paths`` has those of calls and images."""
    names = TOP_LEVEL.then({**RENAMED, **paths})

    def name_of(path: Path) -> Path:
        path = names(path)
        return ("input",) if path[:1] == ("messages",) else path  # the items are more or fewer than the messages

    return name_of


def in_chats(form: TextFormat | JsonObjectFormat | FlatSchemaFormat | None) -> ResponseFormat:
    return JsonSchemaFormat(json_schema=form) if isinstance(form, FlatSchemaFormat) else form


def _choicein_chats(choice: Mode | FlatNamedTool | None) -> ToolChoice:
    if not isinstance(choice, FlatNamedTool):
        return choice
    return NamedTool(type=choice.type, function=FunctionNamed(name=choice.name))


def read_input(
    value: str | list[Json], instructions: str | None, ignored: list[str], images: ChatImages
) -> tuple[list[Json], dict[Path, Path]]:
    """Converts items to a chat's messages. Returns them, and by the path of each of their calls and images the client's
    path.

    A call joins the assistant's message before it, and reasoning the one after it. Raises InvalidInput.
    """
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    messages: list[Json] = [] if instructions is None else [{"role": "system", "content": instructions}]
    paths: dict[Path, Path] = {}
    reasoning: list[str] = []  # texts before the next message of the assistant

    def add_answer(content: Json) -> None:
        messages.append({"role": "assistant", "content": content})
        if reasoning:
            messages[-1]["reasoning_content"] = "\n".join(reasoning)
            reasoning.clear()

    def read_content(value: str | list[Json], path: Path) -> Json:
        content = _read_content(value, path, images)
        for place, part in enumerate(content if isinstance(content, list) else ()):
            if part["type"] != "text":
                paths["messages", len(messages), "content", place] = (*path, place)
        return content

    for index, raw in enumerate(value):
        path: Path = ("input", index)
        if _refers_to_reasoning(raw):
            note_ignored("input.item_reference", ignored)
            continue
        item = _read_item(raw, path, ignored)
        if isinstance(item, MessageItem):
            content = read_content(item.content, (*path, "content"))
            if item.role == "assistant":
                add_answer(content)
            else:
                reasoning.clear()
                messages.append({"role": item.role, "content": content})
        elif isinstance(item, OutputItem):
            content = read_content(item.output, (*path, "output"))
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
        elif isinstance(item, ReasoningItem):
            reasoning += [part.text for part in item.content or () if part.text]
        elif isinstance(item, CallItem):
            if reasoning or not messages or messages[-1]["role"] != "assistant":
                add_answer("")
            calls = messages[-1].setdefault("tool_calls", [])
            paths["messages", len(messages) - 1, "tool_calls", len(calls), "function"] = path
            function = {"name": item.name, "arguments": item.arguments}
            calls.append({"id": item.call_id, "type": "function", "function": function})
    return messages, paths


def _refers_to_reasoning(value: Json) -> bool:
    """Whether an item refers to the reasoning of an answer. The AI SDK sends such references; the chat goes on without
    the reasoning, which the service does not store."""
    if not isinstance(value, dict) or value.get("type") != "item_reference":
        return False
    name = value.get("id")
    return isinstance(name, str) and name.startswith(REASONING_ID)


def _read_item(value: Json, path: Path, ignored: list[str]) -> Item:
    """Reads an item except for its content. Other fields of an item that a model has made, such as
    ``parsed_arguments``, have no effect; ``ignored`` gets their names."""
    kind = (value.get("type") if isinstance(value, dict) else None) or "message"
    if not isinstance(kind, str) or kind not in ITEMS:
        hint = "the service stores nothing; send the item itself" if kind == "item_reference" else BUILT_IN
        raise InvalidInput(path, f"one of the types {', '.join(ITEMS)}", describe(kind, quote=True), hint)
    is_answer = kind == "message" and isinstance(value, dict) and value.get("role") == "assistant"
    unknown: list[str] = []
    item: Item = (ANSWER_ITEM if is_answer else ITEMS[kind]).read(value, unknown, path)
    for name in unknown:
        note_ignored(f"input.{name}", ignored)
    return item


def _read_content(value: str | list[Json], path: Path, images: ChatImages) -> Json:
    """Converts a content to a chat's. Raises InvalidInput for a part that the model does not read."""
    if isinstance(value, str):
        return value
    has_images = any(isinstance(part, dict) and part.get("type") == "input_image" for part in value)
    known = WITH_IMAGES if has_images and images.form is not None else CONTENT_PARTS
    parts: list[ImageOrText] = read_value(value, known, path)
    return [_in_chat(part) for part in parts]


def _in_chat(part: ImageOrText) -> Json:
    """Converts a part of a content to a chat's."""
    if isinstance(part, InputImage):
        return {"type": "image_url", "image_url": part.image_url}
    return {"type": "text", "text": part.refusal if isinstance(part, RefusedPart) else part.text}


def read_flat_tools(items: list[Json] | None) -> list[Json]:
    """Converts functions to a chat's tools. Raises InvalidInput for other tools."""
    for index, tool in enumerate(items or ()):
        FLAT_TOOL.read(tool, path=("tools", index))
    functions = [{name: member for name, member in tool.items() if name != "type"} for tool in items or ()]
    return [{"type": "function", "function": function} for function in functions]
