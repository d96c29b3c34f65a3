"""Parts of streams, for vLLM's derender routes: each part becomes a chunk, and the state for the part after it.

The client keeps the state. If the model's answers are read, it has all tokens so far, and each part is read with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_transformer.api.bodies import read_declared
from hf_transformer.api.call import Call
from hf_transformer.api.chat_completions import call_delta, joined, new_call_id, reasoning_fields
from hf_transformer.api.dialects import derender_types as types
from hf_transformer.api.dialects.derender_logprobs import chat_logprobs, completion_logprobs
from hf_transformer.api.dialects.derender_request import (
    CHAT,
    COMPLETION,
    Derendering,
    asks_for_ids,
    begin,
    chat_of,
    count_tokens,
    make_off_loop,
    most_of_chat,
    most_of_completion,
    read_choices,
    usage_of,
    with_reader,
)
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.service import Service
from hf_transformer.errors import InvalidInput, Path
from hf_transformer.generation.derender import LOGPROB_CONTEXT, TextWindow
from hf_transformer.generation.responses.events import CallDelta
from hf_transformer.generation.tools import ReadDelta
from hf_transformer.types.fields import Form, read_value
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a stream. ``choice`` is None in a part with the usage alone."""

    generated: types.GeneratedChunk
    choice: types.GeneratedChoice | None
    state: types.StreamState
    window: TextWindow
    prompt: Sequence[int]

    @property
    def new_ids(self) -> Sequence[int]:
        return () if self.choice is None else self.choice.token_ids or ()

    @property
    def read_again(self) -> int:
        """The size of the state, whose tokens are read again: ids, and characters of tokens, which may be long."""
        return len(self.state.output_token_ids) + sum(map(len, self.state.prev_tokens))


async def _read_part(service: Service, call: Call, body: Any, field: str, form: Form[Any]) -> tuple[Derendering, Part]:
    """Reads a part of a stream."""
    made = begin(service, call, body, field, form)
    path: Path = ("generate_chunk",)
    generated = types.PART.read(body.generate_chunk, path=path)
    if len(generated.choices) > 1:
        raise InvalidInput((*path, "choices"), "at most one choice", str(len(generated.choices)))
    choices = read_choices(call, generated.choices, types.CHOICE_PART, path)
    has_state = body.stream_state is not None
    state = read_value(body.stream_state, types.StreamState, ("stream_state",)) if has_state else types.StreamState()
    if sum(state.output_chunk_lens) != len(state.output_token_ids):
        expected = f"numbers of tokens with the sum {len(state.output_token_ids)}, as output_token_ids has"
        raise InvalidInput(("stream_state", "output_chunk_lens"), expected, str(sum(state.output_chunk_lens)))
    prompt = generated.prompt_token_ids if body.prompt_token_ids is None else body.prompt_token_ids
    new = [token for choice in choices for token in choice.token_ids or ()]
    before = [*(body.prompt_token_ids or ()), *state.output_token_ids] if field == CHAT else list(prompt or ())
    placed = [((*path, "choices", index), choice) for index, choice in enumerate(choices)]
    await count_tokens(call, made.model, placed, (("prompt_token_ids",), [*before, *new]))
    if has_state:
        window = TextWindow(made.model.tokenizer, state.prev_tokens, state.prefix_offset, state.read_offset)
    else:
        window = made.texts.window(prompt or ())
    part = Part(generated, choices[0] if choices else None, state, window, body.prompt_token_ids or ())
    return made, part


async def chat_chunk(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns the next chunk of a chat's stream."""
    body: types.DerenderChatChunkRequest = read_declared(call, types.FORMS["chat chunk"], payload)
    made, part = await _read_part(service, call, body, CHAT, types.CHAT)
    made = await with_reader(call, made, part.prompt)
    if made.model.responses is not None and body.prompt_token_ids is None:
        hint = "its end may begin the reasoning"
        raise InvalidInput("prompt_token_ids", "the prompt's token ids", "nothing", hint)
    choices, state = await make_off_loop(service, call, lambda: _chat_part(made, part), part.read_again)
    chunk = {
        **made.head(call, part.generated, "chat.completion.chunk"),
        "choices": choices,
        **_end(body, part),
        "prompt_token_ids": part.generated.prompt_token_ids if asks_for_ids(made) else None,
    }
    return await reply_arrays({"chunk": chunk, "stream_state": state}, call.context, service.executor)


def _end(body: Any, part: Part) -> dict[str, Json]:
    """The last fields of a chunk."""
    usage, counted = part.generated.usage, None
    if usage is not None:
        prompt = usage.prompt_tokens or 0 if body.prompt_tokens is None else body.prompt_tokens
        counted = usage_of(prompt, usage.completion_tokens or 0)
    return {"usage": counted, "metrics": part.generated.metrics}


def _chat_part(made: Derendering, part: Part) -> tuple[list[Json], Json]:
    """Returns the choices of a chat's chunk, and the next state."""
    choice, state = part.choice, part.state
    changes: dict[str, Json] = {}
    if choice is None:
        return [], _changed(part, changes)
    finish: str | None
    ids, reason = made.rules.without_end(part.new_ids, choice.finish_reason, choice.stop_reason)
    if made.reader is None:
        text = made.texts.push(part.window, ids)
        delta, finish = ({"content": text} if text else {}), choice.finish_reason
    else:
        delta, finish, changes = _read_message(made, part, ids)
    before = state.logprob_context_token_ids
    changes |= {"role_sent": True, "logprob_context_token_ids": [*before, *part.new_ids][-LOGPROB_CONTEXT:]}
    rendered = {
        "index": choice.index,
        "delta": delta if state.role_sent else {"role": "assistant", **delta},
        "logprobs": None if made.hides else chat_logprobs(choice.logprobs, made.names, before, most_of_chat(made)),
        "finish_reason": finish,
        "stop_reason": reason,
        "token_ids": choice.token_ids if made.shows_ids else None,
    }
    return [rendered], _changed(part, changes)


def _read_message(
    made: Derendering, part: Part, ids: Sequence[int]
) -> tuple[dict[str, Json], str | None, dict[str, Json]]:
    """Reads a part of a message. Returns the delta, the reason of the end, and changes of the state."""
    if made.reader is None or part.choice is None:
        raise AssertionError("a part of a message has a choice and a reader")
    state, finish = part.state, part.choice.finish_reason
    text, window = made.texts.resume(part.prompt, state.output_token_ids)
    reader, calls = made.reader(), list(state.last_tool_call_ids)
    reader.read(text, is_last=False)
    new = made.texts.push(window, ids)
    deltas = reader.read(new, is_last=finish is not None)
    delta = _delta(deltas, calls, chat_of(made.asked).include_reasoning)
    if finish is not None:
        made.model.count_unreadable(reader.unreadable)
        finish = reader.reason(finish)
    lengths = [*state.output_chunk_lens, *([len(part.new_ids)] if part.new_ids else ())]
    changes = {
        "output_token_ids": [*state.output_token_ids, *part.new_ids],
        "output_chunk_lens": lengths,
        "tools_streamed": bool(calls),
        "last_tool_call_ids": calls,
        # All tokens are read again, so that the window is not needed.
        **{"prev_tokens": [], "prefix_offset": 0, "read_offset": 0},
    }
    return delta, finish, changes


def _delta(deltas: Sequence[ReadDelta], calls: list[str], includes_reasoning: bool) -> dict[str, Json]:
    """One delta of several. ``calls`` gets the ids of new calls."""
    content, reasoning, _ = joined(deltas)
    merged: dict[str, Json] = {"content": content} if content else {}
    if reasoning and includes_reasoning:
        merged |= reasoning_fields(reasoning)
    parts: list[Json] = []
    for delta in deltas:
        if not isinstance(delta, CallDelta):
            continue
        call_id = ""
        if delta.name is not None:
            if delta.index >= len(calls):
                calls.append(new_call_id(delta))
            call_id = calls[min(delta.index, len(calls) - 1)]
        parts.append(call_delta(delta, call_id))
    return merged | ({"tool_calls": parts} if parts else {})


def _changed(part: Part, changes: Mapping[str, Json]) -> dict[str, Json]:
    """The state after a part."""
    state, window = part.state, part.window
    before = {name: getattr(state, name) for name in state.__struct_fields__}
    seen = {"prev_tokens": window.tokens, "prefix_offset": window.prefix, "read_offset": window.read}
    return {**before, **seen, **changes}


async def completion_chunk(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns the next chunk of a completion's stream."""
    body: types.DerenderCompletionChunkRequest = read_declared(call, types.FORMS["completion chunk"], payload)
    made, part = await _read_part(service, call, body, COMPLETION, types.COMPLETION)
    choices, state = await make_off_loop(service, call, lambda: _completion_part(made, part), part.read_again)
    chunk = {**made.head(call, part.generated, "text_completion"), "choices": choices, **_end(body, part)}
    return await reply_arrays({"chunk": chunk, "stream_state": state}, call.context, service.executor)


def _completion_part(made: Derendering, part: Part) -> tuple[list[Json], Json]:
    """Returns the choices of a completion's chunk, and the next state."""
    choice, state = part.choice, part.state
    if choice is None:
        return [], _changed(part, {})
    ids, reason = made.rules.without_end(part.new_ids, choice.finish_reason, choice.stop_reason)
    text, before = made.texts.push(part.window, ids), state.logprob_context_token_ids
    most, start = most_of_completion(made), state.logprob_text_offset
    logprobs = completion_logprobs(choice.logprobs, made.names, before, most, start)
    tokens = [] if logprobs is None else logprobs["tokens"]
    rendered = {
        "index": choice.index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
        "stop_reason": reason,
        "prompt_token_ids": part.generated.prompt_token_ids if made.shows_ids else None,
        "token_ids": choice.token_ids if made.shows_ids else None,
    }
    changes = {
        "logprob_context_token_ids": [*before, *part.new_ids][-LOGPROB_CONTEXT:],
        "logprob_text_offset": start + (sum(map(len, tokens)) if tokens else len(text)),
    }
    return [rendered], _changed(part, changes)
