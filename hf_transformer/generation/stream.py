"""The sequences of one request while they are generated: one stream of pieces, one deadline, one end.

Each sequence has a task that queues its pieces, and the API reads the queue. When a slow reader lets it fill up, the
tasks wait, and so does the model.
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
from hf_transformer.generation.sequence import SequencePlan
from hf_transformer.generation.types import Generator, Piece
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types import Context

QUEUED_PIECES = 32
"""Pieces of a request that may wait for a slow reader; then the model waits too."""
CHARACTERS_PER_TOKEN = 4
"""About how long a token's text is, as admission assumes too: the tokens of a model that gives text alone are only
counted at its end."""

CountText = Callable[[str], Awaitable[int]]
"""How many tokens a text has."""


class Usage:
    """The tokens of one request, for its admission, for the client and for the metrics.

    Attributes: ``prompt_tokens`` of all prompts together; ``completion_tokens``, new ones of all sequences so far.
    """

    def __init__(self, context: Context, metrics: Metrics, prompt_tokens: int) -> None:
        self._context = context
        self._metrics = metrics.generation
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        self._uncounted = 0

    def add(self, tokens: int) -> None:
        """Counts new tokens."""
        self.completion_tokens += tokens
        self._metrics.generated_tokens += tokens
        place = self._context.place
        if place is not None:
            expected = self._uncounted // CHARACTERS_PER_TOKEN
            place.charge(self.prompt_tokens + self.completion_tokens + expected)

    def expect(self, characters: int) -> None:
        """Counts new text whose tokens are not known yet, for admission alone: the other numbers only ever add up."""
        self._uncounted += characters
        self.add(0)

    def settle(self, characters: int, tokens: int) -> None:
        """Counts the tokens of text that was expected."""
        self._uncounted -= characters
        self.add(tokens)


class Generation:
    """One request's stream. Enter it, then iterate, in one task: pieces of all sequences come interleaved, and the last
    one of each has ``finish``.

    Leaving it, at whatever moment, ends the calls to the predictor that still run, and waits for that. The deadline
    counts from its making.

    Args:
        plans: one for each sequence.
        count_text: counts the tokens of a text whose generator gives none.
        timeout: seconds for all of them together.
        shape: how many prompts there are, and how many choices of each.
    """

    def __init__(
        self,
        plans: Sequence[SequencePlan],
        generator: Generator,
        context: Context,
        metrics: Metrics,
        *,
        prompt_tokens: int,
        count_text: CountText,
        timeout: float,
        shape: tuple[int, int],
    ) -> None:
        self._plans = plans
        self._generator = generator
        self._context = context
        self._metrics = metrics.generation
        self._usage = Usage(context, metrics, prompt_tokens)
        self._count_text = count_text
        self._timeout = timeout
        self._shape = shape
        self._made = perf_counter()
        self._has_begun = False
        self._unwritten = self._unread = len(plans)
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

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts together."""
        return self._usage.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        """New tokens of all sequences so far."""
        return self._usage.completion_tokens

    # Reading

    async def __aenter__(self) -> Self:
        self._tasks = [self._loop.create_task(self._run(plan)) for plan in self._plans]
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
        prompts, choices = self._shape
        found: list[list[list[Piece]]] = [[[] for _ in range(choices)] for _ in range(prompts)]
        async for piece in self:
            found[piece.prompt][piece.choice].append(piece)
        return [[Piece.joined(one) for one in row] for row in found]

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

    async def _run(self, plan: SequencePlan) -> None:
        """Queues all pieces of one sequence. Its error ends the others."""
        ending = "error"
        self._metrics.begin()
        try:
            last = await self._write(plan)
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

    async def _write(self, plan: SequencePlan) -> Piece:
        """Queues the pieces of one sequence but the last, and returns that. The call to the predictor is over then: a
        slow reader must not keep it open.

        Raises:
            RequestError: the generator's errors, and PredictorError for a sequence without an end.
        """
        assembler, usage = plan.assembler, self._usage
        if plan.sampling.max_tokens == 0:
            return assembler.nothing()
        first = last = 0.0
        async with aclosing(self._generator.generate(plan.prompt, plan.sampling, self._context)) as steps:
            async for step in steps:
                now = perf_counter()
                at_once = not first
                if at_once:
                    first = now
                    self._begin_one(now)
                else:
                    self._metrics.between.observe(now - last)
                last = now
                if step.ids:
                    usage.add(len(step.ids))
                elif step.text:
                    usage.expect(len(step.text))
                piece = assembler.add(step)
                if piece is None:
                    continue
                if not self._context.predict:
                    self._context.predict = perf_counter() - self._made
                if piece.finish is not None:
                    break
                await self._put(piece)
            else:
                raise PredictorError("the predictor ended a text without saying why it is over")
        if assembler.text_only:
            text = "".join(assembler.written)
            piece.count = await self._count_text(text) if step.total is None else step.total
            usage.settle(len(text), piece.count)
        count = assembler.count or piece.count
        if count > 1 and not at_once:  # else it says nothing about the time between tokens
            self._metrics.per_token.observe((last - first) / (count - 1))
        return piece

    def _begin_one(self, now: float) -> None:
        """Notes the first step of a sequence; the first of a request ends the time to its first token."""
        if not self._has_begun:
            self._has_begun = True
            self._metrics.first_token.observe(now - self._context.arrived)
