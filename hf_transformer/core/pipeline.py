"""One request from instances to answers. Read this first.

    instances --task.item, .texts--> texts --tokenizer--> encodings --scheduler--> output rows
              --task.decode--> parts --task.answer--> predictions

No I/O of its own, and nothing of a request is kept on the pipeline.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter
from typing import Any

from hf_transformer.core.limits import Limits
from hf_transformer.core.scheduler import Entry, Scheduler
from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tasks.base import Task
from hf_transformer.tokenizer.engine import characters
from hf_transformer.tokenizer.tokenizer import INLINE_CHARACTERS, Tokenizer
from hf_transformer.types.request import Answers, Context, Query
from hf_transformer.types.tokenization import PLAIN, Encoding, TextInput, Tokenization

TRIAL_TEXT = "A short text."
INLINE_VALUES = 20_000
"""Answers of more values than this are put together in a thread; about 5 ms of work, as long as a thread keeps the
interpreter before others get their turn (sys.getswitchinterval)."""


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Arguments that all pipelines share.

    Args:
        executor: runs long work off the event loop.
        limits: the size limits of one request.
        log_texts: called with the texts of each request; None logs none.
    """

    executor: Executor
    limits: Limits
    metrics: Metrics
    log_texts: Callable[[Sequence[TextInput], Context], None] | None = None


class Pipeline(ABC):
    """Answers the requests of one model; ``tokenizer`` truncates texts to the model's length."""

    def __init__(self, tokenizer: Tokenizer, options: PipelineOptions) -> None:
        self.tokenizer = tokenizer
        self._executor = options.executor
        self._limits = options.limits
        self._metrics = options.metrics
        self._log_texts = options.log_texts

    @abstractmethod
    async def __call__(self, query: Query, context: Context) -> Answers:
        """Returns one prediction per instance, in their order.

        Raises:
            RequestError: the whole request fails; no instance is answered.
        """

    @abstractmethod
    async def trial(self) -> None:
        """Runs one short inference. Raises RequestError if the model fails or breaks its contract."""

    async def encode(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        """Tokenizes texts without inference, under the limits of a request. Returns the windows of each text.

        Raises:
            TooLarge: too many texts, too long ones, or too many tokens for one answer.
            InvalidInput: a text can't be encoded.
        """
        limits = self._limits
        limits.check_texts(texts, "instances")
        if options.token_values:
            options = replace(options, max_tokens=limits.max_answer_values // options.token_values)
        return await self.tokenizer.encode_off_loop(texts, self._executor, options)


class PredictivePipeline(Pipeline):
    """The pipeline of a predictive task: tokenizer, scheduler and decoding."""

    def __init__(
        self,
        task: Task[Any, Any, Any],
        tokenizer: Tokenizer,
        scheduler: Scheduler[Encoding],
        options: PipelineOptions,
    ) -> None:
        super().__init__(tokenizer, options)
        self._task = task
        self._scheduler = scheduler
        self._default_options = task.options({})
        # Skips the hooks that a task inherits unchanged, since they run for each text.
        self._checks = _overrides(task, "check")
        self._has_decode_cost = _overrides(task, "decode_cost")
        self._has_extra_outputs = _overrides(task, "extra_outputs")

    async def __call__(self, query: Query, context: Context) -> Answers:
        """Gives one prediction per instance, in their order.

        Raises:
            RequestError: one error for the whole request; no instance of it is answered then.
        """
        began, task, place = perf_counter(), self._task, context.ticket
        # Most requests have no parameters.
        options = task.options(query.parameters) if query.parameters else self._default_options
        request = self._read(query, options)
        if self._log_texts is not None:
            self._log_texts(request.texts, context)
        how = task.tokenization(options)
        if how.windows:
            how = replace(how, max_windows=self._limits.max_sequences)
        read = perf_counter()
        if place is not None and request.characters > INLINE_CHARACTERS:
            place.expect(request.characters)  # until they are encoded
        windows = await self.tokenizer.encode_off_loop(request.texts, self._executor, how, request.characters)
        entries = self._add_entries(request, windows)
        context.instances, context.tokens = len(request.items), request.tokens
        if place is not None:
            place.charge(request.tokens)
        encoded = perf_counter()
        context.preprocess, context.parse, context.tokenize = encoded - began, read - context.arrived, encoded - read
        submission = self._scheduler.submit(entries, task.decode, options, context)
        try:
            await submission.future
        finally:
            self._scheduler.leave(submission)
        if request.size <= INLINE_VALUES:
            answers = self._answers(request)
        else:
            answers = await asyncio.get_running_loop().run_in_executor(self._executor, self._answers, request)
        context.predict = submission.answered - encoded
        context.postprocess = perf_counter() - submission.answered
        return answers

    async def trial(self) -> None:
        """Has the model infer once on a short text; nothing is decoded. Raises RequestError if the answer is wrong."""
        try:
            [[encoding]] = await self.tokenizer.encode_off_loop((TRIAL_TEXT,), self._executor, PLAIN)
        except InvalidInput:  # the tokenizer has no unknown token, and no words for it
            encoding = Encoding([], [])
        await self._scheduler.trial(encoding if encoding.ids else Encoding([0], [0]))

    def _read(self, query: Query, options: Any) -> RequestState:
        """The items and the texts of a request, within the limits."""
        task, limits, name, instances = self._task, self._limits, query.name, query.instances
        request = RequestState(query, options)
        items, texts, counts, total = request.items, request.texts, request.counts, 0
        if not instances:
            raise InvalidInput.of(f"{name}: expected at least one, got none")
        if len(instances) > limits.max_instances:
            limits.check_instances(len(instances), name)
        for index, instance in enumerate(instances):
            where = f"{name}[{index}]"
            item = task.item(instance, where, options)
            own = task.texts(item, options)
            for text in own:
                length = len(text) if type(text) is str else characters(text)
                if length > limits.max_text_length:
                    raise limits.too_long(length, task.text_path(where, own.index(text)))
                total += length
            items.append(item)
            counts.append(len(own))
            texts += own
            if len(texts) > limits.max_sequences:
                limits.check_sequences(len(texts), name)
            if total > limits.max_total_length:
                raise TooLarge.of(
                    f"{where}: with it the request has more than the {limits.max_total_length} characters that are "
                    "taken of all texts and pairs together (--max_total_length)"
                )
        request.characters = total
        return request

    def _add_entries(self, request: RequestState, windows: Sequence[Sequence[Encoding]]) -> list[Entry[Encoding]]:
        """An entry per encoding, within the limits.

        ``windows`` has the encodings of each text.
        """
        task, limits, options, has_own_cost = self._task, self._limits, request.options, self._has_decode_cost
        entries: list[Entry[Encoding]] = []
        tokens, size, texts, is_unusual = 0, 0, iter(windows), self._checks
        for item, count in zip(request.items, request.counts, strict=True):
            parts = []
            for own in islice(texts, count):
                part = []
                for one in own:
                    length, values = len(one.ids), task.answer_size(one, options)
                    if one.truncated or not length:
                        is_unusual = True
                    tokens += length
                    size += values
                    part.append(Entry(one, item, task.decode_cost(one, options) if has_own_cost else values))
                entries += part
                parts.append(part)
            request.parts.append(parts)
        if len(entries) > limits.max_sequences:
            limits.check_sequences(len(entries), request.query.name)
        if is_unusual:
            self._check_each(request)
        request.tokens, request.size = tokens, size
        if self._has_extra_outputs or request.query.tensors:
            request.size = self._whole_size(request)
        if request.size > limits.max_answer_values:
            raise TooLarge.of(
                f"{request.query.name}: the answer would hold about {request.size} values, at most "
                f"{limits.max_answer_values} are given in one (--max_answer_values); send fewer instances or ask for "
                "less of each"
            )
        return entries

    def _whole_size(self, request: RequestState) -> int:
        """The number of values in all answers, with what stands beside them, or as a tensor."""
        encodings, options = request.encodings(), request.options
        size = request.size + self._task.extra_size(encodings, options)
        if not request.query.tensors:
            return size
        return max(size, self._task.tensor_size(encodings, options))

    def _check_each(self, request: RequestState) -> None:
        """Raises RequestError for an encoding that can't be predicted, and counts the items that were truncated."""
        task, truncated = self._task, set()
        for index, texts in enumerate(request.encodings()):
            where = f"{request.query.name}[{index}]"
            for number, windows in enumerate(texts):
                for encoding in windows:
                    if not encoding.ids:
                        raise InvalidInput.of(f"{task.text_path(where, number)}: the text has no tokens")
                    if encoding.truncated:
                        truncated.add(index)
                        if task.overflow(request.options) == "error":
                            raise TooLarge.of(
                                f"{task.text_path(where, number)}: the text is longer than the {len(encoding)} tokens "
                                "that the model takes, and is not to be cut (--on_overflow=error, or truncation: false)"
                            )
                    task.check(encoding, where)
        if truncated:
            self._metrics.count_truncated(len(truncated))

    def _answers(self, request: RequestState) -> Answers:
        """Gives each item the answers of its own entries; the predictions as a tensor too if the query asks for it."""
        task, options, predictions = self._task, request.options, []
        for item, parts in zip(request.items, request.parts, strict=True):
            answers = [[entry.answer for entry in part] for part in parts]
            predictions.append(task.answer(item, answers, options))
        beside = task.extra_outputs(request.encodings(), options) if self._has_extra_outputs else ()
        tensor = task.tensor(predictions, options) if request.query.tensors else None
        return Answers(predictions, beside, request.tokens, tensor)


class RequestState:
    """One request within the pipeline.

    Attributes:
        items: what ``task.item`` made of each instance.
        texts: those of all items, one after the other; ``counts`` has the number of each item's, and ``characters`` is
            the length of all.
        parts: the scheduler's entries per item, text and window.
        tokens, size: tokens, and values in the answers, of all entries.
    """

    __slots__ = ("characters", "counts", "items", "options", "parts", "query", "size", "texts", "tokens")

    def __init__(self, query: Query, options: Any) -> None:
        self.query = query
        self.options = options
        self.items: list[Any] = []
        self.texts: list[TextInput] = []
        self.counts: list[int] = []
        self.parts: list[list[list[Entry[Encoding]]]] = []
        self.characters = self.tokens = self.size = 0

    def encodings(self) -> list[list[list[Encoding]]]:
        """Per item, text and window."""
        return [[[entry.item for entry in part] for part in parts] for parts in self.parts]


def _overrides(task: Task[Any, Any, Any], name: str) -> bool:
    """Whether a task has a method of its own in place of Task's."""
    return getattr(type(task), name) is not getattr(Task, name)
