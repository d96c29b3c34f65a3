"""Batches of texts behind prompts of labels: words and spans beside the tokens, and outputs per word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from hf_transformer.core.batch import EncodingBatchBuilder, Packed, PaddingPolicy
from hf_transformer.core.contract import Signature
from hf_transformer.core.queue import BatchLimits
from hf_transformer.errors import PredictorError
from hf_transformer.types.tensors import NUMPY_DTYPES, Array, Tensor
from hf_transformer.types.tokenization import Encoding, LabelledEncoding

SPAN_BYTES = 17
"""Bytes of a span in the inputs: two INT64 and a BOOL."""


class LabelledShape(NamedTuple):
    """The shape of texts with labels, and what of its padding a model reads.

    Attributes:
        width: the words of the longest span; 1 for a token-level model.
        equal_words: whether the model reads padded words, so that only texts with as many words share a batch.
        equal_labels: whether it reads padded labels, so that only texts with as many labels share a batch.
    """

    width: int
    equal_words: bool
    equal_labels: bool = False


class LabelledBatchBuilder(EncodingBatchBuilder):
    """Makes batches of LabelledEncoding.

    Words, spans and labels are padded like tokens. Models of spans and token-level models compute each of them by
    itself, so padding changes no score; for other models see LabelledShape.

    Args:
        options: see EncodingBatchBuilder.
    """

    def __init__(self, signature: Signature, policy: PaddingPolicy, shape: LabelledShape, **options: Any) -> None:
        super().__init__(signature, policy, **options)
        self._width, self._equal_words, self._equal_labels = shape
        [output] = signature.outputs
        self._score_bytes = 2 if output.datatype == "BF16" else NUMPY_DTYPES[output.datatype].itemsize
        self._spans = output.axes[-1].maximum is None  # a token-level model's last axis has start, end and inside
        self._classes_axis = len(output.axes) if self._spans else len(output.axes) - 1

    def bucket(self, item: Encoding) -> tuple[str, int]:
        """Groups texts by the power of two of their labels, which bounds the outputs of a batch."""
        labelled = cast(LabelledEncoding, item)
        group, size = super().bucket(item)
        labels = labelled.labels if self._equal_labels else (labelled.labels - 1).bit_length()
        words = f" {len(labelled.words)}" if self._equal_words else ""
        return f"{group}{labels}{words}", size

    def limits(self, item: Encoding) -> BatchLimits:
        """The limits with the bytes of a row's scores, spans and vectors, if each token behind the prompt were a
        word."""
        labelled = cast(LabelledEncoding, item)
        labels = 1 << (labelled.labels - 1).bit_length()
        each = self._width * labels * self._score_bytes * (1 if self._spans else 3) + self._width * SPAN_BYTES
        vectors = 0 if labelled.vectors is None else labels * labelled.vectors[0].nbytes
        return replace(super().limits(item), output_bytes=lambda width: width * each + vectors)

    def pack(self, items: Sequence[Encoding]) -> Packed:
        """Adds words_mask [rows, tokens], text_lengths [rows, 1] and for models of spans span_idx [rows, spans, 2] and
        span_mask [rows, spans], a span for each word and width; for bi-encoders labels_embeddings [rows, labels, size].
        """
        packed = super().pack(items)
        tokens = packed.inputs[0].data
        rows, width = tokens.shape if self._signature.batch_axis else (1, tokens.shape[0])
        labelled = [cast(LabelledEncoding, item) for item in [*items, *[items[-1]] * (rows - len(items))]]
        lengths = np.array([len(item.words) for item in labelled], np.int64)
        made: dict[str, Array] = {"text_lengths": lengths[:, np.newaxis]}
        mask = np.zeros((rows, width), np.int64)
        for row, item in zip(mask, labelled, strict=True):
            start = width - len(item.ids) if self._policy.left else 0
            row[start : start + len(item.ids)] = item.words_mask
        made["words_mask"] = mask
        if self._spans:
            firsts = np.repeat(np.arange(lengths.max()), self._width)
            spans = np.stack([firsts, firsts + np.tile(np.arange(self._width), lengths.max())], axis=1)
            made["span_mask"] = spans[:, 1] < lengths[:, np.newaxis]
            made["span_idx"] = np.broadcast_to(spans, (rows, *spans.shape)) * made["span_mask"][:, :, np.newaxis]
        if labelled[0].vectors is not None:
            most, size = max(item.labels for item in labelled), labelled[0].vectors.shape[1]
            made["labels_embeddings"] = vectors = np.zeros((rows, most, size), np.float32)
            for own, item in zip(vectors, labelled, strict=True):
                own[: item.labels] = item.vectors
        for extra in self._signature.extras:
            data = made[extra.role].astype(extra.dtype)
            packed.inputs.append(Tensor(extra.name, extra.datatype, data if self._signature.batch_axis else data[0]))
        return packed

    def unpack(
        self, items: Sequence[Encoding], packed: Packed, outputs: Mapping[str, Tensor]
    ) -> Iterator[Mapping[str, Array]]:
        """Yields the scores of each text's own words and labels.

        The output of a token-level model may have further words: Triton's dynamic batcher joins calls with equal
        numbers of tokens.
        """
        words = max(len(cast(LabelledEncoding, item).words) for item in items)
        labels = max(cast(LabelledEncoding, item).labels for item in items)
        [output], role = outputs.values(), self._signature.outputs[0].role
        first = 1 if self._signature.batch_axis else 0
        shape = output.data.shape
        for views, item in zip(super().unpack(items, packed, outputs), items, strict=True):
            found = shape[first], shape[first + self._classes_axis - 1]
            if found[0] < words or found[1] < labels:
                raise PredictorError(
                    f"the model answered {output.name!r} with the shape {list(shape)}: {found[0]} words and {found[1]} "
                    f"labels, expected at least {words} and {labels}"
                )
            labelled = cast(LabelledEncoding, item)
            own = views[role][: len(labelled.words)]
            yield {role: own[:, :, : labelled.labels] if self._spans else own[:, : labelled.labels]}


def make_builder(
    words: LabelledShape | None, signature: Signature, policy: PaddingPolicy, **options: Any
) -> EncodingBatchBuilder:
    """Returns the builder of batches. ``words`` is None for texts without labels. ``options`` are those of
    EncodingBatchBuilder."""
    if words is None:
        return EncodingBatchBuilder(signature, policy, **options)
    return LabelledBatchBuilder(signature, policy, words, **options)
