"""Models that give logits: the decode loop, where the service chooses the tokens, and its steps as batches.

Continuous batching: each sequence submits its next step to the scheduler as soon as its last one is decoded, so the
steps of all sequences share batches. A sequence joins and leaves between two steps.

A text does not depend on the others in its batches, except for a logit's last bits, which change with the batch size.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import fields
from typing import ClassVar, NamedTuple

import numpy as np

from hf_transformer.core.batch import BatchBuilder, Packed, PaddingBuckets, padding_buckets
from hf_transformer.core.queue import BatchLimits
from hf_transformer.core.scheduler import Entry, Scheduler, SchedulerSettings
from hf_transformer.errors import InvalidInput, PredictorError
from hf_transformer.generation.cache import BYTES_PER_COST, Cache, CacheTensor, cache_bytes, past_input
from hf_transformer.generation.logits_signature import CACHE_BRANCH, LogitsSignature, fit_logits
from hf_transformer.generation.sampling import TokenSampler
from hf_transformer.generation.types import (
    FinishReason,
    Generator,
    GeneratorSettings,
    Prompt,
    Sampling,
    Step,
    TokenScore,
)
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import Predictor
from hf_transformer.tasks.base import TaskTokenizer
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import NUMPY_DTYPES, Array, ModelSpec, Tensor

MAX_PADDING = 0.5
"""The largest part of a batch that may be padding. More than elsewhere: a step has few tokens, so the call itself costs
most, and two sequences of any length may always share one."""
LOGITS = "logits"
"""The role of the output that a token is chosen by; the others go by the name of the output."""


class LogitsSequence:
    """One sequence while it is generated. Its cache and its chooser are made by ``begin``.

    It begins with the decoder's tokens ``start``, and generates ``max_new`` at most. ``source`` is the prompt of an
    encoder-decoder, else empty.

    Attributes: ``prompt``, its ids: sequences of one request share the object; ``source`` [S] int64; ``cache``, None if
    the model has none.
    """

    __slots__ = (
        "_chooser",
        "_ends",
        "_form",
        "_ids",
        "_length",
        "_sampling",
        "_start",
        "_waited",
        "cache",
        "prompt",
        "source",
    )
    _chooser: TokenSampler

    def __init__(
        self,
        prompt: Prompt,
        start: Sequence[int],
        source: Sequence[int],
        sampling: Sampling,
        eos_ids: frozenset[int],
        max_new: int,
        caches: Sequence[CacheTensor],
    ) -> None:
        self.prompt = prompt.ids
        self.source = np.array(source, np.int64)
        self.cache: Cache | None = None
        self._sampling = sampling
        self._waited = eos_ids.union(sampling.stop_token_ids)
        """Tokens that wait for min_tokens."""
        self._ends = frozenset(sampling.stop_token_ids) if sampling.ignore_eos else self._waited
        self._form = caches
        self._start = self._length = len(start)
        # Memory for all of it: a list would have to become an array with each step.
        self._ids = np.empty(len(start) + max(max_new, 0), np.int64)
        self._ids[: len(start)] = start

    def begin(self) -> None:
        """Before the first step: makes the cache, and the chooser of the tokens."""
        self._chooser = TokenSampler(self._sampling, self.tokens.tolist(), self._waited)
        self.cache = Cache(self._form, self._cached, len(self.source)) if self._form else None

    @property
    def cache_bytes(self) -> int:
        """Bytes of its cache at the end; 0 if no token is to be generated."""
        return 0 if self.is_full else cache_bytes(self._form, self._cached, len(self.source))

    @property
    def _cached(self) -> int:
        """Tokens of the cache at the end: the last generated one is never sent."""
        return max(len(self._ids) - 1, self._start)

    @property
    def is_full(self) -> bool:
        """Whether no further token may be generated."""
        return self._length == len(self._ids)

    @property
    def tokens(self) -> Array:
        """The decoder's tokens [T] int64: of a decoder alone the prompt and the generated ones."""
        return self._ids[: self._length]

    @property
    def is_new(self) -> bool:
        """Whether nothing is generated yet."""
        return self._length == self._start

    @property
    def has_begun(self) -> bool:
        """Whether there is a cache to go on from."""
        return self.cache is not None and self.cache.length > 0

    def decode(self, rows: Mapping[str, Array]) -> tuple[int, TokenScore | None]:
        """Takes the next token and the cache's new part from a step's outputs, perhaps in a thread. Raises
        PredictorError."""
        chosen = self._chooser.choose(rows[LOGITS])
        if self.cache is not None:
            self.cache.add(rows, 1 if self.cache.length else self._length)
        return chosen

    def add(self, token: int, score: TokenScore | None) -> Step:
        """Adds a chosen token; the step has ``finish`` if the sequence ends with it."""
        if token in self._ends:
            return Step(finish="stop")
        self._ids[self._length] = token
        self._length += 1
        finish: FinishReason | None = "length" if self.is_full else None
        return Step((token,), scores=() if score is None else (score,), finish=finish)


class StepShape(NamedTuple):
    """The sizes of a batch: its ``rows``, the decoder's tokens that are ``read``, those of the longest cache (``held``)
    and of the longest ``source``. If its sequences have begun, each sends its last token alone."""

    rows: int
    read: int
    held: int
    source: int
    has_begun: bool

    def returned(self, cache: CacheTensor) -> int:
        """The number of tokens of a cache that comes back."""
        return self.source if cache.source else self.held + self.read


def unique_rows(items: Sequence[LogitsSequence]) -> tuple[list[LogitsSequence], list[int]]:
    """One sequence per row that is sent, and the row of each item: new sequences of one prompt share a row, so that the
    model reads the prompt once."""
    rows: dict[int, int] = {}
    sent: list[LogitsSequence] = []
    numbers = []
    for item in items:
        key = id(item.prompt) if item.is_new else id(item)
        if key not in rows:
            rows[key] = len(sent)
            sent.append(item)
        numbers.append(rows[key])
    return sent, numbers


class StepBatchBuilder(BatchBuilder[LogitsSequence]):
    """One step each of several sequences. Those that begin and those that go on from a cache do not share a batch.

    ``widths`` are those of whole texts and an encoder-decoder's prompts, if their length is free; None for the longest
    of a batch. Caches are never rounded up: with OpenVINO that gained nothing, while whole texts in multiples of 16
    took a third less time.
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
        self._growing = [one for one in signature.caches if not one.source]
        self._token_bytes = sum(one.token_bytes for one in self._growing)

    def bucket(self, item: LogitsSequence) -> tuple[str, int]:
        group = "next" if item.has_begun else "first" if self._signature.caches else ""
        if self._signature.encoder_decoder:
            group = f"{group} {self._source_width(item)}"
        if item.cache is not None and item.has_begun:
            return group, item.cache.length
        return group, _rounded(self._widths, len(item.tokens))

    def _source_width(self, item: LogitsSequence) -> int:
        """The width of an encoder-decoder's source: the next power of two, so that sources of about one length share a
        batch; without a mask only those of the same length do."""
        size = _rounded(self._source_widths, len(item.source))
        return size if size < 2 or not self._signature.takes("attention_mask") else 1 << (size - 1).bit_length()

    def limits(self, item: LogitsSequence) -> BatchLimits:
        signature, settings = self._signature, self._settings
        has_begun, source = item.has_begun, self._source_width(item)
        position = (signature.vocabulary or signature.least_vocabulary) * _itemsize(signature.datatype)
        once = 0 if has_begun else sum(one.token_bytes for one in signature.caches if one.source) * source
        # A source is as long in every step; its part of the tokens limits the rows.
        rows = min(signature.max_rows, settings.max_batch_tokens // source) if source else signature.max_rows

        def row_bytes(width: int) -> int:
            logits = position * (1 if has_begun or not signature.all_positions else width)
            return logits + self._token_bytes * (width + has_begun) + once

        return BatchLimits(
            max_rows=max(rows, 1),
            max_tokens=settings.max_batch_tokens,
            max_output_bytes=settings.max_batch_output_bytes,
            output_bytes=row_bytes,
            padding=signature.pads_cache if has_begun else signature.pads or self._fixed is not None,
            fixed_length=self._fixed,
            max_padding=MAX_PADDING,
        )

    def pack(self, items: Sequence[LogitsSequence]) -> Packed:
        signature = self._signature
        sent, _ = unique_rows(items)
        shape = self._shape(sent)
        # Surplus rows of an exact batch repeat its last sequence: always a valid input.
        rows = [*sent, *[sent[-1]] * (shape.rows - len(sent))]
        columns = self._columns(rows, shape)
        inputs = []
        for one in signature.inputs:
            data = columns[one.role].astype(one.dtype)
            per_row = signature.batch_axis and (one.role != CACHE_BRANCH or signature.triton_batch)
            inputs.append(Tensor(one.name, one.datatype, data if per_row else data[0]))
        caches = [item.cache for item in rows if item.cache is not None]
        for cache in signature.caches:
            width = 0 if not shape.has_begun else shape.source if cache.source else shape.held
            data = past_input(cache, caches, width)
            inputs.append(Tensor(cache.past, cache.datatype, data if signature.batch_axis else data[0]))
        wanted = self._wanted(shape)
        sizes = {one.present: shape.rows * one.token_bytes * shape.returned(one) for one in wanted}
        if signature.vocabulary is not None:
            values = shape.rows * self._positions(shape) * signature.vocabulary
            sizes[signature.logits] = values * _itemsize(signature.datatype)
        real = len(sent) if shape.has_begun else sum(len(item.tokens) for item in sent)
        outputs = [signature.logits, *(one.present for one in wanted)]
        return Packed(inputs, outputs, sizes, real, shape.rows * shape.read - real)

    def pack_cost(self, items: Sequence[LogitsSequence]) -> int:
        tokens = sum(item.cache.length for item in items if item.cache is not None)
        return tokens * self._token_bytes // BYTES_PER_COST

    def unpack(
        self, items: Sequence[LogitsSequence], packed: Packed, outputs: Mapping[str, Tensor]
    ) -> Iterator[Mapping[str, Array]]:
        signature = self._signature
        sent, numbers = unique_rows(items)
        shape = self._shape(sent)
        logits = self._verified_logits(outputs[signature.logits], shape)
        present = [(one, self._verified_cache(outputs[one.present], one, shape)) for one in self._wanted(shape)]
        # Before the first item is decoded, which changes its cache.
        lengths = [(number, len(item.tokens), len(item.source)) for number, item in zip(numbers, items, strict=True)]
        for row, length, source in lengths:
            last = length - 1 if self._positions(shape) > 1 and not shape.has_begun else -1
            mine = {LOGITS: logits[row, last]}
            for one, data in present:
                if one.source:
                    place = one.part(0, source)
                elif shape.has_begun:
                    place = one.part(shape.held, shape.held + 1)
                elif signature.left:
                    place = one.part(shape.read - length, shape.read)
                else:
                    place = one.part(0, length)
                mine[one.present] = data[row][place]
            yield mine

    def _shape(self, items: Sequence[LogitsSequence]) -> StepShape:
        signature, first = self._signature, items[0]
        rows = signature.exact_rows or len(items)
        source = 0
        if signature.encoder_decoder:
            source = _rounded(self._source_widths, signature.length or max(len(item.source) for item in items))
        if first.has_begun:
            held = max(item.cache.length for item in items if item.cache is not None)
            return StepShape(rows, 1, held, source, True)
        read = _rounded(self._widths, self._fixed or max(len(item.tokens) for item in items))
        return StepShape(rows, read, 0, source, False)

    def _wanted(self, shape: StepShape) -> Sequence[CacheTensor]:
        return self._growing if shape.has_begun else self._signature.caches

    def _positions(self, shape: StepShape) -> int:
        return shape.read if self._signature.all_positions else 1

    def _columns(self, rows: Sequence[LogitsSequence], shape: StepShape) -> dict[str, Array]:
        """All inputs by role, [rows, ...]."""
        signature = self._signature
        branch = np.full((len(rows), 1), shape.has_begun)
        if shape.has_begun:
            tokens = np.array([item.tokens[-1:] for item in rows])
            held = np.array([[item.cache.length] for item in rows if item.cache is not None])
            mask = (np.arange(shape.held + 1) >= shape.held - held).astype(np.int64)
            positions = held
        else:
            tokens, mask = self._padded([item.tokens for item in rows], shape.read, left=signature.left)
            if signature.left:
                positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
            else:
                positions = np.broadcast_to(np.arange(shape.read), tokens.shape)
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
        """Ids and mask, int64 [rows, width]."""
        ids = np.full((len(texts), width), self._pad_id, np.int64)
        mask = np.zeros((len(texts), width), np.int64)
        for row, text in enumerate(texts):
            place = slice(width - len(text), width) if left else slice(0, len(text))
            ids[row, place] = text
            mask[row, place] = 1
        return ids, mask

    def _verified_logits(self, tensor: Tensor, shape: StepShape) -> Array:
        """[rows, positions, V]"""
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
                f"positions, vocabulary) {list(expected)}; dims of [1, vocabulary] say that the last one alone comes"
            )
        if size < signature.least_vocabulary:
            raise PredictorError(
                f"the model answered {signature.logits!r} for {size} tokens, the tokenizer has "
                f"{signature.least_vocabulary}"
            )
        return data

    def _verified_cache(self, tensor: Tensor, cache: CacheTensor, shape: StepShape) -> Array:
        """[rows, ..., tokens, ...]"""
        data = tensor.data if self._signature.batch_axis else tensor.data[np.newaxis]
        expected = (shape.rows, *cache.sized(shape.returned(cache)))
        if tensor.datatype != cache.datatype or data.shape != expected:
            raise PredictorError(
                f"the model answered {tensor.name!r} as {tensor.datatype} with the shape {list(tensor.shape)}, "
                f"expected {cache.datatype} {list(expected)}: the cache that it was given, and the new tokens behind it"
            )
        return data


def _rounded(widths: PaddingBuckets | None, tokens: int) -> int:
    return tokens if widths is None else widths.of(tokens)


def _itemsize(datatype: str) -> int:
    return 2 if datatype == "BF16" else NUMPY_DTYPES[datatype].itemsize


class LogitsGenerator(Generator):
    """Generates with a causal model or an encoder-decoder that gives logits.

    With ``ignore_eos`` an end-of-sequence token is a token like others, and among the ids.
    """

    interface: ClassVar[str] = "logits"
    supported_fields = frozenset(one.name for one in fields(Sampling)) - {
        "n",
        "stop",
        "names",
    }  # nothing is up to the model

    def __init__(
        self,
        spec: ModelSpec,
        predictor: Predictor,
        tokenizer: TaskTokenizer,
        settings: GeneratorSettings,
        *,
        executor: Executor,
        metrics: Metrics,
    ) -> None:
        """Raises ContractError for a model that does not fit."""
        self._signature = signature = fit_logits(spec, tokenizer, settings)
        self._settings = settings
        self._caches = settings.caches
        self._vocabulary = signature.vocabulary or signature.least_vocabulary
        self._eos_ids = frozenset(one for one in settings.eos_ids if 0 <= one < self._vocabulary)
        self._longest = min(settings.max_length, signature.length or settings.max_length)
        # Never more batches than the model works on at a time: waiting ones could as well have been one.
        scheduling = settings.scheduling
        settings.places.count = min(scheduling.max_batches_in_flight, max(spec.instances, 1))
        form = StepBatchBuilder(
            signature, settings.pad_id, scheduling, padding_buckets(settings.pad_to_multiple_of, settings.max_length)
        )
        self._scheduler = Scheduler[LogitsSequence](
            predictor, form, scheduling, executor=executor, metrics=metrics, limit=settings.places
        )

    def check(self, texts: Sequence[tuple[Prompt, Sampling]]) -> None:
        for prompt, sampling in texts:
            self._caches.check(self._sequence(prompt, sampling).cache_bytes)

    async def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        """The decode loop of one sequence, which waits for room for its cache."""
        sequence = self._sequence(prompt, sampling)
        if sequence.is_full:
            yield Step(finish="length")
            return
        size = sequence.cache_bytes
        await self._caches.take(size)
        entry: Entry[LogitsSequence] | None = None
        try:
            sequence.begin()
            entry = self._submit(sequence, sampling, context)
            while True:
                await entry.request.future
                self._scheduler.leave(entry.request)
                step = sequence.add(*entry.answer)
                if step.finish is not None:
                    break
                # The next step is submitted before the token is read, to be in the very next batch.
                entry = self._submit(sequence, sampling, context)
                yield step
            yield step
        finally:
            if entry is not None:
                self._scheduler.leave(entry.request)
            entry = None  # an error's traceback refers to this frame: only the garbage collector would free the cache
            self._caches.give_back(size)

    async def trial(self, prompt: Prompt) -> None:
        sequence = self._sequence(prompt, Sampling(max_tokens=1, greedy=True))
        sequence.begin()
        await self._scheduler.trial(sequence)

    def _submit(self, sequence: LogitsSequence, sampling: Sampling, context: Context) -> Entry[LogitsSequence]:
        """Queues the next step. The cost is in units of the scheduler's INLINE_COST, a quarter of a microsecond."""
        cost = self._vocabulary // 600
        if not sampling.greedy:
            cost += self._vocabulary // 30
        if sampling.logprobs is not None:
            cost += self._vocabulary // 60
        if sequence.is_new:
            cost += cache_bytes(self._signature.caches, len(sequence.tokens), len(sequence.source)) // BYTES_PER_COST
        entry = Entry(sequence, None, cost)
        self._scheduler.submit((entry,), _decode, None, context)
        return entry

    def _sequence(self, prompt: Prompt, sampling: Sampling) -> LogitsSequence:
        """A sequence that has not begun. Raises InvalidInput for ids that the model does not have, or a long prompt."""
        for field, ids in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
            for one in ids:
                if not 0 <= one < self._vocabulary:
                    raise InvalidInput.of(
                        f"{sampling.path(field)}: the model has {self._vocabulary} tokens, and none with the id {one}"
                    )
        longest, start = self._longest, prompt.ids
        source: tuple[int, ...] = ()
        if max(start) >= self._vocabulary:
            raise InvalidInput.of(
                f"the prompt has the token {max(start)}, but the model's are 0 to {self._vocabulary - 1}"
            )
        if self._signature.encoder_decoder:
            start, source = self._settings.decoder_start_ids, start
            if len(source) > longest:
                raise InvalidInput.of(f"the prompt has {len(source)} tokens, the model takes {longest}")
            longest = min(self._settings.max_length, self._signature.target_length or self._settings.max_length)
        elif len(start) >= longest:
            raise InvalidInput.of(
                f"the prompt has {len(start)} tokens, and the model takes {longest} with those to come"
            )
        most = longest - len(start)
        if sampling.max_tokens is not None:
            most = min(sampling.max_tokens, most)
        return LogitsSequence(prompt, start, source, sampling, self._eos_ids, most, self._signature.caches)


def _decode(
    owner: object, item: LogitsSequence, rows: Mapping[str, Array], options: object
) -> tuple[int, TokenScore | None]:
    """See core.scheduler.Decode."""
    return item.decode(rows)
