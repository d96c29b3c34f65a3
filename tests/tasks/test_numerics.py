from __future__ import annotations

import math

import numpy as np
import pytest

from hf_transformer.errors import PredictorError
from hf_transformer.tasks.numerics import argmax, require_numbers, sigmoid, softmax, softmax_at, top_k
from hf_transformer.types.tensors import Array

every_dtype = pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])


@every_dtype
def test_softmax_is_stable_and_leaves_its_argument_alone(dtype: type) -> None:
    logits: Array = np.array([[1.0, 2.0, 3.0], [-1.0, 0.0, 1.0], [60000.0, 60000.0, -60000.0]], dtype)
    before, probabilities = logits.copy(), softmax(logits)
    expected = [[math.exp(x) / sum(map(math.exp, row)) for x in row] for row in logits[:2].tolist()]
    np.testing.assert_allclose(probabilities, [*expected, [0.5, 0.5, 0.0]], rtol=1e-6)
    assert probabilities.dtype == np.float32 and (logits == before).all()
    many: Array = np.random.default_rng(0).normal(0, 5, 1000).astype(dtype)
    indices = np.array([7, 0, 999])
    assert softmax_at(many, indices).dtype == np.float32
    np.testing.assert_allclose(softmax_at(many, indices), softmax(many)[indices], rtol=1e-5)


def test_sigmoid_is_stable_for_extreme_logits() -> None:
    probabilities = sigmoid(np.array([-1e4, -100, -20, 0, 20, 1e4], np.float32))
    assert probabilities.dtype == np.float32
    assert probabilities.tolist() == pytest.approx([0, 0, 1 / (1 + math.exp(20)), 0.5, 1, 1], rel=1e-6)


@pytest.mark.parametrize("k", [1, 5, 32, 33, 4999, 5000, 9999])
@pytest.mark.parametrize("size", [4, 63, 4095, 4096, 5000])
def test_top_k_is_sorted_best_first(k: int, size: int) -> None:
    scores = np.random.default_rng(k).normal(size=size).astype(np.float32)
    banned = np.where(np.arange(size) < 3, scores, -np.inf).astype(np.float32)
    for row in (scores, scores.round(), banned, np.sort(scores)):
        assert top_k(row, k).tolist() == np.argsort(-row, kind="stable")[:k].tolist()


def test_numbers_are_required_in_every_row() -> None:
    require_numbers(np.array([[0.0, -np.inf], [1.0, 2.0]]))
    for row in ([np.nan, 2.0], [np.inf, 2.0], [-np.inf, -np.inf]):
        with pytest.raises(PredictorError, match="not finite"):
            require_numbers(np.array([[0.0, 1.0], row]))


@every_dtype
@pytest.mark.parametrize("size", [1, 2, 7, 1000, 30_522])
def test_argmax_refuses_nan_and_infinity(dtype: type, size: int) -> None:
    logits: Array = np.linspace(-1, 1, size).astype(dtype)
    assert argmax(logits) == int(logits.argmax())
    assert argmax(np.zeros(size, dtype)) == 0
    for index in {0, size // 2, size - 1}:
        for value in (np.nan, np.inf):
            wrong = logits.copy()
            wrong[index] = value
            with pytest.raises(PredictorError, match="not finite"):
                argmax(wrong)
    with pytest.raises(PredictorError, match="not finite"):
        argmax(np.full(size, -np.inf, dtype))
    if size > 1:
        logits[0] = -np.inf  # a banned token
        assert argmax(logits) == int(logits.argmax()) > 0
