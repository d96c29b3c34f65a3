"""OpenAI's Responses API without stored state: chat completions with other names for fields, items and events.

    {"model": "m", "input": "..." | [item, ...], "instructions": null, "max_output_tokens": null, "tools": [...],
     "text": {"format": {"type": "text"}}, "stream": false, ...}
    -> {"id": "resp_...", "object": "response", "status": "completed" | "incomplete", "output": [item, ...], "usage",
        ...}

A stream consists of named events, and ends with response.completed, response.incomplete or response.failed. See chat.py
for the other fields.

Source: https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

import orjson
from msgspec import Meta, field

from hf_transformer.api.bodies import choose_model, read_declared
from hf_transformer.api.call import Call, new_request_id
from hf_transformer.api.chat_tools import FunctionName, without_nulls
from hf_transformer.api.chats import TEXT_ONLY, TemplateVariables
from hf_transformer.api.openai.chat import ChatAnswer, ChatRequest, prepare
from hf_transformer.api.openai.generation import GenerationBody, usage
from hf_transformer.api.openai.structured import (
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
from hf_transformer.api.responses import reply
from hf_transformer.api.service import Service, generative
from hf_transformer.api.streaming import TextStream, event
from hf_transformer.errors import InvalidInput, Path, RequestError, describe, show_path
from hf_transformer.generation.parameters import NewTokens, TopTokens
from hf_transformer.generation.task import GENERATIVE
from hf_transformer.generation.types import Piece
from hf_transformer.protocol.server_codec import note_ignored
from hf_transformer.types.fields import NO_EFFECT, Body, Form, OpenBody, about, only, read_value
from hf_transformer.types.http import Response
from hf_transformer.types.paths import EACH, TOP_LEVEL
from hf_transformer.types.request import Json

UNSET: Mapping[str, Json] = {
    **dict.fromkeys("error incomplete_details instructions max_output_tokens previous_response_id usage user".split()),
    **{"background": False, "metadata": {}, "parallel_tool_calls": True, "prompt_cache_key": None, "reasoning": {}},
    **{"service_tier": "default", "store": False, "temperature": 1.0, "text": {"format": {"type": "text"}}},
    **{"tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": 1.0, "truncation": "disabled"},
}
"""Fields of the response object, with their values for a request without them."""
LOGPROBS = "message.output_text.logprobs"
BUILT_IN = "the service has no built-in tools"
RENAMED: Mapping[Path, Path] = {
    ("response_format",): ("text", "format"),
    ("response_format", "json_schema"): ("text", "format"),
    ("tools", EACH, "function"): ("tools", EACH),
    ("tool_choice", "function"): ("tool_choice",),
    ("logprobs",): ("include",),
    ("max_tokens",): ("max_output_tokens",),
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
PART: TypeAlias = Annotated[
    ContentPart, about(expected='a part {"type": "input_text", "text": string}', hint=TEXT_ONLY)
]
CONTENT_PARTS: Final = list[PART]
Content: TypeAlias = Annotated[
    str | list[Json], about(expected="a string or a list of parts", shown=(str, list[ContentPart]))
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


class ReasoningItem(OpenBody):
    """The model's reasoning, without effect."""

    type: Literal["reasoning"]
    id: Annotated[Json, NO_EFFECT] = None
    status: Annotated[Json, NO_EFFECT] = None
    summary: Annotated[Json, NO_EFFECT] = None
    content: Annotated[Json, NO_EFFECT] = None
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


class ResponsesRequest(GenerationBody, kw_only=True):
    """A request for a response."""

    input: Annotated[
        str | Annotated[list[Json], Meta(min_length=1)],
        about(
            "A text, or all items of the conversation.",
            expected="a string or a list of items",
            shown=(str, Annotated[list[ShownItem], Meta(min_length=1)]),
        ),
    ]
    instructions: Annotated[str | None, about("A system message before the input.")] = None
    max_tokens: NewTokens = field(default=None, name="max_output_tokens")
    top_logprobs: TopTokens = None
    include: Annotated[
        list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None,
        about("Further fields of the answer. The second has no effect, since answers have no reasoning."),
    ] = None
    text: Annotated[TextOptions | None, about("Form of a message that calls no tool.")] = None
    tools: Annotated[
        Annotated[list[Json], Meta(max_length=128)] | None,
        about(
            "Functions that the model may call.",
            shown=(Annotated[list[FlatTool], Meta(max_length=128)],),
            limits="tools",
        ),
    ] = None
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
    reasoning: Annotated[Json, only({}, {"effort": "none"}, because="the model has no such setting")] = None
    truncation: Annotated[Json, only("disabled", because="the service drops no items of a conversation")] = None


FORM, FLAT_TOOL = Form(ResponsesRequest), Form(FlatTool)


async def create(service: Service, call: Call) -> Response | TextStream:
    """Answers one request. Raises RequestError for a missing, invalid or unsupported field."""
    body = read_declared(call, FORM)
    model = generative(choose_model(service, call, body.model, GENERATIVE), "responses")
    messages, calls = _read_input(body.input, body.instructions, call.context.ignored)
    asked = ChatRequest(
        **{name: getattr(body, name) for name in GenerationBody.__struct_fields__},
        messages=messages,
        logprobs=LOGPROBS in (body.include or ()) or bool(body.top_logprobs),
        top_logprobs=body.top_logprobs,
        response_format=None if body.text is None else _in_chats(body.text.format),
        tools=_read_tools(body.tools),
        tool_choice=_choice_in_chats(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    call.context.field_names = _namer(calls)
    answer, stream = await prepare(call, model, asked, {"max_tokens": "max_output_tokens"}, ResponseAnswer)
    answer.describe(call.json())
    return answer if stream else await answer.whole()


# Requests as chats


def _namer(calls: Mapping[Path, Path]) -> Callable[[Path], Path]:
    """Returns a function from canonical paths to the client's. ``calls`` has the items of a chat's tool calls."""
    names = TOP_LEVEL.then({**RENAMED, **calls})

    def name_of(path: Path) -> Path:
        path = names(path)
        return ("input",) if path[:1] == ("messages",) else path  # the items are more or fewer than the messages

    return name_of


def _in_chats(form: TextFormat | JsonObjectFormat | FlatSchemaFormat | None) -> ResponseFormat:
    return JsonSchemaFormat(json_schema=form) if isinstance(form, FlatSchemaFormat) else form


def _choice_in_chats(choice: Mode | FlatNamedTool | None) -> ToolChoice:
    if not isinstance(choice, FlatNamedTool):
        return choice
    return NamedTool(type=choice.type, function=FunctionNamed(name=choice.name))


def _read_input(
    value: str | list[Json], instructions: str | None, ignored: list[str]
) -> tuple[list[Json], dict[Path, Path]]:
    """Converts items to a chat's messages. Returns them, and by the path of each of their calls the path of its item.

    A call joins the assistant's message before it. Raises InvalidInput.
    """
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    messages: list[Json] = [] if instructions is None else [{"role": "system", "content": instructions}]
    paths: dict[Path, Path] = {}
    for index, given in enumerate(value):
        path: Path = ("input", index)
        item = _read_item(given, path, ignored)
        if isinstance(item, MessageItem):
            messages.append({"role": item.role, "content": _read_content(item.content, (*path, "content"))})
        elif isinstance(item, OutputItem):
            content = _read_content(item.output, (*path, "output"))
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
        elif isinstance(item, CallItem):
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            calls = messages[-1].setdefault("tool_calls", [])
            paths["messages", len(messages) - 1, "tool_calls", len(calls), "function"] = path
            function = {"name": item.name, "arguments": item.arguments}
            calls.append({"id": item.call_id, "type": "function", "function": function})
    return messages, paths


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


def _read_content(value: str | list[Json], path: Path) -> Json:
    """Converts a content to a chat's. Raises InvalidInput for a part that is not text."""
    if isinstance(value, str):
        return value
    parts: list[ContentPart] = read_value(value, CONTENT_PARTS, path)
    texts = [part.refusal if isinstance(part, RefusedPart) else part.text for part in parts]
    return [{"type": "text", "text": text} for text in texts]


def _read_tools(items: list[Json] | None) -> list[Json]:
    """Converts functions to a chat's tools. Raises InvalidInput for other tools."""
    for index, tool in enumerate(items or ()):
        FLAT_TOOL.read(tool, path=("tools", index))
    functions = [{name: member for name, member in tool.items() if name != "type"} for tool in items or ()]
    return [{"type": "function", "function": function} for function in functions]


# Answers


class ResponseAnswer(ChatAnswer):
    """A response, complete or streamed. Converts the chunks of a chat's answer to items and events."""

    __slots__ = ("_call", "_data", "_fields", "_finish", "_held", "_is_open", "_number", "_output", "_texts", "_tokens")

    def describe(self, payload: Mapping[str, Json]) -> None:
        """Sets the fields of the response object that repeat the request's body. Required before the start."""
        head = {"id": f"resp_{self._context.request_id}", "object": "response", "created_at": int(time.time())}
        given = {name: payload[name] for name in UNSET if payload.get(name) is not None}
        self._fields: dict[str, Json] = {**head, "model": self._context.model_name, **UNSET, **given}
        self._fields["text"] = {**UNSET["text"], **without_nulls(self._fields["text"])}
        self._fields["tools"] = [{"strict": False, **without_nulls(tool)} for tool in self._fields["tools"]]
        self._output: list[dict[str, Json]] = []
        self._is_open = False  # whether the last item of the output is incomplete
        self._call: Json = None  # the index of the open call in the chat
        self._texts: list[str] = []  # of the open item
        self._tokens: list[Json] = []  # of the open message, with their log probabilities
        self._held: list[Json] = []  # tokens before their text
        self._finish: str | None = None
        self._data, self._number = b"", 0

    async def whole(self) -> Response:
        async with await self.start() as running:
            [[text]] = await running.collect()
        self.piece(text)  # its events are not sent
        return reply(orjson.dumps(self._finished()))

    def piece(self, piece: Piece) -> bytes:
        if not self._number:
            for kind in ("created", "in_progress"):
                self._event(f"response.{kind}", response=self._response("in_progress"))
        for delta, logprobs, finish in self.deltas(0, piece):
            self._finish = finish
            self._held += logprobs["content"] if logprobs else ()
            if (text := delta.get("content")) or (self._finish and not self._output):
                self._add_text(text or "")
            for call in delta.get("tool_calls", ()):
                self._add_call(call)
            if self._finish:
                self._close("incomplete" if self._finish == "length" else "completed")
        return self._taken()

    def end(self) -> bytes:
        response = self._finished()
        self._event(f"response.{response['status']}", response=response)
        return self._taken()

    def error(self, error: RequestError) -> bytes:
        self._close("incomplete")
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        about = {"code": "rate_limit_exceeded" if error.status == 429 else code, "message": str(error)}
        failed = self._response("failed", error={**about, "param": show_path(error.path) or None})
        self._event("response.failed", response=failed)
        return self._taken()

    def _add_text(self, text: str) -> None:
        if not self._is_open or self._output[-1]["type"] != "message":
            self._begin({"type": "message", "id": f"msg_{new_request_id()}", "role": "assistant", "content": []})
            self._item_event("response.content_part.added", content_index=0, part=_part("", []))
        self._item_event("response.output_text.delta", content_index=0, delta=text, logprobs=self._held)
        self._texts.append(text)
        self._tokens += self._held
        self._held = []

    def _add_call(self, call: Json) -> None:
        function = call["function"]
        if not self._is_open or self._call != call["index"]:
            about = {"call_id": call["id"], "name": function["name"], "arguments": ""}
            self._begin({"type": "function_call", "id": f"fc_{new_request_id()}", **about})
            self._call = call["index"]
        if text := function.get("arguments"):
            self._texts.append(text)
            self._item_event("response.function_call_arguments.delta", delta=text)

    def _begin(self, item: dict[str, Json]) -> None:
        """Opens an item, and completes the one before."""
        self._close("completed")
        self._output.append({**item, "status": "in_progress"})
        self._is_open, self._call = True, None
        self._event("response.output_item.added", output_index=len(self._output) - 1, item=self._output[-1])

    def _close(self, status: str) -> None:
        """Closes the open item, if any."""
        if not self._is_open:
            return
        item, text = self._output[-1], "".join(self._texts)
        item["status"] = status
        if item["type"] == "message":
            tokens = self._tokens + self._held
            item["content"] = [_part(text, tokens)]
            self._item_event("response.output_text.done", content_index=0, text=text, logprobs=tokens)
            self._item_event("response.content_part.done", content_index=0, part=item["content"][0])
            self._tokens, self._held = [], []
        else:
            item["arguments"] = text
            self._item_event("response.function_call_arguments.done", name=item["name"], arguments=text)
        self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)
        self._is_open, self._texts = False, []

    def _finished(self) -> dict[str, Json]:
        tokens = usage(self.running)
        used = {
            "input_tokens": tokens["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": tokens["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens["total_tokens"],
        }
        if self._finish == "length":
            return self._response("incomplete", incomplete_details={"reason": "max_output_tokens"}, usage=used)
        return self._response("completed", usage=used)

    def _response(self, status: str, **more: Json) -> dict[str, Json]:
        return {**self._fields, "status": status, "output": self._output, **more}

    def _item_event(self, kind: str, **fields: Json) -> None:
        """Adds an event about the last item."""
        self._event(kind, item_id=self._output[-1]["id"], output_index=len(self._output) - 1, **fields)

    def _event(self, kind: str, **fields: Json) -> None:
        """Adds an event. Serializes it at once, since its items change later."""
        data = event(orjson.dumps({"type": kind, "sequence_number": self._number, **fields}))
        self._data += b"event: " + kind.encode() + b"\n" + data
        self._number += 1

    def _taken(self) -> bytes:
        data, self._data = self._data, b""
        return data


def _part(text: str, tokens: list[Json]) -> dict[str, Json]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": tokens}
