"""Sampling: from a request's parameters to Sampling, and from a model's logits to the next token.

``read_sampling`` reads parameters. TokenSampler chooses tokens as transformers' logits processors do, for models that
give logits; other models choose tokens themselves.

The order is that of ``GenerationMixin._get_logits_processor``: logit_bias, repetition_penalty, presence and frequency
penalties, min_tokens; then, only for a token that is drawn, temperature, top_k, top_p, min_p. Presence and frequency
penalties are OpenAI's (as in vLLM): they count the generated tokens alone, the repetition penalty also the prompt's.
No function changes its row of logits [V]: it lies in the predictor's buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hf_transformer.errors import InvalidInput, PredictorError, TooLarge, describe
from hf_transformer.generation.types import NEUTRAL, Sampling, TokenScore
from hf_transformer.tasks.base import GenerationSettings
from hf_transformer.tasks.numerics import top_k
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.tensors import Array

MAX_STOPS, MAX_STOP_LENGTH = 16, 1000
"""Stop strings of one request (OpenAI takes 4), and characters of each: as much text may be held back."""
MAX_STOP_TOKENS = 128
"""Tokens of one request that end its texts."""
MAX_CHOICES = 128
"""Continuations of one prompt, as OpenAI's n."""
MAX_LOGPROBS = 20
"""Likeliest tokens beside each token, as in OpenAI's chat."""
MAX_BIASES = 1024
"""Tokens in logit_bias."""
SMALLEST = 1e-6
"""Of a temperature that is not 0, and of top_p: models compute in float32, where much less is 0."""
SEEDS = 2**63
"""Seeds wrap around here, so that a negative one works too: predictors take unsigned numbers."""
MIN_TOKENS = ("min_new_tokens", "min_tokens")
CHOICES = ("num_return_sequences", "n")
STOP = ("stop", "stop_strings", "stop_words")
"""Each parameter has transformers' name first, then those of vLLM and TensorRT-LLM."""
DRAW = ("temperature", "top_k", "top_p", "min_p")
"""A request with one of these wants sampling, unless it sets do_sample."""
_RANGES = {
    "temperature": (0.0, 100.0),
    "top_p": (SMALLEST, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-2.0, 2.0),  # as with OpenAI
    "frequency_penalty": (-2.0, 2.0),
}
"""The numbers that a field of Sampling may have, under its own name."""

HEAD, BLOCK = 256, 512
"""Weights that are sorted first for top_p, and that are cumulated at a time (a vocabulary of 150,000 takes 1 ms)."""
LARGE = 8 * HEAD
"""The size of a vocabulary from which on a partial sort pays."""


def _named(given: Parameters, field: str) -> str:
    return field if field in given else f"{field} (the service's --{field})"


def _at_most(count: int, most: int, name: str, what: str) -> int:
    if count > most:
        raise TooLarge.of(f"parameters.{name}: {count}, at most {most} {what}")
    return count


def _min_tokens(given: Parameters, name: str, tokens: str | None, most: int | None) -> int:
    """0 asks for nothing, so any model can honour it."""
    least = given.integer(name, 0, 0)
    if most is not None and least > most:
        allowed = f"{tokens} allows {most}" if tokens else f"there may be {most} where nothing says how many"
        raise InvalidInput.of(f"parameters.{name}: {least}, but {allowed}")
    return least


def _choices(given: Parameters, name: str, vocab_size: int) -> int:
    return _at_most(given.integer(name, 1, 1), MAX_CHOICES, name, "are given of one prompt")


def _stop(given: Parameters, name: str, vocab_size: int) -> tuple[str, ...]:
    stops = given.strings(name, empty=True, most=MAX_STOPS) or []
    for index, one in enumerate(stops):
        if not one:
            raise InvalidInput.of(f"parameters.{name}: string {index} is empty, and would be found everywhere")
        if len(one) > MAX_STOP_LENGTH:
            raise TooLarge.of(
                f"parameters.{name}: string {index} has {len(one)} characters, at most {MAX_STOP_LENGTH} are taken"
            )
    return tuple(stops)


def _stop_token_ids(given: Parameters, name: str, vocab_size: int) -> tuple[int, ...]:
    ids = given.get(name)
    if not isinstance(ids, list):
        raise InvalidInput.of(f"parameters.{name}: expected a list of token ids, got {describe(ids)}")
    if len(ids) > MAX_STOP_TOKENS:
        raise TooLarge.of(f"parameters.{name}: {len(ids)} tokens, at most {MAX_STOP_TOKENS} are taken")
    for index, one in enumerate(ids):
        if type(one) is not int or not 0 <= one < vocab_size:
            shown = one if type(one) is int else describe(one)
            raise InvalidInput.of(f"parameters.{name}: token {index} is {shown}, expected 0 to {vocab_size - 1}")
    return tuple(ids)


def _logit_bias(given: Parameters, name: str, vocab_size: int) -> dict[int, float]:
    """{"id": bias}, with ids as JSON has keys."""
    found = given.get(name)
    if not isinstance(found, dict):
        raise InvalidInput.of(f"parameters.{name}: expected an object, got {describe(found)}")
    if len(found) > MAX_BIASES:
        raise TooLarge.of(f"parameters.{name}: {len(found)} tokens, at most {MAX_BIASES} are taken")
    for key, value in found.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
            raise InvalidInput.of(f"parameters.{name}: {key[:20]!r} is no token's id, expected 0 to {vocab_size - 1}")
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise InvalidInput.of(f"parameters.{name}: token {key} has {describe(value)}, expected a number")
        if not -100 <= value <= 100:
            raise InvalidInput.of(f"parameters.{name}: token {key} has {value:g}, expected -100 to 100")
    return {int(key): float(value) for key, value in found.items()}


_READERS: Sequence[tuple[str, Sequence[str], Callable[[Parameters, str, int], Any]]] = (
    ("seed", ("seed",), lambda given, name, _: given.integer(name, 0, -SEEDS) % SEEDS),
    ("logit_bias", ("logit_bias",), _logit_bias),
    ("ignore_eos", ("ignore_eos",), lambda given, name, _: given.flag(name, False)),
    ("stop", STOP, _stop),
    ("stop_token_ids", ("stop_token_ids",), _stop_token_ids),
    ("n", CHOICES, _choices),
)
"""Fields of Sampling without a default of the service: the names of the parameter, and the function that reads it."""


def read_sampling(
    given: Parameters,
    defaults: GenerationSettings,
    vocab_size: int,
    *,
    tokens: str | None,
    default_tokens: int | None = None,
    logprobs: tuple[int, str] | None = None,
) -> Sampling:
    """The sampling that a request's parameters describe, under any of the names that ``given`` knows.

    Args:
        defaults: temperature, top_k, top_p and do_sample without the request's.
        tokens: the parameter with the number of new tokens; without one it is ``default_tokens``.
        logprobs: how many of the likeliest tokens are given beside each, and the parameter that says so.

    Raises:
        InvalidInput, TooLarge: a value that is not taken; the message begins with ``parameters.NAME``.
    """
    values: dict[str, Any] = {}
    names = {"max_length": "max_length"} if "max_length" in given else {}

    def put(field: str, value: Any, name: str) -> None:
        values[field] = value
        if value != getattr(NEUTRAL, field):
            names[field] = name

    if tokens is not None:
        put("max_tokens", given.integer(tokens, 0, 1), tokens)
    elif default_tokens is not None:
        put("max_tokens", default_tokens, "max_tokens")
    if (name := given.one_of(*MIN_TOKENS)) is not None:
        put("min_tokens", _min_tokens(given, name, tokens, values.get("max_tokens")), name)
    for field, (least, most) in _RANGES.items():
        neutral = getattr(NEUTRAL, field)
        default = getattr(defaults, field, neutral)
        if field in given or default != neutral:
            put(field, given.number(field, default, least, most), _named(given, field))
    if 0 < values.get("temperature", 1.0) < SMALLEST:
        shown = f"{values['temperature']:g} is out of range, expected 0, or {SMALLEST:g} or more"
        raise InvalidInput.of(f"parameters.temperature: {shown}")
    if "top_k" in given or defaults.top_k:  # -1 (vLLM's) and 0 (transformers') are all tokens
        put("top_k", max(given.integer("top_k", defaults.top_k, -1), 0), _named(given, "top_k"))
    for field, known, read in _READERS:
        if (name := given.one_of(*known)) is not None:
            put(field, read(given, name, vocab_size), name)
    if logprobs is not None:
        put("logprobs", _at_most(logprobs[0], MAX_LOGPROBS, logprobs[1], "tokens are told"), logprobs[1])
    sample = given.flag("do_sample", defaults.do_sample or any(name in given for name in DRAW))
    if (zero := values.get("temperature") == 0) or not sample:
        for field in (*DRAW, "seed"):  # they mean nothing
            values.pop(field, None)
            names.pop(field, None)
        values["greedy"] = True
        if (says := "temperature" if zero else "do_sample") in given:  # else it is the service's default
            names["greedy"] = says
    return Sampling(**values, names=names)


def candidates(scores: Array, sampling: Sampling) -> tuple[Array | None, Array]:
    """The tokens that may be drawn from processed logits [V], by temperature, top_k, top_p and min_p in this order:
    their ids [K], ascending, None for the whole vocabulary; and their weights, float32 [K], which are probabilities but
    for a common factor, the largest about 1. Raises PredictorError for NaN or infinite logits, and if none is left."""
    best = scores.max()
    _require_finite(best)
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


def _require_finite(best: Any) -> None:
    if not np.isfinite(best):
        raise PredictorError("the model answered with logits that are not finite numbers (NaN or infinite)")


def _kept(ids: Array | None, weights: Array, places: Array) -> tuple[Array, Array]:
    return places if ids is None else ids[places], weights[places]


def _nucleus(weights: Array, top_p: float) -> Array:
    """The indices, ascending, of the fewest of the largest weights that together are at least ``top_p`` of all.

    TopPLogitsWarper sorts the whole vocabulary. Here that happens only if the nucleus is larger than HEAD.
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


def draw(ids: Array | None, weights: Array, uniform: float) -> int:
    """The token at ``uniform`` (0 to 1) of the cumulated weights, in the order of the ids: a logit that differs in its
    last bit, as with another batch size, then moves the borders by as little, and never swaps two tokens."""
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


class TokenSampler:
    """Chooses the tokens of one sequence, which come after ``ids``. It has its own random generator and draws one
    number per token, so a seed always gives the same tokens from the same logits.

    A temperature of 0 is greedy too. The tokens ``eos_ids``, which end a text, are held back until there are
    ``sampling.min_tokens``.
    """

    def __init__(self, sampling: Sampling, ids: Sequence[int], eos_ids: frozenset[int]) -> None:
        self._sampling = sampling
        self._repetition = sampling.repetition_penalty != 1
        self._counted = bool(sampling.presence_penalty or sampling.frequency_penalty)
        self._bias_ids = np.array(list(sampling.logit_bias), np.int64)
        self._biases = np.array(list(sampling.logit_bias.values()), np.float32)
        self._ends = np.array(sorted(eos_ids), np.int64)
        self._counts = dict.fromkeys(ids if self._repetition else (), 0)
        """How often each token was generated; 0 for those of the prompt alone."""
        self._generated = 0
        self._random: np.random.Generator | None = None
        if not sampling.greedy and sampling.temperature != 0:
            # Philox takes any 128 bits as its key. A seed may be negative.
            key = None if sampling.seed is None else sampling.seed % 2**128
            self._random = np.random.Generator(np.random.Philox(key=key))

    def choose(self, logits: Array) -> tuple[int, TokenScore | None]:
        """The next token, and its score if logprobs are asked for: those of the model's own distribution, before bias,
        penalties and temperature, as with OpenAI and vLLM (logprobs_mode raw_logprobs).

        ``logits`` [V] are floats of any precision. Raises PredictorError if they are NaN or infinite.
        """
        scores = self.process(logits)
        if self._random is None:
            token = int(scores.argmax())
            _require_finite(scores[token])
        else:
            token = draw(*candidates(scores, self._sampling), self._random.random())
        self.add(token)
        wanted = self._sampling.logprobs
        return token, None if wanted is None else score(logits, token, wanted)

    def add(self, token: int) -> None:
        """Counts a chosen token."""
        self._generated += 1
        if self._repetition or self._counted:
            self._counts[token] = self._counts.get(token, 0) + 1

    def process(self, logits: Array) -> Array:
        """The logits [V] with bias, penalties and min_tokens: themselves if nothing applies, else float32."""
        sampling = self._sampling
        held_back = self._generated < sampling.min_tokens and self._ends.size
        if not (self._repetition or self._counted or self._bias_ids.size or held_back):
            return logits
        scores = logits.astype(np.float32)
        scores[self._bias_ids] += self._biases
        ids = np.fromiter(self._counts, np.int64, len(self._counts))
        if self._repetition:  # RepetitionPenaltyLogitsProcessor; arXiv 1909.05858
            seen, penalty = scores[ids], np.float32(sampling.repetition_penalty)
            scores[ids] = np.where(seen < 0, seen * penalty, seen / penalty)
        if self._counted:  # OpenAI's formula: c[j] * frequency + (c[j] > 0) * presence
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            frequency, presence = np.float32(sampling.frequency_penalty), np.float32(sampling.presence_penalty)
            scores[ids] -= frequency * counts + presence * (counts > 0)
        if held_back:
            scores[self._ends] = -np.inf
        return scores
