"""One request from instances to answers. Read this first.

    instances --task.item, .texts--> texts --tokenizer--> encodings --scheduler--> output rows
              --task.decode--> parts --task.answer--> predictions

No I/O of its own, and nothing of a request is kept on the object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Any

from hf_transformer.core.scheduler import Scheduler
from hf_transformer.core.worklist import Limits, Worklist
from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tasks.base import Task
from hf_transformer.tokenizer.engine import characters
from hf_transformer.tokenizer.tokenizer import INLINE_CHARACTERS, Tokenizer
from hf_transformer.types import PLAIN, Answers, Array, Context, Encoding, Query, TextInput, Tokenization

CANARY = "A short text."
INLINE_VALUES = 20_000
"""Answers of more values than this are put together in a thread; about 5 ms of work, as long as a thread keeps the
interpreter before others get their turn (sys.getswitchinterval)."""


class Pipeline:
    """A task, its tokenizer and the scheduler of its predictor, put in a row.

    ``executor`` has the threads for long work. ``log_texts`` is called with every request's texts. ``tokenizer`` cuts
    where the model does.
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
        self._short = min(INLINE_CHARACTERS, limits.max_text_length, limits.max_total_length)
        self._small_answer = min(INLINE_VALUES, limits.max_answer_values)
        self._checks = type(task).check is not Task.check
        """Whether the task has a look at each encoding."""
        self._has_short_way = (
            log_texts is None and task.tokenization(self._default_options) is PLAIN and type(task).beside is Task.beside
        )

    def __call__(self, query: Query, context: Context) -> Coroutine[Any, Any, Answers]:
        """Gives one prediction per instance, in their order.

        Raises:
            RequestError: one error for the whole request; no instance of it is answered then.
        """
        if self._has_short_way and len(query.instances) == 1:
            one = query.instances[0]
            if type(one) is str or (type(one) is dict and len(one) == 1):
                return self._answer_short(query, context)
        return self._answer(query, context)

    async def _answer(self, query: Query, context: Context) -> Answers:
        """The usual way."""
        started = perf_counter()
        task = self._task
        # Most requests have no parameters: what those choose is found out once.
        options = task.options(query.parameters) if query.parameters else self._default_options
        request = self._read(query, options, context)
        read = perf_counter()
        if context.place is not None:
            context.place.expect(request.characters)
        await self._tokenize(request, options)
        flat, items = request.flat, request.items
        executor = self._executor if self._answer_size(request, options, query.tensors) > INLINE_VALUES else None
        context.instances, context.tokens = len(items), sum(map(len, flat))
        if context.place is not None:
            context.place.charge(context.tokens)
        timings = context.timings
        timings.tokenized(started, read)
        tokenized = perf_counter()
        parts = await self._scheduler.run(
            flat,
            lambda index, rows: task.decode(items[request.owners[index]], flat[index], rows, options),
            context,
            lambda encoding: task.decode_cost(encoding, options),
        )
        answered = perf_counter()
        timings.predict = max(0.0, answered - tokenized - timings.postprocess)
        if executor is None:
            answers = request.answers(task, parts, options, query.tensors, context.tokens)
        else:
            loop = asyncio.get_running_loop()
            answers = await loop.run_in_executor(
                executor, request.answers, task, parts, options, query.tensors, context.tokens
            )
        timings.postprocess += perf_counter() - answered
        return answers

    async def _answer_short(self, query: Query, context: Context) -> Answers:
        """The short way, for what most requests are: one short text. It costs two thirds of the long one, which takes
        whatever turns out not to be as usual."""
        started = perf_counter()
        task, options, where = self._task, self._default_options, f"{query.name}[0]"
        if query.parameters:
            options = task.options(query.parameters)
            if task.tokenization(options) is not PLAIN:
                return await self._answer(query, context)
        item = task.item(query.instances[0], where, options)
        texts = task.texts(item, options)
        text = texts[0]
        if len(texts) != 1 or not isinstance(text, str) or len(text) > self._short:
            return await self._answer(query, context)
        read = perf_counter()
        encoding = self.tokenizer.encode_short(text)
        tokens = len(encoding.ids)
        size = task.answer_size(encoding, options)
        if query.tensors:
            size = max(size, task.tensor_size((tokens,), options))
        if not tokens or encoding.truncated or size > self._small_answer:
            return await self._answer(query, context)
        task.check(encoding, where)
        context.instances, context.tokens = 1, tokens
        if context.place is not None:
            context.place.charge(tokens)
        timings = context.timings
        tokenized = timings.tokenized(started, read)
        # Bound and not a closure, whose cells would be five objects more.
        decode = partial(self._decode_short, item, encoding, options)
        request = self._scheduler.enter(encoding, decode, context, task.decode_cost(encoding, options))
        try:
            await request.future
        finally:
            self._scheduler.leave(request)
        answered = perf_counter()
        predict = answered - tokenized - timings.postprocess
        timings.predict = predict if predict > 0.0 else 0.0
        predictions = [task.answer(item, (request.answers,), options)]
        tensor = task.tensor(predictions, options) if query.tensors else None
        timings.postprocess += perf_counter() - answered
        return Answers(predictions, (), tokens, tensor)

    def _decode_short(self, item: Any, encoding: Encoding, options: Any, index: int, rows: Mapping[str, Array]) -> Any:
        return self._task.decode(item, encoding, rows, options)

    async def canary(self) -> None:
        """Has the model infer once on a short text; nothing is decoded. Raises RequestError if the answer is wrong."""
        try:
            [[encoding]] = await self.tokenizer.encode_off_loop((CANARY,), self._executor, PLAIN)
        except InvalidInput:  # the tokenizer has no unknown token, and no words for it
            encoding = Encoding([], [])
        await self._scheduler.canary(encoding if encoding.ids else Encoding([0], [0]))

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

    def _read(self, query: Query, options: Any, context: Context) -> Worklist:
        """The items and their texts, within the limits."""
        count = len(query.instances)
        if not count:
            raise InvalidInput(f"{query.name}: expected at least one, got none")
        limits = self._limits
        if count > limits.max_instances:
            raise TooLarge(
                f"{query.name}: {count} in a request, at most {limits.max_instances} are taken (--max_instances)"
            )
        request = Worklist(query.name)
        for index, instance in enumerate(query.instances):
            where = request.where(index)
            item = self._task.item(instance, where, options)
            texts = self._task.texts(item, options)
            for number, text in enumerate(texts):
                length = len(text) if type(text) is str else characters(text)
                if length > limits.max_text_length:
                    raise too_long(length, limits.max_text_length, self._task.text_name(where, number))
                request.characters += length
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

    async def _tokenize(self, request: Worklist, options: Any) -> Worklist:
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
                    if self._checks or encoding.truncated or not encoding.ids:
                        self._check(encoding, request, index, number, refuse)
                    request.flat.append(encoding)
                    request.owners.append(index)
            truncated += any(encoding.truncated for encoding in chain.from_iterable(mine))
        request.check_sequences(len(request.flat), self._limits.max_sequences)
        if truncated:
            self._metrics.count_truncated(truncated)
        return request

    def _check(self, encoding: Encoding, request: Worklist, index: int, number: int, refuse: bool) -> None:
        """Raises RequestError for an encoding that can't be predicted; ``number`` is that of its text in the item."""
        if not encoding.ids:
            raise InvalidInput(f"{self._task.text_name(request.where(index), number)}: the text has no tokens")
        if encoding.truncated and refuse:
            raise TooLarge(
                f"{self._task.text_name(request.where(index), number)}: the text is longer than the {len(encoding)} "
                "tokens that the model takes, and is not to be cut (--on_overflow=error, or truncation: false)"
            )
        self._task.check(encoding, request.where(index))

    def _answer_size(self, request: Worklist, options: Any, tensors: bool) -> int:
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


def too_long(length: int, limit: int, where: str) -> TooLarge:
    """The error for a text of so many characters."""
    return TooLarge(f"{where}: {length} characters, at most {limit} are taken (--max_text_length)")
