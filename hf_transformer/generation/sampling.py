"""Sampling: from a request's parameters to Sampling, and from a model's logits to the next token.

SamplingReader reads parameters, Processors and ``candidates`` are transformers' logits processors, and Chooser chooses
the tokens of one sequence. The numerics are for models that give logits; other models choose tokens themselves.

The order is that of ``GenerationMixin._get_logits_processor``: logit_bias, repetition_penalty, presence and frequency
penalties, min_tokens; then, only where a token is drawn, temperature, top_k, top_p, min_p. Presence and frequency
penalties are OpenAI's (as in vLLM): they count the generated tokens alone, while the repetition penalty counts the
prompt too. All functions take one row of logits [V] and never change it: it lies in the predictor's buffer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hf_transformer.errors import InvalidInput, PredictorError, TooLarge
from hf_transformer.generation.types import Sampling, TokenScore
from hf_transformer.tasks.base import describe
from hf_transformer.tasks.numerics import top_k
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types import Array, Json

MAX_STOPS = 16
"""Stop strings of one request; OpenAI takes 4."""
MAX_STOP_LENGTH = 1000
"""Characters of a stop string: as much text may be held back while it might begin."""
MAX_STOP_TOKENS = 128
"""Tokens of one request that end its texts."""
MAX_CHOICES = 128
"""Continuations of one prompt, as OpenAI's n."""
MAX_LOGPROBS = 20
"""Likeliest tokens that are given beside each token; OpenAI's chat takes as many."""
MAX_BIASES = 1024
"""Tokens in logit_bias."""
LARGEST_TEMPERATURE = 100.0
SMALLEST = 1e-6
"""Of a temperature that is not 0, and of top_p: models compute in float32, where much less is 0."""
SMALLEST_PENALTY, LARGEST_PENALTY = 0.01, 100.0
"""Of repetition_penalty; the others go from -2 to 2, as with OpenAI."""
SEEDS = 2**63
"""Seeds wrap around here, so that a negative one works too: predictors take unsigned numbers."""
NEUTRAL = Sampling()

HEAD = 256
"""Tokens among which top_p is looked for first; the whole vocabulary is sorted only if the nucleus is larger."""
LARGE = 8 * HEAD
"""Size of a vocabulary from which on that pays."""
BLOCK = 512
"""Weights that are cumulated at a time: cumulating a vocabulary of 150,000 takes a millisecond."""


class SamplingReader:
    """Collects the fields of a Sampling, and the client's names of those that are not neutral.

    Errors are InvalidInput or TooLarge that begin with ``parameters.NAME``.

    Args:
        prefix: what stands before the names that the Sampling keeps: where the client's parameters are.
    """

    def __init__(self, given: Parameters, prefix: str = "parameters.") -> None:
        self._given = given
        self._prefix = prefix
        self._values: dict[str, Any] = {}
        self._names: dict[str, str] = {}

    def put(self, field: str, value: Any, name: str) -> None:
        """Sets a field of Sampling that the client called ``name``; a neutral value needs no name."""
        self._values[field] = value
        if value != getattr(NEUTRAL, field):
            self._names[field] = f"{self._prefix}{name}"

    def number(self, field: str, default: float, least: float, most: float) -> float:
        """A number under the field's own name. A default of the service is named by its flag."""
        if self._is_neutral(field, default):
            return default
        value = self._given.number(field, default, least, most)
        self.put(field, value, self._named(field))
        return value

    def _is_neutral(self, field: str, default: object) -> bool:
        """Whether the field keeps its neutral value, as most do in most requests."""
        return field not in self._given and default == getattr(NEUTRAL, field)

    def _named(self, field: str) -> str:
        return field if field in self._given else f"{field} (the service's --{field})"

    def temperature(self, default: float) -> bool:
        """``temperature``; whether it is 0, which asks for the likeliest token."""
        value = self.number("temperature", default, 0.0, LARGEST_TEMPERATURE)
        if 0 < value < SMALLEST:
            raise InvalidInput(
                f"parameters.temperature: {value:g} is out of range, expected 0, or {SMALLEST:g} or more"
            )
        return value == 0

    def top_p(self, default: float) -> None:
        """``top_p``: a part of all probability."""
        self.number("top_p", default, SMALLEST, 1.0)

    def top_k(self, default: int) -> None:
        """``top_k``; -1 (vLLM's) and 0 (transformers') are all tokens."""
        if not self._is_neutral("top_k", default):
            self.put("top_k", max(self._given.integer("top_k", default, -1), 0), self._named("top_k"))

    def penalties(self) -> None:
        """The three penalties, which are neutral unless they are given."""
        self.number("repetition_penalty", 1.0, SMALLEST_PENALTY, LARGEST_PENALTY)
        for field in ("presence_penalty", "frequency_penalty"):
            self.number(field, 0.0, -2.0, 2.0)

    def seed(self) -> None:
        """``seed``: any whole number."""
        if "seed" in self._given:
            self.put("seed", self._given.integer("seed", 0, -SEEDS) % SEEDS, "seed")

    def tokens(self, name: str | None, least_name: str | None) -> None:
        """``max_tokens`` and ``min_tokens``, under the names that were given."""
        if name is not None:
            self.put("max_tokens", self._given.integer(name, 0, 1), name)
        if least_name is not None:
            least = self._given.integer(least_name, 0, 0)
            most = self._values.get("max_tokens")
            if most is not None and least > most:
                allowed = f"{name} allows {most}" if name else f"there may be {most} where nothing says how many"
                raise InvalidInput(f"parameters.{least_name}: {least}, but {allowed}")
            if least:  # 0 asks for nothing, so any model can honour it
                self.put("min_tokens", least, least_name)

    def choices(self, name: str) -> None:
        """``n``: how many continuations."""
        if name not in self._given:
            return
        count = self._given.integer(name, 1, 1)
        if count > MAX_CHOICES:
            raise TooLarge(f"parameters.{name}: {count}, at most {MAX_CHOICES} are given of one prompt")
        self.put("n", count, name)

    def stop(self, name: str | None) -> None:
        """``stop``: a string or some."""
        if name is None:
            return
        stops = self._given.strings(name, empty=True, most=MAX_STOPS) or []
        for index, one in enumerate(stops):
            if not one:
                raise InvalidInput(f"parameters.{name}: string {index} is empty, and would be found everywhere")
            if len(one) > MAX_STOP_LENGTH:
                raise TooLarge(
                    f"parameters.{name}: string {index} has {len(one)} characters, at most {MAX_STOP_LENGTH} are taken"
                )
        self.put("stop", tuple(stops), name)

    def stop_token_ids(self, vocab_size: int) -> None:
        """``stop_token_ids``: tokens that end a text, as in vLLM."""
        name = "stop_token_ids"
        if name not in self._given:
            return
        given = self._given.get(name)
        if not isinstance(given, list):
            raise InvalidInput(f"parameters.{name}: expected a list of token ids, got {describe(given)}")
        if len(given) > MAX_STOP_TOKENS:
            raise TooLarge(f"parameters.{name}: {len(given)} tokens, at most {MAX_STOP_TOKENS} are taken")
        for index, one in enumerate(given):
            if type(one) is not int or not 0 <= one < vocab_size:
                shown = one if type(one) is int else describe(one)
                raise InvalidInput(f"parameters.{name}: token {index} is {shown}, expected 0 to {vocab_size - 1}")
        self.put(name, tuple(given), name)

    def ignore_eos(self) -> None:
        if "ignore_eos" in self._given:
            self.put("ignore_eos", self._given.flag("ignore_eos", False), "ignore_eos")

    def logit_bias(self, vocab_size: int) -> None:
        """``logit_bias``: {"id": bias}, with ids as JSON has keys."""
        if "logit_bias" not in self._given:
            return
        given = self._given.get("logit_bias")
        if not isinstance(given, dict):
            raise InvalidInput(f"parameters.logit_bias: expected an object, got {describe(given)}")
        if len(given) > MAX_BIASES:
            raise TooLarge(f"parameters.logit_bias: {len(given)} tokens, at most {MAX_BIASES} are taken")
        self.put("logit_bias", dict(_bias(key, value, vocab_size) for key, value in given.items()), "logit_bias")

    def logprobs(self, count: int, name: str) -> None:
        """``logprobs``: how many of the likeliest tokens are given beside each."""
        if count > MAX_LOGPROBS:
            raise TooLarge(f"parameters.{name}: {count}, at most {MAX_LOGPROBS} tokens are told")
        self.put("logprobs", count, name)

    def drop_randomness(self, name: str) -> None:
        """Makes the sampling greedy, so that temperature, top_k, top_p, min_p and seed mean nothing.

        Args:
            name: the parameter that asks for it; empty for the service's default.
        """
        for field in ("temperature", "top_k", "top_p", "min_p", "seed"):
            self._values.pop(field, None)
            self._names.pop(field, None)
        self._values["greedy"] = True
        if name:
            self._names["greedy"] = f"{self._prefix}{name}"

    def length(self, name: str) -> None:
        """Keeps what the client calls max_length, which is no field of Sampling."""
        self._names["max_length"] = f"{self._prefix}{name}"

    def finish(self) -> Sampling:
        return Sampling(**self._values, names=self._names)


def _bias(key: str, value: Json, vocab_size: int) -> tuple[int, float]:
    if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
        raise InvalidInput(f"parameters.logit_bias: {key[:20]!r} is no token's id, expected 0 to {vocab_size - 1}")
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidInput(f"parameters.logit_bias: token {key} has {describe(value)}, expected a number")
    if not -100 <= value <= 100:
        raise InvalidInput(f"parameters.logit_bias: token {key} has {value:g}, expected -100 to 100")
    return int(key), float(value)


def limited(sampling: Sampling, limit: int | None, max_length: int | None = None) -> Sampling:
    """The sampling within ``limit`` new tokens (--max_new_tokens), which also holds where the client gives no number.

    Args:
        max_length: what bounds the prompt and new tokens together, where ``max_tokens`` is None; the client's own
            where the sampling has a name for it, else the service's default.

    Raises:
        TooLarge: it asks for more.
    """
    if limit is None:
        return sampling
    name, wanted, shown = sampling.names.get("max_tokens", "max_tokens"), sampling.max_tokens, sampling.max_tokens
    if wanted is None and max_length is not None:
        wanted, shown = max_length - 1, max_length  # a prompt has a token at least
        if wanted > limit and "max_length" not in sampling.names:
            return replace(sampling, max_tokens=limit)
        name = sampling.names.get("max_length", "max_length")
    if wanted is not None and wanted > limit:
        raise TooLarge(f"{name}: {shown}, at most {limit} new tokens are given (--max_new_tokens)")
    return sampling if wanted is not None else replace(sampling, max_tokens=limit)


class Processors:
    """Applies one sequence's bias, penalties and min_tokens to its logits, before a token is chosen.

    Args:
        ids: what was there before the first generated token.
        eos_ids: the tokens that end a text, held back until there are ``sampling.min_tokens``.
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

    def add(self, token: int) -> None:
        """Counts the token that was chosen, before the next call."""
        self._generated += 1
        if self._repetition or self._counted:
            self._counts[token] = self._counts.get(token, 0) + 1

    def __call__(self, logits: Array) -> Array:
        """The processed logits [V]: themselves if nothing applies, else float32."""
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


class Chooser:
    """Chooses the tokens of one sequence, one after the other.

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
        self._random: np.random.Generator | None = None
        if not sampling.greedy and sampling.temperature != 0:
            # Philox takes any 128 bits as its key. A seed may be negative.
            key = None if sampling.seed is None else sampling.seed % 2**128
            self._random = np.random.Generator(np.random.Philox(key=key))

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
            _require_finite(scores[token])
        else:
            token = draw(*candidates(scores, self._sampling), self._random.random())
        self._processors.add(token)
        wanted = self._sampling.logprobs
        return token, None if wanted is None else score(logits, token, wanted)
