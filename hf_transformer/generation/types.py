"""The shapes of text generation, and Generator, which each kind of model implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from hf_transformer.core.scheduler import ConcurrencyLimit, SchedulerSettings
from hf_transformer.generation.cache import CacheBudget
from hf_transformer.types.request import Context
from hf_transformer.types.tokenization import TextInput

FinishReason = Literal["stop", "length"]
"""Why a text ended: at an end-of-sequence token or a stop string, or at its largest length."""
Interface = Literal["auto", "tokens", "text", "logits"]
"""The kinds of generative models, as --generation_interface names them; auto goes by the model's tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the tokens of a continuation are chosen. Each default is the neutral value, which changes nothing.

    ``max_tokens`` bounds the new tokens, None by the model's length; no text ends before ``min_tokens``. ``greedy``
    takes the likeliest token, and temperature, top_k, top_p, min_p and seed then mean nothing. ``top_k`` 0 is all.
    ``logit_bias`` is added to the logits of these ids. The strings in ``stop`` and the tokens in ``stop_token_ids`` end
    the text and are no part of it; with ``ignore_eos`` end-of-sequence tokens don't. ``logprobs`` asks for the log
    probability of each token and of so many of the likeliest beside it; None for none. ``n`` is the number of
    continuations of each prompt.

    ``names`` has the client's name of each field that it changed, for FieldError.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    greedy: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1
    names: Mapping[str, str] = field(default_factory=dict)

    def path(self, field: str) -> str:
        """The path of a field, by the client's name, for FieldError."""
        return f"parameters.{self.names.get(field, field)}"


NEUTRAL = Sampling()


@dataclass(slots=True, kw_only=True)
class GenerationRequest:
    """One request of any API.

    ``prompts`` are texts or ids (``TokenIds``). ``special_tokens`` says whether the tokenizer adds its own to a text:
    a rendered chat has them already. ``echo`` puts the prompt in front of each text. ``max_length`` bounds the prompt
    and the new tokens together (transformers' max_length) if ``sampling.max_tokens`` is None. ``name`` is the client's
    name of its prompts, for messages; with ``single`` it is one prompt and not a list.
    """

    prompts: Sequence[TextInput]
    sampling: Sampling
    special_tokens: bool = True
    echo: bool = False
    max_length: int | None = None
    name: str = "instances"
    single: bool = False


@dataclass(slots=True)
class Prompt:
    """One prompt: its ``text``, and its ``ids`` [S] from the service's tokenizer, which added its own special tokens if
    ``special_tokens`` is true."""

    text: str
    ids: tuple[int, ...]
    special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A chosen token's natural log probability, and the likeliest tokens in its place, best first, as (id, logprob)."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Step:
    """The new part of a text: token ids, or text if the model gives text.

    ``scores`` has one element per id if logprobs are asked for. A token that ends the text is never among the ids. The
    last step has ``finish``, and in ``total`` the number of tokens of a text without ids, if the generator counted.
    """

    ids: Sequence[int] = ()
    text: str = ""
    scores: Sequence[TokenScore] = ()
    finish: FinishReason | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token as a client sees it: its ``text``, and its ``bytes``, which may be part of a character.

    ``offset`` is its place in the new text, in characters: part of a character has the character's. Tokens of ``top``
    have none.
    """

    text: str
    bytes: bytes
    logprob: float
    top: tuple[TokenText, ...] = ()
    offset: int = 0


@dataclass(slots=True)
class Piece:
    """New text of one continuation: number ``choice`` (0 to n - 1) of prompt number ``prompt``.

    It has ``tokens`` if logprobs are asked for, and the ``count`` of new tokens. The last piece has ``finish``.
    """

    prompt: int
    choice: int
    text: str
    tokens: Sequence[TokenText] = ()
    count: int = 0
    finish: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSettings:
    """The settings of a generator.

    ``model_config`` is config.json. ``eos_ids`` end a text, ``pad_id`` fills masked positions. An encoder-decoder's
    decoder begins with ``decoder_start_ids``. ``max_length`` is the number of tokens that the model takes, for a
    decoder alone the prompt and the new ones together. ``input_names`` and ``output_names`` are --tensor_input_names
    and --tensor_output_names. For a logits model, ``places`` limits the batches and ``caches`` the key-value caches
    (--max_cache_bytes); generators share both when the model is replaced.
    """

    model_config: Mapping[str, Any]
    eos_ids: frozenset[int]
    pad_id: int
    decoder_start_ids: tuple[int, ...] = ()
    max_length: int
    interface: Interface = "auto"
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    pad_to_multiple_of: int = 1
    scheduling: SchedulerSettings
    places: ConcurrencyLimit = field(default_factory=lambda: ConcurrencyLimit(0))
    caches: CacheBudget = field(default_factory=lambda: CacheBudget(2**30))


class Generator(ABC):
    """One model that continues prompts, on one event loop."""

    interface: ClassVar[str]
    """Its kind, as --generation_interface names it: tokens, text or logits."""

    supported_fields: frozenset[str]
    """The fields of Sampling that the model, or this class, can honour; a request that sets another one is refused.
    ``stop`` and ``n`` need no support: the pipeline does both."""

    def check(self, texts: Sequence[tuple[Prompt, Sampling]]) -> None:
        """Raises RequestError for a request with a text that can never be written. Called before ``generate``."""
        return

    @abstractmethod
    def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        """One continuation of one prompt, step by step. The caller keeps the deadline.

        Nothing is sent before the first step is asked for. Closing it (``aclose``) or cancelling ends the predictor's
        work if possible. ``sampling.max_tokens`` is a number here, and the choices of a prompt have different seeds.
        Raises the predictor's RequestErrors, and InvalidInput for a prompt that can't be continued.
        """

    async def trial(self, prompt: Prompt) -> None:
        """Generates one token after a short prompt. Raises RequestError if the model can't."""
        sampling = Sampling(max_tokens=1, greedy=True)
        async with aclosing(self.generate(prompt, sampling, Context("trial", {}))) as steps:
            async for _ in steps:
                pass
