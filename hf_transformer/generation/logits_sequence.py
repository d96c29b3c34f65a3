"""State of one sequence of a logits model: its tokens, its cache, and the choice of its next token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hf_transformer.generation.cache import Cache, CacheTensor, cache_bytes
from hf_transformer.generation.masks import GrammarCompiler, TokenMask
from hf_transformer.generation.sampling import TokenSampler, score_prompt
from hf_transformer.generation.types import FinishReason, Prompt, Sampling, Step, TokenScore
from hf_transformer.types.tensors import Array

LOGITS = "logits"
"""Key of the logits in the outputs of a step. The keys of caches are output names."""
PROMPT_LOGITS = "prompt_logits"
"""Key of the logits [S - 1, V] after each token of a prompt but the last, in the first step."""


class LogitsSequence:
    """State of one sequence. ``begin`` allocates its cache and its sampler.

    Args:
        start: first tokens of the decoder.
        source: prompt of an encoder-decoder; empty for other models.
        max_new: limit of new tokens.
        grammars: compiles the request's constraint.

    Attributes:
        prompt: shared by all sequences of a prompt.
        source: int64 [S].
        cache: None if the model has no cache.
        mask: the tokens that the request's constraint allows, from ``begin``; None for free text.
    """

    __slots__ = (
        *(
            "_cache_tensors",
            "_end_ids",
            "_grammars",
            "_ids",
            "_length",
            "_sampler",
            "_sampling",
            "_start",
            "_suppressed",
        ),
        *("cache", "mask", "prompt", "source"),
    )
    _sampler: TokenSampler

    def __init__(
        self,
        prompt: Prompt,
        start: Sequence[int],
        source: Sequence[int],
        sampling: Sampling,
        eos_ids: frozenset[int],
        max_new: int,
        caches: Sequence[CacheTensor],
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.prompt = prompt
        self.source = np.array(source, np.int64)
        self.cache: Cache | None = None
        self._sampling = sampling
        self._suppressed = eos_ids.union(sampling.stop_token_ids)
        """Tokens to suppress before min_tokens are generated."""
        self._end_ids = frozenset(sampling.stop_token_ids) if sampling.ignore_eos else self._suppressed
        self.mask: TokenMask | None = None
        self._grammars = grammars
        self._cache_tensors = caches
        self._start = self._length = len(start)
        # Preallocated array: a list would need a conversion in each step.
        self._ids = np.empty(len(start) + max(max_new, 0), np.int64)
        self._ids[: len(start)] = start

    def begin(self) -> None:
        """Allocates the cache and the sampler, before the first step."""
        sampling, constraint = self._sampling, self._sampling.constraint
        if constraint is not None and self._grammars is not None:
            # A complete text can only end, so ignore_eos means that it ends as late as possible.
            self._end_ids, at_least = self._suppressed, len(self._ids) if sampling.ignore_eos else sampling.min_tokens
            self.mask = self._grammars.mask(constraint, sampling.path("constraint"), self._end_ids, at_least)
        prefix = None
        if self.mask is not None and self._grammars is not None and sampling.reasoning is not None:
            prefix = self._grammars.prefix(sampling.reasoning(), sampling.shown_tokens)
        self._sampler = TokenSampler(sampling, self.tokens.tolist(), self._suppressed, self.mask, prefix)
        tensors = self._cache_tensors
        self.cache = Cache(tensors, self._cache_length, len(self.source)) if tensors else None

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache at its maximum length; 0 if the sequence needs no step."""
        needs_step = self.needs_prompt_scores or not self.is_full
        return cache_bytes(self._cache_tensors, self._cache_length, len(self.source)) if needs_step else 0

    @property
    def _cache_length(self) -> int:
        """Maximum number of tokens in the cache. It excludes the last token, which is never sent to the model."""
        return max(len(self._ids) - 1, self._start)

    @property
    def is_full(self) -> bool:
        """Whether the sequence has reached its limit of tokens."""
        return self._length == len(self._ids)

    @property
    def needs_prompt_scores(self) -> bool:
        """Whether the next step has to score the prompt's tokens."""
        return self._sampling.prompt_logprobs is not None and self.is_new and not self.prompt.scores

    @property
    def tokens(self) -> Array:
        """Tokens of the decoder so far, int64 [T]. They include the prompt for a decoder-only model."""
        return self._ids[: self._length]

    @property
    def needs_mask(self) -> bool:
        """Whether the mask may apply to the next token."""
        prefix = self._sampler.prefix
        return self.mask is not None and (prefix is None or not prefix.must_continue)

    @property
    def is_new(self) -> bool:
        """Whether the sequence has no generated token yet."""
        return self._length == self._start

    @property
    def has_past(self) -> bool:
        """Whether the cache contains tokens of earlier steps."""
        return self.cache is not None and self.cache.length > 0

    def decode(self, rows: Mapping[str, Array]) -> tuple[int, TokenScore | None]:
        """Chooses the next token from a step's outputs, and extends the cache. May run in a thread. Raises
        PredictorError."""
        top = self._sampling.prompt_logprobs
        if top is not None and self.needs_prompt_scores:
            self.prompt.scores = score_prompt(rows[PROMPT_LOGITS], self.prompt.ids, top)
        chosen = self._sampler.choose(rows[LOGITS])
        if self.cache is not None:
            self.cache.append(rows, 1 if self.cache.length else self._length)
        return chosen

    def add(self, token: int, score: TokenScore | None) -> Step:
        """Adds a chosen token. Returns a step, with ``finish`` set if the token ends the text."""
        if self.is_full:  # the step was for the prompt's scores only
            return Step(finish="length")
        scores = () if score is None else (score,)
        if token in self._end_ids:
            return Step(scores=scores, finish="stop")
        self._ids[self._length] = token
        self._length += 1
        finish: FinishReason | None = "length" if self.is_full else None
        if self.mask is not None and self.mask.is_over:
            finish = "stop"
        return Step((token,), scores=scores, finish=finish)
