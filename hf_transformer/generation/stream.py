"""Generation of one request's texts, as a single stream with one deadline.

    steps of a generator --SequenceAssembler--> pieces of one text --Generation--> pieces of all texts of a request

Each text has a task that appends its pieces to a queue, and the API reads the queue. A slow reader fills the queue,
which pauses the tasks and the model.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import replace
from time import perf_counter
from typing import Self

from hf_transformer.errors import PREDICTORS, CallersDeadline, PredictorError, PredictorTimeout, RequestError
from hf_transformer.generation.detokenizer import Vocabulary
from hf_transformer.generation.stops import StopSearch
from hf_transformer.generation.types import NEUTRAL, Generator, Piece, Prompt, Sampling, Step, TokenScore, TokenText
from hf_transformer.generation.verification import BrokenForm, Verifier
from hf_transformer.observability.metrics import ModelMetrics
from hf_transformer.types.request import Context, RequestBudget

MAX_QUEUED_PIECES = 8
"""Maximum number of unread pieces of a request. The model pauses while the queue is full. It also bounds the work for a
request in one turn of the event loop: with 32, new requests to an overloaded service waited for seconds."""
LOGPROB_BYTES = 600
"""Bytes of a token with its log probability, with its JSON."""
CHARACTERS_PER_TOKEN = 4
"""Estimate for admission control while a text model streams. The exact token count is known at the end."""


class SequenceAssembler:
    """Converts the steps of one sequence into pieces of text: detokenizes, and searches for stop strings.

    Args:
        key: indices of the prompt and of the choice.
        prefix: text to prepend to the first piece (echo). Its tokens' log probabilities then include an end token's,
            so that their number does not depend on the model's choice.
        continues: whether the text continues the prompt, which determines the space between them.

    Attributes:
        count: number of new tokens so far, including tokens of buffered text.
        prompt_tokens: tokens for the first piece, see ``read_prompt``.
        parts: the text so far, if the model returns text and no ids.
        written: the new text so far, if it is to be verified; else None.
        is_cut: whether a stop string ended the text.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt: Prompt,
        sampling: Sampling,
        key: tuple[int, int],
        prefix: str | None = None,
        continues: bool = True,
    ) -> None:
        self._vocabulary = vocabulary
        self._text_and_bytes = vocabulary.text_and_bytes
        self._detokenizer = vocabulary.continue_text(prompt.ids if continues else (), sampling.shown_tokens)
        self._stops = StopSearch(sampling.stop)
        self.prompt = prompt
        self.sampling = sampling
        self.key = key
        self.prefix = prefix or ""
        self._echoes = prefix is not None
        self._start = len(self.prefix)
        self.prompt_tokens: Sequence[TokenText] = ()
        self._waiting: deque[tuple[int, TokenScore]] = deque()
        """Tokens of buffered text, each with its offset."""
        self._uncounted = self._detokenized = self._released = self._offset = 0
        self.count = 0
        self.parts: list[str] = []
        self.written: list[str] | None = None
        self.is_cut = False

    def add(self, step: Step) -> Piece | None:
        """Adds a step. Returns the new piece, or None if all text is buffered. The last piece has ``finish``."""
        unsearched, text = self._text(step)
        finish = step.finish
        text, stopped = self._stops.push(text)
        if stopped:
            finish, self.is_cut = "stop", True
        elif finish is not None:
            text += self._stops.held
        text = unsearched + text
        if self.written is not None:
            self.written.append(text)
        self._released += len(text)
        tokens = self._tokens(is_end=finish is not None and not stopped) if self._waiting else ()
        prompt_tokens, self.prompt_tokens = self.prompt_tokens, ()
        if not text and not tokens and finish is None and not self.prefix and not prompt_tokens:
            return None
        text, self.prefix = self.prefix + text, ""
        count, self._uncounted = self._uncounted, 0
        return Piece(*self.key, text, tokens, count, finish, prompt_tokens, self._stops.matched)

    def read_prompt(self) -> None:
        """Makes ``prompt_tokens`` from the prompt's scores. May run in a thread."""
        prompt, shift, tokens = self.prompt, 0, []
        reader = SequenceAssembler(self._vocabulary, prompt, NEUTRAL, self.key, continues=False)
        piece = reader.add(Step(prompt.ids, scores=prompt.scores, finish="length"))
        for token in () if piece is None else piece.tokens:
            offset = token.offset + shift
            if self._vocabulary.is_special(token.id) and prompt.text.startswith(token.text, offset):
                shift += len(token.text)  # the text of token ids contains special tokens, decoded text does not
            tokens.append(replace(token, offset=min(offset, len(prompt.text))))
        self.prompt_tokens = tokens

    def _text(self, step: Step) -> tuple[str, str]:
        """Splits the step's text at ``min_tokens``. Stop strings apply only to the second part."""
        if step.text:
            self.parts.append(step.text)
            return "", step.text
        push, ids = self._detokenizer.push, step.ids
        unsearched = self.sampling.min_tokens - self.count
        self.count += len(ids)
        self._uncounted += len(ids)
        if step.scores:
            texts = []
            for token, score in zip(ids, step.scores[: len(ids)], strict=True):
                texts.append(push(token))
                self._waiting.append((self._token_offset(token, len(texts[-1])), score))
            if self._echoes and len(step.scores) > len(ids):
                self._waiting.append((sys.maxsize, step.scores[-1]))  # an end token, at the end of the text
        else:
            texts = [push(token) for token in ids]
        if step.finish is not None and not self.parts:
            texts.append(self._detokenizer.flush())
        if unsearched <= 0 or not ids:
            return "", "".join(texts)
        return "".join(texts[:unsearched]), "".join(texts[unsearched:])

    def _token_offset(self, token: int, new: int) -> int:
        """Returns the offset of the latest token, which added ``new`` characters to the text.

        The offset is the end of the text, including buffered characters, minus the token's length. A part of a
        character starts at the end of the last complete character.
        """
        before, self._detokenized = self._detokenized, self._detokenized + new
        end = self._detokenized + self._detokenizer.held
        self._offset = max(self._offset, before, end - len(self._text_and_bytes(token)[0]))
        return self._offset

    def _tokens(self, is_end: bool) -> Sequence[TokenText]:
        """Tokens with at least part of their text released. Drops the tokens after a stop string."""
        waiting, text_and_bytes = self._waiting, self._text_and_bytes
        tokens = []
        while waiting and (is_end or waiting[0][0] < self._released):
            offset, score = waiting.popleft()
            top = [
                TokenText(*text_and_bytes(token), logprob, id=token, rank=rank)
                for rank, (token, logprob) in enumerate(score.top, 1)
            ]
            # The offset may include trailing spaces that the cleanup has removed.
            offset = self._start + min(offset, self._released)
            tokens.append(TokenText(*text_and_bytes(score.id), score.logprob, top, offset, score.id, score.rank))
        return tokens


class Generation:
    """Stream of one request's pieces. Enter the context and iterate within the same task.

    The pieces of all sequences are interleaved; each sequence's last piece has ``finish``. On exit, the context cancels
    the remaining calls to the predictor, and waits until they end.

    Args:
        sequences: assemblers in the order of prompts and choices.
        executor: reads and renders the log probabilities of prompts.
        count_text: counts the tokens of a text if the generator doesn't.
        verifier: verifies the texts of a request with a constraint; None to trust the predictor.
        timeout: time limit in seconds for all sequences together, from the creation of this object.
        budget: counts the log probabilities of a whole answer; None for no limit.

        Attributes:
            prompt_tokens: number of tokens of all prompts.
            completion_tokens: number of new tokens of all sequences so far.
    """

    def __init__(
        self,
        sequences: Sequence[SequenceAssembler],
        generator: Generator,
        context: Context,
        metrics: ModelMetrics,
        executor: Executor,
        *,
        prompt_tokens: int,
        count_text: Callable[[str], Awaitable[int]],
        timeout: float,
        verifier: Verifier | None = None,
        budget: RequestBudget | None = None,
        prepared: object = None,
    ) -> None:
        self._sequences = sequences
        self._generator = generator
        self._context = context
        self._metrics = metrics.generation
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = self._uncounted_characters = 0
        self.executor = executor
        self._count_text = count_text
        self._timeout = timeout
        self._verifier = verifier
        self._budget = budget
        self._prepared = prepared
        self._created = perf_counter()
        self._has_begun = False
        self._unfinished = self._unread = len(sequences)
        self._tasks: list[asyncio.Task[None]] = []
        self._pieces: deque[Piece] = deque()
        self._finished: dict[tuple[int, int], str] = {}  # the reasons of texts, by prompt and choice
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._reader: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        """Error to raise after the queued pieces have been read."""
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._expires = self._loop.time() + timeout
        self._timer: asyncio.TimerHandle | None = None
        self._on_success: Callable[[Context], None] = lambda _: None
        self._on_failure: Callable[[RequestError], None] = lambda _: None

    def set_callbacks(self, on_success: Callable[[Context], None], on_failure: Callable[[RequestError], None]) -> None:
        """Sets two callbacks: ``on_success`` for a completely read stream, ``on_failure`` for a predictor's error."""
        self._on_success, self._on_failure = on_success, on_failure

    # Reading

    def prompt_length(self, sequence: int) -> int:
        """Number of tokens of a sequence's prompt. ``sequence`` is its index, in the order of prompts and choices."""
        return len(self._sequences[sequence].prompt.ids)

    async def __aenter__(self) -> Self:
        self._tasks = [self._loop.create_task(self._run(sequence)) for sequence in self._sequences]
        deadline = self._context.deadline
        is_callers = deadline is not None and deadline < self._expires
        expires = deadline if deadline is not None and is_callers else self._expires
        self._timer = self._loop.call_at(expires, self._expire, is_callers)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._is_over = True
        self._pieces.clear()
        self._error = None  # breaks a reference cycle: the error's traceback refers to this object
        if self._timer is not None:
            self._timer.cancel()
        self._cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._context.operation is not None:
            self._context.operation.output_tokens = self.completion_tokens
            self._context.operation.finish_reasons = [self._finished[key] for key in sorted(self._finished)]
        self._prepared = None
        self._tasks = []  # breaks a reference cycle through the errors of tasks

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        """Returns the next piece of any sequence. An error in one sequence ends all sequences."""
        pieces = self._pieces
        while not pieces:
            if self._error is not None:
                if isinstance(self._error, PREDICTORS):
                    self._on_failure(self._error)
                raise self._error
            if self._is_over or not self._unread:
                if not self._is_over:
                    self._on_success(self._context)
                self._is_over = True
                raise StopAsyncIteration
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._take()

    def take_ready(self) -> Piece | None:
        """Returns the next piece if it is there already, else None; ``anext`` raises errors and waits."""
        return self._take() if self._pieces else None

    def _take(self) -> Piece:
        piece = self._pieces.popleft()
        if len(self._pieces) == MAX_QUEUED_PIECES - 1:
            self._has_room.set()
        if piece.finish is not None:
            self._unread -= 1
        return piece

    async def collect(self) -> list[list[Piece]]:
        """Reads the whole stream. Returns one piece per text, by prompt and choice. Raises RequestError."""
        pieces: dict[tuple[int, int], list[Piece]] = {sequence.key: [] for sequence in self._sequences}
        each = 1 + (self._sequences[0].sampling.logprobs or 0)
        async for piece in self:
            if piece.tokens and self._budget is not None:
                count = len(piece.tokens) * each
                self._budget.add_values(count, count * LOGPROB_BYTES, ("parameters", "logprobs"))
            pieces[piece.prompt, piece.choice].append(piece)
        texts: list[list[Piece]] = [[] for _ in range(self._sequences[-1].key[0] + 1)]
        for (prompt, choice), parts in pieces.items():
            text = "".join([part.text for part in parts])
            tokens, count = [token for part in parts for token in part.tokens], sum(part.count for part in parts)
            last, prompt_tokens = parts[-1], parts[0].prompt_tokens
            texts[prompt].append(Piece(prompt, choice, text, tokens, count, last.finish, prompt_tokens, last.stop))
        return texts

    def _expire(self, is_callers: bool) -> None:
        """Ends all sequences at the caller's deadline or the service's timeout, even while the client reads nothing."""
        limit = f"{self._timeout:g} s (--predictor_request_timeout_seconds)"
        error: RequestError
        if is_callers:
            error = CallersDeadline("the text was not finished before the caller's deadline")
        elif self._reader is not None:
            error = PredictorTimeout(f"the text was not finished in {limit}, including the time in the queue")
        else:
            error = CallersDeadline(f"the client did not read the text in {limit}")
        self._pieces.clear()
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._cancel()
        self._wake_reader()

    def _cancel(self) -> None:
        for task in self._tasks:
            # A second cancellation would interrupt the cleanup of the task's call.
            if not task.cancelling() and task is not asyncio.current_task():
                task.cancel()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # Generating: a task per sequence

    async def _run(self, sequence: SequenceAssembler) -> None:
        """Queues all pieces of one sequence. An error ends all other sequences."""
        finish, generator, tokens = "error", self._generator, len(sequence.prompt.ids)
        self._metrics.begin()
        generator.texts += 1
        generator.tokens += tokens
        try:
            last = await self._generate(sequence)
            finish = last.finish or finish
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                finish = "abandoned"
                del task
                raise
            # The predictor's call was cancelled, not this task.
            self._fail(PredictorError("the call to the predictor was cancelled"))
            return
        except Exception as error:
            self._fail(error)
            return
        finally:
            self._metrics.end(finish)
            generator.texts -= 1
            generator.tokens -= tokens
        self._unfinished -= 1
        self._finished[sequence.key] = finish
        if not self._unfinished:
            self._context.predict = perf_counter() - self._created
            if self._timer is not None:
                self._timer.cancel()
        await self._wait_for_room()
        self._put(last)

    async def _wait_for_room(self) -> None:
        """Waits until the queue is not full."""
        while len(self._pieces) >= MAX_QUEUED_PIECES:
            self._has_room.clear()
            await self._has_room.wait()

    def _put(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._wake_reader()

    async def _generate(self, sequence: SequenceAssembler) -> Piece:
        """Queues all pieces of one sequence except the last, and returns the last one.

        The call to the predictor can therefore end before a slow reader reads the last piece.
        """
        sampling, metrics = sequence.sampling, self._metrics
        if sampling.max_tokens == 0 and sampling.prompt_logprobs is None:
            return Piece(*sequence.key, sequence.prefix, finish="length")
        first = last = 0.0
        if self._verifier is not None:
            sequence.written = []
        async with aclosing(self._generator.generate(sequence.prompt, sampling, self._context)) as steps:
            async for step in steps:
                now = perf_counter()
                if is_first := not first:
                    first = now
                    if not self._has_begun:
                        self._has_begun = True
                        metrics.first_token.observe(now - self._context.arrived)
                else:
                    metrics.inter_token.observe(now - last)
                last = now
                if is_first and sampling.prompt_logprobs is not None:
                    await self._loop.run_in_executor(self.executor, sequence.read_prompt)
                if step.ids:
                    self._count(len(step.ids))
                elif step.text:
                    self._count(0, len(step.text))
                piece = sequence.add(step)
                if piece is None:
                    continue
                if not self._context.predict:
                    self._context.predict = perf_counter() - self._created
                if piece.finish is not None:
                    break
                if len(self._pieces) >= MAX_QUEUED_PIECES:
                    await self._wait_for_room()
                self._put(piece)
            else:
                raise PredictorError("the predictor ended a text without a finish reason")
        if sequence.parts and not sequence.count:  # the model returns text only
            text = "".join(sequence.parts)
            piece.count = await self._count_text(text) if step.total is None else step.total
            self._count(piece.count, -len(text))
        if piece.finish == "stop" and not sequence.is_cut:
            await self._verify(sequence)
        count = sequence.count or piece.count
        if count > 1 and not is_first:  # a single step has no time between tokens
            metrics.per_token.observe((last - first) / (count - 1))
        return piece

    async def _verify(self, sequence: SequenceAssembler) -> None:
        """Raises BrokenForm for a complete text without the form that the request asks for."""
        constraint, written = sequence.sampling.constraint, sequence.written
        if self._verifier is None or constraint is None or written is None:
            return
        try:
            path, text = sequence.sampling.path("constraint"), "".join(written)
            if (make := sequence.sampling.reasoning) is not None:
                prefix = make()
                text = prefix.push(text)[1] + prefix.flush()[1]
            await self._verifier.verify(constraint, text, path)
        except BrokenForm:
            self._metrics.broken_forms += 1
            raise

    def _count(self, tokens: int, characters: int = 0) -> None:
        """Counts new tokens, or ``characters`` of text that is not tokenized yet.

        Only admission control uses the estimate for these characters, because counters can't decrease.
        """
        self.completion_tokens += tokens
        self._metrics.generated_tokens += tokens
        self._uncounted_characters += characters
        ticket = self._context.ticket
        if ticket is not None:
            estimate = self._uncounted_characters // CHARACTERS_PER_TOKEN
            ticket.charge(self.prompt_tokens + self.completion_tokens + estimate)
