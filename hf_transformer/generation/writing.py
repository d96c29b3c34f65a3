"""One request's texts while they are written: all prompts and choices at the same time, one deadline, one end.

``write`` makes pieces of one text's steps, ``write_together`` interleaves several texts, and a Generation is what the
APIs read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Self

from hf_transformer.errors import PREDICTORS, CallersDeadline, PredictorError, PredictorTimeout, RequestError
from hf_transformer.generation.assembly import Assembler
from hf_transformer.generation.base import Generator
from hf_transformer.generation.tally import Tally
from hf_transformer.generation.types import FinishReason, Piece, Prompt, Sampling
from hf_transformer.types import Context

QUEUED_PIECES = 32
"""Pieces of a request for several texts that may wait for a slow reader; then the model waits too."""

CountText = Callable[[str], Awaitable[int]]
"""How many tokens a text has."""


@dataclass(frozen=True, slots=True)
class Collected:
    """All texts of a request, and why each ended, per prompt and choice."""

    texts: list[list[str]]
    finishes: list[list[FinishReason]]


@dataclass(slots=True)
class TextPlan:
    """What one text is written from; ``assembler`` puts it together."""

    prompt: Prompt
    sampling: Sampling
    assembler: Assembler


async def write(
    plan: TextPlan, generator: Generator, tally: Tally, count_text: CountText, written: Callable[[], object]
) -> AsyncGenerator[Piece, None]:
    """The pieces of one text, as fast as the caller asks.

    The last one has ``finish``. It comes once the call to the predictor is over: a slow reader must not keep that open.

    Args:
        count_text: counts the tokens of a text whose generator tells none.
        written: called before the last piece is given.

    Raises:
        RequestError: the generator's errors, and PredictorError for a text without an end.
    """
    assembler, metrics = plan.assembler, tally.metrics
    if plan.sampling.max_tokens == 0:
        metrics.begin()
        metrics.end("length")
        written()
        yield assembler.nothing()
        return
    if generator.gives_ids:
        asyncio.get_running_loop().call_soon(assembler.prepare)  # while the model works
    ending, first = "error", 0.0
    metrics.begin()
    try:
        async with aclosing(generator.generate(plan.prompt, plan.sampling, tally.context)) as steps:
            async for step in steps:
                at_once = not first
                if at_once:
                    first = tally.first()
                if step.ids:
                    tally.add(len(step.ids))
                elif step.text:
                    tally.expect(len(step.text))
                piece = assembler.add(step)
                if piece is None:
                    continue
                tally.gives()
                if piece.finish is None:
                    yield piece
                    continue
                last = perf_counter()
                break
            else:
                raise PredictorError("the predictor ended a text without saying why it is over")
        if assembler.text_only:
            text = "".join(assembler.written)
            piece.count = await count_text(text) if step.total is None else step.total
            tally.settle(len(text), piece.count)
        count = assembler.count or piece.count
        if count > 1 and not at_once:  # which says nothing about the time between tokens
            metrics.per_token.observe((last - first) / (count - 1))
        ending = piece.finish
    except GeneratorExit:
        ending = "abandoned"
        raise
    except asyncio.CancelledError:
        if not _is_cancelled():  # something that the generator waited for was cancelled
            raise PredictorError("the call to the predictor was cancelled") from None
        ending = "abandoned"
        raise
    finally:
        metrics.end(ending)
    written()
    yield piece


def _is_cancelled() -> bool:
    """Whether somebody has cancelled the current task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def write_together(texts: Sequence[AsyncGenerator[Piece, None]]) -> AsyncGenerator[Piece, None]:
    """The pieces of several texts, interleaved: each text has a task. The first error ends all of them; the pieces from
    before it come first."""
    queue: asyncio.Queue[Piece | Exception] = asyncio.Queue(QUEUED_PIECES)

    async def run(text: AsyncGenerator[Piece, None]) -> None:
        try:
            async with aclosing(text):
                async for piece in text:
                    await queue.put(piece)
        except Exception as error:
            for task in tasks:
                if task is not asyncio.current_task():
                    task.cancel()
            await queue.put(error)

    tasks = [asyncio.create_task(run(text)) for text in texts]
    try:
        unfinished = len(texts)
        while unfinished:
            piece = await queue.get()
            if isinstance(piece, Exception):
                try:
                    raise piece
                finally:
                    del piece  # it refers to this frame: only the garbage collector would free what the frame holds
            unfinished -= piece.finish is not None
            yield piece
    finally:
        for task in tasks:
            if not task.cancelling():  # a second time would interrupt the end of its call
                task.cancel()
        await asyncio.wait(tasks)
        tasks.clear()


class Generation:
    """The texts of one request, as they are written. Enter it, then iterate, in one task: pieces of all texts come
    interleaved, and the last one of each has ``finish``.

    Leaving it, at whatever moment, ends the calls to the predictor that still run, and waits for that. The deadline
    counts from its making.

    Args:
        plans: one for each text.
        tally: counts their tokens.
        timeout: seconds for all of them together.
        shape: how many prompts there are, and how many choices of each.
    """

    def __init__(
        self,
        plans: Sequence[TextPlan],
        generator: Generator,
        tally: Tally,
        *,
        count_text: CountText,
        timeout: float,
        shape: tuple[int, int],
    ) -> None:
        texts = [write(plan, generator, tally, count_text, self._finish_one) for plan in plans]
        self._pieces = texts[0] if len(texts) == 1 else write_together(texts)
        self._unwritten = len(texts)
        self._tally = tally
        self._timeout = timeout
        self._shape = shape
        self._began = asyncio.get_running_loop().time()
        self._entered = 0.0
        self._reader: asyncio.Task[object] | None = None
        self._is_awaited = False
        self._timer: asyncio.TimerHandle | None = None
        self._late: RequestError | None = None
        self._closing: asyncio.Task[None] | None = None
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
        return self._tally.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        """New tokens of all texts so far."""
        return self._tally.completion_tokens

    async def __aenter__(self) -> Self:
        self._entered = perf_counter()
        loop, deadline = asyncio.get_running_loop(), self._tally.context.deadline
        self._reader = asyncio.current_task(loop)
        expires = self._began + self._timeout
        if deadline is not None and deadline < expires:
            self._timer = loop.call_at(deadline, self._expire, True)
        else:
            self._timer = loop.call_at(expires, self._expire, False)
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
        """The next piece of any of the texts.

        Raises:
            RequestError: one of them has failed, and with it the whole request.
        """
        if self._late is not None:
            self._note(self._late)
            raise self._late
        self._is_awaited = True
        try:
            return await anext(self._pieces)
        except StopAsyncIteration:
            if not self._unwritten and self._succeeded is not None:
                self._succeeded(self._tally.context)
                self._succeeded = None
            raise
        except asyncio.CancelledError:
            # The deadline cancels the reader, and so may somebody else in the same moment.
            if self._late is None or self._reader is None or self._reader.uncancel():
                raise
            self._note(self._late)
            raise self._late from None
        except PREDICTORS as error:
            self._note(error)
            raise
        finally:
            self._is_awaited = False

    async def collect(self) -> Collected:
        """All texts, once they are written. Raises RequestError as iterating does."""
        prompts, choices = self._shape
        texts: list[list[list[str]]] = [[[] for _ in range(choices)] for _ in range(prompts)]
        finishes: list[list[FinishReason]] = [["length"] * choices for _ in range(prompts)]
        async for piece in self:
            texts[piece.prompt][piece.choice].append(piece.text)
            if piece.finish is not None:
                finishes[piece.prompt][piece.choice] = piece.finish
        return Collected([["".join(one) for one in row] for row in texts], finishes)

    async def close(self) -> None:
        """Ends the calls to the predictor that still run, and waits for that; the second time it does nothing."""
        self._succeeded = self._late = None  # an error refers to the frames that refer to this object
        if self._timer is not None:
            self._timer.cancel()
        if self._closing is None:
            await self._pieces.aclose()
        else:
            await asyncio.wait([self._closing])

    def _note(self, error: RequestError) -> None:
        if self._failed is not None and isinstance(error, PREDICTORS):
            self._failed(error)

    def _finish_one(self) -> None:
        """One more text is written."""
        self._unwritten -= 1
        if not self._unwritten:
            self._tally.context.predict = perf_counter() - self._entered
            if self._timer is not None:
                self._timer.cancel()

    def _expire(self, own: bool) -> None:
        """The time is over, by the caller's ``own`` deadline or by the service's. The predictor's work ends at once,
        also while the reader is busy with a client that does not read."""
        limit = f"{self._timeout:g} s (--predictor_request_timeout_seconds)"
        if own:
            self._late = CallersDeadline("the text was not finished before the caller's deadline")
        elif self._is_awaited:
            self._late = PredictorTimeout(f"the text was not finished in {limit}, waiting for its turn included")
        else:
            self._late = CallersDeadline(f"the text was written, and not read in {limit}")
        if self._is_awaited and self._reader is not None:
            self._reader.cancel()
        else:
            self._closing = asyncio.get_running_loop().create_task(self._pieces.aclose())
