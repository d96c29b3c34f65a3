"""Anthropic's Messages API: chat completions with other fields, and with blocks in the order of the text.

    POST /v1/messages               {"model": "m", "max_tokens": 1024, "messages": [{"role": "user", "content": "..."}]}
    -> {"id": "msg_...", "type": "message", "role": "assistant", "model", "content": [block, ...], "stop_reason",
        "stop_sequence", "usage": {"input_tokens", "output_tokens", ...}}
    POST /v1/messages/count_tokens  -> {"input_tokens": 14}

A stream consists of named events, from message_start to message_stop or error; docs/messages.md has them all.

Headers: x-api-key has the key (auth.py). anthropic-version and anthropic-beta have no effect. The answer repeats the
request's id as request-id, which Anthropic's clients read, and errors have it in their body.

Sources: https://docs.anthropic.com/en/api/messages, .../messages-streaming and .../messages-count-tokens
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import orjson

from hf_transformer.api.anthropic.bodies import COUNT_FORM, MESSAGES_FORM, MessagesRequest
from hf_transformer.api.anthropic.conversation import to_chat
from hf_transformer.api.bodies import choose_model, read_declared
from hf_transformer.api.call import Call, new_request_id
from hf_transformer.api.chat_completions import EventsAnswer, count_prompt, prepare
from hf_transformer.api.endpoint import Endpoint, Handle
from hf_transformer.api.error_forms import anthropic_error, render_anthropic, status_of
from hf_transformer.api.errors import RenderError
from hf_transformer.api.images import ChatImages
from hf_transformer.api.responses import reply
from hf_transformer.api.service import Service, generative
from hf_transformer.api.streaming import TextStream, event
from hf_transformer.errors import RequestError
from hf_transformer.generation.responses.events import CallDelta
from hf_transformer.generation.task import GENERATIVE
from hf_transformer.generation.types import Piece
from hf_transformer.types.http import Request, Response, Stream
from hf_transformer.types.request import Json

PATHS: Final = ("/v1/messages", "/v1/messages/count_tokens")
SIGNATURE: Final = "hf_transformer"
"""Signature of all reasoning. Clients send it back, and leave out reasoning without one."""
PING_SECONDS: Final = 10.0
"""Silence of a stream before a ping, for instance while the text of the reasoning is left out."""
OMITTED: Final = "omitted"


async def create(service: Service, call: Call) -> Response | TextStream:
    """Answers one request. Raises RequestError for a missing, invalid or unsupported field."""
    body = read_declared(call, MESSAGES_FORM)
    model = generative(choose_model(service, call, body.model, GENERATIVE), "messages")
    chat = to_chat(body, model, call.context, ChatImages(model, call.budget))
    answer, stream = await prepare(call, model, chat, {"stop": "stop_sequences"}, MessagesAnswer)
    answer.describe(body, model.tokenizer.max_length)
    return answer if stream else await answer.whole()


async def count_tokens(service: Service, call: Call) -> Response:
    """Returns the number of tokens of the prompt that a conversation becomes. Raises RequestError."""
    body = read_declared(call, COUNT_FORM)
    model = generative(choose_model(service, call, body.model, GENERATIVE), "messages/count_tokens")
    images = ChatImages(model, call.budget, renders=model.image_tokens is not None)
    chat = to_chat(body, model, call.context, images)
    return reply(orjson.dumps({"input_tokens": await count_prompt(call, model, chat)}))


class MessagesAnswer(EventsAnswer):
    """A message, complete or streamed, as blocks and events."""

    __slots__ = (
        *("_content", "_finish", "_has_begun", "_is_complete", "_kind", "_length", "_max_tokens"),
        *("_omits", "_parts", "_reader", "_sent", "_stop"),
    )

    def describe(self, body: MessagesRequest, length: int) -> None:
        """Sets the request's limit of tokens, and the model's. Required before the start."""
        self._max_tokens, self._length = body.max_tokens, length
        self._reader = self._make_reader()
        self._omits = body.thinking is not None and body.thinking.display == OMITTED
        self._content: list[dict[str, Json]] = []
        self._kind = ""  # type of the open block, the last one
        self._parts: list[str] = []  # of the open block
        self._finish: str | None = None
        self._stop: str | None = None
        self._has_begun = self._is_complete = False  # the last call
        self._data, self._sent = b"", time.monotonic()

    def finished(self) -> bytes:
        reason, stop = self._reason()
        about = {"stop_reason": reason, "stop_sequence": stop, "usage": self._tokens(self.running.completion_tokens)}
        return orjson.dumps({**self._message(), **about})

    def piece(self, piece: Piece) -> bytes:
        if not self._has_begun:
            self._has_begun = True
            self._add_event("message_start", message=self._message())
        self._stop = piece.stop
        for part in self._reader.read(piece.text, is_last=piece.finish is not None):
            if isinstance(part, CallDelta):
                self._add_call(part)
            elif part.role == "reasoning":
                self._count_reasoning(0, part.text)
                self._add_text("thinking", part.text)
            else:
                self._add_text("text", part.text)
        if piece.finish is not None:
            self._count(self._reader)
            self._finish = piece.finish
            if not self._content:
                self._open({"type": "text", "text": ""})  # clients read the first block
            self._close()
        now = time.monotonic()
        if self._data:
            self._sent = now
        elif now - self._sent >= PING_SECONDS:
            self._sent = now
            self._add_event("ping")
        return self._taken()

    def end(self) -> bytes:
        reason, stop = self._reason()
        tokens = self._tokens(self.running.completion_tokens)
        self._add_event("message_delta", delta={"stop_reason": reason, "stop_sequence": stop}, usage=tokens)
        self._add_event("message_stop")
        return self._taken()

    def error(self, error: RequestError) -> bytes:
        body = anthropic_error(error, status_of(error), self._context.request_id)
        return b"event: error\n" + event(orjson.dumps(body))

    def _message(self) -> dict[str, Json]:
        return {
            "id": f"msg_{self._context.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._context.model_name,
            "content": self._content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._tokens(0),
        }

    def _tokens(self, new: int) -> dict[str, Json]:
        return {
            "input_tokens": self.running.prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": new,
            "output_tokens_details": {"thinking_tokens": self._reasoning_tokens({"completion_tokens": new})},
        }

    def _reason(self) -> tuple[str, str | None]:
        """Returns the reason of the message's end, and the stop sequence. As in vLLM, complete calls go before a stop
        sequence, and a call that it has cut off goes after. A call that the model has not completed is none to run."""
        last = self._content[-1]
        if self._finish == "length":
            is_full = self.running.prompt_tokens + self._max_tokens > self._length
            return ("model_context_window_exceeded" if is_full else "max_tokens"), None
        if last["type"] == "tool_use" and self._stop is not None and not self._is_complete:
            return "stop_sequence", self._stop
        if self._reader.has_calls and self._is_complete:
            return "tool_use", None
        return ("end_turn", None) if self._stop is None else ("stop_sequence", self._stop)

    # Blocks

    def _add_text(self, kind: str, text: str) -> None:
        if self._kind != kind:
            if self._content:
                text = text.lstrip("\n")  # a block begins a line by itself
            if not text:
                return
            self._open(
                {"type": kind, "thinking": "", "signature": ""} if kind == "thinking" else {"type": kind, "text": ""}
            )
        if kind == "thinking" and self._omits:
            return
        self._parts.append(text)
        self._delta(f"{kind}_delta", **{kind: text})

    def _add_call(self, call: CallDelta) -> None:
        if call.name is not None:
            name = call.id or f"toolu_{new_request_id()}"
            self._open({"type": "tool_use", "id": name, "name": call.name, "input": {}})
        if call.arguments:
            self._parts.append(call.arguments)
            self._delta("input_json_delta", partial_json=call.arguments)

    def _open(self, block: dict[str, Json]) -> None:
        """Opens a block, and completes the one before."""
        self._close()
        self._content.append(block)
        self._kind = block["type"]
        self._add_event("content_block_start", index=len(self._content) - 1, content_block=block)
        if len(self._content) == 1:
            self._add_event("ping")

    def _close(self) -> None:
        """Closes the open block, if any."""
        if not self._kind:
            return
        block, text = self._content[-1], "".join(self._parts)
        if self._kind == "tool_use":
            block["input"], self._is_complete = complete_members(text)
        else:
            block[self._kind] = text
        if self._kind == "thinking":
            block["signature"] = SIGNATURE
            self._delta("signature_delta", signature=SIGNATURE)
        self._add_event("content_block_stop", index=len(self._content) - 1)
        self._kind, self._parts = "", []

    def _delta(self, kind: str, **fields: Json) -> None:
        self._add_event("content_block_delta", index=len(self._content) - 1, delta={"type": kind, **fields})


# Endpoints


class MessagesEndpoint(Endpoint):
    """An endpoint whose answers name their request."""

    async def __call__(self, request: Request) -> Response | Stream:
        answer = await super().__call__(request)
        answer.headers.append((b"request-id", request.id.encode("latin-1")))
        if isinstance(answer, Response) and answer.status >= 400:
            answer.body = orjson.dumps({**orjson.loads(answer.body), "request_id": request.id})
        return answer


def endpoints(service: Service) -> dict[str, Endpoint]:
    """Returns the endpoints of this API."""
    handlers: dict[str, Handle] = {
        "anthropicMessages": partial(create, service),
        "anthropicCountTokens": partial(count_tokens, service),
    }
    return {
        name: MessagesEndpoint("anthropic", handle, render_anthropic, service, status=status_of)
        for name, handle in handlers.items()
    }


def errors_by_path(other: Callable[[str], RenderError]) -> Callable[[str], RenderError]:
    """Returns a function that maps a path to its API's RenderError, ``other`` outside this API."""
    return lambda path: render_anthropic if path in PATHS else other(path)


# Input of a call

_MARK: Final = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[][{},]', re.DOTALL)
"""A string, perhaps cut off, or a character that separates values."""
_CLOSING: Final = {"{": "}", "[": "]"}


def complete_members(text: str) -> tuple[dict[str, Json], bool]:
    """Returns the object in a JSON text, and whether the text is complete. Of a text that is cut off, the object has
    the members and elements whose values are complete, as clients have it that read a stream."""
    try:
        return _object(orjson.loads(text)), True
    except orjson.JSONDecodeError:
        pass
    end, missing = 0, list[str]()
    for match in _MARK.finditer(text):
        mark = match[0]
        if mark in _CLOSING:
            missing.append(_CLOSING[mark])
        elif mark in ("}", "]") and missing:
            missing.pop()
        elif mark != ",":
            continue
        # A value is complete at a comma after it, and a container at its bracket.
        end = match.start() if mark == "," else match.end()
    closing = "".join(reversed(missing))
    for complete in (text if text.endswith('"') else "", text[:end]):  # a last string is complete unless it is a name
        try:
            return _object(orjson.loads(complete + closing)), False
        except orjson.JSONDecodeError:
            pass
    return {}, False


def _object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}
