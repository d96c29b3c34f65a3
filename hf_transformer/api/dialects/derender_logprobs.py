"""Log probabilities of token ids in OpenAI's forms, for vLLM's derender routes."""

from __future__ import annotations

from collections.abc import Sequence

from hf_transformer.api.dialects.derender_types import TokenLogprobs
from hf_transformer.generation.derender import LOGPROB_CONTEXT, TokenNames
from hf_transformer.types.request import Json


def chat_logprobs(logprobs: TokenLogprobs | None, names: TokenNames, before: Sequence[int], most: int | None) -> Json:
    """Renders log probabilities as a chat's. ``before`` are the tokens before them in a stream.

    ``most`` is the number of candidates of a position, in the order in which they come; None for all.
    """
    if logprobs is None or logprobs.content is None:
        return None if logprobs is None else {"content": None}
    context, content = list(before), []
    for position in logprobs.content:
        candidates = position.top_logprobs[:most]
        content.append(
            {
                **_named(names.text(position.token_id, context), position.logprob),
                "top_logprobs": [_named(names.text(one.token_id, context), one.logprob) for one in candidates],
            }
        )
        context = [*context, position.token_id][-LOGPROB_CONTEXT:]
    return {"content": content}


def _named(text: str | None, logprob: float) -> dict[str, Json]:
    return {"token": text or "", "logprob": logprob, "bytes": None if text is None else list(text.encode())}


def completion_logprobs(
    logprobs: TokenLogprobs | None, names: TokenNames, before: Sequence[int], most: int | None, start: int = 0
) -> Json:
    """Renders log probabilities as a completion's. ``start`` is the offset of the first token."""
    if logprobs is None:
        return None
    named = chat_logprobs(logprobs, names, before, most)["content"] or []
    offsets = []
    for position in named:
        offsets.append(start)
        start += len(position["token"])
    return {
        "text_offset": offsets,
        "token_logprobs": [position["logprob"] for position in named],
        "tokens": [position["token"] for position in named],
        "top_logprobs": [
            {one["token"]: one["logprob"] for one in position["top_logprobs"]} if source.top_logprobs else None
            for position, source in zip(named, logprobs.content or (), strict=True)
        ],
    }
