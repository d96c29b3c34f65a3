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
from collections.abc import Callable, Mapping, Sequence

import orjson

from hf_transformer.api.call import Call, new_request_id
from hf_transformer.api.errors import expect, expect_items
from hf_transformer.api.openai import chat
from hf_transformer.api.openai.chat import ChatAnswer
from hf_transformer.api.openai.fields import ignored_fields, read_request
from hf_transformer.api.openai.generation import SHARED, usage
from hf_transformer.api.openai.tools import FUNCTION, without_nulls
from hf_transformer.api.responses import reply
from hf_transformer.api.service import Service, generative
from hf_transformer.api.streaming import TextStream, event
from hf_transformer.errors import InvalidInput, Path, RequestError, describe, show_path
from hf_transformer.generation.types import Piece
from hf_transformer.protocol.server_codec import note_unknown
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.http import Response
from hf_transformer.types.paths import EACH, TOP_LEVEL
from hf_transformer.types.request import Json

AS_IN_CHATS = (
    *(name for name in SHARED if name not in ("model", "n", "prompt_logprobs")),
    *"max_output_tokens top_logprobs parallel_tool_calls chat_template_kwargs".split(),
)
"""Fields with the same meaning in chat completions."""
FIELDS = (
    *("model", *AS_IN_CHATS, *ignored_fields("responses")),
    *"input instructions tools tool_choice text include".split(),
)
UNSET: Mapping[str, Json] = {
    **dict.fromkeys("error incomplete_details instructions max_output_tokens previous_response_id usage user".split()),
    **{"background": False, "metadata": {}, "parallel_tool_calls": True, "prompt_cache_key": None, "reasoning": {}},
    **{"service_tier": "default", "store": False, "temperature": 1.0, "text": {"format": {"type": "text"}}},
    **{"tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": 1.0, "truncation": "disabled"},
}
"""Fields of the response object, with their values for a request without them."""
LOGPROBS = "message.output_text.logprobs"
INCLUDE = (LOGPROBS, "reasoning.encrypted_content")
"""Values of ``include``. The second one has no effect, since answers have no reasoning."""
ROLES = ("user", "assistant", "system", "developer")
ITEMS: Mapping[str, tuple[str, ...]] = {
    "message": ("role", "content", "phase"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": ("summary", "content", "encrypted_content"),
}
"""Supported items, with their fields besides ``type``, ``id`` and ``status``. A reasoning item has no effect."""
PARTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Supported parts of a content, with the field of their text."""
BUILT_IN = "the service has no built-in tools"
RENAMED: Mapping[Path, Path] = {
    ("response_format",): ("text", "format"),
    ("response_format", "json_schema"): ("text", "format"),
    ("tools", EACH, "function"): ("tools", EACH),
    ("tool_choice", "function"): ("tool_choice",),
    ("logprobs",): ("include",),
}
"""Paths in chat completions, with the paths of this API."""


async def create(service: Service, call: Call) -> Response | TextStream:
    """Answers one request. Raises RequestError for a missing, invalid or unsupported field."""
    served, parameters = read_request(service, call, "responses", FIELDS)
    model = generative(served, "responses")
    include = expect(parameters.get("include"), list | None, "include", "a list") or []
    if unknown := [name for name in include if name not in INCLUDE]:
        raise InvalidInput("include", f"only {', '.join(INCLUDE)}", describe(unknown[0], quote=True))
    text = without_nulls(expect(parameters.get("text"), dict | None, "text", "an object") or {})
    _check_names(text, ("format", "verbosity"), ("text",))
    if text.get("verbosity", "medium") != "medium":
        got = describe(text["verbosity"], quote=True)
        raise InvalidInput(("text", "verbosity"), "medium", got, "the model has no such setting")
    choice = parameters.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind not in (("function",) if isinstance(choice, dict) else (None, "none", "auto", "required")):
        expected = 'none, auto, required or {"type": "function", "name": ...}'
        raise InvalidInput("tool_choice", expected, describe(kind, quote=True), BUILT_IN)
    messages, calls = _read_input(parameters.get("input"), parameters.string("instructions"), call.context.ignored)
    fields: dict[str, Json] = {name: parameters.get(name) for name in AS_IN_CHATS} | {
        "messages": messages,
        "tools": _read_tools(parameters.get("tools")),
        "tool_choice": _in_chats(choice, "function"),
        "response_format": _in_chats(text.get("format"), "json_schema"),
        "logprobs": LOGPROBS in include or bool(parameters.get("top_logprobs")),
    }
    call.context.field_names = _namer(calls)
    asked = Parameters(fields, (*chat.FIELDS, "max_output_tokens"))
    answer, stream = await chat.prepare(service, call, model, asked, ResponseAnswer)
    answer.describe(parameters)
    return answer if stream else await answer.whole()


# Requests


def _namer(calls: Mapping[Path, Path]) -> Callable[[Path], Path]:
    """Returns a function from canonical paths to the client's. ``calls`` has the items of a chat's tool calls."""
    names = TOP_LEVEL.then({**RENAMED, **calls})

    def name_of(path: Path) -> Path:
        path = names(path)
        return ("input",) if path[:1] == ("messages",) else path  # the items are more or fewer than the messages

    return name_of


def _check_names(value: Mapping[str, Json], known: Sequence[str], path: Path) -> None:
    """Raises InvalidInput for an unknown member."""
    for name in value:
        if name not in known:
            raise InvalidInput((*path, name[:40]), f"one of {', '.join(known)}", "an unknown name")


def _in_chats(value: Json, kind: str) -> Json:
    """Nests the members of an object of this kind, as in chat completions. Returns other values unchanged."""
    if not isinstance(value, dict) or value.get("type") != kind:
        return value
    return {"type": kind, kind: {name: member for name, member in value.items() if name != "type"}}


def _read_input(
    value: Json, instructions: str | None, ignored: list[str]
) -> tuple[list[dict[str, Json]], dict[Path, Path]]:
    """Converts items to a chat's messages. Returns them, and by the path of each of their calls the path of its item.

    A call joins the assistant's message before it. Raises InvalidInput.
    """
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    messages: list[dict[str, Json]] = [] if instructions is None else [{"role": "system", "content": instructions}]
    paths: dict[Path, Path] = {}
    for index, given in enumerate(expect_items(value, "input", "a string or a list of items")):
        path = ("input", index)
        item = _read_item(given, path, ignored)
        if item["type"] == "message":
            messages.append({"role": item["role"], "content": _read_content(item.get("content"), (*path, "content"))})
        elif item["type"] == "function_call_output":
            content = _read_content(item.get("output"), (*path, "output"))
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        elif item["type"] == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            calls = messages[-1].setdefault("tool_calls", [])
            paths["messages", len(messages) - 1, "tool_calls", len(calls), "function"] = path
            function = {"name": item["name"], "arguments": item.get("arguments")}
            calls.append({"id": item["call_id"], "type": "function", "function": function})
    return messages, paths


def _read_item(value: Json, path: Path, ignored: list[str]) -> dict[str, Json]:
    """Checks an item except for its content. Returns it with its type and without nulls. Other fields of an item that a
    model has made, such as ``parsed_arguments``, have no effect; ``ignored`` gets their names."""
    item = {"type": "message", **without_nulls(expect(value, dict, path, "an object"))}
    kind = item["type"]
    if not isinstance(kind, str) or kind not in ITEMS:
        hint = "the service stores nothing; send the item itself" if kind == "item_reference" else BUILT_IN
        raise InvalidInput(path, f"one of the types {', '.join(ITEMS)}", describe(kind, quote=True), hint)
    known = ("type", "id", "status", *ITEMS[kind])
    if kind in ("function_call", "reasoning") or item.get("role") == "assistant":
        note_unknown((f"input.{name}" for name in item if name not in known), (), ignored)
    else:
        _check_names(item, known, path)
    if kind == "message" and item.get("role") not in ROLES:
        raise InvalidInput((*path, "role"), f"one of {', '.join(ROLES)}", describe(item.get("role"), quote=True))
    for name in ITEMS[kind]:
        if name in ("call_id", "name"):
            expect(item.get(name), str, (*path, name), "a string")
    return item


def _read_content(value: Json, path: Path) -> Json:
    """Converts a content to a chat's. Raises InvalidInput for a part that is not text."""
    if isinstance(value, str):
        return value
    parts = []
    for index, part in enumerate(expect(value, list, path, "a string or a list of parts")):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get(PARTS.get(kind)) if isinstance(kind, str) else None
        if not isinstance(text, str):
            got = f"the type {kind[:40]!r}" if isinstance(kind, str) and kind not in PARTS else describe(part)
            expected = 'a part {"type": "input_text", "text": string}'
            raise InvalidInput((*path, index), expected, got, "the model reads text only")
        parts.append({"type": "text", "text": text})
    return parts


def _read_tools(value: Json) -> list[Json]:
    """Converts functions to a chat's tools. Raises InvalidInput for other tools."""
    tools: list[Json] = []
    for index, tool in enumerate(expect(value, list | None, "tools", "a list") or []):
        kind = tool.get("type") if isinstance(tool, dict) else tool
        if kind != "function":
            got = describe(kind, quote=isinstance(tool, dict))
            raise InvalidInput(("tools", index), '{"type": "function", "name": ...}', got, BUILT_IN)
        _check_names(without_nulls(tool), ("type", *FUNCTION, "strict"), ("tools", index))
        tools.append(_in_chats(tool, kind))
    return tools


# Answers


class ResponseAnswer(ChatAnswer):
    """A response, complete or streamed. Converts the chunks of a chat's answer to items and events."""

    __slots__ = ("_call", "_data", "_fields", "_finish", "_held", "_is_open", "_number", "_output", "_texts", "_tokens")

    def describe(self, parameters: Parameters) -> None:
        """Sets the fields of the response object that repeat the request. Required before the start."""
        head = {"id": f"resp_{self._context.request_id}", "object": "response", "created_at": int(time.time())}
        given = {name: parameters.get(name) for name in UNSET if name in parameters}
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
