"""What drives one kind of generative model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from hf_transformer.core.scheduler import ConcurrencyLimit, SchedulerSettings
from hf_transformer.generation.cache_budget import CacheBudget
from hf_transformer.generation.types import Prompt, Sampling, Step
from hf_transformer.types import Context

Interface = Literal["auto", "tokens", "text", "logits"]
"""The kinds of generative models, as --generation_interface names them; auto goes by the model's own tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSettings:
    """What a generator is built from, beside the predictor's model and the tokenizer.

    ``model_config`` is config.json. ``eos_ids`` end a text, ``pad_id`` fills masked positions. ``decoder_start_ids``
    are what the decoder of an encoder-decoder begins with, empty for a decoder alone. ``max_length`` is how many tokens
    the model takes, for a decoder alone the prompt and the new ones together. ``input_names`` and ``output_names`` are
    --tensor_input_names and --tensor_output_names, empty where they were not given. ``pad_to_multiple_of`` is that
    flag. ``places`` are those of the predictor for the batches of a logits model, and ``caches`` bounds the key-value
    caches that are held for it (--max_cache_bytes): texts under way keep their generator when another takes its place,
    and both share these two.
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

    kind: ClassVar[str]
    """Its name, as --generation_interface takes it: tokens, text or logits."""
    gives_ids: ClassVar[bool] = True
    """Whether its steps have ids; else they have text."""

    @property
    @abstractmethod
    def honours(self) -> frozenset[str]:
        """The fields of Sampling that the model, or this class, can honour. A request that sets another one to anything
        but its neutral value is refused before ``generate``. ``stop`` and ``n`` need no support: the pipeline searches
        the text itself, and each continuation is a call of its own.
        """

    def check(self, texts: Sequence[tuple[Prompt, Sampling]]) -> None:
        """Raises RequestError for texts of one request that can never be written together. Called before the first
        ``generate``."""
        return

    @abstractmethod
    def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        """One continuation of one prompt, step by step, as fast as the caller asks.

        Nothing is sent before the first step is asked for. Closing it early (``aclose``) or cancelling ends the work at
        the predictor, where that can be.
        ``sampling.max_tokens`` is always a number here, and ``sampling.seed`` differs between the choices of a prompt.
        The caller keeps the deadline.

        Raises:
            RequestError: the predictor's errors, and InvalidInput for a prompt that can't be continued.
        """

    async def canary(self, prompt: Prompt) -> None:
        """Has the model make one token of a short prompt. Raises RequestError if it can't."""
        sampling = Sampling(max_tokens=1, greedy=True)
        async with aclosing(self.generate(prompt, sampling, Context("canary", {}))) as steps:
            async for _ in steps:
                pass

    async def close(self) -> None:
        """Gives back what it holds; called when another model takes its place, or the service ends."""
        return
