"""Choosing one continuation's next token, and what it is worth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hf_transformer.errors import PredictorError
from hf_transformer.generation.processors import Processors, candidates
from hf_transformer.generation.types import Sampling, TokenScore
from hf_transformer.tasks.numerics import top_k
from hf_transformer.types import Array

BLOCK = 512
"""Weights that are cumulated at a time: first their sums by blocks, then those of one block. Cumulating a vocabulary of
150,000 takes a millisecond."""


class Chooser:
    """Chooses the tokens of one continuation, one after the other.

    It has a random generator of its own, and draws one number per token: with the same seed it chooses the same tokens
    from the same logits, whatever else is going on.

    Args:
        sampling: how; a temperature of 0 is greedy too.
        ids: what was there before the first generated token.
        eos_ids: the tokens that end a text.
    """

    def __init__(self, sampling: Sampling, ids: Sequence[int], eos_ids: frozenset[int]) -> None:
        self._sampling = sampling
        self._processors = Processors(sampling, ids, eos_ids)
        self._greedy = sampling.greedy or sampling.temperature == 0
        seed = sampling.seed
        # Philox takes any 128 bits as its key. A seed may be negative.
        self._random = None if self._greedy else np.random.Generator(np.random.Philox(key=_key(seed)))

    def choose(self, logits: Array) -> tuple[int, TokenScore | None]:
        """The next token, and its score where logprobs are asked for.

        Log probabilities are those of the model's own distribution, before bias, penalties, temperature and the rest,
        as OpenAI and vLLM (logprobs_mode raw_logprobs) give them.

        Args:
            logits: [V], floats of any precision; not changed.

        Raises:
            PredictorError: they are NaN or infinite.
        """
        scores = self._processors(logits)
        if self._random is None:
            token = int(scores.argmax())
            if not np.isfinite(scores[token]):
                raise PredictorError("the model answered with logits that are not finite numbers (NaN or infinite)")
        else:
            token = draw(*candidates(scores, self._sampling), self._random.random())
        self._processors.add(token)
        wanted = self._sampling.logprobs
        return token, None if wanted is None else score(logits, token, wanted)


def _key(seed: int | None) -> int | None:
    return None if seed is None else seed % 2**128


def draw(ids: Array | None, weights: Array, uniform: float) -> int:
    """The token at ``uniform`` (0 to 1) of the cumulated weights, as ``candidates`` gives them.

    The tokens are in the order of their ids, not of their weights: a logit that differs in its last bit, as it does
    with another batch size, then moves the borders between tokens by as little, and never swaps two.
    """
    starts = np.arange(0, len(weights), BLOCK)
    blocks = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    target = uniform * blocks[-1]
    block = min(int(np.searchsorted(blocks, target, side="right")), len(starts) - 1)
    start = int(starts[block])
    within = np.cumsum(weights[start : start + BLOCK], dtype=np.float64)
    place = start + int(np.searchsorted(within, target - (blocks[block - 1] if block else 0), side="right"))
    if place >= min(start + BLOCK, len(weights)):
        place = int(np.flatnonzero(weights[: start + BLOCK])[-1])  # rounding has led past the last one
    return place if ids is None else int(ids[place])


def score(logits: Array, token: int, count: int) -> TokenScore:
    """Natural log probabilities of ``token`` and of the ``count`` likeliest tokens: log-softmax over ``logits`` [V]."""
    best = float(logits.max())
    shifted = logits.astype(np.float32)
    shifted -= np.float32(best)
    total = best + float(np.log(np.exp(shifted).sum(dtype=np.float64)))
    top = tuple((int(one), float(logits[one]) - total) for one in top_k(logits, count)) if count else ()
    return TokenScore(token, float(logits[token]) - total, top)
