"""Similarity of texts by their representations: dense vectors, sparse vectors, and a vector per token.

All functions compute in float32. Higher scores mean more similar texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from hf_transformer.types.tensors import Array


class SparseVector(TypedDict):
    """A sparse vector: ``indices`` of the vocabulary in ascending order, each once, and their ``values``."""

    indices: Sequence[int]
    values: Sequence[float]


def cosine(query: Array, documents: Array) -> Array:
    """Cosine of a query [D] and documents [N, D], float32 [N]; 0 for a vector of zeros.

    Norms have sentence-transformers' lower bound of 1e-12.
    """
    query, documents = query.astype(np.float32), documents.astype(np.float32)
    norms = np.maximum(np.sqrt(np.einsum("nd,nd->n", documents, documents)), np.float32(1e-12))
    scores: Array = documents @ (query / np.maximum(np.sqrt(query @ query), np.float32(1e-12))) / norms
    return scores


def dot(query: Array, documents: Array) -> Array:
    """Dot product of a query [D] and documents [N, D], float32 [N]."""
    scores: Array = documents.astype(np.float32) @ query.astype(np.float32)
    return scores


def euclidean(query: Array, documents: Array) -> Array:
    """Negative Euclidean distance of a query [D] and documents [N, D], float32 [N]."""
    differences = documents.astype(np.float32) - query.astype(np.float32)
    scores: Array = -np.sqrt(np.einsum("nd,nd->n", differences, differences))
    return scores


def manhattan(query: Array, documents: Array) -> Array:
    """Negative Manhattan distance of a query [D] and documents [N, D], float32 [N]."""
    scores: Array = -np.abs(documents.astype(np.float32) - query.astype(np.float32)).sum(axis=1)
    return scores


SIMILARITIES: Mapping[str, Callable[[Array, Array], Array]] = {
    "cosine": cosine,
    "dot": dot,
    "euclidean": euclidean,
    "manhattan": manhattan,
}
"""The functions of dense vectors by their name in sentence-transformers (similarity_fn_name)."""


def sparse_dot(query: SparseVector, documents: Sequence[SparseVector]) -> Array:
    """Dot product of a sparse query and N sparse documents, float32 [N]; 0 without a common index."""
    wanted = np.asarray(query["indices"], np.int64)
    weights = np.asarray(query["values"], np.float32)
    scores = np.zeros(len(documents), np.float32)
    for number, document in enumerate(documents):
        _, mine, theirs = np.intersect1d(
            wanted, np.asarray(document["indices"], np.int64), assume_unique=True, return_indices=True
        )
        scores[number] = weights[mine] @ np.asarray(document["values"], np.float32)[theirs]
    return scores


def sparse_cosine(query: SparseVector, documents: Sequence[SparseVector]) -> Array:
    """Cosine of a sparse query and N sparse documents, float32 [N]; 0 for a vector without weights."""
    norms = [np.linalg.norm(np.asarray(vector["values"], np.float32)) for vector in (query, *documents)]
    bounded = np.maximum(np.array(norms, np.float32), np.float32(1e-12))
    scores: Array = sparse_dot(query, documents) / bounded[0] / bounded[1:]
    return scores


SPARSE_SIMILARITIES: Mapping[str, Callable[[SparseVector, Sequence[SparseVector]], Array]] = {
    "dot": sparse_dot,
    "cosine": sparse_cosine,
}
"""The functions of sparse vectors by their name in sentence-transformers."""
MAX_SIM = ("maxsim", "meanmaxsim")
"""The names of max_sim in sentence-transformers, the second with ``mean``."""


def max_sim(query: Array, documents: Sequence[Array], *, mean: bool = False) -> Array:
    """ColBERT's late interaction of a query [q, d] and N documents [t, d], float32 [N].

    Each of the query's vectors counts with its highest dot product among the document's vectors; the score is the sum,
    or with ``mean`` the mean. A document without vectors has the score 0.

    Source: equation 3 of ColBERT (Khattab and Zaharia, 2020).
    """
    query = query.astype(np.float32)
    if mean:
        query = query / np.float32(max(len(query), 1))
    scores = [
        (query @ document.astype(np.float32).T).max(axis=1).sum() if len(document) else 0.0 for document in documents
    ]
    return np.array(scores, np.float32)


def compare(
    query: Any,
    documents: Sequence[Any],
    dense: Callable[[Array, Array], Array] = cosine,
    sparse: Callable[[SparseVector, Sequence[SparseVector]], Array] = sparse_dot,
    *,
    mean: bool = False,
) -> Array:
    """Similarity of representations in the forms of text_embedding's answers, float32 [N]: ``dense`` of dense vectors,
    ``sparse`` of sparse vectors, or max_sim of vectors of tokens."""
    if isinstance(query, Mapping):
        return sparse(query, documents)  # type: ignore[arg-type]
    return max_sim(query, documents, mean=mean) if query.ndim > 1 else dense(query, np.stack(documents))
