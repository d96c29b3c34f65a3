"""Sampling: parses a request's sampling parameters, and chooses tokens from a model's logits.

TokenSampler implements transformers' logits processors for models that return logits. Other models sample tokens
themselves.

The processing order follows ``GenerationMixin._get_logits_processor``: logit_bias, repetition_penalty, presence and
frequency penalties, min_tokens; then, unless greedy, temperature, top_k, top_p, min_p. As in OpenAI's API and vLLM,
presence and frequency penalties count generated tokens only. The repetition penalty also counts prompt tokens.
Functions never modify the logits [V], because they are a view of the predictor's buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_transformer.errors import InvalidInput, Path, PredictorError, TooLarge, describe, show_path
from hf_transformer.generation.constraint import (
    KINDS,
    Constraint,
    ConstraintKind,
    read_kind,
    read_structured_outputs,
)
from hf_transformer.generation.types import NEUTRAL, Sampling, TokenScore
from hf_transformer.tasks.base import GenerationSettings
from hf_transformer.tasks.numerics import top_k
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.tensors import Array

if TYPE_CHECKING:
    from hf_transformer.generation.masks import TokenMask

MAX_STOPS, MAX_STOP_LENGTH = 16, 1000
"""Maximum number of stop strings per request (OpenAI: 4), and of characters per stop string. They bound the buffer."""
MAX_STOP_TOKENS = 128
"""Maximum number of stop tokens per request."""
MAX_CHOICES = 128
"""Maximum number of continuations per prompt, as in OpenAI's API."""
MAX_LOGPROBS = 20
"""Maximum number of top logprobs per token, as in OpenAI's chat API."""
MAX_BIASES = 1024
"""Maximum number of tokens in logit_bias."""
MIN_POSITIVE = 1e-6
"""Smallest temperature above 0, and smallest top_p. Models may round smaller float32 values to 0."""
SEED_MODULUS = 2**63
"""Modulus of seeds. It maps negative seeds to the unsigned seeds that predictors accept."""
MIN_TOKENS = ("min_new_tokens", "min_tokens")
CHOICES = ("num_return_sequences", "n")
STOP = ("stop", "stop_strings", "stop_words")
"""Alternative names of one parameter: from transformers, vLLM and TensorRT-LLM."""
MAX_SCORED_IDS = 1000
"""Maximum number of tokens to score in one step."""
PROMPT_LOGPROBS = "prompt_logprobs"
DRAW = ("temperature", "top_k", "top_p", "min_p")
"""Parameters that enable sampling unless the request sets do_sample."""
STRUCTURED = "structured_outputs"
GUIDED: Mapping[str, ConstraintKind] = {
    f"guided_{name}": KINDS[name] for name in ("json", "regex", "choice", "grammar")
}
"""Older names in vLLM's API for the members of ``structured_outputs``."""
"""vLLM's parameter for a constraint on the form of the text."""
_RANGES = {
    "temperature": (0.0, 100.0),
    "top_p": (MIN_POSITIVE, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-2.0, 2.0),  # as in OpenAI's API
    "frequency_penalty": (-2.0, 2.0),
}
"""Range of each numeric field of Sampling. The parameter has the same name as the field."""

NUCLEUS_HEAD = 256
"""Number of largest weights that the partial sort for top_p returns."""
PARTIAL_SORT_SIZE = 8 * NUCLEUS_HEAD
"""Smallest vocabulary for which a partial sort is faster than a full sort."""
DRAW_BLOCK = 512
"""Block size of the cumulative sum in ``draw``, which takes 1 ms for a vocabulary of 150,000."""


def _flag_or_name(parameters: Parameters, field: str) -> str:
    """Name of the source of a field's value: the request's parameter or the service's flag."""
    return field if field in parameters else f"--{field}"


def _require_at_most(limit: int, count: int, name: str, unit: str) -> int:
    if count > limit:
        raise TooLarge(("parameters", name), f"at most {limit} {unit}", str(count))
    return count


def _min_tokens(parameters: Parameters, name: str, tokens: str | None, limit: int | None) -> int:
    """Parses min_tokens. Every model supports 0."""
    minimum = parameters.integer(name, 0, 0)
    if limit is not None and minimum > limit:
        source = tokens or "the default number of new tokens"
        raise InvalidInput(("parameters", name), f"at most {limit} ({source})", str(minimum))
    return minimum


def _choices(parameters: Parameters, name: str, vocab_size: int) -> int:
    return _require_at_most(MAX_CHOICES, parameters.integer(name, 1, 1), name, "texts per prompt")


def _stop(parameters: Parameters, name: str, vocab_size: int) -> tuple[str, ...]:
    stops = parameters.strings(name, empty=True, most=MAX_STOPS) or []
    for size in map(len, stops):
        if not 0 < size <= MAX_STOP_LENGTH:
            error = TooLarge if size else InvalidInput
            raise error(("parameters", name), f"strings of 1 to {MAX_STOP_LENGTH} characters", f"{size} characters")
    return tuple(stops)


def _stop_token_ids(parameters: Parameters, name: str, vocab_size: int) -> tuple[int, ...]:
    path, ids = ("parameters", name), parameters.get(name)
    if not isinstance(ids, list):
        raise InvalidInput(path, "a list of token ids", describe(ids))
    _require_at_most(MAX_STOP_TOKENS, len(ids), name, "token ids")
    for token in ids:
        if type(token) is not int or not 0 <= token < vocab_size:
            got = str(token) if type(token) is int else describe(token)
            raise InvalidInput(path, f"token ids from 0 to {vocab_size - 1}", got)
    return tuple(ids)


def _logit_bias(parameters: Parameters, name: str, vocab_size: int) -> dict[int, float]:
    """Parses {"id": bias}. Token ids are strings, because JSON keys are strings."""
    path, biases = ("parameters", name), parameters.get(name)
    if not isinstance(biases, dict):
        raise InvalidInput(path, "an object of biases by token id", describe(biases))
    _require_at_most(MAX_BIASES, len(biases), name, "token ids")
    for key, bias in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
            raise InvalidInput(path, f"token ids from 0 to {vocab_size - 1} as keys", repr(key[:20]))
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool) and math.isfinite(bias)
        if not is_number or not -100 <= bias <= 100:
            got = f"{bias:g}" if is_number else describe(bias)
            raise InvalidInput(path, "numbers from -100 to 100", f"{got} for token {key}")
    return {int(key): float(bias) for key, bias in biases.items()}


_READERS: Sequence[tuple[str, Sequence[str], Callable[[Parameters, str, int], Any]]] = (
    ("seed", ("seed",), lambda parameters, name, _: parameters.integer(name, 0, -SEED_MODULUS) % SEED_MODULUS),
    ("logit_bias", ("logit_bias",), _logit_bias),
    ("ignore_eos", ("ignore_eos",), lambda parameters, name, _: parameters.flag(name, False)),
    ("stop", STOP, _stop),
    ("stop_token_ids", ("stop_token_ids",), _stop_token_ids),
    ("n", CHOICES, _choices),
)
"""Parsers for fields of Sampling without a flag: the field, the parameter's names, and the parser."""


def read_sampling(
    parameters: Parameters,
    defaults: GenerationSettings,
    vocab_size: int,
    *,
    tokens: str | None,
    default_tokens: int | None = None,
    logprobs: tuple[int, str] | None = None,
    constraint: tuple[Constraint, Path | str] | None = None,
    max_schema_bytes: int = GenerationSettings().max_schema_bytes,
    echo: bool = False,
) -> Sampling:
    """Parses a request's sampling parameters, under any of their alternative names.

    Args:
        defaults: the service's temperature, top_k, top_p and do_sample.
        tokens: name of the request's parameter for the limit of new tokens; None for the limit ``default_tokens``.
        logprobs: number of top logprobs per token, and the name of its parameter.
        constraint: a constraint, and the name of its parameter. It excludes ``structured_outputs``.
        max_schema_bytes: the maximum size of a constraint.
        echo: whether the text contains the prompt, whose tokens then have logprobs too, and may have no new token.

    Raises:
        InvalidInput, TooLarge: a value is not valid; the error's path is ``parameters.NAME``.
    """
    values: dict[str, Any] = {}
    names: dict[str, Path | str] = {"max_length": "max_length"} if "max_length" in parameters else {}

    def put(field: str, value: Any, name: Path | str) -> None:
        values[field] = value
        if value != getattr(NEUTRAL, field):
            names[field] = name

    if tokens is not None:
        put("max_tokens", parameters.integer(tokens, 0, 0 if echo else 1), tokens)
    elif default_tokens is not None:
        put("max_tokens", default_tokens, "max_tokens")
    if (name := parameters.one_of(*MIN_TOKENS)) is not None:
        put("min_tokens", _min_tokens(parameters, name, tokens, values.get("max_tokens")), name)
    for field, (least, most) in _RANGES.items():
        neutral = getattr(NEUTRAL, field)
        default = getattr(defaults, field, neutral)
        if field in parameters or default != neutral:
            put(field, parameters.number(field, default, least, most), _flag_or_name(parameters, field))
    if 0 < (temperature := values.get("temperature", 1.0)) < MIN_POSITIVE:
        expected = f"0, or a number from {MIN_POSITIVE:g} to {_RANGES['temperature'][1]:g}"
        raise InvalidInput(("parameters", "temperature"), expected, f"{temperature:g}")
    if "top_k" in parameters or defaults.top_k:  # -1 (vLLM) and 0 (transformers) mean the whole vocabulary
        put("top_k", max(parameters.integer("top_k", defaults.top_k, -1), 0), _flag_or_name(parameters, "top_k"))
    for field, known, read in _READERS:
        if (name := parameters.one_of(*known)) is not None:
            put(field, read(parameters, name, vocab_size), name)
    prompt_logprobs = logprobs if echo else None
    if PROMPT_LOGPROBS in parameters:
        prompt_logprobs = parameters.integer(PROMPT_LOGPROBS, 0, 0), PROMPT_LOGPROBS
    for field, tops in (("logprobs", logprobs), (PROMPT_LOGPROBS, prompt_logprobs)):
        if tops is not None:
            count, name = tops
            put(field, _require_at_most(MAX_LOGPROBS, count, name, "tokens per token"), name)
    if structured := structured_fields(parameters):
        constraint = _read_structured(parameters, structured, constraint, max_schema_bytes)
    if constraint is not None:
        put("constraint", *constraint)
    sample = parameters.flag("do_sample", defaults.do_sample or any(name in parameters for name in DRAW))
    if temperature == 0 or not sample:
        for field in (*DRAW, "seed"):  # greedy decoding ignores them
            values.pop(field, None)
            names.pop(field, None)
        values["greedy"] = True
        if (cause := "temperature" if temperature == 0 else "do_sample") in parameters:  # else a default of the service
            names["greedy"] = cause
    return Sampling(**values, names=names)


def structured_fields(parameters: Parameters) -> list[str]:
    """Returns the names of the request's fields of vLLM's API for a constraint."""
    return [name for name in (STRUCTURED, *GUIDED) if name in parameters]


def _read_structured(
    parameters: Parameters, names: Sequence[str], from_api: tuple[Constraint, Path | str] | None, max_bytes: int
) -> tuple[Constraint, str]:
    """Reads the fields ``names``, and returns their constraint with the name of the first field. Raises InvalidInput if
    there is another constraint."""
    first = names[0]
    if from_api is not None:
        got = f"another one in {show_path(from_api[1])}"
        raise InvalidInput(("parameters", first), "one constraint in a request", got)
    constraints = []
    for name in names:
        value, path = parameters.get(name), ("parameters", name)
        if name == STRUCTURED:
            constraints.append(read_structured_outputs(value, path, max_bytes))
        else:
            constraints.append(read_kind(GUIDED[name], value, path, max_bytes))
        if constraints[-1] != constraints[0]:
            raise InvalidInput(path, "one constraint in a request", f"another one in {first}")
    return constraints[0], first


def candidates(scores: Array, sampling: Sampling) -> tuple[Array | None, Array]:
    """Selects candidate tokens by temperature, top_k, top_p and min_p, in this order.

    ``scores`` are processed logits [V]. Returns ids [K] in ascending order (None for the whole vocabulary) and weights,
    float32 [K]. Weights are unnormalized probabilities; the largest is about 1. Raises PredictorError for NaN or
    infinite logits, and if no token is left.
    """
    best = scores.max()
    _require_finite(best)
    size = scores.shape[-1]
    ids: Array | None = None
    if 0 < sampling.top_k < size:
        # As in TopKLogitsWarper, keep all scores that equal the k-th score.
        ids = np.flatnonzero(scores >= scores[top_k(scores, sampling.top_k)[-1]])
        scores = scores[ids]
    # Subtract before dividing by the temperature, so that a small temperature can't cause an overflow.
    weights = scores.astype(np.float32)
    weights -= np.float32(best)
    if sampling.temperature != 1:
        weights /= np.float32(sampling.temperature)
    np.exp(weights, out=weights)
    if sampling.top_p < 1:
        ids, weights = _select(ids, weights, _nucleus(weights, sampling.top_p))
    if sampling.min_p > 0:
        ids, weights = _select(ids, weights, np.flatnonzero(weights >= np.float32(sampling.min_p) * weights.max()))
    return ids, weights


def _require_finite(best: Any) -> None:
    if not np.isfinite(best):
        raise PredictorError("the model answered with logits that are not finite numbers (NaN or infinite)")


def _select(ids: Array | None, weights: Array, indices: Array) -> tuple[Array, Array]:
    return indices if ids is None else ids[indices], weights[indices]


def _nucleus(weights: Array, top_p: float) -> Array:
    """Indices of the smallest set of weights with a sum of at least ``top_p`` of the total, in ascending order.

    TopPLogitsWarper sorts the whole vocabulary. This function sorts all weights only if the nucleus exceeds
    NUCLEUS_HEAD.
    """
    target = top_p * float(weights.sum(dtype=np.float64))
    is_large = weights.size >= PARTIAL_SORT_SIZE
    order = top_k(weights, NUCLEUS_HEAD) if is_large else np.argsort(-weights, kind="stable")
    cumulated = np.cumsum(weights[order], dtype=np.float64)
    if cumulated[-1] < target and order.size < weights.size:
        order = np.argsort(-weights, kind="stable")
        cumulated = np.cumsum(weights[order], dtype=np.float64)
    # A token is included while the weights before it are less than the target.
    count = 1 + int(np.searchsorted(cumulated[:-1], target, side="left"))
    return np.sort(order[:count])


def draw(ids: Array | None, weights: Array, uniform: float) -> int:
    """Returns the token at the quantile ``uniform`` (0 to 1) of the cumulative weights, in the order of the ids.

    A logit's last bits may vary with the batch size. In id order, such a rounding difference shifts the intervals of
    the tokens only slightly, and never reorders tokens.
    """
    starts = np.arange(0, len(weights), DRAW_BLOCK)
    blocks = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    target = uniform * blocks[-1]
    block = min(int(np.searchsorted(blocks, target, side="right")), len(starts) - 1)
    start = int(starts[block])
    within = np.cumsum(weights[start : start + DRAW_BLOCK], dtype=np.float64)
    index = start + int(np.searchsorted(within, target - (blocks[block - 1] if block else 0), side="right"))
    if index >= min(start + DRAW_BLOCK, len(weights)):
        index = int(np.flatnonzero(weights[: start + DRAW_BLOCK])[-1])  # rounding error exceeded the last token
    return index if ids is None else int(ids[index])


def score(logits: Array, token: int, count: int, ids: Sequence[int] = ()) -> TokenScore:
    """Natural log probabilities of ``token``, and of ``ids`` or else the ``count`` most likely tokens: log-softmax over
    ``logits`` [V]."""
    best = float(logits.max())
    shifted = logits.astype(np.float32)
    shifted -= np.float32(best)
    total = best + float(np.log(np.exp(shifted).sum(dtype=np.float64)))
    shown = ids or (top_k(logits, count) if count else ())
    top = tuple((int(index), float(logits[index]) - total) for index in shown)
    return TokenScore(token, float(logits[token]) - total, top)


def score_prompt(logits: Array, ids: Sequence[int], count: int) -> list[TokenScore]:
    """Scores a prompt's tokens from the logits [S - 1, V] after each token but the last. The first has no logprob.

    Reads the rows one by one: the memory does not grow with the prompt. Raises PredictorError for NaN or infinity.
    """
    scores = [TokenScore(ids[0], None)]
    for row, token in zip(logits, ids[1:], strict=True):
        _require_finite(row.max())
        scores.append(replace(score(row, token, count), rank=int(np.count_nonzero(row >= row[token]))))
    return scores


class TokenSampler:
    """Chooses the tokens of one sequence that follow ``ids``.

    Each sampler has its own random generator and draws one number per token. The same seed and logits therefore produce
    the same tokens. A temperature of 0 selects greedy decoding. Suppresses ``end_ids`` until ``sampling.min_tokens``
    tokens are generated. With a ``mask``, only the tokens that it allows are chosen, and it decides on ``end_ids``.
    """

    def __init__(
        self, sampling: Sampling, ids: Sequence[int], end_ids: frozenset[int], mask: TokenMask | None = None
    ) -> None:
        self._sampling = sampling
        self.mask = mask
        self._has_repetition = sampling.repetition_penalty != 1
        self._has_counts = bool(sampling.presence_penalty or sampling.frequency_penalty)
        self._bias_ids = np.array(list(sampling.logit_bias), np.int64)
        self._biases = np.array(list(sampling.logit_bias.values()), np.float32)
        self._end_ids = np.array(sorted(end_ids) if mask is None else (), np.int64)
        self._counts = dict.fromkeys(ids if self._has_repetition else (), 0)
        """Number of occurrences of each token in the generated text; 0 for tokens that occur only in the prompt."""
        self._generated = 0
        self._random: np.random.Generator | None = None
        if not sampling.greedy and sampling.temperature != 0:
            # Philox takes any 128 bits as its key. A seed may be negative.
            key = None if sampling.seed is None else sampling.seed % 2**128
            self._random = np.random.Generator(np.random.Philox(key=key))

    def choose(self, logits: Array) -> tuple[int, TokenScore | None]:
        """Chooses the next token from ``logits`` [V], floats of any precision. Raises PredictorError for NaN or
        infinity.

        Also returns its score if the request asks for logprobs. Scores use the model's distribution before bias,
        penalties and temperature, as in OpenAI's API and vLLM (logprobs_mode raw_logprobs).
        """
        scores = self.process(logits)
        if self.mask is not None:
            scores = self.mask.apply(scores)
        if self._random is None:
            token = int(scores.argmax())
            _require_finite(scores[token])
        else:
            token = draw(*candidates(scores, self._sampling), self._random.random())
        self.add(token)
        if self.mask is not None:
            self.mask.add(token)
        logprobs = self._sampling.logprobs
        return token, None if logprobs is None else score(logits, token, logprobs, self._sampling.score_ids)

    def add(self, token: int) -> None:
        """Updates the counts with a chosen token."""
        self._generated += 1
        if self._has_repetition or self._has_counts:
            self._counts[token] = self._counts.get(token, 0) + 1

    def process(self, logits: Array) -> Array:
        """Applies bias, penalties and min_tokens to the logits [V]. Returns float32, or ``logits`` if none applies."""
        sampling = self._sampling
        suppresses_end = self._generated < sampling.min_tokens and self._end_ids.size
        if not (self._has_repetition or self._has_counts or self._bias_ids.size or suppresses_end):
            return logits
        scores = logits.astype(np.float32)
        scores[self._bias_ids] += self._biases
        ids = np.fromiter(self._counts, np.int64, len(self._counts))
        if self._has_repetition:  # RepetitionPenaltyLogitsProcessor; arXiv 1909.05858
            seen, penalty = scores[ids], np.float32(sampling.repetition_penalty)
            scores[ids] = np.where(seen < 0, seen * penalty, seen / penalty)
        if self._has_counts:  # OpenAI's formula: c[j] * frequency + (c[j] > 0) * presence
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            frequency, presence = np.float32(sampling.frequency_penalty), np.float32(sampling.presence_penalty)
            scores[ids] -= frequency * counts + presence * (counts > 0)
        if suppresses_end:
            scores[self._end_ids] = -np.inf
        return scores
