"""Sampling: converts the declared parameters of a request (parameters.py), and chooses tokens from a model's logits.

TokenSampler implements transformers' logits processors for models that return logits. Other models sample tokens
themselves.

The processing order follows ``GenerationMixin._get_logits_processor``: logit_bias, repetition_penalty, presence and
frequency penalties, min_tokens; then, unless greedy, temperature, top_k, top_p, min_p. As in OpenAI's API and vLLM,
presence and frequency penalties count generated tokens only. The repetition penalty also counts prompt tokens.
Functions never modify the logits [V], because they are a view of the predictor's buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from hf_transformer.errors import InvalidInput, Path, PredictorError, show_path
from hf_transformer.generation.constraint import (
    KINDS,
    Constraint,
    ConstraintKind,
    read_kind,
    read_structured_outputs,
)
from hf_transformer.generation.parameters import (
    DRAW,
    MAX_TEMPERATURE,
    MIN_POSITIVE,
    PROMPT_LOGPROBS,
    SEED_MODULUS,
    STRUCTURED,
    SamplingFields,
)
from hf_transformer.generation.types import LANGUAGES, NEUTRAL, Sampling, TokenScore
from hf_transformer.tasks.base import GenerationSettings
from hf_transformer.tasks.numerics import top_k
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array

if TYPE_CHECKING:
    from hf_transformer.generation.masks import TokenMask
    from hf_transformer.generation.responses.prefix import TokenPrefix  # imports regex

Setting = TypeVar("Setting")
Named: TypeAlias = tuple[Setting, Path | str]
"""A setting, and the path or name of the field that sets it."""
MAX_SCORED_IDS = 1000
"""Maximum number of tokens to score in one step."""
GUIDED: Mapping[str, ConstraintKind] = {
    f"guided_{name}": KINDS[name] for name in ("json", "regex", "choice", "grammar")
}
"""Older names in vLLM's API for the members of ``structured_outputs``."""
NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "top_k")
"""Fields of Sampling that are numbers."""
DEFAULTED = frozenset(("temperature", "top_p", "top_k"))
"""Fields that may have a default of the service."""
NUCLEUS_HEAD = 256
"""Number of largest weights that the partial sort for top_p returns."""
PARTIAL_SORT_SIZE = 8 * NUCLEUS_HEAD
"""Smallest vocabulary for which a partial sort is faster than a full sort."""
MAX_FREE_CHOICES, MAX_DRAWN_CHOICES = 256, 8
"""Maximum numbers of tokens that are tried to go on with a delimiter of the reasoning: of all, and of those that are
drawn. The others are the likeliest ones, which take 0.05 ms each for a vocabulary of 150,000."""
DRAW_BLOCK = 512
"""Block size of the cumulative sum in ``draw``, which takes 1 ms for a vocabulary of 150,000."""


def read_sampling(
    fields: SamplingFields,
    defaults: GenerationSettings,
    vocab_size: int,
    *,
    names: Mapping[str, str] = MappingProxyType({}),
    n: int | None = None,
    do_sample: bool | None = None,
    default_tokens: int | None = None,
    logprobs: Named[int] | None = None,
    prompt_logprobs: Named[int] | None = None,
    constraint: Named[Constraint] | None = None,
    max_schema_bytes: int = GenerationSettings().max_schema_bytes,
) -> Sampling:
    """Converts a request's declared fields.

    Args:
        defaults: the service's temperature, top_k, top_p and do_sample.
        names: the client's names of fields, where these differ.
        n: number of continuations per prompt.
        do_sample: whether to draw tokens; by default if the request or ``defaults`` say so.
        default_tokens: the limit of new tokens without ``fields.max_tokens``.
        logprobs: number of top logprobs per token, and the name of its field.
        prompt_logprobs: the same for the tokens of the prompt.
        constraint: a constraint, and the name of its field. It excludes ``fields.constraints``.
        max_schema_bytes: the maximum size of a constraint.

    Raises:
        InvalidInput, TooLarge: a value is not valid; the error's path is ``parameters.NAME``.
    """
    settings = _Settings(names)
    tokens, minimum = default_tokens if fields.max_tokens is None else fields.max_tokens, fields.min_tokens
    if tokens is not None and minimum is not None and minimum > tokens:
        raise _too_many_tokens(minimum, tokens, fields, names)
    settings.put("max_tokens", tokens)
    settings.put("min_tokens", minimum)
    settings.put_numbers(fields, defaults)
    settings.put("seed", None if fields.seed is None else fields.seed % SEED_MODULUS)
    settings.put("logit_bias", None if fields.logit_bias is None else _by_id(fields.logit_bias, vocab_size))
    for field in (*LANGUAGES, "ignore_eos"):
        settings.put(field, getattr(fields, field))
    if fields.stop is not None:
        settings.put("stop", (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop))
    if fields.stop_token_ids is not None:
        settings.put("stop_token_ids", _in_vocabulary(fields.stop_token_ids, vocab_size, names))
    settings.put("n", n)
    if structured := fields.constraints():
        constraint = _read_structured(structured, constraint, max_schema_bytes)
    for field, named in (("logprobs", logprobs), (PROMPT_LOGPROBS, prompt_logprobs), ("constraint", constraint)):
        settings.put(field, *(named or (None,)))
    draws = defaults.do_sample or any(getattr(fields, name) is not None for name in DRAW)
    if settings.values.get("temperature") == 0:
        settings.be_greedy("" if fields.temperature is None else "temperature")  # else a default of the service
    elif not (draws if do_sample is None else do_sample):
        settings.be_greedy("" if do_sample is None else "do_sample")
    return Sampling(**settings.values, names=settings.sources)


class _Settings:
    """The fields of a Sampling, and the sources of those that differ from NEUTRAL."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, Path | str] = {}
        self._names = names

    def put(self, field: str, value: Any, source: Path | str = "") -> None:
        if value is None:
            return
        self.values[field] = value
        if value != getattr(NEUTRAL, field):
            self.sources[field] = source or self._names.get(field, field)

    def put_numbers(self, fields: SamplingFields, defaults: GenerationSettings) -> None:
        for field in NUMBERS:
            value, source = getattr(fields, field), ""
            if (
                value is None
                and field in DEFAULTED
                and (default := getattr(defaults, field)) != getattr(NEUTRAL, field)
            ):
                value, source = default, f"--{field}"
            self.put(field, value, source)
        if 0 < (temperature := self.values.get("temperature", 1.0)) < MIN_POSITIVE:
            expected = f"0, or a number from {MIN_POSITIVE:g} to {MAX_TEMPERATURE:g}"
            raise InvalidInput(("parameters", "temperature"), expected, f"{temperature:g}")
        if self.values.get("top_k") == -1:  # vLLM's name of 0, the whole vocabulary
            self.values["top_k"] = 0
            del self.sources["top_k"]

    def be_greedy(self, source: str) -> None:
        """Leaves out what greedy decoding ignores. ``source`` is the field that asks for it, if any."""
        for field in (*DRAW, "seed"):
            self.values.pop(field, None)
            self.sources.pop(field, None)
        self.values["greedy"] = True
        if source:
            self.sources["greedy"] = source


def _too_many_tokens(minimum: int, tokens: int, fields: SamplingFields, names: Mapping[str, str]) -> InvalidInput:
    default = "the default number of new tokens"
    source = default if fields.max_tokens is None else names.get("max_tokens", "max_tokens")
    path = ("parameters", names.get("min_tokens", "min_tokens"))
    return InvalidInput(path, f"at most {tokens} ({source})", str(minimum))


def _in_vocabulary(ids: Sequence[int], vocab_size: int, names: Mapping[str, str]) -> tuple[int, ...]:
    """Returns stop tokens. Raises InvalidInput for an id outside the vocabulary."""
    for token in ids:
        if not 0 <= token < vocab_size:
            path = ("parameters", names.get("stop_token_ids", "stop_token_ids"))
            raise InvalidInput(path, f"token ids from 0 to {vocab_size - 1}", str(token))
    return tuple(ids)


def _by_id(biases: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    """Returns biases by token id. Token ids are strings in requests, because JSON keys are strings."""
    for key in biases:
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
            raise InvalidInput(
                ("parameters", "logit_bias"), f"token ids from 0 to {vocab_size - 1} as keys", repr(key[:20])
            )
    return {int(key): bias for key, bias in biases.items()}


def _read_structured(
    fields: Mapping[str, Json], from_api: Named[Constraint] | None, max_bytes: int
) -> tuple[Constraint, str]:
    """Returns the constraint of fields by name, with the name of the first one. Raises InvalidInput if there is another
    constraint."""
    first = next(iter(fields))
    if from_api is not None:
        got = f"another one in {show_path(from_api[1])}"
        raise InvalidInput(("parameters", first), "one constraint in a request", got)
    constraints = []
    for name, value in fields.items():
        path = ("parameters", name)
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
    The tokens of a ``prefix`` come before that, without end tokens.
    """

    def __init__(
        self,
        sampling: Sampling,
        ids: Sequence[int],
        end_ids: frozenset[int],
        mask: TokenMask | None = None,
        prefix: TokenPrefix | None = None,
    ) -> None:
        self._sampling = sampling
        self.mask = mask
        self.prefix = prefix
        self._all_ends = np.array(sorted(end_ids), np.int64)
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
        free = None if self.prefix is None else self._choose_free(scores, self.prefix)
        if free is not None:
            token = free
            if self.mask is not None:
                self.mask.skip()
        else:
            self.prefix = None
            if self.mask is not None:
                scores = self.mask.apply(scores)
            token = self._pick(scores)
            if self.mask is not None:
                self.mask.add(token)
        self.add(token)
        logprobs = self._sampling.logprobs
        return token, None if logprobs is None else score(logits, token, logprobs, self._sampling.score_ids)

    def _pick(self, scores: Array) -> int:
        if self._random is None:
            token = int(scores.argmax())
            _require_finite(scores[token])
            return token
        return draw(*candidates(scores, self._sampling), self._random.random())

    def _choose_free(self, scores: Array, prefix: TokenPrefix) -> int | None:
        """Chooses a token of the reasoning before the text with the constraint; None where that text begins.

        Only few tokens continue a delimiter. The others are excluded one by one, unless the delimiter's beginning may
        also begin the text with the constraint, such as free text with a call.
        """
        scores = scores.astype(np.float32)
        scores[self._all_ends] = -np.inf
        for tried in range(MAX_FREE_CHOICES):
            token = self._pick(scores) if tried < MAX_DRAWN_CHOICES else int(scores.argmax())
            if prefix.takes(token):
                return token
            if not prefix.must_continue:
                return None
            if self.mask is not None and prefix.pending and self.mask.accepts(prefix.pending):
                for begun in prefix.pending:
                    self.mask.add(begun)
                return None
            scores[token] = -np.inf
        raise PredictorError("the model began a delimiter of its reasoning, and did not finish it")

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
