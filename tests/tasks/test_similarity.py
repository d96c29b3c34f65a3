"""Similarity functions, against values computed by hand and by their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from hf_transformer.tasks.similarity import SIMILARITIES, SparseVector, cosine, max_sim, sparse_cosine, sparse_dot

QUERY = np.array([3.0, 4.0])
DOCUMENTS = np.array([[3.0, 4.0], [4.0, -3.0], [-6.0, -8.0], [0.0, 0.0]])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cosine", [1, 0, -1, 0]),
        ("dot", [25, 0, -50, 0]),
        ("euclidean", [0, -np.sqrt(50), -15, -5]),
        ("manhattan", [0, -8, -21, -7]),
    ],
)
def test_dense_functions(name: str, expected: list[float]) -> None:
    scores = SIMILARITIES[name](QUERY, DOCUMENTS)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_cosine_of_half_precision_does_not_overflow() -> None:
    query = np.full(64, 300, np.float16)  # the square of 300 exceeds float16's maximum
    np.testing.assert_allclose(cosine(query, query[np.newaxis]), [1], atol=1e-6)


def test_sparse_dot_of_bge_m3_weights_with_themselves() -> None:
    weights: SparseVector = {
        "indices": [6, 31, 70, 581, 2542, 3299, 83_972],
        "values": [0.0836, 0.08154, 0.1295, 0.252, 0.17, 0.2695, 0.04074],
    }
    np.testing.assert_allclose(sparse_dot(weights, [weights]), [0.1971], atol=5e-5)


def test_sparse_dot_counts_common_indices_alone() -> None:
    query: SparseVector = {"indices": [1, 4, 9], "values": [1.0, 2.0, 3.0]}
    documents: list[SparseVector] = [
        {"indices": [0, 4, 8, 9], "values": [5.0, 0.5, 7.0, 2.0]},
        {"indices": [2], "values": [1.0]},
        {"indices": [], "values": []},
    ]
    assert sparse_dot(query, documents).tolist() == [7, 0, 0]
    assert sparse_dot({"indices": [], "values": []}, documents).tolist() == [0, 0, 0]


def test_max_sim_sums_the_best_match_of_each_query_vector() -> None:
    query = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    documents = [np.array([[0.5, 0.25], [1.0, -1.0]]), np.array([[-2.0, 0.0]]), np.zeros((0, 2))]
    # Rows of maxima: 1, 0.25, -0.5; then -2, 0, 2.
    assert max_sim(query, documents).tolist() == [0.75, 0, 0]
    assert max_sim(query, documents[:1]).dtype == np.float32
    assert max_sim(query, documents, mean=True).tolist() == [0.25, 0, 0]
    assert max_sim(np.zeros((0, 2)), documents, mean=True).tolist() == [0, 0, 0]


def test_sparse_cosine_divides_by_both_norms() -> None:
    query: SparseVector = {"indices": [1, 4], "values": [3.0, 4.0]}
    documents: list[SparseVector] = [{"indices": [4], "values": [2.0]}, {"indices": [], "values": []}, query]
    np.testing.assert_allclose(sparse_cosine(query, documents), [0.8, 0, 1], atol=1e-6)
