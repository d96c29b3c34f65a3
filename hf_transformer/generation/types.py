"""Data types of text generation, and the interface of a generative model."""

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
"""Reason for the end of a text: an end-of-sequence token or a stop string, or the limit of new tokens."""
Interface = Literal["auto", "tokens", "text", "logits"]
"""Values of --generation_interface; ``auto`` detects the interface from the model's tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters of one continuation. Each default is neutral: it changes nothing.

    Attributes:
        max_tokens: limit of new tokens; None leaves the model's length as the limit.
        min_tokens: number of new tokens before which no text ends.
        greedy: takes the likeliest token, and ignores temperature, top_k, top_p, min_p and seed.
        top_k: 0 is the whole vocabulary.
        logit_bias: numbers to add to the logits, by token id.
        stop: strings that end the text, and are not part of it.
        stop_token_ids: tokens that end the text, and are not part of it.
        ignore_eos: treats end-of-sequence tokens like any other token.
        logprobs: number of likeliest tokens to return beside each token; None returns no log probabilities.
        n: number of continuations of each prompt.
        names: per changed field, the client's name of it, or the service's flag (``--top_k``) that set it.
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
        """Path of a field for FieldError, under the client's name."""
        return f"parameters.{self.names.get(field, field).removeprefix('--')}"


NEUTRAL = Sampling()


@dataclass(slots=True, kw_only=True)
class GenerationRequest:
    """One request of any API.

    Attributes:
        prompts: texts, or token ids (``TokenIds``).
        special_tokens: whether the tokenizer adds special tokens to texts; a rendered chat contains them already.
        echo: starts each text with its prompt.
        max_length: limit of prompt and new tokens together (transformers' max_length). ``sampling.max_tokens``
            overrides it.
        name: the client's name of the prompts, for FieldError.
        single: whether ``name`` is one prompt and not a list.
    """

    prompts: Sequence[TextInput]
    sampling: Sampling
    special_tokens: bool = True
    echo: bool = False
    max_length: int | None = None
    name: str = "instances"
    single: bool = False

    def prompt_path(self, index: int) -> str:
        """Path of a prompt for FieldError."""
        return self.name if self.single else f"{self.name}[{index}]"


@dataclass(slots=True)
class Prompt:
    """A tokenized prompt: ``text`` and ``ids`` [S].

    ``special_tokens`` says whether the service's tokenizer added special tokens, which ``text`` then lacks.
    """

    text: str
    ids: tuple[int, ...]
    special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class TokenScore:
    """Natural log probability of a chosen token. ``top`` has (id, logprob) of the likeliest tokens, best first."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Step:
    """One increment of a text from a generator: token ids, or text if the model returns text.

    Attributes:
        ids: new tokens, without a token that ends the text.
        scores: one element per id if the request asks for logprobs.
        finish: set in the last step.
        total: number of tokens of a text without ids, set in the last step if the generator counts them.
    """

    ids: Sequence[int] = ()
    text: str = ""
    scores: Sequence[TokenScore] = ()
    finish: FinishReason | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token in an answer: its ``text``, and its ``bytes``, which may be part of a character.

    ``offset`` is the token's start in the new text, in characters; a part of a character has the character's offset.
    Tokens of ``top`` have no offset.
    """

    text: str
    bytes: bytes
    logprob: float
    top: tuple[TokenText, ...] = ()
    offset: int = 0


@dataclass(slots=True)
class Piece:
    """New text of one continuation: number ``choice`` (0 to n - 1) of prompt number ``prompt``.

    Attributes:
        tokens: the tokens of the text if the request asks for logprobs.
        count: number of new tokens since the previous piece.
        finish: set in the last piece.
    """

    prompt: int
    choice: int
    text: str
    tokens: Sequence[TokenText] = ()
    count: int = 0
    finish: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSettings:
    """Settings of a generator.

    Attributes:
        model_config: content of config.json.
        eos_ids: end-of-sequence tokens.
        pad_id: token at masked positions.
        decoder_start_ids: first tokens of an encoder-decoder's decoder; empty for a decoder alone.
        max_length: tokens that the model takes; for a decoder alone the prompt and the new tokens together.
        input_names: --tensor_input_names.
        output_names: --tensor_output_names.
        concurrency_limit: limit of a logits model's batches in flight. Generators share it when the model is replaced.
        cache_budget: budget of key-value caches (--max_cache_bytes), shared in the same way.
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
    concurrency_limit: ConcurrencyLimit = field(default_factory=lambda: ConcurrencyLimit(0))
    cache_budget: CacheBudget = field(default_factory=lambda: CacheBudget(2**30))


class Generator(ABC):
    """One model that continues prompts, on one event loop."""

    interface: ClassVar[str]
    """Interface of the model, as --generation_interface names it."""

    supported_fields: frozenset[str]
    """Fields of Sampling that the model or this class supports. A request that sets another field is refused.
    The pipeline itself supports ``stop`` and ``n``."""

    def check(self, texts: Sequence[tuple[Prompt, Sampling]]) -> None:
        """Raises RequestError if one of a request's texts can never be generated. Runs before ``generate``."""
        return

    @abstractmethod
    def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        """Generates one continuation, step by step. The caller enforces the deadline.

        Sends nothing before the first step is requested. ``aclose`` and cancellation end the predictor's work if
        possible. ``sampling.max_tokens`` is not None here, and the choices of a prompt have different seeds.

        Raises:
            RequestError: the predictor failed.
            InvalidInput: the model can't continue this prompt.
        """

    async def trial(self, prompt: Prompt) -> None:
        """Generates one token. Raises RequestError if the model can't."""
        sampling = Sampling(max_tokens=1, greedy=True)
        async with aclosing(self.generate(prompt, sampling, Context("trial", {}))) as steps:
            async for _ in steps:
                pass
