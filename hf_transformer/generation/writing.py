"""One request's texts while they are written: all prompts and choices at the same time, one deadline, one end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from copy import copy
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from hf_transformer.errors import PREDICTORS, CallersDeadline, PredictorTimeout, RequestError
from hf_transformer.following import Source
from hf_transformer.generation.base import Generator
from hf_transformer.generation.channel import Channel
from hf_transformer.generation.tally import Tally
from hf_transformer.generation.text import Continuation, CountText, Text
from hf_transformer.generation.types import FinishReason, Piece
from hf_transformer.types import Context

QUEUED_PIECES = 32
"""Pieces that wait for a slow reader, of all texts of a request, before the model waits too."""


@dataclass(frozen=True, slots=True)
class Collected:
    """All texts of a request, and why each ended, per prompt and choice."""

    texts: list[list[str]]
    finishes: list[list[FinishReason]]


class Generation(ABC):
    """The texts of one request, as they are written. Enter it, then iterate, in one task: pieces of all texts come
    interleaved.

    Leaving it, at whatever moment, ends what is still being written at the predictor, and waits until it has ended. The
    deadline counts from its making.

    Args:
        continuations: one for each text.
        tally: what they come to.
        timeout: seconds for all of them together.
        shape: how many prompts there are, and how many choices of each.
    """

    _timer: asyncio.TimerHandle | None = None
    _entered = 0.0
    _is_written = False
    _succeeded: Callable[[Context], None] | None = None
    _failed: Callable[[RequestError], None] | None = None
    _left: Callable[[], None] | None = None

    def __init__(
        self,
        continuations: Sequence[Continuation],
        generator: Generator,
        tally: Tally,
        *,
        count_text: CountText,
        timeout: float,
        shape: tuple[int, int],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._continuations = continuations
        self._generator = generator
        self._tally = tally
        self._count_text = count_text
        self._timeout = timeout
        self._shape = shape
        self._began = self._loop.time()

    def tell(
        self,
        succeeded: Callable[[Context], None],
        failed: Callable[[RequestError], None],
        left: Callable[[], None],
    ) -> None:
        """Before it is entered: who is told what becomes of it.

        Args:
            succeeded: called with the request's context once all of it was given.
            failed: called with an error of the predictor's that has ended it.
            left: called in the end, once.
        """
        self._succeeded, self._failed, self._left = succeeded, failed, left

    @property
    def prompt_tokens(self) -> int:
        """Those of all prompts together."""
        return self._tally.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        """New ones of all texts so far."""
        return self._tally.completion_tokens

    @property
    def source(self) -> Source[Piece] | None:
        """What brings pieces as they come, between two that are asked for; None where they have to be asked for."""
        return None

    async def __aenter__(self) -> Self:
        self._entered = perf_counter()
        try:
            self._watch()
            self._begin()
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        finally:
            self._leave()

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    def __anext__(self) -> Coroutine[Any, Any, Piece]:
        """The next piece of any of the texts.

        Raises:
            RequestError: one of them has failed, and with it the whole request.
        """

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
        await self._close()

    @abstractmethod
    def _begin(self) -> None:
        """It is entered."""

    @abstractmethod
    def _close(self) -> Awaitable[None]:
        """Ends what is being written, and waits for that."""

    @abstractmethod
    def _fail(self, error: RequestError) -> None:
        """Gives the whole request up; the error is what its reader hears."""

    @property
    @abstractmethod
    def _waits_for_reader(self) -> bool:
        """Whether nothing goes on because nobody reads."""

    def _leave(self) -> None:
        left, self._left = self._left, None
        if left is not None:
            left()

    def _given(self) -> None:
        """All that was written was given, and its reader asks for more."""
        succeeded, self._succeeded = self._succeeded, None
        if succeeded is not None:
            succeeded(self._tally.context)

    def _finish(self) -> None:
        """All texts are written."""
        self._is_written = True
        self._tally.context.timings.predict = perf_counter() - self._entered
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        """Sets the deadline: the service's, or the caller's own where that is earlier."""
        expires, deadline = self._began + self._timeout, self._tally.context.deadline
        own = deadline is not None and deadline < expires
        self._timer = self._loop.call_at(deadline if own and deadline else expires, self._expire, own)

    def _expire(self, own: bool) -> None:
        """The time is over, by the caller's ``own`` deadline or by the service's."""
        limit = f"{self._timeout:g} s (--predictor_request_timeout_seconds)"
        if own:
            self._fail(CallersDeadline("the text was not finished before the caller's deadline"))
        elif self._waits_for_reader:
            self._fail(CallersDeadline(f"the text was written, and not read in {limit}"))
        else:
            self._fail(PredictorTimeout(f"the text was not finished in {limit}, waiting for its turn included"))


class OneText(Generation):
    """A request for one text, as most are: its reader asks the generator itself, so that a token needs no task, no
    queue and no second turn of the event loop (measured: 2 of 13 microseconds)."""

    def _begin(self) -> None:
        [one] = self._continuations
        reader = asyncio.current_task(self._loop)
        self._only = Text(
            one,
            self._generator,
            self._tally,
            self._count_text,
            reader=reader,
            written=self._finish,
            failed=self._failed,
        )

    @property
    def source(self) -> Source[Piece] | None:
        return self._only if self._only.is_followable else None

    def __anext__(self) -> Coroutine[Any, Any, Piece]:
        if self._is_written:
            self._given()
        return self._only.next()

    def _close(self) -> Awaitable[None]:
        return self._only.close()

    def _fail(self, error: RequestError) -> None:
        self._only.give_up(error)

    @property
    def _waits_for_reader(self) -> bool:
        return self._only.waits_for_reader


class SeveralTexts(Generation):
    """A request for several texts: each has a task that writes it, and a queue brings the pieces to their reader."""

    def _begin(self) -> None:
        self._channel = Channel(QUEUED_PIECES)
        self._unwritten = len(self._continuations)
        self._ended = False
        texts = [Text(one, self._generator, self._tally, self._count_text) for one in self._continuations]
        self._writers = [self._loop.create_task(self._write(text)) for text in texts]

    async def __anext__(self) -> Piece:
        try:
            piece = await self._channel.get()
        except PREDICTORS as error:
            if self._failed is not None:
                self._failed(error)
            raise
        if piece is None:
            if self._is_written:
                self._given()
            raise StopAsyncIteration
        return piece

    async def _close(self) -> None:
        self._channel.close()
        self._end_writers()
        if writers := [task for task in self._writers if not task.done()]:
            await asyncio.wait(writers)
        self._writers.clear()  # one that was cancelled keeps its error, and that the frames that know this

    @property
    def _waits_for_reader(self) -> bool:
        return self._channel.full

    def _end_writers(self) -> None:
        """Once: a second time it would hit one that is ending its call."""
        if self._ended:
            return
        self._ended = True
        mine = asyncio.current_task(self._loop)
        for task in self._writers:
            if task is not mine:
                task.cancel()

    def _fail(self, error: BaseException) -> None:
        """Ends the other texts too. The error is its own: raising it changes it."""
        self._channel.close(copy(error) if isinstance(error, RequestError) else error)
        self._end_writers()

    async def _write(self, text: Text) -> None:
        """Writes one text to its end. Whatever goes wrong is the reader's to hear of, who gets the error itself."""
        try:
            while True:
                piece = await text.next()
                await self._channel.put(piece)
                if piece.finish is not None:
                    break
        except Exception as error:
            self._fail(error)
        finally:
            await text.close()
        self._unwritten -= 1
        if not self._unwritten:
            self._finish()
            self._channel.close()
