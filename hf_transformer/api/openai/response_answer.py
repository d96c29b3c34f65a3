"""The answer of OpenAI's Responses API, complete or streamed: items and events. See responses.py."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import orjson

from hf_transformer.api.call import new_request_id
from hf_transformer.api.chat_completions import EventsAnswer, joined
from hf_transformer.api.chat_tools import without_nulls
from hf_transformer.api.generated_answers import usage
from hf_transformer.errors import RequestError, show_path
from hf_transformer.generation.tools import ReadDelta
from hf_transformer.generation.types import Piece, TokenText
from hf_transformer.types.request import Json

UNSET: Mapping[str, Json] = {
    **dict.fromkeys("error incomplete_details instructions max_output_tokens previous_response_id usage user".split()),
    **{"background": False, "metadata": {}, "parallel_tool_calls": True, "prompt_cache_key": None, "reasoning": {}},
    **{"service_tier": "default", "store": False, "temperature": 1.0, "text": {"format": {"type": "text"}}},
    **{"tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": 1.0, "truncation": "disabled"},
}
"""Fields of the response object, with their values for a request without them."""

REASONING_ID = "rs_"
"""The beginning of the id of an item of reasoning."""


class ResponseAnswer(EventsAnswer):
    """A response, complete or streamed. Converts the chunks of a chat's answer to items and events, in OpenAI's order:
    the reasoning's item, then messages and calls."""

    __slots__ = ("_call", "_fields", "_finish", "_held", "_is_open", "_number", "_output", "_texts", "_tokens")

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

    def finished(self) -> bytes:
        return orjson.dumps(self._finished())

    @property
    def _counts_reasoning(self) -> bool:
        return True

    def piece(self, piece: Piece) -> bytes:
        if not self._number:
            for kind in ("created", "in_progress"):
                self._event(f"response.{kind}", response=self._response("in_progress"))
        for delta, logprobs, finish in self.deltas(0, piece):
            self._finish = finish
            if reasoning := delta.get("reasoning"):
                self._add_reasoning(reasoning)
            if delta.get("content") and self._is_open and self._output[-1]["type"] == "reasoning":
                self._held = []  # of the reasoning
            if logprobs:
                self._held += logprobs["content"]
            if (text := delta.get("content")) or (self._finish and not self._output):
                self._add_text(text or "")
            for call in delta.get("tool_calls", ()):
                self._add_call(call)
            if self._finish:
                self._close("incomplete" if self._finish == "length" else "completed")
        return self._taken()

    def _split(self, deltas: Sequence[ReadDelta]) -> Sequence[tuple[str, str, list[Json]]]:
        """The new text and calls in the order of the message, which is the order of the items."""
        return [joined([delta]) for delta in deltas] or [joined(())]

    def _tokens_of(self, piece: Piece, content: str, *, is_whole: bool) -> Sequence[TokenText]:
        return piece.tokens[_span(piece, content)] if piece.tokens and not is_whole else piece.tokens

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

    def _add_reasoning(self, text: str) -> None:
        if not self._is_open or self._output[-1]["type"] != "reasoning":
            self._begin({"type": "reasoning", "id": f"{REASONING_ID}{new_request_id()}", "summary": [], "content": []})
            self._item_event("response.content_part.added", content_index=0, part=_reasoning_text(""))
        self._item_event("response.reasoning_text.delta", content_index=0, delta=text)
        self._texts.append(text)

    def _add_call(self, call: Json) -> None:
        function = call["function"]
        if not self._is_open or self._call != call["index"]:
            self._held = []
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
        elif item["type"] == "reasoning":
            item["content"] = [_reasoning_text(text)]
            self._item_event("response.reasoning_text.done", content_index=0, text=text)
            self._item_event("response.content_part.done", content_index=0, part=item["content"][0])
        else:
            item["arguments"] = text
            if not _is_object(text):  # the model has not ended the call
                item["status"] = "incomplete"
            self._item_event("response.function_call_arguments.done", name=item["name"], arguments=text)
        self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)
        self._is_open, self._texts = False, []

    def _finished(self) -> dict[str, Json]:
        tokens = usage(self.running)
        used = {
            "input_tokens": tokens["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": tokens["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens(tokens)},
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
        """Adds an event with its number."""
        self._add_event(kind, sequence_number=self._number, **fields)
        self._number += 1


def _span(piece: Piece, content: str) -> slice:
    """The tokens of the message in a piece that has reasoning or calls, too: those have no log probabilities."""
    text = content.strip()
    start = piece.tokens[0].offset + (piece.text.rfind(text) if text else len(piece.text))
    end = start + len(text)
    return slice(sum(token.offset < start for token in piece.tokens), sum(token.offset < end for token in piece.tokens))


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _reasoning_text(text: str) -> dict[str, Json]:
    return {"type": "reasoning_text", "text": text}


def _part(text: str, tokens: list[Json]) -> dict[str, Json]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": tokens}
