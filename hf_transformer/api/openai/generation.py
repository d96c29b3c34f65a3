"""What completions and chat completions share: how a text is generated, what is told of it, and how a stream looks.

A stream is server-sent events, ``data: {...}`` each, with ``data: [DONE]`` at its end; an error in the middle is an
event with OpenAI's error body, after which nothing comes.

Source: https://platform.openai.com/docs/api-reference/completions/create and .../chat/create; the fields that OpenAI
does not have (top_k, min_p, repetition_penalty, min_tokens, ignore_eos, stop_token_ids) are named and meant as in vLLM,
https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import orjson

from hf_transformer.api.base import Model, reply
from hf_transformer.api.openai.bodies import as_sent, named_as_sent, render_error
from hf_transformer.api.openai.unused import EVERYWHERE
from hf_transformer.api.streaming import EVENTS, StreamForm, event
from hf_transformer.errors import InvalidInput, RequestError
from hf_transformer.generation.sampling import SamplingReader
from hf_transformer.generation.stream import Generation
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.types import FinishReason, GenerationRequest, Piece, Sampling, TokenText
from hf_transformer.tasks.base import describe
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types import Context, Json, Response

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "n",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "ignore_eos",
)
"""Fields that say how a text is generated."""
SHARED = ("model", "stream", "stream_options", *EVERYWHERE, *SAMPLING)
"""Fields of both endpoints."""
STREAM_OPTIONS = ("include_usage", "include_obfuscation")
Fields = Mapping[str, Json]
"""A request's fields, without those that are null."""
DONE = event(b"[DONE]")
LEAST_LOGPROB = -9999.0
"""What stands for a token that can't be, for which JSON has no number; as with OpenAI."""


def read_sampling(
    given: Parameters,
    task: TextGeneration,
    *,
    tokens: str | None,
    default_tokens: int | None = None,
    logprobs: tuple[int, str] | None = None,
) -> Sampling:
    """The sampling that a request's fields describe, with OpenAI's defaults: all of the distribution is drawn from.

    Args:
        tokens: the field that says how many new tokens there may be, None if it was not given; ``default_tokens`` hold
            then.
        logprobs: how many tokens are told beside each, and the field that says so; None for none.

    Raises:
        RequestError: a field has a value that is not taken; it begins with ``parameters.``, see named_as_sent.
    """
    reader = SamplingReader(given, prefix="")
    if tokens is None and default_tokens is not None:
        reader.put("max_tokens", default_tokens, "max_tokens")
    reader.tokens(tokens, given.one_of("min_tokens"))
    frozen = reader.temperature(1.0)
    reader.top_p(1.0)
    reader.top_k(0)
    reader.number("min_p", 0.0, 0.0, 1.0)
    reader.seed()
    reader.penalties()
    reader.logit_bias(task.settings.vocabulary.vocab_size)
    reader.ignore_eos()
    reader.stop(given.one_of("stop"))
    reader.stop_token_ids(task.settings.vocabulary.vocab_size)
    reader.choices("n")
    if logprobs is not None:
        reader.logprobs(*logprobs)
    if frozen:
        reader.drop_randomness("temperature")
    return task.bounded(reader.finish())


def read_stream(given: Parameters) -> tuple[bool, bool]:
    """``stream``, and whether it is to end with the usage. Raises InvalidInput."""
    stream = given.flag("stream", False)
    options = given.get("stream_options")
    if options is None:
        return stream, False
    if not isinstance(options, dict):
        raise InvalidInput(f"parameters.stream_options: expected an object, got {describe(options)}")
    if not stream:
        raise InvalidInput('parameters.stream_options: only a stream has them; add "stream": true')
    for name, wanted in options.items():
        where = f"parameters.stream_options.{name[:40]}"
        if name not in STREAM_OPTIONS:
            raise InvalidInput(f"{where}: unknown, expected some of {', '.join(STREAM_OPTIONS)}")
        if not isinstance(wanted, bool | None):
            raise InvalidInput(f"{where}: expected true or false, got {describe(wanted)}")
        if wanted and name == "include_obfuscation":
            raise InvalidInput(f"{where}: nothing is added to hide how long chunks are, expected false")
    return stream, bool(options.get("include_usage"))


def generating_task(model: Model) -> TextGeneration:
    """The model's task, which find_model has seen to be one that generates."""
    if not isinstance(model.task, TextGeneration):
        raise AssertionError(f"{model.task.name} generates no text")
    return model.task


@dataclass(slots=True)
class Choice:
    """One continuation, as far as it has come."""

    text: str = ""
    tokens: list[TokenText] = field(default_factory=list)
    finish: FinishReason | None = None

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self.tokens += piece.tokens
        self.finish = piece.finish


class Form(Protocol):
    """What an endpoint's answers look like."""

    object: str
    chunk_object: str

    def choice(self, index: int, whole: Choice) -> Json:
        """One choice of an answer that is given whole."""

    def chunks(self, index: int, piece: Piece) -> Sequence[Json]:
        """The choices of the events, one each, in which a piece is told; keeps what it needs for the next one."""


class Generating(StreamForm):
    """One request on its way: what is asked, and what its answer begins with.

    Args:
        form: what its choices look like.
        usage: whether a stream is to end with the usage.
        prefix: how the answer's id begins.
    """

    __slots__ = (
        "_before",
        "_behind",
        "_context",
        "_form",
        "_head",
        "_model",
        "_n",
        "_prefix",
        "_request",
        "_usage",
    )

    content_type = EVENTS

    def __init__(
        self, model: Model, request: GenerationRequest, context: Context, form: Form, usage: bool, prefix: str
    ) -> None:
        self._model = model
        self._request = request
        self._context = context
        self._form = form
        self._usage = usage
        self._prefix = prefix
        self._n = request.sampling.n
        self.texts = len(request.prompts) * self._n

    async def whole(self) -> Response:
        """The answer, whole; its errors name fields as the client sent them."""
        about = self._about(self._form.object)
        with named_as_sent():
            async with await self.start() as running:
                choices = [Choice() for _ in range(self.texts)]
                async for piece in running:
                    choices[piece.prompt * self._n + piece.choice].add(piece)
                used = usage(running)
        made = [self._form.choice(index, one) for index, one in enumerate(choices)]
        return reply(orjson.dumps({**about, "choices": made, "usage": used}))

    def start(self) -> Awaitable[Generation]:
        self._head = self._about(self._form.chunk_object)
        self._before, self._behind = _around_choice(self._head, {"usage": None} if self._usage else {})
        return self._model.generate(self._request, self._context)

    def piece(self, piece: Piece) -> bytes:
        """One write for what came together."""
        before, behind = self._before, self._behind
        made = self._form.chunks(piece.prompt * self._n + piece.choice, piece)
        if len(made) == 1:
            return before + orjson.dumps(made[0]) + behind
        return b"".join([before + orjson.dumps(one) + behind for one in made])

    def end(self, running: Generation) -> bytes:
        last = event(orjson.dumps({**self._head, "choices": [], "usage": usage(running)})) if self._usage else b""
        return last + DONE

    def error(self, message: str, status: int) -> bytes:
        return event(render_error(message, status))

    def named(self, error: RequestError) -> RequestError:
        return as_sent(error)

    def _about(self, kind: str) -> dict[str, Json]:
        return {
            "id": f"{self._prefix}-{self._context.request_id}",
            "object": kind,
            "created": int(time.time()),
            "model": self._model.name,
            "system_fingerprint": None,
        }


def _around_choice(head: Mapping[str, Json], more: Mapping[str, Json]) -> tuple[bytes, bytes]:
    """An event up to its only choice, and what follows it: the same in all of a stream. Putting it together each time
    costs as much as the choice does."""
    before, behind = event(orjson.dumps({**head, "choices": [], **more})).split(b'"choices":[]', 1)
    return before + b'"choices":[', b"]" + behind


def usage(running: Generation) -> dict[str, int]:
    """The tokens of all prompts, and of all their continuations."""
    prompt, new = running.prompt_tokens, running.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def logprob(token: TokenText) -> float:
    """A token's log probability, as JSON can have it."""
    return max(token.logprob, LEAST_LOGPROB)
