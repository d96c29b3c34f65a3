"""What completions and chat completions share: how a text is generated, and the form of whole answers and streams.

A stream is server-sent events, ``data: {...}`` each, with ``data: [DONE]`` at its end. An error in the middle is an
event with OpenAI's error body, and the last one.

Source: https://platform.openai.com/docs/api-reference/completions/create and .../chat/create; the fields that OpenAI
does not have (top_k, min_p, repetition_penalty, min_tokens, ignore_eos, stop_token_ids, and continuous_usage_stats of
stream_options) are named and meant as in vLLM, https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import orjson

from hf_transformer.api.errors import expect, renamed
from hf_transformer.api.openai.fields import as_sent, render_error
from hf_transformer.api.responses import reply
from hf_transformer.api.streaming import TextStream, event
from hf_transformer.errors import InvalidInput
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.stream import Generation
from hf_transformer.generation.types import GenerationRequest, Piece, TokenText
from hf_transformer.tasks.base import GenerationSettings
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.http import Response
from hf_transformer.types.request import Context, Json

SAMPLING = (
    "temperature top_p top_k min_p seed stop stop_token_ids n min_tokens presence_penalty frequency_penalty "
    "repetition_penalty logit_bias ignore_eos"
).split()
"""Fields that say how a text is generated."""
SHARED = ("model", "stream", "stream_options", *SAMPLING)
DEFAULTS = GenerationSettings(do_sample=True, top_k=0)
"""OpenAI's: all of the distribution is drawn from."""
STREAM_OPTIONS = ("include_usage", "continuous_usage_stats", "include_obfuscation")
UsageChunks = Literal["none", "last", "every"]
"""The chunks of a stream that have the usage."""
DONE = event(b"[DONE]")


def read_stream(given: Parameters) -> tuple[bool, UsageChunks]:
    """``stream``, and which chunks of it are to have the usage. As in vLLM ``continuous_usage_stats`` means nothing
    without ``include_usage``. Raises InvalidInput."""
    stream = given.flag("stream", False)
    options = given.get("stream_options")
    if options is None:
        return stream, "none"
    expect(options, dict, "parameters.stream_options", "an object")
    if not stream:
        raise InvalidInput.of('parameters.stream_options: only a stream has them; add "stream": true')
    for name, wanted in options.items():
        where = f"parameters.stream_options.{name[:40]}"
        if name not in STREAM_OPTIONS:
            raise InvalidInput.of(f"{where}: unknown, expected some of {', '.join(STREAM_OPTIONS)}")
        if expect(wanted, bool | None, where, "true or false") and name == "include_obfuscation":
            raise InvalidInput.of(f"{where}: nothing is added to hide how long chunks are, expected false")
    if not options.get("include_usage"):
        return stream, "none"
    return stream, "every" if options.get("continuous_usage_stats") else "last"


class GeneratedAnswer(TextStream):
    """The answer to one request, as a stream or whole; a subclass per endpoint has the form of its choices.

    Ids begin with ``prefix``. ``object`` names a whole answer, ``chunk_object`` a part of a stream. ``usage`` says
    which chunks tell the tokens: the last one those of all choices, any other one those of its own choice so far.
    """

    __slots__ = ("_about", "_after", "_before", "_so_far", "_usage")
    prefix: ClassVar[str]
    object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(
        self, model: GenerativeModel, request: GenerationRequest, context: Context, usage: UsageChunks
    ) -> None:
        super().__init__(model, request, context)
        self._usage = usage
        self._so_far = [0] * self.remaining
        """New tokens of each choice."""
        self._about: dict[str, Json] = {
            "id": f"{self.prefix}-{context.request_id}",
            "object": self.chunk_object,
            "created": int(time.time()),
            "model": model.name,
        }
        # What stands around the only choice of an event is the same in all of a stream. Putting it together each time
        # would cost as much as the choice does.
        head = event(orjson.dumps({**self._about, "choices": [], **({} if usage == "none" else {"usage": None})}))
        before, after = head.split(b'"choices":[]', 1)
        self._before, self._after = before + b'"choices":[', b"]" + after

    @abstractmethod
    def choice(self, index: int, whole: Piece) -> Json:
        """One choice of a whole answer, of which ``whole`` is all of it."""

    @abstractmethod
    def chunks(self, index: int, piece: Piece) -> Sequence[Json]:
        """The choices of the events, one each, for a piece; may be none."""

    async def whole(self) -> Response:
        """Raises RequestError."""
        with renamed(self.as_sent):
            async with await self.start() as running:
                found = await running.collect()
                used = usage(running)
        texts = [one for choices in found for one in choices]
        choices = [self.choice(index, one) for index, one in enumerate(texts)]
        return reply(orjson.dumps({**self._about, "object": self.object, "choices": choices, "usage": used}))

    def piece(self, piece: Piece) -> bytes:
        index = piece.prompt * self._request.sampling.n + piece.choice
        chunks, after = self.chunks(index, piece), self._after
        if self._usage == "every":
            self._so_far[index] += piece.count
            used = _usage(self.running.prompt_length(index), self._so_far[index])
            after = after.replace(b"null", orjson.dumps(used))
        return b"".join([self._before + orjson.dumps(one) + after for one in chunks])

    def end(self) -> bytes:
        if self._usage == "none":
            return DONE
        return event(orjson.dumps({**self._about, "choices": [], "usage": usage(self.running)})) + DONE

    def error(self, message: str, status: int) -> bytes:
        return event(render_error(message, status))

    def as_sent(self, message: str) -> str:
        return as_sent(message)


def usage(running: Generation) -> dict[str, int]:
    """The tokens of all prompts, and of all their continuations."""
    return _usage(running.prompt_tokens, running.completion_tokens)


def _usage(prompt: int, new: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def logprob(token: TokenText) -> float:
    """A token's log probability. JSON has no number for that of an impossible token: it is -9999, as with OpenAI."""
    return max(token.logprob, -9999.0)
