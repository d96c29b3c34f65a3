"""One text while it is written: from the steps of its generator to the pieces that its reader gets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter

from hf_transformer.errors import PredictorError, RequestError
from hf_transformer.following import Source, source_of
from hf_transformer.generation.assembly import Assembler
from hf_transformer.generation.base import Generator
from hf_transformer.generation.types import Piece, Prompt, Sampling, Step
from hf_transformer.generation_metrics import GenerationMetrics
from hf_transformer.types import Context

CountText = Callable[[str], Awaitable[int]]
"""How many tokens a text has."""

CHARACTERS_PER_TOKEN = 4
"""About how long a token's text is, as admission reckons it too: the tokens of a model that gives text alone are only
counted at its end."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """What one continuation is made from."""

    prompt: Prompt
    sampling: Sampling
    assembler: Assembler


class Tally:
    """What the texts of one request have come to: for its place, the client's bill and the metrics.

    Attributes: ``prompt_tokens`` of all prompts together; ``completion_tokens``, new ones of all texts so far.
    """

    __slots__ = ("_has_begun", "_uncounted", "completion_tokens", "context", "metrics", "prompt_tokens")

    def __init__(self, context: Context, metrics: GenerationMetrics, prompt_tokens: int) -> None:
        self.context = context
        self.metrics = metrics
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        self._uncounted = 0
        self._has_begun = False

    def first(self) -> float:
        """A text has begun; the first of a request is what its client has waited for. Gives the moment."""
        now = perf_counter()
        if not self._has_begun:
            self._has_begun = True
            self.metrics.first_token.observe(now - self.context.timings.arrived)
        return now

    def add(self, tokens: int) -> None:
        """New tokens are known."""
        self.completion_tokens += tokens
        self.metrics.generated_tokens += tokens
        place = self.context.place
        if place is not None:
            expected = self._uncounted // CHARACTERS_PER_TOKEN
            place.charge(self.prompt_tokens + self.completion_tokens + expected)

    def expect(self, characters: int) -> None:
        """So much text has come whose tokens are not known yet: for its place alone, which may be told another number
        later. The others only ever add up, and are exact."""
        self._uncounted += characters
        self.add(0)

    def settle(self, characters: int, tokens: int) -> None:
        """That text, whose tokens are known now."""
        self._uncounted -= characters
        self.add(tokens)


class Text(Source[Piece]):
    """One text, asked for piece by piece by one task: nothing is done ahead of it. Who stops early closes it.

    Its reader may follow it, if ``is_followable``.
    """

    __slots__ = (
        "_assembler",
        "_begun",
        "_caught",
        "_closing",
        "_count_text",
        "_error",
        "_finished_piece",
        "_first",
        "_followed",
        "_over",
        "_reader",
        "_sampling",
        "_source",
        "_steps",
        "_tally",
        "_total",
        "_wake",
        "_written",
        "is_awaited",
    )

    def __init__(
        self,
        one: Continuation,
        generator: Generator,
        tally: Tally,
        count_text: CountText,
        *,
        reader: asyncio.Task[object] | None = None,
        written: Callable[[], object] | None = None,
    ) -> None:
        """
        Args:
            one: what it is made from.
            count_text: counts its tokens where the generator does not tell any.
            reader: the task that asks for its pieces, for ``give_up``.
            written: called once all of it is there.
        """
        self._assembler = one.assembler
        self._sampling = one.sampling
        self._steps = generator.generate(one.prompt, one.sampling, tally.context)
        self._source = source_of(self._steps)  # None, too, once ``next`` has to be asked
        self._tally = tally
        self._count_text = count_text
        self._reader = reader
        self._written = written
        self._first = 0.0
        self._total: int | None = None  # tokens of all the text, where the generator has counted them
        self._begun = self._over = False
        self._error: RequestError | None = None
        self._closing: asyncio.Task[None] | None = None
        # Of who follows: what ``take`` came upon and ``next`` deals with, and what is called meanwhile.
        self._finished_piece: Piece | None = None
        self._caught: Exception | None = None
        self._followed: Source[Step] | None = None
        self._wake: Callable[[], object] | None = None
        self.is_awaited = False
        """Whether its reader waits for the next piece."""

    async def next(self) -> Piece:
        """The next piece. The last one has ``finish``, and comes when the predictor is rid of the text: a slow reader
        must not keep it waiting.

        Raises:
            RequestError: it has failed.
            StopAsyncIteration: it is over.
        """
        if not self._begun or self._over:
            self._begin()
            if self._sampling.max_tokens == 0:
                return self._last(self._assembler.nothing())
        self.is_awaited, steps = True, self._steps
        try:
            if self._caught is not None:
                raise self._caught
            if self._finished_piece is not None:
                return await self._finished(self._finished_piece, False)
            while True:
                step = await anext(steps)
                at_once = not self._first
                if at_once:
                    self._first = self._tally.first()
                self._total = step.total
                piece = self._add(step)
                if piece is not None:
                    return piece if piece.finish is None else await self._finished(piece, at_once)
        except (Exception, asyncio.CancelledError) as caught:
            error = self._failure(caught)
            try:
                await steps.aclose()
                if error is caught:
                    raise
                raise error from None
            finally:
                del error  # it refers to this frame: only the collector would find what its callers hold
        finally:
            self.is_awaited = False

    @property
    def is_followable(self) -> bool:
        """Whether it is a Source, too."""
        return self._source is not None

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
        return self._assembler.add(step)

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
        if self._closing is not None:
            await asyncio.wait([self._closing])

    def _leave(self) -> None:
        """In a task of its own: whoever waits for it may be cancelled."""
        if self._begun and not self._over:
            self._closing = asyncio.get_running_loop().create_task(self._end_steps())
        self._end("abandoned")

    async def _end_steps(self) -> None:
        await self._steps.aclose()

    def _begin(self) -> None:
        """Once. Raises the error that it was given up with, and StopAsyncIteration where it is over."""
        if self._error is not None:
            raise self._error
        if self._over:
            raise StopAsyncIteration
        self._begun = True
        self._tally.metrics.begin()

    async def _finished(self, piece: Piece, at_once: bool) -> Piece:
        """The last piece, once all is known of the text; ``at_once`` says that all of it came in one step."""
        last, assembler = perf_counter(), self._assembler
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
