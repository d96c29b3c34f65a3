"""Batches of decode steps of a logits model: padding and packing of inputs, and checks of the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hf_transformer.core.batch import BatchBuilder, Packed, PaddingBuckets
from hf_transformer.core.queue import BatchLimits
from hf_transformer.core.scheduler import SchedulerSettings
from hf_transformer.errors import PredictorError
from hf_transformer.generation.cache import BYTES_PER_COST, CacheTensor, past_input
from hf_transformer.generation.logits_sequence import LOGITS, PROMPT_LOGITS, LogitsSequence
from hf_transformer.generation.logits_signature import CACHE_BRANCH, LogitsSignature
from hf_transformer.types.tensors import NUMPY_DTYPES, Array, Tensor

MAX_PADDING = 0.5
"""Largest share of padding in a batch. It allows two sequences of any length to share a batch.

Other tasks have a lower limit. A decode step has few tokens, so the overhead of a call outweighs the cost of padding.
"""


class StepShape(NamedTuple):
    """Dimensions of a batch. With ``has_past`` each sequence has one new token.

    Attributes:
        rows: batch size.
        new: number of new decoder tokens per sequence.
        past: number of tokens in the longest cache.
        source: number of tokens in the longest source.
    """

    rows: int
    new: int
    past: int
    source: int
    has_past: bool

    def present(self, cache: CacheTensor) -> int:
        """Number of tokens of a returned cache."""
        return self.source if cache.source else self.past + self.new


def unique_rows(items: Sequence[LogitsSequence]) -> tuple[list[LogitsSequence], list[int]]:
    """Returns one sequence per row of the batch, and the row index of each item.

    New sequences with the same prompt share a row, so the model processes the prompt once.
    """
    rows: dict[int, int] = {}
    unique: list[LogitsSequence] = []
    row_of_item = []
    for item in items:
        key = id(item.prompt) if item.is_new else id(item)
        if key not in rows:
            rows[key] = len(unique)
            unique.append(item)
        row_of_item.append(rows[key])
    return unique, row_of_item


class StepBatchBuilder(BatchBuilder[LogitsSequence]):
    """Builds batches of decode steps. Sequences with and without a cache do not share a batch.

    ``widths`` are the allowed padded lengths of whole texts and encoder-decoder prompts if the model's length is
    variable. None pads to the longest sequence of a batch. Cache lengths are never rounded up. Measurements with
    OpenVINO showed no gain for caches, but a third less time for whole texts padded to multiples of 16.
    """

    def __init__(
        self, signature: LogitsSignature, pad_id: int, settings: SchedulerSettings, widths: PaddingBuckets | None = None
    ) -> None:
        self._signature = signature
        self._pad_id = pad_id
        self._settings = settings
        self._fixed = signature.target_length if signature.encoder_decoder else signature.length
        self._widths = widths if self._fixed is None else None
        self._source_widths = widths if signature.length is None else None
        self._growing = [cache for cache in signature.caches if not cache.source]
        self._token_bytes = sum(cache.token_bytes for cache in self._growing)

    def bucket(self, item: LogitsSequence) -> tuple[str, int]:
        group = "next" if item.has_past else "first" if self._signature.caches else ""
        if self._signature.encoder_decoder:
            group = f"{group} {self._source_width(item)}"
        if item.cache is not None and item.has_past:
            return group, item.cache.length
        return group, _rounded(self._widths, len(item.tokens))

    def _source_width(self, item: LogitsSequence) -> int:
        """Padded length of an encoder-decoder's source.

        It is the next power of two, so that sources of similar length share a batch. Without attention_mask, it is the
        source's own length.
        """
        size = _rounded(self._source_widths, len(item.source))
        return size if size < 2 or not self._signature.takes("attention_mask") else 1 << (size - 1).bit_length()

    def limits(self, item: LogitsSequence) -> BatchLimits:
        signature, settings = self._signature, self._settings
        has_past, source = item.has_past, self._source_width(item)
        position_bytes = (signature.vocabulary or signature.min_vocabulary) * _itemsize(signature.datatype)
        source_bytes = 0 if has_past else sum(cache.token_bytes for cache in signature.caches if cache.source) * source
        # Source tokens count toward max_batch_tokens in every step, so they limit the number of rows.
        rows = min(signature.max_rows, settings.max_batch_tokens // source) if source else signature.max_rows

        def row_bytes(width: int) -> int:
            logits = position_bytes * (1 if has_past or not signature.all_positions else width)
            return logits + self._token_bytes * (width + has_past) + source_bytes

        return BatchLimits(
            max_rows=max(rows, 1),
            max_tokens=settings.max_batch_tokens,
            max_output_bytes=settings.max_batch_output_bytes,
            output_bytes=row_bytes,
            padding=signature.pads_cache if has_past else signature.pads or self._fixed is not None,
            fixed_length=self._fixed,
            max_padding=MAX_PADDING,
        )

    def pack(self, items: Sequence[LogitsSequence]) -> Packed:
        signature = self._signature
        unique, _ = unique_rows(items)
        shape = self._shape(unique)
        # For a fixed batch size, repeat the last sequence in unused rows, since it is always a valid input.
        rows = [*unique, *[unique[-1]] * (shape.rows - len(unique))]
        columns = self._columns(rows, shape)
        inputs = []
        for tensor in signature.inputs:
            data = columns[tensor.role].astype(tensor.dtype)
            per_row = signature.batch_axis and (tensor.role != CACHE_BRANCH or signature.triton_batch)
            inputs.append(Tensor(tensor.name, tensor.datatype, data if per_row else data[0]))
        caches = [item.cache for item in rows if item.cache is not None]
        for cache in signature.caches:
            width = 0 if not shape.has_past else shape.source if cache.source else shape.past
            data = past_input(cache, caches, width)
            inputs.append(Tensor(cache.past, cache.datatype, data if signature.batch_axis else data[0]))
        returned = self._returned_caches(shape)
        sizes = {cache.present: shape.rows * cache.token_bytes * shape.present(cache) for cache in returned}
        if signature.vocabulary is not None:
            values = shape.rows * self._positions(shape) * signature.vocabulary
            sizes[signature.logits] = values * _itemsize(signature.datatype)
        tokens = len(unique) if shape.has_past else sum(len(item.tokens) for item in unique)
        outputs = [signature.logits, *(cache.present for cache in returned)]
        return Packed(inputs, outputs, sizes, tokens, shape.rows * shape.new - tokens)

    def pack_cost(self, items: Sequence[LogitsSequence]) -> int:
        tokens = sum(item.cache.length for item in items if item.cache is not None)
        return tokens * self._token_bytes // BYTES_PER_COST

    def unpack(
        self, items: Sequence[LogitsSequence], packed: Packed, outputs: Mapping[str, Tensor]
    ) -> Iterator[Mapping[str, Array]]:
        signature = self._signature
        unique, row_of_item = unique_rows(items)
        shape = self._shape(unique)
        logits = self._verified_logits(outputs[signature.logits], shape)
        caches = self._returned_caches(shape)
        present = [(cache, self._verified_cache(outputs[cache.present], cache, shape)) for cache in caches]
        # Read all lengths before decoding the first item, since decoding changes its length.
        lengths = [(row, len(item.tokens), len(item.source)) for row, item in zip(row_of_item, items, strict=True)]
        for item, (row, length, source) in zip(items, lengths, strict=True):
            last = length - 1 if self._positions(shape) > 1 and not shape.has_past else -1
            values = {LOGITS: logits[row, last]}
            if item.needs_prompt_scores:
                values[PROMPT_LOGITS] = logits[row, : length - 1]
            for cache, data in present:
                if cache.source:
                    index = cache.index(0, source)
                elif shape.has_past:
                    index = cache.index(shape.past, shape.past + 1)
                elif signature.pads_left:
                    index = cache.index(shape.new - length, shape.new)
                else:
                    index = cache.index(0, length)
                values[cache.present] = data[row][index]
            yield values

    def _shape(self, items: Sequence[LogitsSequence]) -> StepShape:
        signature, first = self._signature, items[0]
        rows = signature.exact_rows or len(items)
        source = 0
        if signature.encoder_decoder:
            source = _rounded(self._source_widths, signature.length or max(len(item.source) for item in items))
        if first.has_past:
            past = max(item.cache.length for item in items if item.cache is not None)
            return StepShape(rows, 1, past, source, True)
        new = _rounded(self._widths, self._fixed or max(len(item.tokens) for item in items))
        return StepShape(rows, new, 0, source, False)

    def _returned_caches(self, shape: StepShape) -> Sequence[CacheTensor]:
        return self._growing if shape.has_past else self._signature.caches

    def _positions(self, shape: StepShape) -> int:
        """Number of positions with logits."""
        return shape.new if self._signature.all_positions else 1

    def _columns(self, rows: Sequence[LogitsSequence], shape: StepShape) -> dict[str, Array]:
        """Builds all inputs except caches, by role, with the shape [rows, ...]."""
        signature = self._signature
        branch = np.full((len(rows), 1), shape.has_past)
        if shape.has_past:
            tokens = np.array([item.tokens[-1:] for item in rows])
            positions = np.array([[item.cache.length] for item in rows if item.cache is not None])
            mask = (np.arange(shape.past + 1) >= shape.past - positions).astype(np.int64)
        else:
            tokens, mask = self._padded([item.tokens for item in rows], shape.new, left=signature.pads_left)
            if signature.pads_left:
                positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
            else:
                positions = np.broadcast_to(np.arange(shape.new), tokens.shape)
        if not signature.encoder_decoder:
            return {"input_ids": tokens, "attention_mask": mask, "position_ids": positions, CACHE_BRANCH: branch}
        source, source_mask = self._padded([item.source for item in rows], shape.source, left=False)
        return {
            "input_ids": source,
            "attention_mask": source_mask,
            "decoder_input_ids": tokens,
            "decoder_attention_mask": mask,
            CACHE_BRANCH: branch,
        }

    def _padded(self, texts: Sequence[Array], width: int, *, left: bool) -> tuple[Array, Array]:
        """Returns padded ids and the attention mask, int64 [rows, width]."""
        ids = np.full((len(texts), width), self._pad_id, np.int64)
        mask = np.zeros((len(texts), width), np.int64)
        for row, text in enumerate(texts):
            columns = slice(width - len(text), width) if left else slice(0, len(text))
            ids[row, columns] = text
            mask[row, columns] = 1
        return ids, mask

    def _verified_logits(self, tensor: Tensor, shape: StepShape) -> Array:
        """Returns the logits [rows, positions, V]. Raises PredictorError for an unexpected datatype or shape."""
        signature = self._signature
        data = tensor.data if signature.batch_axis else tensor.data[np.newaxis]
        if not signature.all_positions and data.ndim == 2:
            data = data[:, np.newaxis]
        expected = (shape.rows, self._positions(shape), signature.vocabulary or -1)
        size = data.shape[-1] if data.ndim else 0
        if tensor.datatype != signature.datatype:
            raise PredictorError(
                f"the model answered {signature.logits!r} as {tensor.datatype}, its configuration says "
                f"{signature.datatype}"
            )
        if data.ndim != 3 or data.shape[:2] != expected[:2] or expected[2] not in (-1, size):
            raise PredictorError(
                f"the model answered {signature.logits!r} with the shape {list(tensor.shape)}, expected (rows, "
                f"positions, vocabulary) {list(expected)}; set the dims [1, vocabulary] for the last position alone"
            )
        if size < signature.min_vocabulary:
            raise PredictorError(
                f"the model answered {signature.logits!r} for {size} tokens, the tokenizer has "
                f"{signature.min_vocabulary}"
            )
        return data

    def _verified_cache(self, tensor: Tensor, cache: CacheTensor, shape: StepShape) -> Array:
        """Returns the cache [rows, ..., tokens, ...]. Raises PredictorError for an unexpected datatype or shape."""
        data = tensor.data if self._signature.batch_axis else tensor.data[np.newaxis]
        expected = (shape.rows, *cache.shape_for(shape.present(cache)))
        if tensor.datatype != cache.datatype or data.shape != expected:
            raise PredictorError(
                f"the model answered {tensor.name!r} as {tensor.datatype} with the shape {list(tensor.shape)}, "
                f"expected {cache.datatype} {list(expected)}: the input cache followed by the new tokens"
            )
        return data


def _rounded(widths: PaddingBuckets | None, tokens: int) -> int:
    return tokens if widths is None else widths.of(tokens)


def _itemsize(datatype: str) -> int:
    return 2 if datatype == "BF16" else NUMPY_DTYPES[datatype].itemsize
