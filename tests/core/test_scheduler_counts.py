"""That a scheduler loses count of nothing, whatever becomes of requests and batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_transformer.core import refusals
from hf_transformer.core.packing import EncodingForm
from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.types import Context, Encoding
from tests.core.test_scheduler import BINDING, Bench, bench, first_logit
from tests.core.test_waiting import Known
from tests.scripted_predictor import Call

PLACES = 2
FAILURES = (PredictorError, PredictorUnavailable, PredictorTimeout)

numbers = st.integers(0, 50)
steps = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 9), st.sampled_from(["a", "b"]), st.booleans()),
    st.tuples(st.just("submit"), st.integers(1, 9)),
    st.tuples(st.just("cancel"), numbers),
    st.tuples(st.just("expire"), numbers),
    st.tuples(st.just("answer"), numbers),
    st.tuples(st.just("break off"), numbers),
    st.tuples(st.just("fail"), numbers, st.sampled_from(FAILURES)),
    st.tuples(st.just("turn")),
)


class Busy:
    """A scheduler with requests that end in all ways, several of them within one turn of the event loop."""

    def __init__(self, b: Bench) -> None:
        self.b = b
        self.requests: list[asyncio.Task[Any]] = []
        self.submitted: list[Callable[[], object]] = []
        self.ended = 0

    def open_calls(self) -> list[Call]:
        return [call for call in self.b.predictor.calls if not call.end.done()]

    async def perform(self, step: tuple[Any, ...]) -> None:
        match step:
            case "send", count, owner, late:
                loop = asyncio.get_running_loop()
                context = Context("id", {"authorization": owner}, deadline=loop.time() if late else None)
                texts = [Encoding([1] * (3 + number % 2), [0] * (3 + number % 2)) for number in range(count)]
                run = self.b.scheduler.run(texts, first_logit, context, lambda text: 1)
                self.requests.append(asyncio.create_task(run))
            case "submit", length:
                text = Encoding([1] * length, [0] * length)
                end = self.b.scheduler.submit(text, first_logit, Context("id", {}), 1, self.done)
                self.submitted.append(end)
            case "cancel", which:
                if which % 2 and self.submitted:
                    self.submitted[which % len(self.submitted)]()
                elif self.requests:
                    self.requests[which % len(self.requests)].cancel()
            case "expire", which:
                waiting = list(self.b.scheduler._deadlines._usual)
                if waiting:
                    waiting[which % len(waiting)].fail(PredictorTimeout("no answer"))
            case "turn", *_:
                await self.b.turn()
                self.check_wanted()
            case what, which, *error:
                self.end_call(what, which, *error)

    def end_call(self, what: str, which: int, error: type[RequestError] | None = None) -> None:
        calls = self.open_calls()
        if calls:
            end = calls[which % len(calls)].end
            if what == "break off":
                end.cancel()
            elif error is None:
                end.set_result(None)
            else:
                end.set_exception(error("it failed"))

    def done(self, error: Exception | None) -> None:
        self.ended += 1

    async def finish(self) -> None:
        """Answers all that is open, until nothing is."""
        await self.b.turn()
        self.check_wanted()
        while self.open_calls():
            await self.b.answer()

    def check_wanted(self) -> None:
        """Once the queue was told of all that have gone, it counts those alone that somebody waits for."""
        queue = self.b.scheduler._waiting
        assert queue._count == sum(not (entry.taken or entry.gone) for entry in queue._arrived)

    def check(self) -> None:
        queue = self.b.scheduler._waiting
        waiting = [entry for entry in queue._arrived if not entry.taken]
        at_work = sum(len(batch.entries) for batch in self.b.scheduler._in_flight)
        assert (queue._count, queue._under_way) == (len(waiting), at_work)


async def work_off(sequence: list[tuple[Any, ...]]) -> None:
    async with bench(max_batches_in_flight=PLACES) as b:
        busy = Busy(b)
        for step in sequence:
            await busy.perform(step)
            busy.check()
        await busy.finish()
        for one in await asyncio.gather(*busy.requests, return_exceptions=True):
            assert isinstance(one, list | RequestError | asyncio.CancelledError)
        queue = b.scheduler._waiting
        assert queue._count == queue._under_way == 0
        assert not (queue._arrived or queue._ungrouped or queue._groups or b.scheduler._in_flight)
        assert b.scheduler._places._taken == 0


@pytest.mark.asyncio
@pytest.mark.parametrize(("places", "sizes"), [(1, [6]), (2, [4, 4]), (3, [3, 3, 3])])
async def test_texts_are_divided_into_one_part_more_than_places(places: int, sizes: list[int]) -> None:
    async with bench(replace(BINDING, max_rows=12), max_batches_in_flight=places) as b:
        form = b.scheduler._form
        assert isinstance(form, EncodingForm)
        form._limits = replace(form._limits, costs=Known(1), more=lambda size: True)
        task = await b.send(*range(12))
        assert [len(first) for first in b.sent] == sizes
        await b.answer(0)
        assert len(b.sent[-1]) == min(sizes[0], 12 - sum(sizes))
        while not task.done():
            await b.answer()
        assert await task == [*range(12)]


@settings(max_examples=150, deadline=None)
@given(sequence=st.lists(steps, max_size=40))
def test_nothing_is_left_when_all_have_gone(sequence: list[tuple[Any, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refusals, "MOST_REFUSED", 3)
        asyncio.run(work_off(sequence))
