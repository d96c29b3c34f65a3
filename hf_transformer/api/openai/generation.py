"""What completions and chat completions share: how a text is generated, and the form of whole answers and streams.

A stream is server-sent events, ``data: {...}`` each, with ``data: [DONE]`` at its end. An error in the middle is an
event with OpenAI's error body, and the last one.

Source: https://platform.openai.com/docs/api-reference/completions/create and .../chat/create; the fields that OpenAI
does not have (top_k, min_p, repetition_penalty, min_tokens, ignore_eos, stop_token_ids) are named and meant as in vLLM,
https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import orjson

from hf_transformer.api.base import Model, expect, renamed, reply
from hf_transformer.api.openai.fields import as_sent, render_error
from hf_transformer.api.streaming import TextStream, event
from hf_transformer.errors import InvalidInput
from hf_transformer.generation.stream import Generation
from hf_transformer.generation.types import GenerationRequest, Piece, TokenText
from hf_transformer.tasks.base import GenerationSettings
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types import Context, Json, Response

SAMPLING = (
    "temperature top_p top_k min_p seed stop stop_token_ids n min_tokens presence_penalty frequency_penalty "
    "repetition_penalty logit_bias ignore_eos"
).split()
"""Fields that say how a text is generated."""
SHARED = ("model", "stream", "stream_options", *SAMPLING)
DEFAULTS = GenerationSettings(do_sample=True, top_k=0)
"""OpenAI's: all of the distribution is drawn from."""
STREAM_OPTIONS = ("include_usage", "include_obfuscation")
DONE = event(b"[DONE]")


def read_stream(given: Parameters) -> tuple[bool, bool]:
    """``stream``, and whether it is to end with the usage. Raises InvalidInput."""
    stream = given.flag("stream", False)
    options = given.get("stream_options")
    if options is None:
        return stream, False
    expect(options, dict, "parameters.stream_options", "an object")
    if not stream:
        raise InvalidInput('parameters.stream_options: only a stream has them; add "stream": true')
    for name, wanted in options.items():
        where = f"parameters.stream_options.{name[:40]}"
        if name not in STREAM_OPTIONS:
            raise InvalidInput(f"{where}: unknown, expected some of {', '.join(STREAM_OPTIONS)}")
        if expect(wanted, bool | None, where, "true or false") and name == "include_obfuscation":
            raise InvalidInput(f"{where}: nothing is added to hide how long chunks are, expected false")
    return stream, bool(options.get("include_usage"))


class GeneratedAnswer(TextStream):
    """The answer to one request, as a stream or whole; a subclass per endpoint has the form of its choices.

    Ids begin with ``prefix``. ``object`` names a whole answer, ``chunk_object`` a part of a stream, which ends with the
    tokens if ``usage`` is asked for.
    """

    __slots__ = ("_about", "_after", "_before", "_with_usage")
    prefix: ClassVar[str]
    object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, model: Model, request: GenerationRequest, context: Context, usage: bool) -> None:
        super().__init__(model, request, context)
        self._with_usage = usage
        self._about: dict[str, Json] = {
            "id": f"{self.prefix}-{context.request_id}",
            "object": self.chunk_object,
            "created": int(time.time()),
            "model": model.name,
        }
        # What stands around the only choice of an event is the same in all of a stream. Putting it together each time
        # would cost as much as the choice does.
        head = event(orjson.dumps({**self._about, "choices": [], **({"usage": None} if usage else {})}))
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
        chunks = self.chunks(piece.prompt * self._request.sampling.n + piece.choice, piece)
        return b"".join([self._before + orjson.dumps(one) + self._after for one in chunks])

    def end(self) -> bytes:
        if not self._with_usage:
            return DONE
        return event(orjson.dumps({**self._about, "choices": [], "usage": usage(self.running)})) + DONE

    def error(self, message: str, status: int) -> bytes:
        return event(render_error(message, status))

    def as_sent(self, message: str) -> str:
        return as_sent(message)


def usage(running: Generation) -> dict[str, int]:
    """The tokens of all prompts, and of all their continuations."""
    prompt, new = running.prompt_tokens, running.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def logprob(token: TokenText) -> float:
    """A token's log probability. JSON has no number for that of an impossible token: it is -9999, as with OpenAI."""
    return max(token.logprob, -9999.0)
