from __future__ import annotations

import math

import numpy as np
import pytest

from hf_transformer.errors import PredictorError
from hf_transformer.numerics import require_numbers, softmax, top_k


def test_softmax_is_the_formula() -> None:
    logits = np.array([[1.0, 2.0, 3.0], [-1.0, 0.0, 1.0]], np.float32)
    expected = [[math.exp(x) / sum(map(math.exp, row)) for x in row] for row in logits.tolist()]
    np.testing.assert_allclose(softmax(logits), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_softmax_survives_large_logits(dtype: type) -> None:
    found = softmax(np.array([60000.0, 60000.0, -60000.0], dtype))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [0.5, 0.5, 0.0])


def test_softmax_leaves_its_argument_alone() -> None:
    logits = np.array([1.0, 2.0], np.float32)
    softmax(logits)
    assert logits.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("k", "expected"), [(1, [2]), (3, [2, 0, 3]), (4, [2, 0, 3, 1]), (99, [2, 0, 3, 1])])
def test_top_k_is_sorted_best_first(k: int, expected: list[int]) -> None:
    assert top_k(np.array([5.0, -1.0, 9.0, 2.0]), k).tolist() == expected


def test_what_is_no_number_is_refused_in_any_row() -> None:
    require_numbers(np.array([[0.0, -np.inf], [1.0, 2.0]]))
    for row in ([np.nan, 2.0], [np.inf, 2.0], [-np.inf, -np.inf]):
        with pytest.raises(PredictorError, match="not finite"):
            require_numbers(np.array([[0.0, 1.0], row]))
