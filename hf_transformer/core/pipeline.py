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
        request = RequestState(task, options, query)
        self._read(request)
        if self._log_texts is not None:
            self._log_texts(request.texts, context)
        if context.place is not None:
            context.place.expect(request.characters)
        read = perf_counter()
        how = task.tokenization(options)
        if how.windows:
            how = replace(how, max_windows=self._limits.max_sequences)
        found = await self.tokenizer.encode_off_loop(request.texts, self._executor, how)
        self._check_encodings(request, found)
        context.instances, context.tokens = len(request.items), request.tokens
        if context.place is not None:
            context.place.charge(request.tokens)
        timings = context.timings
        tokenized = timings.tokenized(started, read)
        parts = await self._scheduler.run(request.flat, request.decode, context, request.costs)
        answered = perf_counter()
        timings.predict = max(0.0, answered - tokenized - timings.postprocess)
        if request.size <= INLINE_VALUES:
            answers = request.answers(parts)
        else:
            answers = await asyncio.get_running_loop().run_in_executor(self._executor, request.answers, parts)
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

    def _read(self, request: RequestState) -> None:
        """Fills in the items and their texts, within the limits."""
        task, options, limits, name = self._task, request.options, self._limits, request.query.name
        instances = request.query.instances
        if not instances:
            raise InvalidInput(f"{name}: expected at least one, got none")
        if len(instances) > limits.max_instances:
            limits.check_instances(len(instances), name)
        total = 0
        for index, instance in enumerate(instances):
            where = f"{name}[{index}]"
            item = task.item(instance, where, options)
            texts = task.texts(item, options)
            for number, text in enumerate(texts):
                length = characters(text)
                if length > limits.max_text_length:
                    raise limits.too_long(length, task.text_name(where, number))
                total += length
            request.items.append(item)
            request.texts += texts
            request.counts.append(len(texts))
            if len(request.texts) > limits.max_sequences:
                limits.check_sequences(len(request.texts), name)
            if total > limits.max_total_length:
                raise TooLarge(
                    f"{where}: with it the request has more than the {limits.max_total_length} characters that are "
                    "taken of all texts and pairs together (--max_total_length)"
                )
        request.characters = total

    def _check_encodings(self, request: RequestState, found: list[list[Encoding]]) -> None:
        """Fills in the encodings, within the limits and each checked by the task, and what they come to."""
        task, options, limits = self._task, request.options, self._limits
        flat, owners, costs = request.flat, request.owners, request.costs
        start = tokens = size = truncated = 0
        for index, count in enumerate(request.counts):
            texts = found[start : start + count]
            start += count
            request.encodings.append(texts)
            suspicious = self._checks
            for windows in texts:
                for encoding in windows:
                    length = len(encoding.ids)
                    if encoding.truncated or not length:
                        suspicious = True
                    flat.append(encoding)
                    owners.append(index)
                    costs.append(task.decode_cost(encoding, options))
                    tokens += length
                    size += task.answer_size(encoding, options)
            if suspicious:
                truncated += self._check(request, index)
        if len(flat) > limits.max_sequences:
            limits.check_sequences(len(flat), request.query.name)
        if truncated:
            self._metrics.count_truncated(truncated)
        size += task.beside_size(request.encodings, options)
        if request.query.tensors:
            lengths = [sum([len(one) for windows in texts for one in windows]) for texts in request.encodings]
            size = max(size, task.tensor_size(lengths, options))
        if size > limits.max_answer_values:
            raise TooLarge(
                f"{request.query.name}: the answer would hold about {size} values, at most {limits.max_answer_values} "
                "are given in one (--max_answer_values); send fewer instances or ask for less of each"
            )
        request.tokens, request.size = tokens, size

    def _check(self, request: RequestState, index: int) -> bool:
        """Whether an item was truncated. Raises RequestError for encodings of it that can't be predicted."""
        task, where, truncated = self._task, f"{request.query.name}[{index}]", False
        for number, windows in enumerate(request.encodings[index]):
            for encoding in windows:
                if not encoding.ids:
                    raise InvalidInput(f"{task.text_name(where, number)}: the text has no tokens")
                if encoding.truncated and task.overflow(request.options) == "error":
                    raise TooLarge(
                        f"{task.text_name(where, number)}: the text is longer than the {len(encoding)} "
                        "tokens that the model takes, and is not to be cut (--on_overflow=error, or truncation: false)"
                    )
                task.check(encoding, where)
                truncated = truncated or encoding.truncated
        return truncated


class RequestState:
    """What the pipeline keeps of one request.

    Attributes:
        items: what ``task.item`` made of each instance.
        texts: those of all items, one after the other; ``counts`` has their number for each item.
        characters: those of all texts.
        encodings: per item, text and window.
        flat: all encodings, one after the other; ``owners`` has the index of the item of each, and ``costs`` what it
            takes to decode it.
        tokens: those of all encodings.
        size: values in all answers.
    """

    __slots__ = (
        "characters",
        "costs",
        "counts",
        "encodings",
        "flat",
        "items",
        "options",
        "owners",
        "query",
        "size",
        "task",
        "texts",
        "tokens",
    )

    def __init__(self, task: Task[Any, Any, Any], options: Any, query: Query) -> None:
        self.task = task
        self.options = options
        self.query = query
        self.items: list[Any] = []
        self.texts: list[TextInput] = []
        self.counts: list[int] = []
        self.characters = 0
        self.encodings: list[list[list[Encoding]]] = []
        self.flat: list[Encoding] = []
        self.owners: list[int] = []
        self.costs: list[int] = []
        self.tokens = 0
        self.size = 0

    def decode(self, index: int, rows: Mapping[str, Array]) -> Any:
        """The part that one encoding has of its item's answer."""
        return self.task.decode(self.items[self.owners[index]], self.flat[index], rows, self.options)

    def answers(self, parts: Sequence[Any]) -> Answers:
        """Gives each item the parts of its own encodings."""
        task, options = self.task, self.options
        predictions, start = [], 0
        for item, texts in zip(self.items, self.encodings, strict=True):
            own = []
            for windows in texts:
                own.append(parts[start : start + len(windows)])
                start += len(windows)
            predictions.append(task.answer(item, own, options))
        tensor = task.tensor(predictions, options) if self.query.tensors else None
        return Answers(predictions, task.beside(self.encodings, options), self.tokens, tensor)
