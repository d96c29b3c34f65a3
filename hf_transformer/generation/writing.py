"""One request's texts while they are written: all prompts and choices at the same time, one deadline, one end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Self

from hf_transformer.errors import CallersDeadline, PredictorError, PredictorTimeout, RequestError
from hf_transformer.generation.assembly import Assembler
from hf_transformer.generation.base import Generator
from hf_transformer.generation.channel import Channel
from hf_transformer.generation.types import FinishReason, Piece, Prompt, Sampling
from hf_transformer.generation_metrics import GenerationMetrics
from hf_transformer.types import Context

QUEUED_PIECES = 32
"""Pieces that wait for a slow reader, of all texts of a request, before the model waits too."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """What one continuation is made from."""

    prompt: Prompt
    sampling: Sampling
    assembler: Assembler


@dataclass(frozen=True, slots=True)
class Collected:
    """All texts of a request, and why each ended, per prompt and choice."""

    texts: list[list[str]]
    finishes: list[list[FinishReason]]


class Generation:
    """The texts of one request, as they are written. Enter it, then iterate: pieces of all texts come interleaved.

    Leaving it, at whatever moment, ends what is still being written at the predictor, and waits until it has ended. The
    deadline counts from its making.

    Attributes: ``prompt_tokens`` of all prompts together; ``completion_tokens``, new ones of all texts so far.
    """

    def __init__(
        self,
        continuations: Sequence[Continuation],
        generator: Generator,
        context: Context,
        *,
        count_text: Callable[[str], Awaitable[int]],
        metrics: GenerationMetrics,
        prompt_tokens: int,
        timeout: float,
        shape: tuple[int, int],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._continuations = continuations
        self._generator = generator
        self._context = context
        self._count_text = count_text
        self._metrics = metrics
        self._timeout = timeout
        self._shape = shape
        self._began = self._loop.time()
        self._channel = Channel(QUEUED_PIECES)
        self._writers: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._entered = 0.0
        self._left = len(continuations)
        self._has_begun = False
        self._ended = False
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0

    async def __aenter__(self) -> Self:
        self._entered = perf_counter()
        self._watch()
        self._writers = [self._loop.create_task(self._write(one)) for one in self._continuations]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        """The next piece of any of the texts.

        Raises:
            RequestError: one of them has failed, and with it the whole request.
        """
        piece = await self._channel.get()
        if piece is None:
            raise StopAsyncIteration
        return piece

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
        """Ends all that is still being written, and waits for that; the second time it does nothing."""
        if self._timer is not None:
            self._timer.cancel()
        self._channel.close()
        self._end_writers()
        if writers := [task for task in self._writers if not task.done()]:
            await asyncio.wait(writers)

    def _end_writers(self) -> None:
        """Once: a second time it would hit one that is ending its call."""
        if self._ended:
            return
        self._ended = True
        mine = asyncio.current_task(self._loop)
        for task in self._writers:
            if task is not mine:
                task.cancel()

    def _watch(self) -> None:
        """Sets the deadline: the service's, or the caller's own where that is earlier."""
        expires, deadline = self._began + self._timeout, self._context.deadline
        own = deadline is not None and deadline < expires
        self._timer = self._loop.call_at(deadline if own and deadline else expires, self._expire, own)

    def _expire(self, own: bool) -> None:
        """The time is over, by the caller's ``own`` deadline or by the service's."""
        limit = f"{self._timeout:g} s (--predictor_request_timeout_seconds)"
        if own:
            self._fail(CallersDeadline("the text was not finished before the caller's deadline"))
        elif self._channel.full:
            self._fail(CallersDeadline(f"the text was written, and not read in {limit}"))
        else:
            self._fail(PredictorTimeout(f"the text was not finished in {limit}, waiting for its turn included"))

    def _fail(self, error: BaseException) -> None:
        """Gives the whole request up, and ends its other texts. The error is its own: raising it changes it."""
        self._channel.close(copy(error) if isinstance(error, RequestError) else error)
        self._end_writers()

    async def _write(self, one: Continuation) -> None:
        """Writes one text to its end. Whatever goes wrong is the reader's to hear of, who gets the error itself."""
        ending = "abandoned"
        self._metrics.begin()
        try:
            ending = await self._steps(one)
        except Exception as error:
            ending = "error"
            self._fail(error)
        except asyncio.CancelledError:
            if not self._channel.closed:  # by somebody else: what the generator waited for was cancelled
                ending = "error"
                self._fail(PredictorError("the call to the predictor was cancelled"))
            raise
        finally:
            self._metrics.end(ending)
        self._left -= 1
        if not self._left:
            self._finish()

    def _finish(self) -> None:
        """All texts are written."""
        self._context.timings.predict = perf_counter() - self._entered
        if self._timer is not None:
            self._timer.cancel()
        self._channel.close()

    async def _steps(self, one: Continuation) -> FinishReason:
        assembler = one.assembler
        if one.sampling.max_tokens == 0:
            await self._channel.put(assembler.nothing())
            return "length"
        first = last = 0.0
        async with aclosing(self._generator.generate(one.prompt, one.sampling, self._context)) as steps:
            async for step in steps:
                last = perf_counter()
                first = first or self._first_of_text(last)
                self._count(len(step.ids))
                piece = assembler.add(step)
                if piece is None:
                    continue
                if piece.finish is not None:
                    finish = piece.finish
                    break
                await self._channel.put(piece)
            else:
                raise PredictorError("the predictor ended a text without saying why it is over")
        # Only now, when the predictor is rid of it: a slow reader must not keep it waiting.
        if assembler.text_only:
            piece.count = await self._count_text("".join(assembler.written))
            self._count(piece.count)
        count = assembler.count or piece.count
        if count > 1 and last > first:  # else all came at once, which tells nothing
            self._metrics.per_token.observe((last - first) / (count - 1))
        await self._channel.put(piece)
        return finish

    def _first_of_text(self, now: float) -> float:
        """A text has begun; the first of a request is what its client has waited for."""
        if not self._has_begun:
            self._has_begun = True
            self._metrics.first_token.observe(now - self._context.timings.arrived)
        return now

    def _count(self, tokens: int) -> None:
        """New tokens are known: for the request's place, the client's bill and the metrics."""
        self.completion_tokens += tokens
        self._metrics.generated_tokens += tokens
        if self._context.place is not None:
            self._context.place.charge(self.prompt_tokens + self.completion_tokens)
