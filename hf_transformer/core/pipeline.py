"""One request from instances to answers. Read this first.

    instances --task.item, .texts--> texts --tokenizer--> encodings --scheduler--> output rows
              --task.decode--> parts --task.answer--> predictions

No I/O of its own, and nothing of a request is kept on the pipeline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from itertools import accumulate, islice
from time import perf_counter
from typing import Any

from hf_transformer.core.limits import Limits
from hf_transformer.core.scheduler import Entry, Scheduler
from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tasks.base import Task
from hf_transformer.tokenizer.engine import characters
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import PLAIN, Answers, Context, Encoding, Query, TextInput, Tokenization

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
        # Hooks that a task leaves as they are need not be called for each text.
        self._checks = _has_own(task, "check")
        self._has_own_cost = _has_own(task, "decode_cost")
        self._has_beside = _has_own(task, "beside")

    async def __call__(self, query: Query, context: Context) -> Answers:
        """Gives one prediction per instance, in their order.

        Raises:
            RequestError: one error for the whole request; no instance of it is answered then.
        """
        began, task, place = perf_counter(), self._task, context.place
        # Most requests have no parameters.
        options = task.options(query.parameters) if query.parameters else self._default_options
        items, texts, counts, length = self._read(query, options)
        if self._log_texts is not None:
            self._log_texts(texts, context)
        how = task.tokenization(options)
        if how.windows:
            how = replace(how, max_windows=self._limits.max_sequences)
        if place is not None:
            place.expect(length)
        read = perf_counter()
        windows = await self.tokenizer.encode_off_loop(texts, self._executor, how, length)
        entries, tokens, size = self._entries(query, options, items, counts, windows)
        context.instances, context.tokens = len(items), tokens
        if place is not None:
            place.charge(tokens)
        encoded = perf_counter()
        context.preprocess, context.parse, context.tokenize = encoded - began, read - context.arrived, encoded - read
        submission = self._scheduler.submit(entries, task.decode, options, context)
        try:
            await submission.future
        finally:
            self._scheduler.leave(submission)
        answered = perf_counter()
        waited = answered - encoded - context.postprocess
        context.predict = waited if waited > 0.0 else 0.0
        if size <= INLINE_VALUES:
            answers = self._answers(query, options, items, counts, windows, entries)
        else:
            loop, make = asyncio.get_running_loop(), self._answers
            answers = await loop.run_in_executor(self._executor, make, query, options, items, counts, windows, entries)
        answers.tokens = tokens
        context.postprocess += perf_counter() - answered
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
        task, limits, name, instances = self._task, self._limits, query.name, query.instances
        items: list[Any] = []
        texts: list[TextInput] = []
        counts: list[int] = []
        total = 0
        if not instances:
            raise InvalidInput(f"{name}: expected at least one, got none")
        if len(instances) > limits.max_instances:
            limits.check_instances(len(instances), name)
        for index, instance in enumerate(instances):
            where = f"{name}[{index}]"
            item = task.item(instance, where, options)
            own = task.texts(item, options)
            for text in own:
                length = len(text) if type(text) is str else characters(text)
                if length > limits.max_text_length:
                    raise limits.too_long(length, task.text_name(where, own.index(text)))
                total += length
            items.append(item)
            counts.append(len(own))
            texts += own
            if len(texts) > limits.max_sequences:
                limits.check_sequences(len(texts), name)
            if total > limits.max_total_length:
                raise TooLarge(
                    f"{where}: with it the request has more than the {limits.max_total_length} characters that are "
                    "taken of all texts and pairs together (--max_total_length)"
                )
        return items, texts, counts, total

    def _entries(
        self,
        query: Query,
        options: Any,
        items: Sequence[Any],
        counts: Sequence[int],
        windows: Sequence[Sequence[Encoding]],
    ) -> tuple[list[Entry[Encoding]], int, int]:
        """An entry per encoding, their tokens, and the number of values in all answers; within the limits.

        ``counts`` has the number of texts of each item, ``windows`` the encodings of each text.
        """
        task, limits, has_own_cost = self._task, self._limits, self._has_own_cost
        entries: list[Entry[Encoding]] = []
        tokens = size = text = 0
        is_unusual = self._checks
        for item, count in zip(items, counts, strict=True):
            for own in windows[text : text + count]:
                for one in own:
                    length, values = len(one.ids), task.answer_size(one, options)
                    if one.truncated or not length:
                        is_unusual = True
                    tokens += length
                    size += values
                    entries.append(Entry(one, item, task.decode_cost(one, options) if has_own_cost else values))
            text += count
        if len(entries) > limits.max_sequences:
            limits.check_sequences(len(entries), query.name)
        if is_unusual:
            self._check_each(query, options, _per_item(counts, windows))
        if self._has_beside:
            size += task.beside_size(_per_item(counts, windows), options)
        if query.tensors:
            lengths = [sum([len(one) for own in texts for one in own]) for texts in _per_item(counts, windows)]
            size = max(size, task.tensor_size(lengths, options))
        if size > limits.max_answer_values:
            raise TooLarge(
                f"{query.name}: the answer would hold about {size} values, at most {limits.max_answer_values} "
                "are given in one (--max_answer_values); send fewer instances or ask for less of each"
            )
        return entries, tokens, size

    def _check_each(self, query: Query, options: Any, encodings: Sequence[Sequence[Sequence[Encoding]]]) -> None:
        """Raises RequestError for an encoding that can't be predicted, and counts the items that were truncated.

        ``encodings`` are per item, text and window.
        """
        task, truncated = self._task, set()
        for index, texts in enumerate(encodings):
            where = f"{query.name}[{index}]"
            for number, windows in enumerate(texts):
                for encoding in windows:
                    if not encoding.ids:
                        raise InvalidInput(f"{task.text_name(where, number)}: the text has no tokens")
                    if encoding.truncated:
                        truncated.add(index)
                        if task.overflow(options) == "error":
                            raise TooLarge(
                                f"{task.text_name(where, number)}: the text is longer than the {len(encoding)} tokens "
                                "that the model takes, and is not to be cut (--on_overflow=error, or truncation: false)"
                            )
                    task.check(encoding, where)
        if truncated:
            self._metrics.count_truncated(len(truncated))

    def _answers(
        self,
        query: Query,
        options: Any,
        items: Sequence[Any],
        counts: Sequence[int],
        windows: Sequence[Sequence[Encoding]],
        entries: Sequence[Entry[Encoding]],
    ) -> Answers:
        """Gives each item the answers of its own entries, a list per text; the predictions as a tensor too if the query
        asks for it."""
        task = self._task
        predictions, text, rest = [], 0, iter(entries)
        for item, count in zip(items, counts, strict=True):
            parts = []
            for own in windows[text : text + count]:
                parts.append([entry.answer for entry in islice(rest, len(own))])
            text += count
            predictions.append(task.answer(item, parts, options))
        answers = Answers(predictions)
        if query.tensors:
            answers.tensor = task.tensor(predictions, options)
        if self._has_beside:
            answers.outputs = task.beside(_per_item(counts, windows), options)
        return answers


def _per_item(counts: Sequence[int], windows: Sequence[Sequence[Encoding]]) -> list[Sequence[Sequence[Encoding]]]:
    """The encodings per item, text and window."""
    ends = accumulate(counts)
    return [windows[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _has_own(task: Task[Any, Any, Any], name: str) -> bool:
    """Whether a task has a method of its own in place of Task's."""
    return getattr(type(task), name) is not getattr(Task, name)
