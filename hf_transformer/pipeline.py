"""One request from instances to answers. Read this first.

    instances --task.text--> texts --tokenizer--> encodings --scheduler--> output rows --task.decode--> answers

No I/O of its own, and nothing of a request is kept on the object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.metrics import Metrics
from hf_transformer.scheduler import Scheduler
from hf_transformer.tasks.base import Task
from hf_transformer.tokenizer import Tokenizer
from hf_transformer.types import Context, Encoding, Json, Query, TextInput

INLINE_VALUES = 20_000
"""Answers of more values than this are decoded in a thread; about 5 ms of work, as long as a thread keeps the
interpreter before others get their turn (sys.getswitchinterval)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one request may ask for: instances, characters per text, and values in all its answers."""

    max_instances: int
    max_text_length: int
    max_answer_values: int


class Pipeline:
    """A task, its tokenizer and the scheduler of its predictor, put in a row.

    ``executor`` has the threads for long work. ``log_texts`` is called with every request's texts.
    """

    def __init__(
        self,
        task: Task[Any],
        tokenizer: Tokenizer,
        scheduler: Scheduler,
        *,
        executor: Executor,
        limits: Limits,
        metrics: Metrics,
        log_texts: Callable[[Sequence[TextInput], Context], None] | None = None,
    ) -> None:
        self._task = task
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._executor = executor
        self._limits = limits
        self._metrics = metrics
        self._log_texts = log_texts

    async def __call__(self, query: Query, context: Context) -> list[Json]:
        """Gives one answer per instance, in their order.

        Raises:
            RequestError: one error for the whole request; no instance of it is answered then.
        """
        started = time.perf_counter()
        options = self._task.options(query.parameters)
        texts = self._texts(query.instances)
        if self._log_texts is not None:
            self._log_texts(texts, context)
        encodings = await self._tokenizer.encode_off_loop(texts, self._executor)
        self._check(encodings)
        executor = self._executor if self._answer_size(encodings, options) > INLINE_VALUES else None
        tokenized = time.perf_counter()
        answers = await self._scheduler.run(
            encodings, lambda index, rows: self._task.decode(encodings[index], rows, options), context, executor
        )
        timings = context.timings
        timings.preprocess = tokenized - started
        timings.predict = time.perf_counter() - tokenized - timings.postprocess
        return answers

    def _texts(self, instances: Sequence[Json]) -> list[TextInput]:
        if not instances:
            raise InvalidInput("instances: expected at least one, got none")
        if len(instances) > self._limits.max_instances:
            raise TooLarge(
                f"instances: {len(instances)} in one request, at most {self._limits.max_instances} are taken "
                "(--max_instances)"
            )
        texts = []
        for index, instance in enumerate(instances):
            text = self._task.text(instance, f"instances[{index}]")
            length = len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
            if length > self._limits.max_text_length:
                raise TooLarge(
                    f"instances[{index}]: {length} characters, at most {self._limits.max_text_length} are taken "
                    "(--max_text_length)"
                )
            texts.append(text)
        return texts

    def _check(self, encodings: Sequence[Encoding]) -> None:
        truncated = 0
        for index, encoding in enumerate(encodings):
            if not len(encoding):
                raise InvalidInput(f"instances[{index}]: the text has no tokens")
            self._task.check(encoding, f"instances[{index}]")
            truncated += encoding.truncated
        if truncated:
            self._metrics.count_truncated(truncated)

    def _answer_size(self, encodings: Sequence[Encoding], options: Any) -> int:
        """Values in all answers. Raises TooLarge before the predictor is asked for what nobody could send."""
        size = sum(self._task.answer_size(encoding, options) for encoding in encodings)
        if size > self._limits.max_answer_values:
            raise TooLarge(
                f"instances: the answer would hold about {size} values, at most {self._limits.max_answer_values} "
                "are given in one (--max_answer_values); send fewer instances or ask for less of each"
            )
        return size
