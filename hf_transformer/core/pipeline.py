"""The path of one request from instances to predictions. Start here to read the code.

instances --task.item, .texts--> texts --tokenizer--> encodings --scheduler--> output rows
          --task.decode--> parts --task.answer--> predictions
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter
from typing import Any, NoReturn

from hf_transformer.core.budget import Budget
from hf_transformer.core.label_vectors import LabelVectors
from hf_transformer.core.limits import Limits
from hf_transformer.core.remote import RemoteScheduler
from hf_transformer.core.scheduler import Entry, Scheduler
from hf_transformer.errors import ContextLengthExceeded, InvalidInput, NoPredictor, TooLarge
from hf_transformer.observability.metrics import ModelMetrics
from hf_transformer.tasks.base import VALUE_BYTES, Task
from hf_transformer.tokenizer.engine import characters
from hf_transformer.tokenizer.tokenizer import INLINE_CHARACTERS, Tokenizer
from hf_transformer.types.request import Answers, Context, Query, TracedOperation
from hf_transformer.types.tokenization import PLAIN, Encoding, LabelledText, TextInput, Tokenization

TRIAL_TEXT = "A short text."
CHARACTER_BYTES = 6
"""The most bytes of a character in JSON, an escape."""
INLINE_VALUES = 20_000
"""Maximum number of answer values for assembly on the event loop, about 5 ms. A thread takes 0.06 to 0.15 ms more."""


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Common arguments of all pipelines.

    Args:
        executor: runs long work outside the event loop.
        limits: the size limits of one request.
        log_texts: logs the texts of each request; None disables this log.
    """

    executor: Executor
    limits: Limits
    metrics: ModelMetrics
    log_texts: Callable[[Sequence[TextInput], Context], None] | None = None


class Pipeline(ABC):
    """Answers the requests of one model, without state between requests.

    ``tokenizer`` truncates texts to the model's maximum length.
    """

    def __init__(self, tokenizer: Tokenizer, options: PipelineOptions) -> None:
        self.tokenizer = tokenizer
        self._executor = options.executor
        self._limits = options.limits
        self._metrics = options.metrics
        self._log_texts = options.log_texts

    @abstractmethod
    async def __call__(self, query: Query, context: Context) -> Answers:
        """Returns one prediction per instance, in the order of the instances.

        Raises:
            RequestError: the whole request fails.
        """

    @abstractmethod
    async def trial(self) -> None:
        """Runs one short inference. Raises RequestError if the model fails or breaks its contract."""

    async def encode(self, texts: Sequence[TextInput], options: Tokenization, context: Context) -> list[list[Encoding]]:
        """Tokenizes texts within the request's budget, and returns the windows of each text.

        Raises:
            TooLarge: a text is too long, or there are too many texts or too many tokens for one answer.
            InvalidInput: a text can't be encoded.
        """
        budget = self._budget(context)
        # Alone, since the texts of generative scoring are counted again when they become prompts.
        budget.expect(Budget(budget.limits).add_texts(texts, ("instances",), self.tokenizer.max_length))
        if options.token_values:
            options = replace(options, max_tokens=budget.most_tokens(options.token_values))
        encodings = await self.tokenizer.encode_off_loop(texts, self._executor, options)
        values = sum(map(_tokens, encodings)) * options.token_values
        budget.add_values(values, values * VALUE_BYTES, "instances")
        return encodings

    def _budget(self, context: Context) -> Budget:
        """Returns the budget of a request."""
        budget = context.budget
        return budget if isinstance(budget, Budget) else Budget(self._limits)


class TokenizingPipeline(Pipeline):
    """The pipeline of a model without a predictor: tokenizer and limits. All that needs the model raises NoPredictor.

    ``model`` is the model's name for errors.
    """

    def __init__(self, model: str, tokenizer: Tokenizer, options: PipelineOptions) -> None:
        super().__init__(tokenizer, options)
        self._model = model

    async def __call__(self, query: Query, context: Context) -> NoReturn:
        raise NoPredictor(self._model)

    def check(self, sampling: object, max_length: int | None = None) -> NoReturn:
        """Stands for GenerationPipeline.check."""
        raise NoPredictor(self._model)

    async def start(self, request: object, context: Context) -> NoReturn:
        """Stands for GenerationPipeline.start."""
        raise NoPredictor(self._model)

    async def trial(self) -> NoReturn:
        raise NoPredictor(self._model)


class PredictivePipeline(Pipeline):
    """The pipeline of a predictive task: tokenizer, scheduler and decoding. ``task`` fits the predictor's model.

    ``label_vectors`` is for a model that gets the vectors of each text's labels; None for others. ``vector_size`` is
    their length in numbers, -1 for any.
    """

    def __init__(
        self,
        task: Task[Any, Any, Any],
        tokenizer: Tokenizer,
        scheduler: Scheduler[Encoding] | RemoteScheduler,
        options: PipelineOptions,
        label_vectors: LabelVectors | None = None,
        vector_size: int = -1,
    ) -> None:
        super().__init__(tokenizer, options)
        self._scheduler = scheduler
        self._label_vectors = label_vectors
        self._vector_size = vector_size
        options.metrics.watch_work(scheduler)
        self.task = task
        self._default_options = task.options({})
        # The pipeline skips hooks without an override, since hooks run for each text.
        self._default_bytes = self._bytes(self._default_options, False)
        self._has_complete = _overrides(task, "complete")
        self._has_of_text = _overrides(task, "of_text")
        self._has_check = _overrides(task, "check")
        self._has_decode_cost = _overrides(task, "decode_cost")
        self._has_extra_outputs = _overrides(task, "extra_outputs")
        self._has_expansion = _overrides(task, "expansion")

    async def __call__(self, query: Query, context: Context) -> Answers:
        started, task, budget = perf_counter(), self.task, context.budget
        if type(budget) is not Budget:
            budget = Budget(self._limits)
        # Most requests have no parameters.
        options = task.options(query.parameters) if query.parameters else self._default_options
        request = self._read(query, options, budget)
        if self._log_texts is not None:
            self._log_texts(request.texts, context)
        tokenization = task.tokenization(options)
        if tokenization.windows:
            tokenization = replace(tokenization, budget=budget.for_threads())
        read = perf_counter()
        if request.characters > INLINE_CHARACTERS:
            budget.expect(request.characters)  # other requests may be admitted during a long tokenization
        try:
            windows = await self.tokenizer.encode_off_loop(
                request.texts, self._executor, tokenization, request.characters
            )
        except TooLarge as error:  # the tokenizer doesn't know the API's name of the instances
            raise error.at(query.name if error.path == ("instances",) else error.path) from None
        entries = self._make_entries(request, windows)
        context.instances, context.tokens, context.values = len(request.items), request.tokens, request.size
        if self.task.operation:
            context.operation = TracedOperation(self.task.operation, {})
        budget.add_tokens(request.tokens)
        is_usual = options is self._default_options and not query.tensors
        each, repeats = self._default_bytes if is_usual else self._bytes(options, query.tensors)
        size = request.size * each + request.characters * repeats
        budget.add_values(request.size, size, query.name)
        encoded = perf_counter()
        context.preprocess, context.parse, context.tokenize = encoded - started, read - context.arrived, encoded - read
        if self._label_vectors is not None:
            labelled = [(entry.item, entry.owner.labels) for entry in entries]
            await self._label_vectors.attach(labelled, context, budget, query.name, size=self._vector_size)
        submission = self._scheduler.submit(entries, task.decode, options, context)
        try:
            await submission.future
        finally:
            self._scheduler.leave(submission)
        if request.size <= INLINE_VALUES:
            answers = self._assemble(request)
        else:
            answers = await asyncio.get_running_loop().run_in_executor(self._executor, self._assemble, request)
        context.predict = submission.answered - encoded
        context.postprocess = perf_counter() - submission.answered
        return answers

    def _bytes(self, options: Any, tensors: bool) -> tuple[int, int]:
        """Returns the bytes of a value of the answer, and those that it has for each character of the texts."""
        repeats = CHARACTER_BYTES if self.task.repeats_texts(options) else 0
        return self.task.value_bytes(options, tensors=tensors), repeats

    async def trial(self) -> None:
        text = self.task.trial_text(TRIAL_TEXT)
        try:
            [[encoding]] = await self.tokenizer.encode_off_loop((text,), self._executor, PLAIN)
        except InvalidInput:  # a vocabulary without these words and without an unknown token
            encoding = Encoding([], [])
        if self._label_vectors is not None and isinstance(text, LabelledText):
            context = Context("trial", {})
            labelled, budget = [(encoding, text.labels)], self._budget(context)
            size = self._vector_size
            await self._label_vectors.attach(labelled, context, budget, "instances", size=size, anew=True)
        await self._scheduler.trial(encoding if encoding.ids else Encoding([0], [0]))

    def _read(self, query: Query, options: Any, budget: Budget) -> RequestState:
        """Reads the items and texts of a request. Raises RequestError if an item is invalid or a limit is exceeded."""
        task, name, instances, has_expansion = self.task, query.name, query.instances, self._has_expansion
        request = RequestState(query, options)
        items, texts, counts, total, values = request.items, request.texts, request.counts, 0, 0
        limits = budget.limits
        longest, room = limits.max_text_length, limits.max_sequences - budget.sequences
        most = limits.max_total_length - budget.characters
        if not instances:
            raise InvalidInput(name, "at least one", "none")
        if len(instances) + budget.instances > limits.max_instances:
            budget.add_instances(len(instances), name)
        for index, instance in enumerate(instances):
            path = (name, index)
            item = task.item(instance, path, options)
            if has_expansion and (least := task.expansion(item, options)) is not None:
                values += least.values
                budget.check(name, path, len(texts) + least.sequences, total + least.characters, values)
            item_texts = task.texts(item, options)
            for text in item_texts:
                length = len(text) if type(text) is str else characters(text)
                if length > longest:
                    text_path = task.text_path(path, item_texts.index(text))
                    budget.check_text(length, text_path, self.tokenizer.max_length)
                total += length
            items.append(item)
            counts.append(len(item_texts))
            texts += item_texts
            if len(texts) > room or total > most:
                budget.check(name, path, len(texts), total)
        budget.instances += len(instances)
        budget.sequences += len(texts)
        budget.characters += total
        request.characters = total
        return request

    def _make_entries(self, request: RequestState, windows: Sequence[Sequence[Encoding]]) -> list[Entry[Encoding]]:
        """Makes one entry per encoding. ``windows`` has the encodings of each text.

        Raises:
            InvalidInput: a text has no tokens, or the task refuses an encoding.
            TooLarge: a text must not be truncated.
        """
        task, options, has_decode_cost = self.task, request.options, self._has_decode_cost
        entries: list[Entry[Encoding]] = []
        tokens, size, texts, needs_check = 0, 0, iter(windows), self._has_check
        has_complete, has_of_text = self._has_complete, self._has_of_text
        for item, count in zip(request.items, request.counts, strict=True):
            item_entries = []
            for number, encodings in enumerate(islice(texts, count)):
                text_item = task.of_text(item, number) if has_of_text else item
                text_entries = []
                for encoding in encodings:
                    if has_complete:
                        encoding = task.complete(text_item, encoding, options)
                    length, values = len(encoding.ids), task.answer_size(encoding, options)
                    if encoding.truncated or not length:
                        needs_check = True
                    tokens += length
                    size += values
                    cost = task.decode_cost(encoding, options) if has_decode_cost else values
                    text_entries.append(Entry(encoding, text_item, cost))
                entries += text_entries
                item_entries.append(text_entries)
            request.entries.append(item_entries)
        if needs_check:
            self._check_encodings(request)
        request.tokens, request.size = tokens, size
        if self._has_extra_outputs or request.query.tensors:
            request.size = self._full_size(request)
        return entries

    def _full_size(self, request: RequestState) -> int:
        """Returns the number of values in an answer with extra outputs, or in an answer as a tensor."""
        encodings, options = request.encodings(), request.options
        size = request.size + self.task.extra_size(encodings, options)
        if not request.query.tensors:
            return size
        return max(size, self.task.tensor_size(encodings, options))

    def _check_encodings(self, request: RequestState) -> None:
        """Counts truncated items. Raises RequestError if the model can't read an encoding."""
        task, truncated = self.task, set()
        for index, texts in enumerate(request.encodings()):
            path = (request.query.name, index)
            for number, windows in enumerate(texts):
                for encoding in windows:
                    if not encoding.ids:
                        raise InvalidInput(task.text_path(path, number), "at least one token", "none")
                    if encoding.truncated:
                        truncated.add(index)
                        if task.overflow(request.options) == "error":
                            raise ContextLengthExceeded(
                                task.text_path(path, number),
                                f"at most {len(encoding)} tokens, since the text must not be truncated "
                                "(--on_overflow=error, or truncation: false)",
                                "more",
                                limit=self.tokenizer.max_length,
                                counted=False,
                            )
                    task.check(encoding, path)
        if truncated:
            self._metrics.count_truncated(len(truncated))

    def _assemble(self, request: RequestState) -> Answers:
        """Makes the predictions of a request from the answers to its entries."""
        task, options, predictions = self.task, request.options, []
        for item, texts in zip(request.items, request.entries, strict=True):
            parts = [[entry.answer for entry in windows] for windows in texts]
            predictions.append(task.answer(item, parts, options))
        outputs = task.extra_outputs(request.encodings(), options) if self._has_extra_outputs else ()
        tensor = task.tensor(predictions, options) if request.query.tensors else None
        counts = [sum(map(_tokens, texts)) for texts in request.encodings()] if request.query.counts else ()
        return Answers(predictions, outputs, request.tokens, tensor, counts)


class RequestState:
    """One request in the pipeline.

    Attributes:
        items: the results of ``task.item``, one per instance.
        texts: the texts of all items.
        counts: the number of texts per item.
        characters: the total length of all texts.
        entries: the scheduler's entries by item, text and window.
        tokens: the number of tokens in all entries.
        size: the number of values in the answer.
    """

    __slots__ = ("characters", "counts", "entries", "items", "options", "query", "size", "texts", "tokens")

    def __init__(self, query: Query, options: Any) -> None:
        self.query = query
        self.options = options
        self.items: list[Any] = []
        self.texts: list[TextInput] = []
        self.counts: list[int] = []
        self.entries: list[list[list[Entry[Encoding]]]] = []
        self.characters = self.tokens = self.size = 0

    def encodings(self) -> list[list[list[Encoding]]]:
        """Returns the encodings by item, text and window."""
        return [[[entry.item for entry in windows] for windows in texts] for texts in self.entries]


def _tokens(windows: Sequence[Encoding]) -> int:
    """Counts the tokens of a text."""
    return sum(map(len, windows))


def _overrides(task: Task[Any, Any, Any], name: str) -> bool:
    """Whether a task overrides a method of Task."""
    return getattr(type(task), name) is not getattr(Task, name)
