"""The shapes of text generation, named once, and Generator, which each kind of model implements.

hf_transformer.types has the shapes of the rest, and says which are frozen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from hf_transformer.core.scheduler import ConcurrencyLimit, SchedulerSettings
from hf_transformer.generation.cache import CacheBudget
from hf_transformer.types import Context, TextInput

FinishReason = Literal["stop", "length"]
"""Why a text ended: at an end-of-sequence token or a stop string, or because it may not be longer."""
Interface = Literal["auto", "tokens", "text", "logits"]
"""The kinds of generative models, as --generation_interface names them; auto goes by the model's tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the tokens of a continuation are chosen. Each default is the neutral value, which changes nothing.

    ``max_tokens`` bounds the new tokens, None is as many as the model's length leaves; ``min_tokens`` come before an
    end may. ``greedy`` takes the likeliest token each time, and then temperature, top_k, top_p, min_p and seed mean
    nothing. ``top_k`` 0 is all. ``logit_bias`` is added to the logits of these ids. ``stop`` are strings that end the
    text, and are no part of it; ``stop_token_ids`` are tokens that do. ``ignore_eos`` lets it go on past the
    end-of-sequence tokens, but not past those. ``logprobs`` asks for the log probability of each token and of so many
    of the likeliest beside it; None for none. ``n`` continuations are made of each prompt.

    ``names`` has the client's names of the fields that it set to anything but their neutral value, for messages.
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

    def named(self, name: str) -> str:
        """What the client calls a field."""
        return self.names.get(name, name)


@dataclass(slots=True, kw_only=True)
class GenerationRequest:
    """What one request asks to be continued, whichever API it came through.

    ``prompts`` are texts or ids (``TokenIds``). ``special_tokens`` says whether the tokenizer adds its own to a text:
    a rendered chat has them already. ``echo`` puts the prompt in front of each text. ``max_length`` bounds the prompt
    and the new tokens together (transformers' max_length), where ``sampling.max_tokens`` says nothing. ``name`` is what
    the client calls its prompts, for messages; with ``single`` it is one prompt itself and not a list.
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
    """One prompt as the model gets it: ``ids`` [S] of the service's tokenizer, and the ``text`` that they were made of.
    ``special_tokens`` says whether the tokenizer added its own.
    """

    text: str
    ids: tuple[int, ...]
    special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A chosen token's natural log probability, and the likeliest tokens at its place, best first, as (id, logprob)."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Step:
    """What is new of a text: token ids, or the text itself where the model gives text.

    ``scores`` has one element per id where the sampling asks for logprobs. ``finish`` is not None in the last step. A
    token that ends the text is never among the ids. ``total``, in the last step, is how many tokens a text without ids
    has, where the generator has counted them.
    """

    ids: Sequence[int] = ()
    text: str = ""
    scores: Sequence[TokenScore] = ()
    finish: FinishReason | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token as a client sees it: ``text`` is its own, ``bytes`` what it stands for, which may be part of a character.

    ``offset`` is its place in the new text, in characters: part of a character has the character's. Those of ``top``
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

    ``tokens`` are there where logprobs are asked for, ``count`` is the number of tokens that became known with this
    piece. The last piece of a continuation has ``finish``.
    """

    prompt: int
    choice: int
    text: str
    tokens: Sequence[TokenText] = ()
    count: int = 0
    finish: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSettings:
    """What a generator is built from, beside the predictor's model and the tokenizer.

    ``model_config`` is config.json. ``eos_ids`` end a text, ``pad_id`` fills masked positions. ``decoder_start_ids``
    are what the decoder of an encoder-decoder begins with, empty for a decoder alone. ``max_length`` is how many tokens
    the model takes, for a decoder alone the prompt and the new ones together. ``input_names`` and ``output_names`` are
    --tensor_input_names and --tensor_output_names. A logits model sends batches within ``places``, and ``caches``
    bounds its key-value caches (--max_cache_bytes): running texts keep their generator when the model is replaced, and
    both generators share these two.
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
    """One model that continues prompts. Made, and used, on one event loop."""

    interface: ClassVar[str]
    """Its kind, as --generation_interface names it: tokens, text or logits."""

    honours: frozenset[str]
    """The fields of Sampling that the model, or this class, can honour; a request that sets another one is refused.
    ``stop`` and ``n`` need no support: the pipeline searches the text itself, and each continuation is a call of its
    own."""

    def check(self, texts: Sequence[tuple[Prompt, Sampling]]) -> None:
        """Raises RequestError for a text of a request that can never be written. Called before ``generate``."""
        return

    @abstractmethod
    def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        """One continuation of one prompt, step by step. The caller keeps the deadline.

        Nothing is sent before the first step is asked for. Closing it early (``aclose``) or cancelling ends the work at
        the predictor, where that can be. ``sampling.max_tokens`` is always a number here, and ``sampling.seed`` differs
        between the choices of a prompt.

        Raises:
            RequestError: the predictor's errors, and InvalidInput for a prompt that can't be continued.
        """

    async def trial(self, prompt: Prompt) -> None:
        """Generates one token after a short prompt. Raises RequestError if the model can't."""
        sampling = Sampling(max_tokens=1, greedy=True)
        async with aclosing(self.generate(prompt, sampling, Context("trial", {}))) as steps:
            async for _ in steps:
                pass
