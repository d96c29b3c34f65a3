"""Shared parts of completions, chat completions and responses: the fields of bodies, and the form of answers.

A stream consists of server-sent events, ``data: {...}``, and ends with ``data: [DONE]``. An error ends the stream with
OpenAI's error body as the last event.

Sources: https://platform.openai.com/docs/api-reference/completions/create and .../chat/create. vLLM adds sampling
fields, prompt_logprobs and stream_options.continuous_usage_stats: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

import orjson
from msgspec import Meta

from hf_transformer.api.bodies import CHOSEN, Priority, Unused
from hf_transformer.api.error_forms import render_error
from hf_transformer.api.large_json import write_in_steps
from hf_transformer.api.responses import reply
from hf_transformer.api.streaming import TextStream, event
from hf_transformer.errors import InvalidInput, RequestError
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.parameters import PROMPT_LOGPROBS, STRUCTURED, Choices, SamplingFields, TopTokens
from hf_transformer.generation.sampling import GUIDED, Named
from hf_transformer.generation.stream import Generation
from hf_transformer.generation.types import GenerationRequest, Piece, TokenText
from hf_transformer.tasks.base import GenerationSettings
from hf_transformer.types.fields import NO_EFFECT, Body, Form, NonEmpty, about, only
from hf_transformer.types.http import Response
from hf_transformer.types.request import Context, Json

DEFAULTS = GenerationSettings(do_sample=True, top_k=0)
"""OpenAI's defaults: sampling from the whole distribution."""
INLINE_CHARACTERS, INLINE_TOKENS = 500_000, 500
"""Maximum characters of texts, and maximum tokens with log probabilities, to render on the event loop, a few
milliseconds."""
UsageChunks = Literal["none", "last", "every"]
"""Chunks of a stream that report usage."""
DONE = event(b"[DONE]")


class StreamOptions(Body):
    """The chunks of a stream."""

    include_usage: Annotated[bool | None, about("Whether a last chunk has the usage.")] = None
    continuous_usage_stats: Annotated[
        bool | None, about("Whether each chunk has the usage of its choice so far; needs include_usage.")
    ] = None
    include_obfuscation: Annotated[
        Json, only(False, because="the service does not pad chunks to hide their length")
    ] = None


Metadata: TypeAlias = Annotated[
    Annotated[dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]
    | None,
    NO_EFFECT,
    about(expected="an object of strings"),
]
"""The limits are OpenAI's."""
CONSTRAINTS: Final = (STRUCTURED, *GUIDED)
GUIDE: Final = about("Older name of a member of structured_outputs.")


class GenerationBody(SamplingFields):
    """Fields of completions, chat completions and responses."""

    model: Annotated[str | None, CHOSEN] = None
    guided_json: Annotated[Json, GUIDE, about(shown=(dict[str, Json], str))] = None
    guided_regex: Annotated[Json, GUIDE, about(shown=(str,))] = None
    guided_choice: Annotated[Json, GUIDE, about(shown=(NonEmpty[Annotated[str, Meta(min_length=1)]],))] = None
    guided_grammar: Annotated[Json, GUIDE, about(shown=(str,))] = None
    stream: Annotated[bool | None, about("Whether to answer in pieces.", schema={"default": False})] = None
    stream_options: Annotated[dict[str, Json] | None, about("The chunks of a stream.", shown=(StreamOptions,))] = None
    user: Unused = None
    safety_identifier: Unused = None
    prompt_cache_key: Unused = None
    prompt_cache_retention: Unused = None
    metadata: Metadata = None
    service_tier: Annotated[Json, only("auto", "default", because="the service has one tier")] = None
    priority: Priority = None

    def constraints(self) -> dict[str, Json]:
        return {name: value for name in CONSTRAINTS if (value := getattr(self, name)) is not None}


NO_BEAMS: Final = "the service has no beam search"
NO_SPECIAL: Final = "the text excludes special tokens"


class ChoicesBody(GenerationBody):
    """Fields of completions and chat completions."""

    n: Choices = None
    prompt_logprobs: TopTokens = None
    store: Annotated[Json, only(True, False, because="the service stores nothing")] = None
    use_beam_search: Annotated[Json, only(False, because=NO_BEAMS)] = None
    length_penalty: Annotated[Json, only(1.0, because=NO_BEAMS)] = None
    early_stopping: Annotated[Json, only(False, because=NO_BEAMS)] = None
    skip_special_tokens: Annotated[Json, only(True, because=NO_SPECIAL)] = None
    spaces_between_special_tokens: Annotated[Json, only(True, because=NO_SPECIAL)] = None
    include_stop_str_in_output: Annotated[Json, only(False, because="the text excludes the stop string")] = None


STREAM_OPTIONS: Final = Form(StreamOptions)


def read_stream(body: GenerationBody) -> tuple[bool, UsageChunks]:
    """Returns the flag ``stream``, and the chunks that report usage. As in vLLM, ``continuous_usage_stats`` has no
    effect without ``include_usage``. Raises InvalidInput."""
    stream = body.stream or False
    if body.stream_options is None:
        return stream, "none"
    if not stream:
        raise InvalidInput("stream_options", "no options without a stream", hint='add "stream": true')
    options = STREAM_OPTIONS.read(body.stream_options, path=("stream_options",))
    if not options.include_usage:
        return stream, "none"
    return stream, "every" if options.continuous_usage_stats else "last"


def prompt_logprobs(body: ChoicesBody) -> Named[int] | None:
    """Returns vLLM's field with its name. Raises InvalidInput for a stream, as in vLLM."""
    if body.prompt_logprobs is None:
        return None
    if body.stream:
        raise InvalidInput(PROMPT_LOGPROBS, "no value with a stream", hint="leave out either field")
    return body.prompt_logprobs, PROMPT_LOGPROBS


class GeneratedAnswer(TextStream):
    """The response to one request, complete or streamed. A subclass for each endpoint renders choices.

    Attributes:
        prefix: prefix of the response's id.
        object: type of a complete response.
        chunk_object: type of a chunk of a stream.
        has_one_prompt: whether the response has ``prompt_logprobs`` instead of its choices, as in vLLM.

    If ``usage`` is "last", the last chunk reports the tokens of all choices. If ``usage`` is "every", each earlier
    chunk also reports the tokens of its choice so far.
    """

    __slots__ = ("_envelope", "_head", "_new_tokens", "_tail", "_usage")
    prefix: ClassVar[str]
    object: ClassVar[str]
    chunk_object: ClassVar[str]
    has_one_prompt: ClassVar[bool] = False

    def __init__(
        self, model: GenerativeModel, request: GenerationRequest, context: Context, usage: UsageChunks
    ) -> None:
        super().__init__(model, request, context)
        self._usage = usage
        self._new_tokens = [0] * self.remaining  # per choice
        self._envelope: dict[str, Json] = {
            "id": f"{self.prefix}-{context.request_id}",
            "object": self.chunk_object,
            "created": int(time.time()),
            "model": context.model_name,
        }
        # Serialize the constant part of chunks only once: it takes as much time as a choice.
        chunk = event(orjson.dumps({**self._envelope, "choices": [], **({} if usage == "none" else {"usage": None})}))
        head, tail = chunk.split(b'"choices":[]', 1)
        self._head, self._tail = head + b'"choices":[', b"]" + tail

    @abstractmethod
    def choice(self, index: int, whole: Piece) -> Json:
        """Renders a choice of a complete response. ``whole`` is the choice's complete text."""

    @abstractmethod
    def choices(self, index: int, piece: Piece) -> Sequence[bytes]:
        """Renders a piece as serialized choices. Each choice becomes one chunk."""

    def with_details(self, tokens: dict[str, Json]) -> dict[str, Json]:
        """Adds details to the usage of all choices."""
        return tokens

    async def whole(self) -> Response:
        """Generates the complete response. Raises RequestError."""
        async with await self.start() as running:
            texts = [text for prompt in await running.collect() for text in prompt]
            tokens = usage(running)
        if self._is_short(texts):
            return reply(self._render(texts, tokens))
        return reply(await asyncio.get_running_loop().run_in_executor(running.executor, self._render, texts, tokens))

    def _render(self, texts: Sequence[Piece], tokens: dict[str, Json]) -> bytes:
        choices = [self.choice(index, text) for index, text in enumerate(texts)]
        tokens = self.with_details(tokens)
        answer = {**self._envelope, "object": self.object, "choices": choices, "usage": tokens}
        answer |= self.prompt_logprobs(texts[0]) if self.has_one_prompt else {}
        return orjson.dumps(answer) if self._is_short(texts) else write_in_steps(answer)

    def _is_short(self, texts: Sequence[Piece]) -> bool:
        """Whether to render texts on the event loop: log probabilities and long texts would delay other requests."""
        sampling = self._request.sampling
        if sampling.prompt_logprobs is not None or sampling.logprobs is not None:
            return sum(len(text.tokens) + len(text.prompt_tokens) for text in texts) < INLINE_TOKENS
        return sum(len(text.text) for text in texts) <= INLINE_CHARACTERS

    def prompt_logprobs(self, whole: Piece) -> dict[str, Json]:
        """Renders vLLM's field if the request sets it: null for the first token, then an object by token id, in which
        the prompt's own token is first."""
        if self._request.sampling.names.get(PROMPT_LOGPROBS) != PROMPT_LOGPROBS:
            return {}
        rows = [{str(one.id): _ranked(one) for one in (token, *token.top)} for token in whole.prompt_tokens[1:]]
        return {PROMPT_LOGPROBS: [None, *rows]}

    def piece(self, piece: Piece) -> bytes:
        index = piece.prompt * self._request.sampling.n + piece.choice
        choices, tail = self.choices(index, piece), self._tail
        if self._usage == "every":
            self._new_tokens[index] += piece.count
            tokens = _usage(self.running.prompt_length(index), self._new_tokens[index])
            tail = tail.replace(b"null", orjson.dumps(tokens))
        return b"".join([self._head + choice + tail for choice in choices])

    def end(self) -> bytes:
        if self._usage == "none":
            return DONE
        tokens = self.with_details(usage(self.running))
        return event(orjson.dumps({**self._envelope, "choices": [], "usage": tokens})) + DONE

    def error(self, error: RequestError) -> bytes:
        return event(render_error(error, error.status))


def usage(running: Generation) -> dict[str, Json]:
    """Renders the number of tokens in all prompts and all generated texts."""
    return _usage(running.prompt_tokens, running.completion_tokens)


def _usage(prompt: int, new: int) -> dict[str, Json]:
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def logprob(token: TokenText) -> float | None:
    """Returns a token's natural log probability, at least -9999 as in OpenAI's API: JSON can't represent infinity."""
    return None if token.logprob is None else max(token.logprob, -9999.0)


def _ranked(token: TokenText) -> Json:
    return {"logprob": logprob(token), "rank": token.rank, "decoded_token": token.text}
