"""Sampling from logits; the distributions equal those of transformers' logits processors (tests/goldens)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.errors import PredictorError, TooLarge
from hf_transformer.generation.sampling import (
    DRAW_BLOCK,
    PARTIAL_SORT_SIZE,
    TokenSampler,
    candidates,
    draw,
)
from hf_transformer.generation.task import FORM
from hf_transformer.generation.types import Sampling
from hf_transformer.types.tensors import Array

GOLDENS = json.loads((Path(__file__).parents[1] / "goldens" / "logits_processors.json").read_text())
EOS_IDS = frozenset(GOLDENS["about"]["eos_ids"])
TOLERANCE = GOLDENS["about"]["tolerance"]["score_absolute"]
NAMES = {"min_new_tokens": "min_tokens"}


def sampling_of(case: dict[str, Any]) -> Sampling:
    parameters: dict[str, Any] = dict(case["parameters"])
    bias = {ids[0]: value for ids, value in parameters.pop("sequence_bias", [])}
    greedy = not parameters.pop("do_sample", True)
    return Sampling(greedy=greedy, logit_bias=bias, **{NAMES.get(name, name): parameters[name] for name in parameters})


def processed(case: dict[str, Any]) -> Array:
    sampler = TokenSampler(sampling_of(case), case["prompt"], EOS_IDS)
    for token in case["generated"]:
        sampler.add(token)
    return sampler.process(logits_of(case))


def logits_of(case: dict[str, Any]) -> Array:
    logits = np.array(GOLDENS["logits"][case["row"]], np.float32)
    logits.flags.writeable = False
    return logits


def distribution(ids: Array | None, weights: Array, size: int) -> Array:
    """Probabilities of all tokens."""
    found = np.zeros(size)
    found[slice(None) if ids is None else ids] = weights / weights.sum()
    return found


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max())
    found: Array = weights / weights.sum()
    return found


@pytest.mark.parametrize("case", GOLDENS["cases"], ids=lambda case: f"{case['parameters']} {case['row']}")
def test_distributions_equal_those_of_transformers(case: dict[str, Any]) -> None:
    wanted = np.array([-np.inf if score is None else score for score in case["scores"]])
    sampling, scores = sampling_of(case), processed(case)
    if sampling.greedy:
        assert np.array_equal(np.isinf(scores), np.isinf(wanted))
        assert np.allclose(scores, wanted, rtol=0, atol=TOLERANCE)
        return
    ids, weights = candidates(scores, sampling)
    possible = np.flatnonzero(~np.isinf(wanted))
    if ids is None:
        assert np.array_equal(np.flatnonzero(~np.isinf(scores)), possible)
    else:
        assert ids.tolist() == possible.tolist()
    assert np.allclose(distribution(ids, weights, len(wanted)), softmax(wanted), rtol=0, atol=1e-5)


def test_presence_and_frequency_penalties_count_generated_tokens() -> None:
    # OpenAI's formula: mu[j] - c[j] * frequency - (c[j] > 0) * presence. Token 4 is in the prompt alone.
    sampler = TokenSampler(Sampling(presence_penalty=0.5, frequency_penalty=0.25), [4, 1], frozenset())
    for token in (1, 2, 2, 2):
        sampler.add(token)
    assert sampler.process(np.zeros(6, np.float32)).tolist() == [0, -0.75, -1.25, 0, 0, 0]
    negative = TokenSampler(Sampling(presence_penalty=-1.0), [], frozenset())
    negative.add(3)
    assert negative.process(np.zeros(5, np.float32)).tolist() == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_predictors_logits_are_never_modified(dtype: Any) -> None:
    logits = np.linspace(-3, 3, 20).astype(dtype)
    logits.flags.writeable = False
    sampling = Sampling(
        temperature=0.5, top_k=9, top_p=0.9, min_p=0.01, repetition_penalty=2.0, presence_penalty=1.0, min_tokens=3
    )
    candidates(TokenSampler(sampling, [1, 2], EOS_IDS).process(logits), sampling)
    assert np.array_equal(logits, np.linspace(-3, 3, 20).astype(dtype))


@pytest.mark.parametrize("temperature", [1e-30, 1e-5, 1e30])
def test_extreme_temperatures_give_finite_weights(temperature: float) -> None:
    weights = candidates(np.array([-9.0, 1000.0, 3.0], np.float32), Sampling(temperature=temperature))[1]
    assert weights.tolist() == ([0, 1, 0] if temperature < 1 else [1, 1, 1])


def test_minus_infinity_is_an_error_only_for_all_tokens() -> None:
    logits = np.array([-np.inf, 0, 0], np.float32)
    assert candidates(logits, Sampling())[1].tolist() == [0, 1, 1]
    with pytest.raises(PredictorError, match="not finite"):
        candidates(np.full(3, -np.inf, np.float32), Sampling())


@given(
    st.integers(0, 10**6),
    st.floats(0.01, 0.999),
    st.floats(0.1, 20),
    st.sampled_from([30, PARTIAL_SORT_SIZE, PARTIAL_SORT_SIZE + 77]),
)
def test_the_nucleus_equals_the_exact_one_in_any_vocabulary(seed: int, top_p: float, spread: float, size: int) -> None:
    logits = (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)
    ids, weights = candidates(logits, Sampling(top_p=top_p))
    assert ids is not None
    exact = softmax(logits.astype(np.float64))
    order = np.argsort(-exact)
    before = np.cumsum(exact[order]) - exact[order]
    # A token within rounding of the border may be on either side of it.
    sure = set(order[before < top_p - 1e-5].tolist())
    possible = set(order[before < top_p + 1e-5].tolist())
    assert sure <= set(ids.tolist()) <= possible
    assert np.array_equal(weights, np.exp(logits - logits.max())[ids])
    assert ids.tolist() == sorted(ids.tolist())


@pytest.mark.parametrize("seed", [0, 7, -7, 2**70])
def test_the_same_seed_gives_the_same_tokens(seed: int) -> None:
    logits = np.random.default_rng(0).standard_normal(1000).astype(np.float32)

    def tokens(seed: int) -> list[int]:
        sampler = TokenSampler(Sampling(seed=seed), [], frozenset())
        return [sampler.choose(logits)[0] for _ in range(30)]

    assert tokens(seed) == tokens(seed) != tokens(seed + 1)


def test_each_token_draws_one_random_number() -> None:
    flat, sharp = np.zeros(100, np.float32), np.zeros(100, np.float32)
    sharp[5] = 1000
    flat_first, sharp_first = (TokenSampler(Sampling(seed=3), [], frozenset()) for _ in range(2))
    flat_first.choose(flat)
    sharp_first.choose(sharp)
    assert flat_first.choose(flat) == sharp_first.choose(flat)


@pytest.mark.parametrize("sampling", [Sampling(greedy=True, seed=1), Sampling(temperature=0.0), Sampling(top_k=1)])
def test_greedy_and_top_k_1_choose_the_likeliest_token(sampling: Sampling) -> None:
    sampler = TokenSampler(sampling, [], frozenset())
    assert {sampler.choose(np.array([0.1, 3.0, 2.9], np.float16))[0] for _ in range(50)} == {1}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("sampling", [Sampling(greedy=True), Sampling(), Sampling(greedy=True, logprobs=1)])
def test_nan_and_infinite_logits_are_predictor_errors(bad: float, sampling: Sampling) -> None:
    with pytest.raises(PredictorError, match="not finite"):
        TokenSampler(sampling, [], frozenset()).choose(np.array([0, bad, 1], np.float32))


@given(
    st.integers(1, 3 * DRAW_BLOCK),
    st.integers(0, 10**6),
    st.floats(0, 1, exclude_max=True),
    st.booleans(),
    st.booleans(),
)
def test_a_draw_follows_the_cumulated_weights(size: int, seed: int, uniform: float, sparse: bool, named: bool) -> None:
    random = np.random.default_rng(seed)
    weights = random.random(size).astype(np.float32)
    if sparse:
        weights[random.random(size) < 0.9] = 0
        weights[random.integers(size)] = 0.5
    ids = np.sort(random.choice(10 * size, size, replace=False)) if named else None
    drawn = draw(ids, weights, uniform)
    index = drawn if ids is None else ids.tolist().index(drawn)
    assert weights[index] > 0
    cumulated = np.cumsum(weights, dtype=np.float64)
    target = uniform * cumulated[-1]
    assert cumulated[index] - weights[index] <= target * (1 + 1e-12) + 1e-12
    assert cumulated[index] >= target * (1 - 1e-12)


@pytest.mark.parametrize("size", [3, DRAW_BLOCK, DRAW_BLOCK + 1, 3 * DRAW_BLOCK])
def test_rounding_never_draws_a_token_of_weight_0(size: int) -> None:
    weights = np.zeros(size, np.float32)
    weights[1] = 1
    assert draw(None, weights, 1 - 2**-53) == draw(None, weights, 0.0) == 1
    assert draw(None, weights, 1.0) == 1


@pytest.mark.parametrize(("top_p", "count"), [(0.5, 2), (0.51, 3), (0.75, 3), (0.25, 1)])
def test_a_nucleus_with_exactly_top_p_has_no_further_token(top_p: float, count: int) -> None:
    ids, _ = candidates(np.zeros(4, np.float32), Sampling(top_p=top_p))
    assert ids is not None and ids.tolist() == [*range(count)]


def test_a_stop_string_may_be_as_long_as_the_limit() -> None:
    assert FORM.read({"stop": "a" * 1000}).stop == "a" * 1000
    with pytest.raises(TooLarge, match=r"^parameters\.stop: "):
        FORM.read({"stop": "a" * 1001}, path=("parameters",))
