"""One request from instances to answers. Read this first.

    instances --task.item, .texts--> texts --tokenizer--> encodings --scheduler--> output rows
              --task.decode--> parts --task.answer--> predictions

No I/O of its own, and nothing of a request is kept on the object.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

from hf_transformer.engines import characters
from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.metrics import Metrics
from hf_transformer.scheduler import Scheduler
from hf_transformer.tasks.base import Task
from hf_transformer.tokenizer import Tokenizer
from hf_transformer.types import Answers, Context, Encoding, Query, TextInput, Tokenization

INLINE_VALUES = 20_000
"""Answers of more values than this are put together in a thread; about 5 ms of work, as long as a thread keeps the
interpreter before others get their turn (sys.getswitchinterval)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one request may ask for: instances, characters of a text and of all, sequences, values in answers."""

    max_instances: int
    max_text_length: int
    max_total_length: int
    max_sequences: int
    max_answer_values: int


class Pipeline:
    """A task, its tokenizer and the scheduler of its predictor, put in a row.

    ``executor`` has the threads for long work. ``log_texts`` is called with every request's texts. ``tokenizer`` cuts
    where the model does.
    """

    def __init__(
        self,
        task: Task[Any, Any, Any],
        tokenizer: Tokenizer,
        scheduler: Scheduler,
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

    async def __call__(self, query: Query, context: Context) -> Answers:
        """Gives one prediction per instance, in their order.

        Raises:
            RequestError: one error for the whole request; no instance of it is answered then.
        """
        started = time.perf_counter()
        task = self._task
        # Most requests have no parameters: what those choose is found out once.
        options = task.options(query.parameters) if query.parameters else self._default_options
        request = await self._tokenize(self._read(query, options, context), options)
        flat, items = request.flat, request.items
        executor = self._executor if self._answer_size(request, options, query.tensors) > INLINE_VALUES else None
        tokenized = time.perf_counter()
        parts = await self._scheduler.run(
            flat,
            lambda index, rows: task.decode(items[request.owners[index]], flat[index], rows, options),
            context,
            lambda encoding: task.decode_cost(encoding, options),
        )
        answered = time.perf_counter()
        timings = context.timings
        timings.preprocess = tokenized - started
        timings.predict = max(0.0, answered - tokenized - timings.postprocess)
        if executor is None:
            answers = request.answers(task, parts, options, query.tensors)
        else:
            loop = asyncio.get_running_loop()
            answers = await loop.run_in_executor(executor, request.answers, task, parts, options, query.tensors)
        timings.postprocess += time.perf_counter() - answered
        return answers

    async def encode(
        self, texts: Sequence[TextInput], how: Tokenization, name: str = "instances"
    ) -> list[list[Encoding]]:
        """Tokenizes alone, under the limits of a request.

        Raises:
            TooLarge: too many texts, too long ones, or too many tokens for an answer.
            InvalidInput: a text can't be encoded.
        """
        limits = self._limits
        if len(texts) > limits.max_instances:
            raise TooLarge(
                f"{name}: {len(texts)} in a request, at most {limits.max_instances} are taken (--max_instances)"
            )
        total = sum(self._check_length(text, f"{name}[{index}]") for index, text in enumerate(texts))
        if total > limits.max_total_length:
            raise TooLarge(
                f"{name}: {total} characters together, at most {limits.max_total_length} are taken (--max_total_length)"
            )
        if how.token_values:
            how = replace(how, max_tokens=limits.max_answer_values // how.token_values)
        return await self.tokenizer.encode_off_loop(texts, self._executor, how)

    def _read(self, query: Query, options: Any, context: Context) -> _Request:
        """The items and their texts, within the limits."""
        count = len(query.instances)
        if not count:
            raise InvalidInput(f"{query.name}: expected at least one, got none")
        limits = self._limits
        if count > limits.max_instances:
            raise TooLarge(
                f"{query.name}: {count} in a request, at most {limits.max_instances} are taken (--max_instances)"
            )
        request = _Request(query.name)
        for index, instance in enumerate(query.instances):
            where = request.where(index)
            item = self._task.item(instance, where, options)
            texts = self._task.texts(item, options)
            for number, text in enumerate(texts):
                if characters(text) > limits.max_text_length:
                    self._check_length(text, self._task.text_name(where, number))
                request.characters += characters(text)
            request.check_sequences(len(request.texts) + len(texts), limits.max_sequences)
            if request.characters > limits.max_total_length:
                raise TooLarge(
                    f"{where}: with it the request has more than the {limits.max_total_length} characters that are "
                    "taken of all texts and pairs together (--max_total_length)"
                )
            request.items.append(item)
            request.texts += texts
            request.counts.append(len(texts))
        if self._log_texts is not None:
            self._log_texts(request.texts, context)
        return request

    def _check_length(self, text: TextInput, where: str) -> int:
        length = characters(text)
        if length > self._limits.max_text_length:
            raise TooLarge(
                f"{where}: {length} characters, at most {self._limits.max_text_length} are taken (--max_text_length)"
            )
        return length

    async def _tokenize(self, request: _Request, options: Any) -> _Request:
        """Fills in the encodings, each checked by the task."""
        how = self._task.tokenization(options)
        if how.windows:
            how = replace(how, max_windows=self._limits.max_sequences)
        windows = await self.tokenizer.encode_off_loop(request.texts, self._executor, how)
        refuse = self._task.overflow(options) == "error"
        truncated = 0
        text = 0
        for index, count in enumerate(request.counts):
            mine = windows[text : text + count]
            text += count
            request.encodings.append(mine)
            for number, parts in enumerate(mine):
                for encoding in parts:
                    self._check(encoding, request, index, number, refuse)
                    request.flat.append(encoding)
                    request.owners.append(index)
            truncated += any(encoding.truncated for encoding in chain.from_iterable(mine))
        request.check_sequences(len(request.flat), self._limits.max_sequences)
        if truncated:
            self._metrics.count_truncated(truncated)
        return request

    def _check(self, encoding: Encoding, request: _Request, index: int, number: int, refuse: bool) -> None:
        """Raises RequestError for an encoding that can't be predicted; ``number`` is that of its text in the item."""
        if not len(encoding):
            raise InvalidInput(f"{self._task.text_name(request.where(index), number)}: the text has no tokens")
        if encoding.truncated and refuse:
            raise TooLarge(
                f"{self._task.text_name(request.where(index), number)}: the text is longer than the {len(encoding)} "
                "tokens that the model takes, and is not to be cut (--on_overflow=error, or truncation: false)"
            )
        self._task.check(encoding, request.where(index))

    def _answer_size(self, request: _Request, options: Any, tensors: bool) -> int:
        """Values in all answers. Raises TooLarge before the predictor is asked for what nobody could send."""
        task = self._task
        size = sum(task.answer_size(encoding, options) for encoding in request.flat)
        size += task.beside_size(request.encodings, options)
        if tensors:
            lengths = [sum(map(len, chain.from_iterable(texts))) for texts in request.encodings]
            size = max(size, task.tensor_size(lengths, options))
        if size > self._limits.max_answer_values:
            raise TooLarge(
                f"{request.name}: the answer would hold about {size} values, at most {self._limits.max_answer_values} "
                "are given in one (--max_answer_values); send fewer instances or ask for less of each"
            )
        return size


@dataclass(slots=True)
class _Request:
    """One request's way through the pipeline: items, their texts, and the encodings of these.

    ``name`` is what the client calls its instances.
    ``counts`` has the number of texts of each item; ``encodings`` per item, text and window; ``flat`` all encodings in
    that order, and ``owners`` the index of the item that each of them belongs to.
    """

    name: str
    items: list[Any] = field(default_factory=list)
    texts: list[TextInput] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    encodings: list[list[list[Encoding]]] = field(default_factory=list)
    flat: list[Encoding] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    characters: int = 0

    def where(self, index: int) -> str:
        """An instance's name in messages."""
        return f"{self.name}[{index}]"

    def check_sequences(self, count: int, limit: int) -> None:
        """Raises TooLarge for more sequences than the limit."""
        if count > limit:
            raise TooLarge(
                f"{self.name}: {count} sequences (texts, pairs and windows) in one request, at most {limit} are taken "
                "(--max_sequences)"
            )

    def answers(self, task: Task[Any, Any, Any], parts: Sequence[Any], options: Any, tensors: bool) -> Answers:
        """Hands every item the parts of its own encodings."""
        rest = iter(parts)
        predictions = [
            task.answer(item, [list(islice(rest, len(windows))) for windows in texts], options)
            for item, texts in zip(self.items, self.encodings, strict=True)
        ]
        return Answers(
            predictions,
            task.beside(self.encodings, options),
            sum(map(len, self.flat)),
            task.tensor(predictions, options) if tensors else None,
        )
