"""One request from instances to answers. Read this first.

    instances --task.item, .texts--> texts --tokenizer--> encodings --scheduler--> output rows
              --task.decode--> parts --task.answer--> predictions

No I/O of its own, and nothing of a request is kept on the pipeline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from time import perf_counter
from typing import Any

from hf_transformer.core.limits import Limits
from hf_transformer.core.scheduler import Scheduler
from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tasks.base import Task
from hf_transformer.tokenizer.engine import characters
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import PLAIN, Answers, Array, Context, Encoding, Query, TextInput, Tokenization

TRIAL = "A short text."
INLINE_VALUES = 20_000
"""Answers of more values than this are put together in a thread; about 5 ms of work, as long as a thread keeps the
interpreter before others get their turn (sys.getswitchinterval)."""


class Pipeline:
    """A task, its tokenizer and the scheduler of its predictor, put in a row.

    Args:
        tokenizer: truncates texts to the model's length.
        executor: has the threads for long work.
        limits: what one request may ask for.
        log_texts: called with the texts of every request.
    """

    def __init__(
        self,
        task: Task[Any, Any, Any],
        tokenizer: Tokenizer,
        scheduler: Scheduler[Encoding],
        *,
        executor: Executor,
        limits: Limits,
        metrics: Metrics,
        log_texts: Callable[[Sequence[TextInput], Context], None] | None = None,
    ) -> None:
        self._task = task
        self.tokenizer = tokenizer
        self._scheduler = scheduler
        self._executor = executor
        self._limits = limits
        self._metrics = metrics
        self._log_texts = log_texts
        self._default_options = task.options({})
        self._checks = type(task).check is not Task.check

    async def __call__(self, query: Query, context: Context) -> Answers:
        """Gives one prediction per instance, in their order.

        Raises:
            RequestError: one error for the whole request; no instance of it is answered then.
        """
        started, task = perf_counter(), self._task
        # Most requests have no parameters.
        options = task.options(query.parameters) if query.parameters else self._default_options
        items, texts, counts, length = self._read(query, options)
        if self._log_texts is not None:
            self._log_texts(texts, context)
        if context.place is not None:
            context.place.expect(length)
        read = perf_counter()
        how = task.tokenization(options)
        if how.windows:
            how = replace(how, max_windows=self._limits.max_sequences)
        windows = await self.tokenizer.encode_off_loop(texts, self._executor, how)
        request = RequestState(task, options, items, counts, windows)
        size = self._check(request, query)
        context.instances, context.tokens = len(items), request.tokens
        if context.place is not None:
            context.place.charge(request.tokens)
        timings = context.timings
        tokenized = timings.tokenized(started, read)
        parts = await self._scheduler.run(request.flat, request.decode, context, request.costs)
        answered = perf_counter()
        waited = answered - tokenized - timings.postprocess
        timings.predict = waited if waited > 0.0 else 0.0
        if size <= INLINE_VALUES:
            answers = request.answers(parts, query.tensors)
        else:
            loop = asyncio.get_running_loop()
            answers = await loop.run_in_executor(self._executor, request.answers, parts, query.tensors)
        timings.postprocess += perf_counter() - answered
        return answers

    async def trial(self) -> None:
        """Has the model infer once on a short text; nothing is decoded. Raises RequestError if the answer is wrong."""
        try:
            [[encoding]] = await self.tokenizer.encode_off_loop((TRIAL,), self._executor, PLAIN)
        except InvalidInput:  # the tokenizer has no unknown token, and no words for it
            encoding = Encoding([], [])
        await self._scheduler.trial(encoding if encoding.ids else Encoding([0], [0]))

    async def encode(
        self, texts: Sequence[TextInput], how: Tokenization, name: str = "instances"
    ) -> list[list[Encoding]]:
        """Tokenizes alone, under the limits of a request.

        Raises:
            TooLarge: too many texts, too long ones, or too many tokens for an answer.
            InvalidInput: a text can't be encoded.
        """
        limits = self._limits
        limits.check_texts(texts, name)
        if how.token_values:
            how = replace(how, max_tokens=limits.max_answer_values // how.token_values)
        return await self.tokenizer.encode_off_loop(texts, self._executor, how)

    async def close(self) -> None:
        """There is nothing to close: requests end by themselves."""

    def _read(self, query: Query, options: Any) -> tuple[list[Any], list[TextInput], list[int], int]:
        """The items, the texts of all items, the number of texts of each, and their characters; within the limits."""
        task, limits, name = self._task, self._limits, query.name
        items: list[Any] = []
        texts: list[TextInput] = []
        counts: list[int] = []
        total = 0
        if not query.instances:
            raise InvalidInput(f"{name}: expected at least one, got none")
        if len(query.instances) > limits.max_instances:
            limits.check_instances(len(query.instances), name)
        for index, instance in enumerate(query.instances):
            where = f"{name}[{index}]"
            item = task.item(instance, where, options)
            own = task.texts(item, options)
            for number, text in enumerate(own):
                length = len(text) if type(text) is str else characters(text)
                if length > limits.max_text_length:
                    raise limits.too_long(length, task.text_name(where, number))
                total += length
            items.append(item)
            texts += own
            counts.append(len(own))
            if len(texts) > limits.max_sequences:
                limits.check_sequences(len(texts), name)
            if total > limits.max_total_length:
                raise TooLarge(
                    f"{where}: with it the request has more than the {limits.max_total_length} characters that are "
                    "taken of all texts and pairs together (--max_total_length)"
                )
        return items, texts, counts, total

    def _check(self, request: RequestState, query: Query) -> int:
        """Checks the encodings, by the task and against the limits. Returns the number of values in all answers."""
        task, options, limits = self._task, request.options, self._limits
        if len(request.flat) > limits.max_sequences:
            limits.check_sequences(len(request.flat), query.name)
        if self._checks or request.is_unusual:
            self._check_each(request, query.name)
        size = request.size + task.beside_size(request.encodings, options)
        if query.tensors:
            lengths = [sum([len(one) for windows in texts for one in windows]) for texts in request.encodings]
            size = max(size, task.tensor_size(lengths, options))
        if size > limits.max_answer_values:
            raise TooLarge(
                f"{query.name}: the answer would hold about {size} values, at most {limits.max_answer_values} "
                "are given in one (--max_answer_values); send fewer instances or ask for less of each"
            )
        return size

    def _check_each(self, request: RequestState, name: str) -> None:
        """Raises RequestError for an encoding that can't be predicted, and counts the items that were truncated."""
        task, truncated = self._task, set()
        for index, texts in enumerate(request.encodings):
            where = f"{name}[{index}]"
            for number, windows in enumerate(texts):
                for encoding in windows:
                    if not encoding.ids:
                        raise InvalidInput(f"{task.text_name(where, number)}: the text has no tokens")
                    if encoding.truncated:
                        truncated.add(index)
                        if task.overflow(request.options) == "error":
                            raise TooLarge(
                                f"{task.text_name(where, number)}: the text is longer than the {len(encoding)} tokens "
                                "that the model takes, and is not to be cut (--on_overflow=error, or truncation: false)"
                            )
                    task.check(encoding, where)
        if truncated:
            self._metrics.count_truncated(len(truncated))


class RequestState:
    """The encodings of one request, and what makes answers of their outputs.

    Attributes:
        items: what ``task.item`` made of each instance.
        encodings: per item, text and window.
        flat: all encodings, one after the other; ``owners`` has the index of the item of each, and ``costs`` what it
            takes to decode it.
        tokens, size: tokens, and values in the answers, of all encodings.
        is_unusual: whether an encoding is empty or truncated.
    """

    __slots__ = ("costs", "encodings", "flat", "is_unusual", "items", "options", "owners", "size", "task", "tokens")

    def __init__(
        self,
        task: Task[Any, Any, Any],
        options: Any,
        items: list[Any],
        counts: Sequence[int],
        windows: Sequence[list[Encoding]],
    ) -> None:
        """``counts`` has the number of texts of each item, ``windows`` the encodings of each text."""
        self.task = task
        self.options = options
        self.items = items
        self.encodings: list[Sequence[list[Encoding]]] = []
        self.flat: list[Encoding] = []
        self.owners: list[int] = []
        self.costs: list[int] = []
        self.is_unusual = False
        start = tokens = size = 0
        for index, count in enumerate(counts):
            own = windows[start : start + count]
            start += count
            self.encodings.append(own)
            for encodings in own:
                for one in encodings:
                    length = len(one.ids)
                    if one.truncated or not length:
                        self.is_unusual = True
                    tokens += length
                    size += task.answer_size(one, options)
                    self.flat.append(one)
                    self.owners.append(index)
                    self.costs.append(task.decode_cost(one, options))
        self.tokens, self.size = tokens, size

    def decode(self, index: int, rows: Mapping[str, Array]) -> Any:
        """The part that one encoding has of its item's answer."""
        return self.task.decode(self.items[self.owners[index]], self.flat[index], rows, self.options)

    def answers(self, parts: Sequence[Any], tensors: bool) -> Answers:
        """Gives each item the parts of its own encodings; the predictions as a tensor too if ``tensors`` says so."""
        task, options = self.task, self.options
        predictions, start = [], 0
        for index, texts in enumerate(self.encodings):
            own = []
            for windows in texts:
                own.append(parts[start : start + len(windows)])
                start += len(windows)
            predictions.append(task.answer(self.items[index], own, options))
        tensor = task.tensor(predictions, options) if tensors else None
        return Answers(predictions, task.beside(self.encodings, options), self.tokens, tensor)
