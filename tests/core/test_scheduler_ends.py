"""What is left of requests and batches at their end."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import pytest

from hf_transformer.core.scheduler import INLINE_COST
from hf_transformer.errors import PredictorError
from hf_transformer.types import Array, Context, Encoding
from tests.core.test_scheduler import bench, first_logit
from tests.predictor.scripted import until

pytestmark = pytest.mark.asyncio


class Decode:
    """``first_logit``, that can be seen to be gone."""

    def __call__(self, index: int, rows: Mapping[str, Array]) -> Any:
        return first_logit(index, rows)


async def test_an_answered_request_leaves_no_work_to_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        async with bench() as b:
            decode = Decode()
            gone = weakref.ref(decode)
            task = await b.send(1, 2, decode=decode)
            await b.answer()
            assert await task == [1, 2]
            del decode, task
            await b.turn()
            assert gone() is None
    finally:
        gc.enable()


async def test_a_fault_of_the_service_is_logged_and_costs_no_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No task is there to tell of it."""
    async with bench() as b:
        broken = await b.send(1)
        with monkeypatch.context() as patch:
            patch.setattr(b.scheduler, "_failed", lambda batch, error: 1 // 0)
            b.predictor.fail(0, PredictorError("raised"))
            await b.turn()
        [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert record.getMessage() == "a batch ended by a fault of the service"
        assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError
        after = await b.send(2)
        await b.answer(1)
        assert await after == [2]
        broken.cancel()


async def test_the_wait_in_the_queue_is_known_when_the_predictor_is_asked() -> None:
    async with bench() as b:
        context = Context("id", {})
        blocker = await b.send(1)
        waiting = b.scheduler.submit(Encoding([2], [0]), first_logit, context, 1, lambda error: None)
        await b.turn()
        assert context.timings.queue == 0.0
        await b.answer(0)
        assert b.sent == [[1], [2]] and context.timings.queue > 0.0
        waiting()
        assert await blocker == [1]


async def test_an_error_of_decoding_in_a_thread_that_nobody_waits_for_is_not_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, about: told.append(about["message"]))
    async with bench() as b:
        decoding, go = threading.Event(), threading.Event()

        def unpack(items: Any, packed: Any, outputs: Any) -> Any:
            decoding.set()
            go.wait(10)
            raise PredictorError("wrong shape")

        monkeypatch.setattr(b.scheduler._form, "unpack", unpack)
        task = await b.send(1, cost=INLINE_COST + 1)
        await b.answer(0)
        await asyncio.to_thread(decoding.wait, 10)
        task.cancel()
        await b.turn()
        assert b.scheduler._in_flight
        go.set()
        await until(lambda: not b.scheduler._in_flight)
        del task
        await b.turn()
        gc.collect()
        assert told == []


async def test_one_that_enters_is_answered_or_leaves_without_a_trace() -> None:
    async with bench() as b:
        blocker = await b.send(1)
        first, second = (
            b.scheduler.enter(Encoding([number], [0]), first_logit, Context("id", {}), 1) for number in (2, 3)
        )
        b.scheduler.leave(first)
        assert first.future.cancelled() and not first.entries
        await b.answer(0)
        assert await blocker == [1]
        await b.answer(1)
        await second.future
        b.scheduler.leave(second)
        assert second.answers == [3] and not second.entries and b.sent == [[1], [3]]
        assert not b.scheduler._deadlines._usual
