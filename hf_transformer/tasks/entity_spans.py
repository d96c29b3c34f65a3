"""Spans of words with scores for labels: candidates above a threshold, and the choice among those that overlap.

Sources: gliner 0.2.29, decoding/decoder.py; the papers of the span model (arXiv:2311.08526) and of the token-level
model (arXiv:2406.12925). A span's labels share its words, so its best label decides about the span; the others follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hf_transformer.tasks.numerics import require_finite, sigmoid
from hf_transformer.types.tensors import Array


@dataclass(frozen=True, slots=True)
class Candidates:
    """Spans [N] with their first and last words, INT64, and the scores of their best labels, float32."""

    firsts: Array
    lasts: Array
    scores: Array

    def where(self, mask: Array) -> Candidates:
        return Candidates(self.firsts[mask], self.lasts[mask], self.scores[mask])


class SpanScores(Protocol):
    """A text's scores of labels for spans of words."""

    def candidates(self, threshold: float, max_width: int) -> Candidates:
        """The spans of at most ``max_width`` words with a label above ``threshold``, ordered by their first words."""

    def labels(self, first: int, last: int, threshold: float) -> Array:
        """The scores [labels] of a span, float32; 0 for labels that are not above ``threshold``."""


class WidthScores:
    """The scores of a model that scores every span, from logits [words, widths, labels]."""

    def __init__(self, logits: Array) -> None:
        require_finite(logits.max(axis=(1, 2)))
        self._logits = logits

    def candidates(self, threshold: float, max_width: int) -> Candidates:
        words = len(self._logits)
        best = sigmoid(self._logits[:, :max_width].max(axis=2))
        widths = np.arange(best.shape[1])
        inside = np.arange(words)[:, np.newaxis] + widths < words
        firsts, offsets = np.nonzero((best > threshold) & inside)
        return Candidates(firsts, firsts + offsets, best[firsts, offsets])

    def labels(self, first: int, last: int, threshold: float) -> Array:
        scores = sigmoid(self._logits[first, last - first])
        return np.where(scores > threshold, scores, np.float32(0))


class BorderScores:
    """The scores of a token-level model, from logits [words, labels, 3] of an entity's start, end and inside.

    A span's score is the lowest of its first word's start, its last word's end, and all its words' inside.
    """

    def __init__(self, logits: Array) -> None:
        require_finite(logits.max(axis=(1, 2)))
        self._starts, self._ends, self._insides = np.moveaxis(sigmoid(logits), 2, 0)

    def candidates(self, threshold: float, max_width: int) -> Candidates:
        starts, ends, insides = self._starts, self._ends, self._insides
        words, lowest = len(starts), insides
        found = []
        for width in range(min(max_width, words)):
            count = words - width
            lowest = np.minimum(lowest[:count], insides[width:])
            if not (lowest >= threshold).any():
                break
            valid = (lowest >= threshold) & (starts[:count] > threshold) & (ends[width:] > threshold)
            best = np.where(valid, np.minimum(np.minimum(lowest, starts[:count]), ends[width:]), -1).max(axis=1)
            firsts = np.flatnonzero(best >= 0)
            found.append((firsts, firsts + width, best[firsts].astype(np.float32)))
        if not found:
            return Candidates(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))
        firsts, lasts, scores = map(np.concatenate, zip(*found, strict=True))
        order = np.lexsort((lasts, firsts))
        return Candidates(firsts[order], lasts[order], scores[order])

    def labels(self, first: int, last: int, threshold: float) -> Array:
        lowest, start, end = self._insides[first : last + 1].min(axis=0), self._starts[first], self._ends[last]
        valid = (lowest >= threshold) & (start > threshold) & (end > threshold)
        return np.where(valid, np.minimum(np.minimum(lowest, start), end), np.float32(0))


def choose(spans: Candidates, *, nested: bool) -> list[int]:
    """The indices of the spans that remain, the best first: each in turn unless it overlaps a better one.

    With ``nested``, a span may be inside another one; both may share a border.
    """
    order = np.argsort(-spans.scores, kind="stable").tolist()
    firsts, lasts = spans.firsts.tolist(), spans.lasts.tolist()
    kept: list[int] = []
    size = max(lasts, default=0) + 2
    if not nested:
        taken = bytearray(size)
        for index in order:
            first, stop = firsts[index], lasts[index] + 1
            if taken.find(1, first, stop) < 0:
                taken[first:stop] = b"\1" * (stop - first)
                kept.append(index)
        return kept
    ends, begins = [-1] * size, [size] * size
    """The last end of the kept spans that begin at a word, and the first beginning of those that end there."""
    for index in order:
        first, last = firsts[index], lasts[index]
        if first < last and (max(ends[first + 1 : last + 1]) > last or min(begins[first:last]) < first):
            continue
        ends[first], begins[last] = max(ends[first], last), min(begins[last], first)
        kept.append(index)
    return kept
