"""How a test model chooses its next token: greedily, or by a seeded draw."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Sampling:
    """The defaults change nothing; top_k 0 is all. bias [V] is added to the logits."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: np.ndarray | None = None
    seed: int | None = None
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def choose(self, logits: np.ndarray, prompt: list[int], new: list[int]) -> int:
        """The next token after prompt and new, from its logits FP32 [V]."""
        logits = self._penalized(logits.astype(np.float64), prompt, new)
        if self.top_k == 1 or self.temperature == 0:
            return int(logits.argmax())
        logits = logits / self.temperature
        order = np.argsort(-logits, kind="stable")
        if self.top_k > 0:
            order = order[: self.top_k]
        chances = np.exp(logits[order] - logits[order[0]])
        chances /= chances.sum()
        before = np.cumsum(chances) - chances
        # The first token that reaches top_p is the last one taken.
        taken = (before < self.top_p) & (chances >= self.min_p * chances[0])
        taken[0] = True
        chances = np.where(taken, chances, 0.0)
        return int(order[np.searchsorted(np.cumsum(chances), self.random.random() * chances.sum(), side="right")])

    def _penalized(self, logits: np.ndarray, prompt: list[int], new: list[int]) -> np.ndarray:
        if self.bias is not None:
            logits = logits + self.bias
        if self.repetition_penalty != 1.0:
            seen = np.unique([*prompt, *new])
            some = logits[seen]
            logits[seen] = np.where(some > 0, some / self.repetition_penalty, some * self.repetition_penalty)
        if new:
            ids, counts = np.unique(new, return_counts=True)
            logits[ids] -= self.presence_penalty + self.frequency_penalty * counts
        return logits


def log_probability(logits: np.ndarray, token: int) -> float:
    """The natural log of what softmax gives the token: before any penalty and any temperature."""
    shifted = logits.astype(np.float64) - logits.max()
    return float(shifted[token] - np.log(np.exp(shifted).sum()))
