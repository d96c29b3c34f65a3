"""From a model's logits to the tokens that may come next, as transformers' logits processors have it.

The order is that of ``GenerationMixin._get_logits_processor``: logit_bias, repetition_penalty, presence and frequency
penalties, min_tokens; then, only where a token is drawn, temperature, top_k, top_p, min_p. Presence and frequency
penalties are OpenAI's (as in vLLM): they count the generated tokens alone, while the repetition penalty counts the
prompt too. All functions take one row of logits [V] and never change it in place: it lies in the predictor's buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hf_transformer.errors import PredictorError
from hf_transformer.generation.types import Sampling
from hf_transformer.tasks.numerics import top_k
from hf_transformer.types import Array

HEAD = 256
"""Tokens among which the nucleus of top_p is looked for first; in the whole vocabulary only if it has more."""
LARGE = 8 * HEAD
"""Size of a vocabulary from which on that is worth it."""


class History:
    """Which tokens a text has: each one's id once, and how often it was generated.

    Args:
        ids: what was there before the first generated token: the prompt, or what the decoder begins with.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        unique = list(dict.fromkeys(ids))
        self._places = {one: place for place, one in enumerate(unique)}
        self._ids = np.array([*unique, *[0] * 64], np.int64)
        self._counts = np.zeros(len(self._ids), np.float32)

    def add(self, token: int) -> None:
        """Counts a generated token."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        self._counts[place] += 1

    @property
    def ids(self) -> Array:
        """All different ids, int64 [U]."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> Array:
        """How often each of ``ids`` was generated, float32 [U]; 0 for those of the prompt alone."""
        return self._counts[: len(self._places)]


class Processors:
    """What one continuation's sampling does to its logits before a token is chosen.

    Args:
        ids: what was there before the first generated token.
        eos_ids: the tokens that end a text, held back until there are ``sampling.min_tokens``.
    """

    def __init__(self, sampling: Sampling, ids: Sequence[int], eos_ids: frozenset[int]) -> None:
        self._sampling = sampling
        self._repetition = sampling.repetition_penalty != 1
        self._counted = bool(sampling.presence_penalty or sampling.frequency_penalty)
        self._bias = _pairs(sampling.logit_bias)
        self._ends = np.array(sorted(eos_ids), np.int64)
        self._history = History(ids if self._repetition else ()) if self._repetition or self._counted else None
        self._generated = 0

    def add(self, token: int) -> None:
        """The token that was chosen, before the next call."""
        self._generated += 1
        if self._history is not None:
            self._history.add(token)

    def __call__(self, logits: Array) -> Array:
        """The logits [V] after bias, penalties and min_tokens: themselves if none of it applies, else float32."""
        held_back = self._generated < self._sampling.min_tokens and self._ends.size
        if self._history is None and self._bias is None and not held_back:
            return logits
        scores = logits.astype(np.float32)
        if self._bias is not None:
            ids, values = self._bias
            scores[ids] += values
        if self._history is not None:
            if self._repetition:
                penalize_repetition(scores, self._history.ids, self._sampling.repetition_penalty)
            if self._counted:
                sampling = self._sampling
                penalize_counts(scores, self._history, sampling.presence_penalty, sampling.frequency_penalty)
        if held_back:
            scores[self._ends] = -np.inf
        return scores


def _pairs(bias: Mapping[int, float]) -> tuple[Array, Array] | None:
    if not bias:
        return None
    return np.array(list(bias), np.int64), np.array(list(bias.values()), np.float32)


def penalize_repetition(scores: Array, ids: Array, penalty: float) -> None:
    """Divides the logits of these ids by ``penalty``, multiplies them where they are negative (RepetitionPenalty-
    LogitsProcessor; arXiv 1909.05858). Changes ``scores`` [V] in place."""
    seen = scores[ids]
    scores[ids] = np.where(seen < 0, seen * np.float32(penalty), seen / np.float32(penalty))


def penalize_counts(scores: Array, history: History, presence: float, frequency: float) -> None:
    """Subtracts ``frequency`` for each time that a token was generated, and ``presence`` once (OpenAI's formula).
    Changes ``scores`` [V] in place."""
    counts = history.counts
    scores[history.ids] -= np.float32(frequency) * counts + np.float32(presence) * (counts > 0)


def candidates(scores: Array, sampling: Sampling) -> tuple[Array | None, Array]:
    """The tokens that may be drawn: temperature, top_k, top_p and min_p, in this order.

    Args:
        scores: the processed logits [V].

    Returns:
        Their ids [K], ascending, None for the whole vocabulary; and their weights, float32 [K]: probabilities but for
        a common factor, the largest about 1.

    Raises:
        PredictorError: the logits are NaN or infinite, or none is left.
    """
    best = scores.max()
    if not np.isfinite(best):
        raise PredictorError("the model answered with logits that are not finite numbers (NaN or infinite)")
    size = scores.shape[-1]
    ids: Array | None = None
    if 0 < sampling.top_k < size:
        # As TopKLogitsWarper: all that are no less than the k-th, so of equal ones all.
        ids = np.flatnonzero(scores >= scores[top_k(scores, sampling.top_k)[-1]])
        scores = scores[ids]
    # Shifted before it is divided: no temperature, however small, can then make an infinity of it.
    weights = scores.astype(np.float32)
    weights -= np.float32(best)
    if sampling.temperature != 1:
        weights /= np.float32(sampling.temperature)
    np.exp(weights, out=weights)
    if sampling.top_p < 1:
        ids, weights = _kept(ids, weights, _nucleus(weights, sampling.top_p))
    if sampling.min_p > 0:
        ids, weights = _kept(ids, weights, np.flatnonzero(weights >= np.float32(sampling.min_p) * weights.max()))
    return ids, weights


def _kept(ids: Array | None, weights: Array, places: Array) -> tuple[Array, Array]:
    return places if ids is None else ids[places], weights[places]


def _nucleus(weights: Array, top_p: float) -> Array:
    """Places, ascending, of the fewest of the largest weights that together are at least ``top_p`` of all.

    TopPLogitsWarper sorts the whole vocabulary. The nucleus is mostly among a few hundred, so only these are sorted.
    """
    enough = top_p * float(weights.sum(dtype=np.float64))
    order = top_k(weights, HEAD) if weights.size >= LARGE else np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order], dtype=np.float64)
    if before[-1] < enough and order.size < weights.size:
        order = np.argsort(-weights, kind="stable")
        before = np.cumsum(weights[order], dtype=np.float64)
    # A token is in as long as those before it have not reached top_p.
    count = 1 + int(np.searchsorted(before[:-1], enough, side="left"))
    return np.sort(order[:count])
