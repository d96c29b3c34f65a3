"""Steps of running texts as batches of a model that gives logits, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from hf_transformer.core.batch import Form, Packed, Widths
from hf_transformer.core.queue import BatchLimits
from hf_transformer.core.scheduler import SchedulerSettings
from hf_transformer.errors import PredictorError
from hf_transformer.generation.cache import BYTES_PER_COST, Cache, CacheTensor, past
from hf_transformer.generation.logits_contract import CACHE_BRANCH, LogitsBinding
from hf_transformer.types import NUMPY_DTYPES, Array, Tensor

MAX_PADDING = 0.5
"""The largest part of a batch that may be padding. More than elsewhere: a step has few tokens, so that the call itself
costs most, and two texts of any length may always share one."""

LOGITS = "logits"
"""The role of the output that a token is chosen by; the others go by the name of the output."""


class Running(Protocol):
    """One text in the making.

    ``tokens`` [T] int64 are what the decoder has: of a decoder alone the prompt and what was generated. ``source`` [S]
    is the prompt of an encoder-decoder, else empty. ``cache`` is None where the model has none.
    """

    @property
    def tokens(self) -> Array: ...
    @property
    def source(self) -> Array: ...
    @property
    def cache(self) -> Cache | None: ...


def begun(item: Running) -> bool:
    """Whether the text has a cache to go on from."""
    return item.cache is not None and item.cache.length > 0


class Extent(NamedTuple):
    """The sizes of a batch: its ``rows``, the decoder's tokens that are ``read`` and ``held`` in the longest cache, and
    those of the longest ``source``. ``started`` and ``goes_on`` say of its texts what ``begun`` does, and whether they
    send their last token alone."""

    rows: int
    read: int
    held: int
    source: int
    started: bool
    goes_on: bool

    def returned(self, cache: CacheTensor) -> int:
        """How many tokens a cache has when it comes back."""
        return self.source if cache.source else self.held + self.read


class StepForm(Form[Running]):
    """One step each of several texts. Texts that begin and texts that go on from a cache do not share a batch.

    ``widths`` are those of whole texts, and of an encoder-decoder's prompts, where these have no fixed length; None
    where the longest of a batch is its width. Caches are as long as they are: OpenVINO, which wrote 64 tokens without a
    cache in a third less time in multiples of 16, gained nothing that could be measured where caches were rounded up.
    """

    def __init__(
        self, binding: LogitsBinding, pad_id: int, settings: SchedulerSettings, widths: Widths | None = None
    ) -> None:
        self._binding = binding
        self._pad_id = pad_id
        self._settings = settings
        self._fixed = binding.target_length if binding.encoder_decoder else binding.length
        self._widths = widths if self._fixed is None else None
        self._source_widths = widths if binding.length is None else None
        self._growing = [one for one in binding.caches if not one.source]
        self._token_bytes = sum(one.token_bytes for one in self._growing)
        self._limits: dict[tuple[bool, int], BatchLimits] = {}

    def bucket(self, item: Running) -> tuple[str, int]:
        group = "next" if begun(item) else "first" if self._binding.caches else ""
        if self._binding.encoder_decoder:
            group = f"{group} {self._source_width(item)}"
        cache, widths = item.cache, self._widths
        if self._goes_on(item) and cache is not None:
            return group, cache.length
        return group, len(item.tokens) if widths is None else widths.of(len(item.tokens))

    def limits(self, item: Running) -> BatchLimits:
        key = (begun(item), self._source_width(item))
        found = self._limits.get(key)
        if found is None:
            found = self._limits[key] = self._make_limits(*key)
        return found

    def _goes_on(self, item: Running) -> bool:
        """Whether only the last token is sent."""
        return self._binding.cached and begun(item)

    def _source_width(self, item: Running) -> int:
        """What an encoder-decoder's source takes in a batch: the next power of two, so that texts whose sources are
        about as long share one; without a mask only those that are just as long."""
        size = len(item.source)
        if self._source_widths is not None:
            size = self._source_widths.of(size)
        return size if size < 2 or not self._binding.takes("attention_mask") else 1 << (size - 1).bit_length()

    def _make_limits(self, started: bool, source: int) -> BatchLimits:
        binding, settings = self._binding, self._settings
        goes_on = started and binding.cached
        # A source is as long in every step; what it takes of the tokens limits the rows.
        rows = min(binding.max_rows, settings.max_batch_tokens // source) if source else binding.max_rows
        return BatchLimits(
            max_rows=max(rows, 1),
            max_tokens=settings.max_batch_tokens,
            max_output_bytes=settings.max_batch_output_bytes,
            output_bytes=self._row_bytes(started, goes_on, source),
            padding=binding.pads_cache if goes_on else binding.pads or self._fixed is not None,
            fixed_length=self._fixed,
            max_padding=MAX_PADDING,
        )

    def _row_bytes(self, started: bool, goes_on: bool, source: int) -> Callable[[int], int]:
        """Bytes of one row's outputs by the width of the batch (that of the cache, where there is one)."""
        binding = self._binding
        position = (binding.vocabulary or binding.least_vocabulary) * _itemsize(binding.datatype)
        token = self._token_bytes
        once = 0 if started else sum(one.token_bytes for one in binding.caches if one.source) * source

        def of_row(width: int) -> int:
            logits = position * (1 if goes_on or binding.positions != "all" else width)
            return logits + token * (width + goes_on) + once

        return of_row

    def pack(self, items: Sequence[Running]) -> Packed:
        binding, extent = self._binding, self._extent(items)
        # Rows that only fill up an exact batch repeat its last text: always a valid input.
        rows = [*items, *[items[-1]] * (extent.rows - len(items))]
        columns = self._columns(rows, extent)
        inputs = []
        for one in binding.inputs:
            data = columns[one.role].astype(one.dtype)
            per_row = binding.batch_axis and (one.role != CACHE_BRANCH or binding.triton_batch)
            inputs.append(Tensor(one.name, one.datatype, data if per_row else data[0]))
        for cache in binding.caches:
            if extent.started or not cache.optional:
                data = past(cache, [item.cache for item in rows], extent.source if cache.source else extent.held)
                inputs.append(Tensor(cache.past, cache.datatype, data if binding.batch_axis else data[0]))
        wanted = self._wanted(extent)
        sizes = {one.present: extent.rows * one.token_bytes * extent.returned(one) for one in wanted}
        if binding.vocabulary is not None:
            values = extent.rows * self._places(extent) * binding.vocabulary
            sizes[binding.logits] = values * _itemsize(binding.datatype)
        real = len(items) if extent.goes_on else sum(len(item.tokens) for item in items)
        outputs = [binding.logits, *(one.present for one in wanted)]
        return Packed(inputs, outputs, sizes, real, extent.rows * extent.read - real)

    def pack_cost(self, items: Sequence[Running]) -> int:
        if not self._goes_on(items[0]):
            return 0
        tokens = sum(item.cache.length for item in items if item.cache is not None)
        return tokens * self._token_bytes // BYTES_PER_COST

    def unpack(
        self, items: Sequence[Running], packed: Packed, outputs: Mapping[str, Tensor]
    ) -> Iterator[Mapping[str, Array]]:
        extent = self._extent(items)
        logits = self._verified_logits(outputs[self._binding.logits], extent)
        wanted = self._wanted(extent)
        present = [(one, self._verified_cache(outputs[one.present], one, extent)) for one in wanted]
        lengths = [(len(item.tokens), len(item.source)) for item in items]
        for row, (length, source) in enumerate(lengths):
            last = length - 1 if self._places(extent) > 1 and not extent.goes_on else -1
            mine = {LOGITS: logits[row, last]}
            for one, data in present:
                if one.source:
                    place = one.part(0, source)
                elif extent.goes_on:
                    place = one.part(extent.held, extent.held + 1)
                elif self._binding.left:
                    place = one.part(extent.read - length, extent.read)
                else:
                    place = one.part(0, length)
                mine[one.present] = data[row][place]
            yield mine

    def _extent(self, items: Sequence[Running]) -> Extent:
        binding = self._binding
        rows = binding.exact_rows or len(items)
        started, goes_on = begun(items[0]), self._goes_on(items[0])
        source = 0
        if binding.encoder_decoder:
            source = binding.length or max(len(item.source) for item in items)
            source = source if self._source_widths is None else self._source_widths.of(source)
        if goes_on:
            held = max(item.cache.length for item in items if item.cache is not None)
            return Extent(rows, 1, held, source, started, True)
        read = self._fixed or max(len(item.tokens) for item in items)
        read = read if self._widths is None else self._widths.of(read)
        return Extent(rows, read, 0, source, started, False)

    def _wanted(self, extent: Extent) -> list[CacheTensor]:
        """The caches that the model is to return."""
        return self._growing if extent.started else list(self._binding.caches)

    def _places(self, extent: Extent) -> int:
        """How many positions the logits have."""
        return extent.read if self._binding.positions == "all" else 1

    def _columns(self, rows: Sequence[Running], extent: Extent) -> dict[str, Array]:
        """The inputs by role, [rows, ...], whether the model takes them or not."""
        binding = self._binding
        branch = np.full((len(rows), 1), extent.goes_on)
        if extent.goes_on:
            tokens = np.array([item.tokens[-1:] for item in rows])
            held = np.array([[item.cache.length] for item in rows if item.cache is not None])
            mask = (np.arange(extent.held + 1) >= extent.held - held).astype(np.int64)
            positions = held
        else:
            tokens, mask = self._padded([item.tokens for item in rows], extent.read, left=binding.left)
            if binding.left:
                positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
            else:
                positions = np.broadcast_to(np.arange(extent.read), tokens.shape)
        if not binding.encoder_decoder:
            return {"input_ids": tokens, "attention_mask": mask, "position_ids": positions, CACHE_BRANCH: branch}
        source, source_mask = self._padded([item.source for item in rows], extent.source, left=False)
        return {
            "input_ids": source,
            "attention_mask": source_mask,
            "decoder_input_ids": tokens,
            "decoder_attention_mask": mask,
            CACHE_BRANCH: branch,
        }

    def _padded(self, texts: Sequence[Array], width: int, *, left: bool) -> tuple[Array, Array]:
        """Ids and mask, int64 [rows, width]."""
        ids = np.full((len(texts), width), self._pad_id, np.int64)
        mask = np.zeros((len(texts), width), np.int64)
        for row, text in enumerate(texts):
            place = slice(width - len(text), width) if left else slice(0, len(text))
            ids[row, place] = text
            mask[row, place] = 1
        return ids, mask

    def _verified_logits(self, tensor: Tensor, extent: Extent) -> Array:
        """[rows, positions, V]"""
        binding = self._binding
        data = tensor.data if binding.batch_axis else tensor.data[np.newaxis]
        if binding.positions == "flat" and data.ndim == 2:
            data = data[:, np.newaxis]
        expected = (extent.rows, self._places(extent), binding.vocabulary or -1)
        size = data.shape[-1] if data.ndim else 0
        if tensor.datatype != binding.datatype:
            raise PredictorError(
                f"the model answered {binding.logits!r} as {tensor.datatype}, its configuration says {binding.datatype}"
            )
        if data.ndim != 3 or data.shape[:2] != expected[:2] or expected[2] not in (-1, size):
            raise PredictorError(
                f"the model answered {binding.logits!r} with the shape {list(tensor.shape)}, expected (rows, "
                f"positions, vocabulary) {list(expected)}; dims of [1, vocabulary] say that the last one alone comes"
            )
        if size < binding.least_vocabulary:
            raise PredictorError(
                f"the model answered {binding.logits!r} for {size} tokens, the tokenizer has {binding.least_vocabulary}"
            )
        return data

    def _verified_cache(self, tensor: Tensor, cache: CacheTensor, extent: Extent) -> Array:
        """[rows, ..., tokens, ...]"""
        data = tensor.data if self._binding.batch_axis else tensor.data[np.newaxis]
        expected = (extent.rows, *cache.sized(extent.returned(cache)))
        if tensor.datatype != cache.datatype or data.shape != expected:
            raise PredictorError(
                f"the model answered {tensor.name!r} as {tensor.datatype} with the shape {list(tensor.shape)}, "
                f"expected {cache.datatype} {list(expected)}: the cache that it was given, and the new tokens behind it"
            )
        return data


def _itemsize(datatype: str) -> int:
    return 2 if datatype == "BF16" else NUMPY_DTYPES[datatype].itemsize
