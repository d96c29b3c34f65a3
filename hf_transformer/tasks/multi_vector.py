"""Vectors of a text's tokens for late interaction (ColBERT, PyLate, BGE-M3).

A query has a marker and, in most models, mask tokens up to a fixed length (query expansion). A document has another
marker, and no vectors for punctuation.

Source: pylate/models/colbert.py of PyLate, multi_vector_encoder/model.py and modules/multi_vector_mask.py of
sentence-transformers 6.2, and _process_colbert_vecs in FlagEmbedding's inference/embedder/encoder_only/m3.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hf_transformer.errors import LoadError
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding, TaskTokenizer

QUERY, DOCUMENT = "query", "document"
"""The values of the parameter ``input_type``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryExpansion:
    """Mask tokens after a query.

    Attributes:
        length: the query's minimum number of tokens, marker and special tokens included.
        attend: whether the model's attention includes the mask tokens. They have vectors in any case.
        token: the token; None means the mask token, else the end-of-text token.
    """

    length: int = 32
    attend: bool = False
    token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LateInteraction:
    """The settings of a ColBERT folder.

    Attributes:
        markers: the token after the first token, by input type. A marker in a prompt is absent here.
        lengths: maximum numbers of tokens by input type, marker and special tokens included; the model's by default.
        expansion: query expansion; None for queries without it.
        skiplist: tokens without vectors.
        skiplist_types: the input types that the skiplist applies to.
        kept_ids: the only token ids with vectors in a document; empty for all.
        normalize: whether vectors have a length of 1.
        size: the number of components, if the files say it.
    """

    markers: Mapping[str, str] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    expansion: QueryExpansion | None = None
    skiplist: tuple[str, ...] = ()
    skiplist_types: tuple[str, ...] = (DOCUMENT,)
    kept_ids: tuple[int, ...] = ()
    normalize: bool = True
    size: int | None = None


class TokenVectors:
    """The rules of LateInteraction with the ids of a tokenizer.

    ``max_length`` is the model's length in tokens. Raises LoadError if the tokenizer lacks a token, or pads queries at
    their start.
    """

    def __init__(self, files: LateInteraction, vocabulary: TaskTokenizer, max_length: int) -> None:
        self.files, self._longest = files, max_length
        self._markers = {kind: _marker_id(marker, vocabulary) for kind, marker in files.markers.items()}
        skipped = (vocabulary.token_to_id(word) for word in files.skiplist)
        unknown = vocabulary.unk_id
        # A word without a token of its own would drop every unknown token.
        self._skipped = np.array(
            sorted({number for number in skipped if number is not None and number != unknown}), np.int64
        )
        self._kept = np.array(files.kept_ids, np.int64)
        self._fill = _fill_id(files.expansion, vocabulary) if files.expansion else 0
        if files.expansion and vocabulary.padding_side == "left":
            raise LoadError("query expansion with a tokenizer that pads at the start (padding_side) is not supported")

    @property
    def hides_tokens(self) -> bool:
        """Whether the attention mask must hide tokens of a query."""
        return self.files.expansion is not None and not self.files.expansion.attend

    def room(self, input_type: str, limit: int | None = None) -> int | None:
        """The maximum number of tokens before ``complete``, at most ``limit`` after it; None for the model's length.

        It is at least 1, so that the tokenizer refuses a ``limit`` without room for text.
        """
        limits = [length for length in (self.files.lengths.get(input_type), limit) if length is not None]
        if not limits and input_type not in self._markers:
            return None
        return max(min([*limits, self._longest]) - (input_type in self._markers), 1)

    def complete(self, encoding: Encoding, input_type: str) -> Encoding:
        """Adds the marker after the first token, and the mask tokens of a query."""
        ids, marker, expansion = encoding.ids, self._markers.get(input_type), self.files.expansion
        if marker is not None:
            ids = [*ids[:1], marker, *ids[1:]]
        missing, attended = 0, None
        if expansion is not None and input_type == QUERY:
            missing = max(0, min(expansion.length, self._longest) - len(ids))
            if missing and not expansion.attend:
                attended = len(ids)
            ids = [*ids, *[self._fill] * missing]
        if len(ids) == len(encoding.ids):
            return encoding
        types = [*encoding.type_ids[:1], *[0] * (marker is not None), *encoding.type_ids[1:], *[0] * missing]
        return Encoding(ids, types, encoding.truncated, attended=attended)

    def select(self, rows: Array, ids: Sequence[int], input_type: str) -> Array:
        """The vectors of the tokens that count, float32 [kept, d], from ``rows`` [tokens, d]."""
        numbers = np.array(ids, np.int64)
        kept = np.ones(len(numbers), np.bool_)
        if len(self._skipped) and input_type in self.files.skiplist_types:
            kept &= ~np.isin(numbers, self._skipped)
        if len(self._kept) and input_type != QUERY:
            kept &= np.isin(numbers, self._kept)
        return rows[kept].astype(np.float32)


def unit_rows(rows: Array) -> Array:
    """Scales each row [d] to an L2 norm of 1: x / max(||x||, 1e-12)."""
    norms = np.sqrt(np.einsum("td,td->t", rows, rows))
    scaled: Array = rows / np.maximum(norms, np.float32(1e-12))[:, np.newaxis]
    return scaled


def _marker_id(marker: str, vocabulary: TaskTokenizer) -> int:
    # PyLate adds "[Q] " with its space as one token. Other checkpoints have the token without the space.
    for token in (marker, marker.strip()):
        number = vocabulary.token_to_id(token)
        if number is not None:
            return number
    raise LoadError(f"the marker {marker!r} of the model's files is not a token of the tokenizer")


def _fill_id(expansion: QueryExpansion, vocabulary: TaskTokenizer) -> int:
    if expansion.token is not None:
        number = vocabulary.token_to_id(expansion.token)
        if number is None:
            raise LoadError(f"the token {expansion.token!r} of query_expansion is not a token of the tokenizer")
        return number
    end = vocabulary.special_tokens.get("eos_token")
    numbers = (vocabulary.mask_id, vocabulary.token_to_id(end) if end else None, vocabulary.pad_token_id)
    number = next((number for number in numbers if number is not None), None)
    if number is None:
        raise LoadError("query expansion needs a mask token or an end-of-text token, which the tokenizer lacks")
    return number
