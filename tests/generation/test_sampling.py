"""How a token is drawn, and what it is said to be worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.errors import PredictorError
from hf_transformer.generation.sampling import BLOCK, Chooser, draw, score
from hf_transformer.generation.types import Sampling
from tests.generation.test_processors import EOS_IDS, GOLDENS, logits_of, sampling_of, softmax

DRAWS = 20_000
CRITICAL = {6: 22.46, 8: 26.12, 9: 27.88, 10: 29.59, 39: 72.05}
"""The value of chi-squared that is passed once in a thousand times, by the degrees of freedom."""


def golden(parameters: dict[str, Any], row: int) -> dict[str, Any]:
    return next(
        case
        for case in GOLDENS["cases"]
        if case["parameters"] == parameters and case["row"] == row and not case["generated"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "row", "freedom"),
    [
        ({}, 0, 39),
        ({"temperature": 1.7}, 1, 39),
        ({"temperature": 0.7, "top_k": 10}, 0, 9),
        ({"temperature": 0.7, "top_p": 0.8}, 0, 6),
        ({"top_p": 0.95}, 1, 8),
        ({"min_p": 0.02}, 1, 10),
    ],
    ids=str,
)
def test_tokens_are_drawn_as_often_as_transformers_gives_them_a_chance(
    parameters: dict[str, Any], row: int, freedom: int
) -> None:
    case = golden(parameters, row)
    chances = softmax(np.array([-np.inf if one is None else one for one in case["scores"]]))
    logits, counts = logits_of(case), np.zeros(len(chances))
    how = sampling_of(case)
    chooser = Chooser(replace(how, seed=1), [], EOS_IDS)
    for _ in range(DRAWS):
        counts[chooser.choose(logits)[0]] += 1
    possible = chances > 0
    assert possible.sum() == freedom + 1
    assert counts[~possible].sum() == 0
    wanted = DRAWS * chances[possible]
    assert wanted.min() > 1
    assert ((counts[possible] - wanted) ** 2 / wanted).sum() < CRITICAL[freedom]


@pytest.mark.parametrize("seed", [0, 7, -7, 2**70])
def test_the_same_seed_gives_the_same_tokens(seed: int) -> None:
    logits = np.random.default_rng(0).standard_normal(1000).astype(np.float32)

    def tokens(seed: int) -> list[int]:
        chooser = Chooser(Sampling(seed=seed), [], frozenset())
        return [chooser.choose(logits)[0] for _ in range(30)]

    assert tokens(seed) == tokens(seed) != tokens(seed + 1)


def test_without_a_seed_texts_differ() -> None:
    logits = np.zeros(1000, np.float32)
    first, second = (Chooser(Sampling(), [], frozenset()) for _ in range(2))
    # The chance of the same thirty tokens is one in 10 to the 90.
    assert [first.choose(logits)[0] for _ in range(30)] != [second.choose(logits)[0] for _ in range(30)]


def test_one_number_is_drawn_per_token_whatever_the_logits_are() -> None:
    flat, sharp = np.zeros(100, np.float32), np.zeros(100, np.float32)
    sharp[5] = 1000
    one, other = (Chooser(Sampling(seed=3), [], frozenset()) for _ in range(2))
    one.choose(flat)
    other.choose(sharp)
    assert one.choose(flat) == other.choose(flat)


@pytest.mark.parametrize("how", [Sampling(greedy=True, seed=1), Sampling(temperature=0.0), Sampling(top_k=1)])
def test_the_likeliest(how: Sampling) -> None:
    chooser = Chooser(how, [], frozenset())
    assert {chooser.choose(np.array([0.1, 3.0, 2.9], np.float16))[0] for _ in range(50)} == {1}


def test_penalties_count_the_chosen_tokens() -> None:
    chooser = Chooser(Sampling(greedy=True, frequency_penalty=1.0), [], frozenset())
    assert [chooser.choose(np.array([2.5, 1.9, 0.0], np.float32))[0] for _ in range(5)] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("how", [Sampling(greedy=True), Sampling(), Sampling(greedy=True, logprobs=1)])
def test_what_is_no_number(bad: float, how: Sampling) -> None:
    with pytest.raises(PredictorError, match="not finite"):
        Chooser(how, [], frozenset()).choose(np.array([0, bad, 1], np.float32))


def test_scores_are_of_the_raw_logits() -> None:
    how = Sampling(seed=1, temperature=0.1, top_k=2, logit_bias={0: -100.0}, repetition_penalty=3.0, logprobs=2)
    logits = np.array([4.0, 1.0, 0.5, -1.0], np.float32)
    token, found = Chooser(how, [1], frozenset()).choose(logits)
    logprobs = np.log(softmax(logits.astype(np.float64)))
    assert found is not None and found.id == token != 0
    assert found.logprob == pytest.approx(logprobs[token], abs=1e-6)
    assert [one for one, _ in found.top] == [0, 1]
    assert [one for _, one in found.top] == pytest.approx(logprobs[:2], abs=1e-6)


def test_scores_of_the_token_alone_and_of_none() -> None:
    logits = np.array([1e4, 0.0], np.float32)
    found = score(logits, 1, 0)
    assert (found.id, found.logprob, found.top) == (1, -1e4, ())
    assert Chooser(Sampling(greedy=True), [], frozenset()).choose(logits) == (0, None)


@given(
    st.integers(1, 3 * BLOCK), st.integers(0, 10**6), st.floats(0, 1, exclude_max=True), st.booleans(), st.booleans()
)
def test_a_draw_is_where_the_cumulated_weights_say(
    size: int, seed: int, uniform: float, sparse: bool, named: bool
) -> None:
    random = np.random.default_rng(seed)
    weights = random.random(size).astype(np.float32)
    if sparse:
        weights[random.random(size) < 0.9] = 0
        weights[random.integers(size)] = 0.5
    ids = np.sort(random.choice(10 * size, size, replace=False)) if named else None
    found = draw(ids, weights, uniform)
    place = found if ids is None else ids.tolist().index(found)
    assert weights[place] > 0
    cumulated = np.cumsum(weights, dtype=np.float64)
    target = uniform * cumulated[-1]
    assert cumulated[place] - weights[place] <= target * (1 + 1e-12) + 1e-12
    assert cumulated[place] >= target * (1 - 1e-12)


@pytest.mark.parametrize("size", [3, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_the_last_draw_is_no_token_without_a_chance(size: int) -> None:
    weights = np.zeros(size, np.float32)
    weights[1] = 1
    assert draw(None, weights, 1 - 2**-53) == draw(None, weights, 0.0) == 1
    assert draw(None, weights, 1.0) == 1
