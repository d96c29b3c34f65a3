"""The texts of one request while they are generated: one stream of pieces, one deadline, one end.

    steps of a generator --SequenceAssembler--> pieces of one text --Generation--> pieces of all texts of a request

Each text has a task that queues its pieces, and the API reads the queue. While a slow reader leaves it full, the tasks
and the model wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from time import perf_counter
from typing import Self

from hf_transformer.errors import PREDICTORS, CallersDeadline, PredictorError, PredictorTimeout, RequestError
from hf_transformer.generation.detokenizer import Vocabulary
from hf_transformer.generation.stops import StopSearch
from hf_transformer.generation.types import Generator, Piece, Prompt, Sampling, Step, TokenScore, TokenText
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types.request import Context

QUEUED_PIECES = 32
"""Pieces of a request that may wait for a slow reader; then the model waits too."""
CHARACTERS_PER_TOKEN = 4
"""The estimate of admission, for models that give text alone: their tokens are counted at the end."""


class SequenceAssembler:
    """Assembles the text of one sequence (one continuation of one prompt): detokenizes, searches for stop strings, and
    shows the tokens.

    ``place`` is the number of the prompt and of the choice. ``before`` begins the text (echo), as part of the first
    piece. ``continues`` says that the new text follows the prompt's last token, which decides on a space between them.

    Attributes: ``count``, new tokens so far, held back or not; ``written``, the whole text so far if the model gives
    text and no ids.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt: Prompt,
        sampling: Sampling,
        key: tuple[int, int],
        before: str = "",
        continues: bool = True,
    ) -> None:
        self._show = vocabulary.show
        self._detokenizer = vocabulary.continue_text(prompt.ids if continues else ())
        self._stops = StopSearch(sampling.stop)
        self.prompt = prompt
        self.sampling = sampling
        self.key = key
        self.before = before
        self._waiting: deque[tuple[int, TokenScore]] = deque()
        """Tokens that are not shown yet, each with its offset."""
        self._uncounted = self._known = self._given = self._offset = 0
        self.count = 0
        self.written: list[str] = []

    def add(self, step: Step) -> Piece | None:
        """The new piece of text; None while all of it is held back. The last piece has ``finish``."""
        unsearched, text = self._text(step)
        finish = step.finish
        text, stopped = self._stops.push(text)
        if stopped:
            finish = "stop"
        elif finish is not None:
            text += self._stops.held
        text = unsearched + text
        self._given += len(text)
        tokens = self._tokens(all_of_them=finish is not None and not stopped) if self._waiting else ()
        if not text and not tokens and finish is None and not self.before:
            return None
        text, self.before = self.before + text, ""
        count, self._uncounted = self._uncounted, 0
        return Piece(*self.key, text, tokens, count, finish)

    def _text(self, step: Step) -> tuple[str, str]:
        """The step's text in two parts: before a stop string may end it (min_tokens), and the rest."""
        push, ids = self._detokenizer.push, step.ids
        earlier = self.sampling.min_tokens - self.count
        self.count += len(ids)
        self._uncounted += len(ids)
        if step.text:
            self.written.append(step.text)
            parts = [step.text]
        elif step.scores:
            parts = []
            for number, score in zip(ids, step.scores, strict=True):
                parts.append(push(number))
                self._waiting.append((self._begin(number, len(parts[-1])), score))
        else:
            parts = [push(number) for number in ids]
        if step.finish is not None and not self.written:
            parts.append(self._detokenizer.flush())
        if earlier <= 0 or not ids:
            return "", "".join(parts)
        return "".join(parts[:earlier]), "".join(parts[earlier:])

    def _begin(self, number: int, new: int) -> int:
        """The offset of a token that has just made ``new`` characters certain: its own length before the end, held back
        characters included. Part of a character stands where the last complete one ends."""
        before, self._known = self._known, self._known + new
        end = self._known + self._detokenizer.held
        self._offset = max(self._offset, before, end - len(self._show(number)[0]))
        return self._offset

    def _tokens(self, all_of_them: bool) -> Sequence[TokenText]:
        """The tokens whose text has begun to be given. The others of a stopped text are never shown."""
        waiting, show = self._waiting, self._show
        tokens = []
        while waiting and (all_of_them or waiting[0][0] < self._given):
            offset, score = waiting.popleft()
            top = tuple(TokenText(*show(number), logprob) for number, logprob in score.top)
            # Spaces that the end has cleaned up were counted.
            tokens.append(TokenText(*show(score.id), score.logprob, top, min(offset, self._given)))
        return tokens


class Generation:
    """One request's stream. Enter it, then iterate, in one task: pieces of all sequences come interleaved, and the last
    one of each has ``finish``.

    Leaving it ends the calls to the predictor that still run, and waits for that. The time, ``timeout`` seconds for all
    ``sequences`` together, runs from its creation. They are in the order of prompts and choices. ``count_text`` counts
    the tokens of a text if its generator doesn't.

    Attributes: ``prompt_tokens`` of all prompts together; ``completion_tokens`` of all sequences so far.
    """

    def __init__(
        self,
        sequences: Sequence[SequenceAssembler],
        generator: Generator,
        context: Context,
        metrics: Metrics,
        *,
        prompt_tokens: int,
        count_text: Callable[[str], Awaitable[int]],
        timeout: float,
    ) -> None:
        self._sequences = sequences
        self._generator = generator
        self._context = context
        self._metrics = metrics.generation
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = self._uncounted = 0
        self._count_text = count_text
        self._timeout = timeout
        self._made = perf_counter()
        self._has_begun = False
        self._unwritten = self._unread = len(sequences)
        self._tasks: list[asyncio.Task[None]] = []
        self._pieces: deque[Piece] = deque()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._reader: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        """Raised once the pieces before it are read."""
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._expires = self._loop.time() + timeout
        self._timer: asyncio.TimerHandle | None = None
        self._succeeded: Callable[[Context], None] = lambda _: None
        self._failed: Callable[[RequestError], None] = lambda _: None

    def tell(self, succeeded: Callable[[Context], None], failed: Callable[[RequestError], None]) -> None:
        """Sets callbacks: when all of it was read, and for an error of the predictor that ended it."""
        self._succeeded, self._failed = succeeded, failed

    # Reading

    def prompt_length(self, sequence: int) -> int:
        """The tokens of the prompt of a sequence, by its number in the order of prompts and choices."""
        return len(self._sequences[sequence].prompt.ids)

    async def __aenter__(self) -> Self:
        self._tasks = [self._loop.create_task(self._run(one)) for one in self._sequences]
        deadline = self._context.deadline
        own = deadline is not None and deadline < self._expires
        self._timer = self._loop.call_at(deadline if deadline is not None and own else self._expires, self._expire, own)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._is_over = True
        self._pieces.clear()
        self._error = None  # an error refers to the frames that refer to this object
        if self._timer is not None:
            self._timer.cancel()
        self._cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []  # a task's error refers to its frames, and these to this object

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        """The next piece of any of the sequences. Raises RequestError if one of them has failed, and with it all."""
        pieces = self._pieces
        while not pieces:
            if self._error is not None:
                if isinstance(self._error, PREDICTORS):
                    self._failed(self._error)
                raise self._error
            if self._is_over or not self._unread:
                if not self._is_over:
                    self._succeeded(self._context)
                self._is_over = True
                raise StopAsyncIteration
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        piece = pieces.popleft()
        if len(pieces) == QUEUED_PIECES - 1:
            self._has_room.set()
        if piece.finish is not None:
            self._unread -= 1
        return piece

    async def collect(self) -> list[list[Piece]]:
        """The whole continuations, by prompt and choice. Raises RequestError as iterating does."""
        pieces: dict[tuple[int, int], list[Piece]] = {one.key: [] for one in self._sequences}
        async for piece in self:
            pieces[piece.prompt, piece.choice].append(piece)
        found: list[list[Piece]] = [[] for _ in range(self._sequences[-1].key[0] + 1)]
        for (prompt, choice), parts in pieces.items():
            text = "".join([one.text for one in parts])
            tokens, count = [token for one in parts for token in one.tokens], sum(one.count for one in parts)
            found[prompt].append(Piece(prompt, choice, text, tokens, count, parts[-1].finish))
        return found

    def _expire(self, own: bool) -> None:
        """Ends all at the caller's ``own`` deadline or the service's, even while a client does not read."""
        limit = f"{self._timeout:g} s (--predictor_request_timeout_seconds)"
        late: RequestError
        if own:
            late = CallersDeadline("the text was not finished before the caller's deadline")
        elif self._reader is not None:
            late = PredictorTimeout(f"the text was not finished in {limit}, waiting for its turn included")
        else:
            late = CallersDeadline(f"the text was written, and not read in {limit}")
        self._pieces.clear()
        self._fail(late)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._cancel()
        self._wake()

    def _cancel(self) -> None:
        for task in self._tasks:
            # A second cancellation would interrupt the end of its call.
            if not task.cancelling() and task is not asyncio.current_task():
                task.cancel()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # Writing: a task per sequence

    async def _run(self, sequence: SequenceAssembler) -> None:
        """Queues all pieces of one sequence. Its error ends the others."""
        ending = "error"
        self._metrics.begin()
        try:
            last = await self._write(sequence)
            ending = last.finish or ending
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                ending = "abandoned"
                del task
                raise
            # Something that the generator waited for was cancelled.
            self._fail(PredictorError("the call to the predictor was cancelled"))
            return
        except Exception as error:
            self._fail(error)
            return
        finally:
            self._metrics.end(ending)
        self._unwritten -= 1
        if not self._unwritten:
            self._context.predict = perf_counter() - self._made
            if self._timer is not None:
                self._timer.cancel()
        await self._put(last)

    async def _put(self, piece: Piece) -> None:
        """Queues a piece, once there is room."""
        while len(self._pieces) >= QUEUED_PIECES:
            self._has_room.clear()
            await self._has_room.wait()
        self._pieces.append(piece)
        self._wake()

    async def _write(self, sequence: SequenceAssembler) -> Piece:
        """Queues the pieces of one sequence but the last, and returns that. The call to the predictor is over then: a
        slow reader must not keep it open."""
        sampling, metrics = sequence.sampling, self._metrics
        if sampling.max_tokens == 0:
            return Piece(*sequence.key, sequence.before, finish="length")
        first = last = 0.0
        async with aclosing(self._generator.generate(sequence.prompt, sampling, self._context)) as steps:
            async for step in steps:
                now = perf_counter()
                if at_once := not first:
                    first = now
                    if not self._has_begun:
                        self._has_begun = True
                        metrics.first_token.observe(now - self._context.arrived)
                else:
                    metrics.inter_token.observe(now - last)
                last = now
                if step.ids:
                    self._count(len(step.ids))
                elif step.text:
                    self._count(0, len(step.text))
                piece = sequence.add(step)
                if piece is None:
                    continue
                if not self._context.predict:
                    self._context.predict = perf_counter() - self._made
                if piece.finish is not None:
                    break
                await self._put(piece)
            else:
                raise PredictorError("the predictor ended a text without saying why it is over")
        if sequence.written and not sequence.count:  # the model gives text alone
            text = "".join(sequence.written)
            piece.count = await self._count_text(text) if step.total is None else step.total
            self._count(piece.count, -len(text))
        count = sequence.count or piece.count
        if count > 1 and not at_once:  # else it says nothing about the time between tokens
            metrics.per_token.observe((last - first) / (count - 1))
        return piece

    def _count(self, tokens: int, characters: int = 0) -> None:
        """Counts new tokens. Admission alone estimates those of new text by its ``characters``, until they are known:
        the other numbers can't be taken back."""
        self.completion_tokens += tokens
        self._metrics.generated_tokens += tokens
        self._uncounted += characters
        place = self._context.ticket
        if place is not None:
            expected = self._uncounted // CHARACTERS_PER_TOKEN
            place.charge(self.prompt_tokens + self.completion_tokens + expected)
