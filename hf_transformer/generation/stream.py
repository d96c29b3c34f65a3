"""The texts of one request while they are generated: one stream of pieces, one deadline, one end.

    steps of a generator --Assembler--> pieces of one text --Generation--> pieces of all texts of a request

Each text has a task that queues its pieces, and the API reads the queue. When a slow reader lets it fill up, the tasks
wait, and so does the model.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from time import perf_counter
from types import TracebackType
from typing import Self

from hf_transformer.errors import PREDICTORS, CallersDeadline, PredictorError, PredictorTimeout, RequestError
from hf_transformer.generation.detokenizer import Vocabulary
from hf_transformer.generation.stops import StopSearch
from hf_transformer.generation.types import (
    FinishReason,
    Generator,
    Piece,
    Prompt,
    Sampling,
    Step,
    TokenScore,
    TokenText,
)
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types import Context

QUEUED_PIECES = 32
"""Pieces of a request that may wait for a slow reader; then the model waits too."""
CHARACTERS_PER_TOKEN = 4
"""About how long a token's text is, as admission assumes too: the tokens of a model that gives text alone are only
counted at its end."""

CountText = Callable[[str], Awaitable[int]]
"""How many tokens a text has."""


class Assembler:
    """Puts the text of one sequence (one continuation of one prompt) together: detokenizes, ends it before stop
    strings, and shows its tokens.

    Args:
        place: the number of the prompt and of the choice.
        before: the beginning of the text (echo).
        continues: whether the new text goes on from the prompt's last token, which decides on a space between them.

    Attributes: ``prompt`` and ``sampling``, what the generator is asked for; ``place``; ``count``, new tokens so far,
    those that are held back included; ``written``, the whole text so far where the model gives text and no ids.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt: Prompt,
        sampling: Sampling,
        place: tuple[int, int],
        before: str = "",
        continues: bool = True,
    ) -> None:
        self._show = vocabulary.show
        self._detokenizer = vocabulary.continue_text(prompt.ids if continues else ())
        self._stops = StopSearch(sampling.stop)
        self.prompt = prompt
        self.sampling = sampling
        self.place = place
        self._before = before
        self._waiting: deque[tuple[int, TokenScore]] = deque()
        """Tokens that are not shown yet, each with its offset."""
        self._uncounted = self._known = self._given = self._offset = 0
        self.count = 0
        self.written: list[str] = []

    @property
    def text_only(self) -> bool:
        """Whether the tokens are still to be counted, because the model gives text alone."""
        return not self.count and bool(self.written)

    def add(self, step: Step) -> Piece | None:
        """The new piece of text; None while all of it is held back. The last piece has ``finish``."""
        unsearched, text = self._text(step)
        finish = step.finish
        text, stopped = self._stops.push(text)
        if stopped:
            finish = "stop"
        elif finish is not None:
            text += self._stops.flush()
        text = unsearched + text
        self._given += len(text)
        tokens = self._tokens(all_of_them=finish is not None and not stopped) if self._waiting else ()
        if not text and not tokens and finish is None and not self._before:
            return None
        return self._piece(text, tokens, finish)

    def nothing(self) -> Piece:
        """The only piece of a text that may not have any new token."""
        return self._piece("", (), "length")

    def _piece(self, text: str, tokens: Sequence[TokenText], finish: FinishReason | None) -> Piece:
        text, self._before = self._before + text, ""
        count, self._uncounted = self._uncounted, 0
        return Piece(*self.place, text, tokens, count, finish)

    def _text(self, step: Step) -> tuple[str, str]:
        """The step's text, in two parts: before the text may end (min_tokens), and the rest."""
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
        """The offset of a token that has just made ``new`` characters certain: as many before the end as it has itself,
        those that are held back included. Part of a character has fewer, or none yet, and stands where the last
        complete one ends."""
        before, self._known = self._known, self._known + new
        end = self._known + self._detokenizer.held
        self._offset = max(self._offset, before, end - len(self._show(number)[0]))
        return self._offset

    def _tokens(self, all_of_them: bool) -> Sequence[TokenText]:
        """The tokens whose text has begun to be given; of a text that was stopped, no others are shown."""
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

    Leaving it, at whatever moment, ends the calls to the predictor that still run, and waits for that. The deadline
    counts from its making.

    Args:
        sequences: in the order of prompts and choices.
        count_text: counts the tokens of a text whose generator gives none.
        timeout: seconds for all of them together.

    Attributes: ``prompt_tokens`` of all prompts together; ``completion_tokens``, new ones of all sequences so far.
    """

    def __init__(
        self,
        sequences: Sequence[Assembler],
        generator: Generator,
        context: Context,
        metrics: Metrics,
        *,
        prompt_tokens: int,
        count_text: CountText,
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
        self._succeeded: Callable[[Context], None] | None = None
        self._failed: Callable[[RequestError], None] | None = None
        self._left: Callable[[], None] | None = None

    def tell(
        self,
        succeeded: Callable[[Context], None],
        failed: Callable[[RequestError], None],
        left: Callable[[], None],
    ) -> None:
        """Sets callbacks, before it is entered.

        Args:
            succeeded: called with the request's context once all of it was given.
            failed: called with an error of the predictor's that has ended it.
            left: called in the end, once.
        """
        self._succeeded, self._failed, self._left = succeeded, failed, left

    # Reading

    async def __aenter__(self) -> Self:
        self._tasks = [self._loop.create_task(self._run(one)) for one in self._sequences]
        deadline = self._context.deadline
        own = deadline is not None and deadline < self._expires
        self._timer = self._loop.call_at(deadline if deadline is not None and own else self._expires, self._expire, own)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        finally:
            left, self._left = self._left, None
            if left is not None:
                left()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        """The next piece of any of the sequences.

        Raises:
            RequestError: one of them has failed, and with it the whole request.
        """
        pieces = self._pieces
        while not pieces:
            if self._error is not None:
                raise self._noted(self._error)
            if self._is_over or not self._unread:
                if not self._is_over and self._succeeded is not None:
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
        pieces: dict[tuple[int, int], list[Piece]] = {one.place: [] for one in self._sequences}
        async for piece in self:
            pieces[piece.prompt, piece.choice].append(piece)
        found: list[list[Piece]] = [[] for _ in range(self._sequences[-1].place[0] + 1)]
        for (prompt, _), parts in pieces.items():
            found[prompt].append(Piece.joined(parts))
        return found

    async def close(self) -> None:
        """Ends the calls to the predictor that still run, and waits for that; the second time it does nothing."""
        self._is_over = True
        self._pieces.clear()
        self._error = None  # an error refers to the frames that refer to this object
        if self._timer is not None:
            self._timer.cancel()
        self._cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []

    def _noted(self, error: Exception) -> Exception:
        """The same error, once its callback has heard of it."""
        if self._failed is not None and isinstance(error, PREDICTORS):
            self._failed(error)
        return error

    def _expire(self, own: bool) -> None:
        """The time is over, by the caller's ``own`` deadline or by the service's. The predictor's work ends at once,
        also while the reader is busy with a client that does not read."""
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
        """Ends all sequences with an error."""
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

    async def _run(self, sequence: Assembler) -> None:
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

    async def _write(self, sequence: Assembler) -> Piece:
        """Queues the pieces of one sequence but the last, and returns that. The call to the predictor is over then: a
        slow reader must not keep it open.

        Raises:
            RequestError: the generator's errors, and PredictorError for a sequence without an end.
        """
        sampling, metrics = sequence.sampling, self._metrics
        if sampling.max_tokens == 0:
            return sequence.nothing()
        first = last = 0.0
        async with aclosing(self._generator.generate(sequence.prompt, sampling, self._context)) as steps:
            async for step in steps:
                now = perf_counter()
                at_once = not first
                if not at_once:
                    metrics.between.observe(now - last)
                else:
                    first = now
                    if not self._has_begun:
                        self._has_begun = True
                        metrics.first_token.observe(now - self._context.arrived)
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
        if sequence.text_only:
            text = "".join(sequence.written)
            piece.count = await self._count_text(text) if step.total is None else step.total
            self._count(piece.count, -len(text))
        count = sequence.count or piece.count
        if count > 1 and not at_once:  # else it says nothing about the time between tokens
            metrics.per_token.observe((last - first) / (count - 1))
        return piece

    def _count(self, tokens: int, characters: int = 0) -> None:
        """Counts new tokens. Of text whose tokens are not known yet, admission alone counts the ``characters``; they
        are taken off when the tokens are known, since the other numbers only ever add up."""
        self.completion_tokens += tokens
        self._metrics.generated_tokens += tokens
        self._uncounted += characters
        place = self._context.place
        if place is not None:
            expected = self._uncounted // CHARACTERS_PER_TOKEN
            place.charge(self.prompt_tokens + self.completion_tokens + expected)
