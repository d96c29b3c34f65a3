"""One text while it is written: from the steps of its generator to the pieces that its reader gets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter

from hf_transformer.errors import PREDICTORS, PredictorError, RequestError
from hf_transformer.following import Source, source_of
from hf_transformer.generation.assembly import Assembler
from hf_transformer.generation.base import Generator
from hf_transformer.generation.tally import Tally
from hf_transformer.generation.types import Piece, Prompt, Sampling, Step

CountText = Callable[[str], Awaitable[int]]
"""How many tokens a text has."""


@dataclass(slots=True)
class Continuation:
    """What one continuation is made from; ``assemble`` makes what puts it together."""

    prompt: Prompt
    sampling: Sampling
    assemble: Callable[[], Assembler]


class Text(Source[Piece]):
    """One text, asked for piece by piece by one task: nothing is done ahead of it. Who stops early closes it.

    Its reader may follow it, if ``is_followable``.
    """

    is_awaited = False
    """Whether its reader waits for the next piece."""
    _assembler: Assembler | None = None
    _begun = _given = _over = False
    _first = 0.0
    _total: int | None = None  # tokens of all the text, where the generator has counted them
    _error: RequestError | None = None
    _closing: asyncio.Task[None] | None = None
    # Of who follows: what ``take`` came upon and ``next`` deals with, and what is called meanwhile.
    _finished_piece: Piece | None = None
    _caught: Exception | None = None
    _followed: Source[Step] | None = None
    _wake: Callable[[], object] | None = None

    def __init__(
        self,
        one: Continuation,
        generator: Generator,
        tally: Tally,
        count_text: CountText,
        *,
        reader: asyncio.Task[object] | None = None,
        written: Callable[[], object] | None = None,
        failed: Callable[[RequestError], None] | None = None,
    ) -> None:
        """
        Args:
            one: what it is made from.
            count_text: counts its tokens where the generator does not tell any.
            reader: the task that asks for its pieces, for ``give_up``.
            written: called once all of it is there.
            failed: called with an error of the predictor's that its reader hears.
        """
        self._one = one
        self._takes_ids = generator.gives_ids
        self._steps = generator.generate(one.prompt, one.sampling, tally.context)
        self._source = source_of(self._steps)  # None, too, once ``next`` has to be asked
        self.is_followable = self._source is not None
        """Whether it is a Source, too."""
        self._tally = tally
        self._count_text = count_text
        self._reader = reader
        self._written = written
        self._failed = failed

    async def next(self) -> Piece:
        """The next piece. The last one has ``finish``, and comes when the predictor is rid of the text: a slow reader
        must not keep it waiting.

        Raises:
            RequestError: it has failed.
            StopAsyncIteration: it is over.
        """
        if not self._begun or self._over:
            self._begin()
            if self._one.sampling.max_tokens == 0:
                return self._last(self._prepare().nothing())
        self.is_awaited, steps = True, self._steps
        try:
            if self._caught is not None:
                raise self._caught
            if self._finished_piece is not None:
                return await self._finished(self._finished_piece, False)
            while True:
                step = await steps.__anext__()
                at_once = not self._first
                if at_once:
                    self._first = self._tally.first()
                self._total = step.total
                piece = self._add(step)
                if piece is not None:
                    if not self._given:
                        self._given = True
                        self._tally.gives()
                    return piece if piece.finish is None else await self._finished(piece, at_once)
        except (Exception, asyncio.CancelledError) as caught:
            error = self._failure(caught)
            self._tell(error)
            try:
                await steps.aclose()
                if error is caught:
                    raise
                raise error from None
            finally:
                del error  # it refers to this frame: only the collector would find what its callers hold
        finally:
            self.is_awaited = False

    def take(self) -> Piece | None:
        source, add = self._source, self._add
        if source is None:
            return None
        try:
            while (step := source.take()) is not None:
                piece = add(step)
                if piece is None:
                    continue
                if piece.finish is None:
                    return piece
                self._source, self._finished_piece = None, piece
                break
        except Exception as error:
            self._source, self._caught = None, error
        return None

    def follow(self, wake: Callable[[], object]) -> bool:
        if self._source is None or not self._source.follow(wake):
            return False
        self._followed, self._wake = self._source, wake
        return True

    def unfollow(self) -> None:
        followed, self._followed, self._wake = self._followed, None, None
        if followed is not None:
            followed.unfollow()

    @property
    def waits_for_reader(self) -> bool:
        """Whether its reader does something else."""
        return not self.is_awaited and self._wake is None

    def _add(self, step: Step) -> Piece | None:
        """What a step adds to the text."""
        if step.ids:
            self._tally.add(len(step.ids))
        elif step.text:
            self._tally.expect(len(step.text))
        return (self._assembler or self._prepare()).add(step)

    def give_up(self, error: RequestError) -> None:
        """Ends it, whatever it is doing; its reader hears ``error`` next."""
        self._error = error
        if self._wake is not None:
            self._leave()
            self._wake()
        elif self.is_awaited and self._reader is not None:
            self._reader.cancel()
        else:
            self._leave()

    async def close(self) -> None:
        """Ends it at the predictor, and waits until it has ended there."""
        self._leave()
        self._error = self._caught = None  # both know by their traceback who knows this text
        if self._closing is not None:
            await asyncio.wait([self._closing])

    def _leave(self) -> None:
        """In a task of its own: whoever waits for it may be cancelled."""
        if self._over:
            return
        if self._begun:
            self._closing = asyncio.get_running_loop().create_task(self._end_steps())
        self._end("abandoned")

    async def _end_steps(self) -> None:
        await self._steps.aclose()

    def _begin(self) -> None:
        """Once. Raises the error that it was given up with, and StopAsyncIteration where it is over."""
        if self._error is not None:
            self._tell(self._error)
            raise self._error
        if self._over:
            raise StopAsyncIteration
        self._begun = True
        self._tally.metrics.begin()
        asyncio.get_running_loop().call_soon(self._prepare)  # once the model has been asked

    def _prepare(self) -> Assembler:
        """Makes what is not needed before there is a step."""
        found = self._assembler
        if found is None:
            found = self._assembler = self._one.assemble()
            if self._takes_ids:
                found.prepare()
        return found

    async def _finished(self, piece: Piece, at_once: bool) -> Piece:
        """The last piece, once all is known of the text; ``at_once`` says that all of it came in one step."""
        last, assembler = perf_counter(), self._prepare()
        await self._steps.aclose()
        if assembler.text_only:
            text = "".join(assembler.written)
            piece.count = await self._count_text(text) if self._total is None else self._total
            self._tally.settle(len(text), piece.count)
        count = assembler.count or piece.count
        if count > 1 and not at_once:  # which tells nothing
            self._tally.metrics.per_token.observe((last - self._first) / (count - 1))
        return self._last(piece)

    def _last(self, piece: Piece) -> Piece:
        written = self._written
        self._end(piece.finish or "stop")
        if written is not None:
            written()
        return piece

    def _tell(self, error: BaseException) -> None:
        if self._failed is not None and isinstance(error, PREDICTORS):
            self._failed(error)

    def _failure(self, caught: BaseException) -> BaseException:
        """What its reader hears in place of ``caught``."""
        task = asyncio.current_task()
        cancelled = isinstance(caught, asyncio.CancelledError)
        if self._error is not None and (task is None or task.uncancel() == 0 or not cancelled):
            self._end("abandoned")
            return self._error
        if cancelled and task is not None and task.cancelling():
            self._end("abandoned")
            return caught
        self._end("error")
        if cancelled:  # by somebody else: what the generator waited for was
            return PredictorError("the call to the predictor was cancelled")
        if isinstance(caught, StopAsyncIteration):
            return PredictorError("the predictor ended a text without saying why it is over")
        return caught

    def _end(self, ending: str) -> None:
        """It is over because of one of ENDINGS; only the first call counts."""
        if self._begun and not self._over:
            self._tally.metrics.end(ending)
        self._over = True
        # Who made it holds it: all that a text has would wait for the garbage collector.
        self._source = self._written = None
