"""Decode loop for logits models: the service samples the tokens and batches the steps.

Continuous batching: each sequence submits its next step to the scheduler as soon as its last step is decoded. Steps of
different sequences therefore share batches, and a sequence can join or leave between two steps.

Batching does not affect the generated text, except that the last bits of a logit vary with the batch size.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import fields
from typing import ClassVar, NamedTuple

import numpy as np

from hf_transformer.core.batch import BatchBuilder, Packed, PaddingBuckets, padding_buckets
from hf_transformer.core.queue import BatchLimits
from hf_transformer.core.scheduler import Entry, Scheduler, SchedulerSettings
from hf_transformer.errors import InvalidInput, PredictorError, TooLarge
from hf_transformer.generation.cache import BYTES_PER_COST, Cache, CacheTensor, cache_bytes, past_input
from hf_transformer.generation.logits_signature import CACHE_BRANCH, LogitsSignature, fit_logits
from hf_transformer.generation.masks import ABSENT, GrammarCompiler, TokenMask
from hf_transformer.generation.sampling import TokenSampler, score_prompt
from hf_transformer.generation.types import (
    FinishReason,
    Generator,
    GeneratorSettings,
    Prompt,
    Sampling,
    Step,
    TokenScore,
)
from hf_transformer.observability.metrics import ModelMetrics, Work
from hf_transformer.predictor.base import Predictor
from hf_transformer.tasks.base import TaskTokenizer
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import NUMPY_DTYPES, Array, ModelSpec, Tensor

MAX_PADDING = 0.5
"""Largest share of padding in a batch. It allows two sequences of any length to share a batch.

Other tasks have a lower limit. A decode step has few tokens, so the overhead of a call outweighs the cost of padding.
"""
PROMPT_TOKEN_COST = 200
"""Cost of a prompt token's log probability without the vocabulary's share, in units of the scheduler's INLINE_COST."""
LOGITS = "logits"
"""Key of the logits in the outputs of a step. The keys of caches are output names."""
PROMPT_LOGITS = "prompt_logits"
"""Key of the logits [S - 1, V] after each token of a prompt but the last, in the first step."""


class LogitsSequence:
    """State of one sequence. ``begin`` allocates its cache and its sampler.

    Args:
        start: first tokens of the decoder.
        source: prompt of an encoder-decoder; empty for other models.
        max_new: limit of new tokens.
        grammars: compiles the request's constraint.

    Attributes:
        prompt: shared by all sequences of a prompt.
        source: int64 [S].
        cache: None if the model has no cache.
        mask: the tokens that the request's constraint allows, from ``begin``; None for free text.
    """

    __slots__ = (
        *(
            "_cache_tensors",
            "_end_ids",
            "_grammars",
            "_ids",
            "_length",
            "_sampler",
            "_sampling",
            "_start",
            "_suppressed",
        ),
        *("cache", "mask", "prompt", "source"),
    )
    _sampler: TokenSampler

    def __init__(
        self,
        prompt: Prompt,
        start: Sequence[int],
        source: Sequence[int],
        sampling: Sampling,
        eos_ids: frozenset[int],
        max_new: int,
        caches: Sequence[CacheTensor],
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.prompt = prompt
        self.source = np.array(source, np.int64)
        self.cache: Cache | None = None
        self._sampling = sampling
        self._suppressed = eos_ids.union(sampling.stop_token_ids)
        """Tokens to suppress before min_tokens are generated."""
        self._end_ids = frozenset(sampling.stop_token_ids) if sampling.ignore_eos else self._suppressed
        self.mask: TokenMask | None = None
        self._grammars = grammars
        self._cache_tensors = caches
        self._start = self._length = len(start)
        # Preallocated array: a list would need a conversion in each step.
        self._ids = np.empty(len(start) + max(max_new, 0), np.int64)
        self._ids[: len(start)] = start

    def begin(self) -> None:
        """Allocates the cache and the sampler, before the first step."""
        sampling, constraint = self._sampling, self._sampling.constraint
        if constraint is not None and self._grammars is not None:
            # A complete text can only end, so ignore_eos means that it ends as late as possible.
            self._end_ids, at_least = self._suppressed, len(self._ids) if sampling.ignore_eos else sampling.min_tokens
            self.mask = self._grammars.mask(constraint, sampling.path("constraint"), self._end_ids, at_least)
        self._sampler = TokenSampler(sampling, self.tokens.tolist(), self._suppressed, self.mask)
        tensors = self._cache_tensors
        self.cache = Cache(tensors, self._cache_length, len(self.source)) if tensors else None

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache at its maximum length; 0 if the sequence needs no step."""
        needs_step = self.needs_prompt_scores or not self.is_full
        return cache_bytes(self._cache_tensors, self._cache_length, len(self.source)) if needs_step else 0

    @property
    def _cache_length(self) -> int:
        """Maximum number of tokens in the cache. It excludes the last token, which is never sent to the model."""
        return max(len(self._ids) - 1, self._start)

    @property
    def is_full(self) -> bool:
        """Whether the sequence has reached its limit of tokens."""
        return self._length == len(self._ids)

    @property
    def needs_prompt_scores(self) -> bool:
        """Whether the next step has to score the prompt's tokens."""
        return self._sampling.prompt_logprobs is not None and self.is_new and not self.prompt.scores

    @property
    def tokens(self) -> Array:
        """Tokens of the decoder so far, int64 [T]. They include the prompt for a decoder-only model."""
        return self._ids[: self._length]

    @property
    def is_new(self) -> bool:
        """Whether the sequence has no generated token yet."""
        return self._length == self._start

    @property
    def has_past(self) -> bool:
        """Whether the cache contains tokens of earlier steps."""
        return self.cache is not None and self.cache.length > 0

    def decode(self, rows: Mapping[str, Array]) -> tuple[int, TokenScore | None]:
        """Chooses the next token from a step's outputs, and extends the cache. May run in a thread. Raises
        PredictorError."""
        top = self._sampling.prompt_logprobs
        if top is not None and self.needs_prompt_scores:
            self.prompt.scores = score_prompt(rows[PROMPT_LOGITS], self.prompt.ids, top)
        chosen = self._sampler.choose(rows[LOGITS])
        if self.cache is not None:
            self.cache.append(rows, 1 if self.cache.length else self._length)
        return chosen

    def add(self, token: int, score: TokenScore | None) -> Step:
        """Adds a chosen token. Returns a step, with ``finish`` set if the token ends the text."""
        if self.is_full:  # the step was for the prompt's scores only
            return Step(finish="length")
        scores = () if score is None else (score,)
        if token in self._end_ids:
            return Step(scores=scores, finish="stop")
        self._ids[self._length] = token
        self._length += 1
        finish: FinishReason | None = "length" if self.is_full else None
        if self.mask is not None and self.mask.is_over:
            finish = "stop"
        return Step((token,), scores=scores, finish=finish)


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


class LogitsGenerator(Generator):
    """Generator of a decoder or an encoder-decoder that returns logits.

    With ``ignore_eos`` its steps include end-of-sequence tokens.
    """

    interface: ClassVar[str] = "logits"
    supported_fields = frozenset(field.name for field in fields(Sampling)) - {"n", "stop", "names"}

    def __init__(
        self,
        spec: ModelSpec,
        predictor: Predictor,
        tokenizer: TaskTokenizer,
        settings: GeneratorSettings,
        *,
        executor: Executor,
        metrics: ModelMetrics,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """Raises ContractError if the model's tensors do not match. Without ``grammars`` it takes no constraints."""
        self._grammars = grammars
        self._executor = executor
        if grammars is None:
            self.supported_fields -= {"constraint"}
            self.hints = {**self.hints, "constraint": ABSENT}
        self._signature = signature = fit_logits(spec, tokenizer, settings)
        if signature.encoder_decoder or not signature.all_positions:
            self.supported_fields -= {"prompt_logprobs"}
            reads = (
                "reads prompts in its encoder" if signature.encoder_decoder else "returns the last position's logits"
            )
            self.hints = {**self.hints, "prompt_logprobs": f"the model {reads} only"}
        self._settings = settings
        self._cache_budget = settings.cache_budget
        self._without_cache: dict[LogitsSequence, None] = {}
        """The sequences that wait for memory."""
        self._vocabulary = signature.vocabulary or signature.min_vocabulary
        self._eos_ids = frozenset(token for token in settings.eos_ids if 0 <= token < self._vocabulary)
        self._max_length = min(settings.max_length, signature.length or settings.max_length)
        # Limit batches in flight to the model's instances, so that waiting sequences form larger batches.
        scheduling, limit = settings.scheduling, settings.concurrency_limit
        limit.count = min(scheduling.max_batches_in_flight, max(spec.instances, 1))
        widths = padding_buckets(settings.pad_to_multiple_of, settings.max_length)
        self._builder = StepBatchBuilder(signature, settings.pad_id, scheduling, widths)
        self._scheduler = Scheduler[LogitsSequence](
            predictor, self._builder, scheduling, executor=executor, metrics=metrics, limit=limit
        )

    @property
    def work(self) -> Work:
        unsent = [*self._without_cache, *(item for item in self._scheduler.queued if item.is_new)]
        tokens = sum(len(item.prompt.ids) for item in unsent)
        return Work(len(unsent), tokens, self.texts - len(unsent), self.tokens - tokens)

    async def prepare(self, sampling: Sampling) -> object:
        if self._grammars is None or sampling.constraint is None:
            return None
        return await self._grammars.prepare(sampling.constraint, sampling.path("constraint"), self._executor)

    def check(self, texts: Sequence[tuple[Prompt, Sampling]]) -> None:
        for prompt, sampling in texts:
            sequence = self._sequence(prompt, sampling)
            self._cache_budget.check(sequence.cache_bytes)
            if sequence.needs_prompt_scores:
                limits, (_, width) = self._builder.limits(sequence), self._builder.bucket(sequence)
                size, most = limits.output_bytes(limits.fixed_length or width), limits.max_output_bytes
                if size > most:
                    expected = f"prompts with at most {most} bytes of outputs (--max_batch_output_bytes)"
                    raise TooLarge(sampling.path("prompt_logprobs"), expected, f"{size} bytes", "shorten the prompt")

    async def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        """Reserves memory for the cache, and runs the decode loop of one sequence."""
        sequence = self._sequence(prompt, sampling)
        if sequence.is_full and not sequence.needs_prompt_scores:
            yield Step(finish="length")
            return
        size = sequence.cache_bytes
        self._without_cache[sequence] = None
        try:
            await self._cache_budget.take(size)
        finally:
            del self._without_cache[sequence]
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
                # Submit before yielding the token, so that the step joins the next batch.
                entry = self._submit(sequence, sampling, context)
                yield step
            yield step
        finally:
            if entry is not None:
                self._scheduler.leave(entry.request)
            entry = None  # an error's traceback refers to this frame and would keep the cache until a collection
            if sequence.mask is not None:
                sequence.mask.close()
            self._cache_budget.give_back(size)

    async def trial(self, prompt: Prompt) -> None:
        sequence = self._sequence(prompt, Sampling(max_tokens=1, greedy=True))
        sequence.begin()
        await self._scheduler.trial(sequence)

    def _submit(self, sequence: LogitsSequence, sampling: Sampling, context: Context) -> Entry[LogitsSequence]:
        """Submits the next step. Its cost is in units of the scheduler's INLINE_COST, a quarter of a microsecond."""
        cost = self._vocabulary // 600
        if not sampling.greedy:
            cost += self._vocabulary // 30
        if sampling.logprobs is not None:
            cost += self._vocabulary // 60
        if sequence.mask is not None:
            cost += self._vocabulary // 100 + sequence.mask.cost
        if sequence.needs_prompt_scores:
            cost += len(sequence.tokens) * (PROMPT_TOKEN_COST + self._vocabulary // 60)
        if sequence.is_new:
            cost += cache_bytes(self._signature.caches, len(sequence.tokens), len(sequence.source)) // BYTES_PER_COST
        entry = Entry(sequence, None, cost)
        self._scheduler.submit((entry,), _decode, None, context)
        if sequence.mask is not None:
            sequence.mask.start(self._executor)
        return entry

    def _sequence(self, prompt: Prompt, sampling: Sampling) -> LogitsSequence:
        """Creates a sequence. Raises InvalidInput for token ids outside the model's vocabulary, and for a prompt that
        is too long."""
        for field in ("logit_bias", "stop_token_ids", "score_ids"):
            ids: Iterable[int] = getattr(sampling, field)
            for token in ids:
                if not 0 <= token < self._vocabulary:
                    expected = f"token ids of the model, from 0 to {self._vocabulary - 1}"
                    raise InvalidInput(sampling.path(field), expected, str(token))
        limit, start = self._max_length, prompt.ids
        source: tuple[int, ...] = ()
        if max(start) >= self._vocabulary:
            expected = f"a prompt of the model's token ids, from 0 to {self._vocabulary - 1}"
            raise InvalidInput("", expected, str(max(start)))
        if self._signature.encoder_decoder:
            start, source = self._settings.decoder_start_ids, start
            if len(source) > limit:
                raise InvalidInput("", f"a prompt of at most {limit} tokens", str(len(source)))
            limit = min(self._settings.max_length, self._signature.target_length or self._settings.max_length)
        elif len(start) > (most := limit - (sampling.max_tokens != 0)):
            hint = f"the model's {limit} tokens include the new ones"
            raise InvalidInput("", f"a prompt of at most {most} tokens", str(len(start)), hint)
        max_new = limit - len(start)
        if sampling.max_tokens is not None:
            max_new = min(sampling.max_tokens, max_new)
        caches, grammars = self._signature.caches, self._grammars
        return LogitsSequence(prompt, start, source, sampling, self._eos_ids, max_new, caches, grammars)


def _decode(
    owner: object, item: LogitsSequence, rows: Mapping[str, Array], options: object
) -> tuple[int, TokenScore | None]:
    """Decodes one item; see core.scheduler.Decode."""
    return item.decode(rows)
