"""What the assistant's messages look like, whole and in pieces, tool calls in them included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hf_transformer.api.base import new_request_id
from hf_transformer.api.openai.generation import Choice, logprob
from hf_transformer.generation.tools import ToolCall, ToolCallParser, parse_tool_calls
from hf_transformer.generation.types import FinishReason, Piece, TokenText
from hf_transformer.types import Json

TOOL_CALLS = "tool_calls"
"""Why a message ended that calls tools."""


@dataclass(slots=True)
class _Open:
    """One choice on its way; ``calls`` is how many have been told."""

    parser: ToolCallParser | None
    calls: int = 0

    def read(self, piece: Piece) -> tuple[str, list[ToolCall]]:
        """The content and the calls that are certain with this piece."""
        if self.parser is None:
            return piece.text, []
        text, calls = self.parser.push(piece.text)
        if piece.finish is None:
            return text, calls
        rest, more = self.parser.flush()
        return text + rest, calls + more


class ChatForm:
    """The choices of chat completions.

    Args:
        logprobs: whether tokens are told.
        tools: whether the model may call any, so that calls are looked for in what it says.
        one_call: whether all calls of a message but the first are left out (parallel_tool_calls).
    """

    object, chunk_object = "chat.completion", "chat.completion.chunk"

    def __init__(self, logprobs: bool, *, tools: bool, one_call: bool) -> None:
        self._logprobs = logprobs
        self._tools = tools
        self._one_call = one_call
        self._open: dict[int, _Open] = {}

    def choice(self, index: int, whole: Choice) -> Json:
        found: list[ToolCall] = []
        text, finish = whole.text, whole.finish
        if self._tools:
            text, found = parse_tool_calls(text)
            found = found[:1] if self._one_call else found
        calls = [{"id": _call_id(), "type": "function", "function": _function(one)} for one in found]
        message = {
            "content": text or None if calls else text,
            "tool_calls": calls or None,
            "role": "assistant",
            "function_call": None,
        }
        return {
            "index": index,
            "message": message,
            "logprobs": self._told(whole.tokens),
            "finish_reason": _reason(finish, bool(calls)),
        }

    def chunks(self, index: int, piece: Piece) -> Sequence[Json]:
        """The first chunk of a choice has the role, the last one nothing but why it ended. What may become a tool call
        is held back until it is one, whole."""
        found: list[Json] = []
        state = self._open.get(index)
        if state is None:
            state = self._open[index] = _Open(ToolCallParser() if self._tools else None)
            found.append(self._chunk(index, {"role": "assistant", "content": ""}))
        text, calls = state.read(piece)
        if text or piece.tokens:
            found.append(self._chunk(index, {"content": text}, piece.tokens))
        for call in calls:
            if self._one_call and state.calls:
                break
            delta = {"index": state.calls, "id": _call_id(), "type": "function", "function": _function(call)}
            found.append(self._chunk(index, {"tool_calls": [delta]}))
            state.calls += 1
        if piece.finish is not None:
            found.append(self._chunk(index, {}, finish=_reason(piece.finish, bool(state.calls))))
            del self._open[index]
        return found

    def _chunk(
        self, index: int, delta: Json, tokens: Sequence[TokenText] = (), finish: FinishReason | str | None = None
    ) -> Json:
        return {
            "index": index,
            "delta": delta,
            "logprobs": self._told(tokens) if tokens else None,
            "finish_reason": finish,
        }

    def _told(self, tokens: Sequence[TokenText]) -> Json:
        if not self._logprobs:
            return None
        return {"content": [{**_token(one), "top_logprobs": [_token(top) for top in one.top]} for one in tokens]}


def _reason(finish: FinishReason | None, called: bool) -> str | None:
    """A message that calls tools ends for that reason, unless it was cut off."""
    return TOOL_CALLS if called and finish == "stop" else finish


def _function(call: ToolCall) -> Json:
    return {"name": call.name, "arguments": call.arguments}


def _call_id() -> str:
    return f"call_{new_request_id()}"


def _token(token: TokenText) -> dict[str, Json]:
    return {"token": token.text, "logprob": logprob(token), "bytes": list(token.bytes)}
