"""Batches across requests, on a predictor that answers when told to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from hf_transformer.core.packing import EncodingForm, Filling
from hf_transformer.core.queue import MOST_GONE
from hf_transformer.core.refusals import MOST_REFUSED
from hf_transformer.core.scheduler import INLINE_COST, Scheduler, SchedulerSettings
from hf_transformer.core.signature import Binding, InputBinding, OutputBinding
from hf_transformer.errors import CallersDeadline, PredictorError, PredictorTimeout, PredictorUnavailable
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tasks.base import TOKENS, Axis
from hf_transformer.types import Array, Context, Encoding
from tests.scripted_predictor import ScriptedPredictor

IDS = InputBinding("input_ids", "input_ids", "INT64")
LOGITS = OutputBinding("logits", "logits", "FP32", (TOKENS, Axis(name="labels", minimum=1)), (-1, 1))
BINDING = Binding((IDS,), (LOGITS,), 4, None, True, None, False)
SETTINGS = SchedulerSettings(
    max_batches_in_flight=1, max_batch_tokens=10**6, max_batch_output_bytes=10**9, timeout=600.0
)


def first_logit(index: int, rows: Mapping[str, Array]) -> Any:
    return int(rows["logits"][0, 0])


def form_of(binding: Binding, settings: SchedulerSettings) -> EncodingForm:
    return EncodingForm(
        binding,
        Filling(0, left=False),
        max_tokens=settings.max_batch_tokens,
        max_output_bytes=settings.max_batch_output_bytes,
    )


class Bench:
    """A scheduler, its predictor, and requests by their first token."""

    def __init__(self, executor: ThreadPoolExecutor, settings: SchedulerSettings, binding: Binding) -> None:
        self.predictor = ScriptedPredictor()
        self.metrics = Metrics("bert")
        self.scheduler = Scheduler(
            self.predictor, form_of(binding, settings), settings, executor=executor, metrics=self.metrics
        )

    async def send(self, *first: int, length: int = 3, **options: Any) -> asyncio.Task[list[Any]]:
        """A request on its way, with an instance per number."""
        encodings = [Encoding([one] * length, [0] * length) for one in first]
        decode = options.pop("decode", first_logit)
        cost = options.pop("cost", 1)
        context = Context("id", options.pop("headers", {}), deadline=options.pop("deadline", None))
        task = asyncio.create_task(self.scheduler.run(encodings, decode, context, lambda encoding: cost))
        await self.turn()
        return task

    async def turn(self) -> None:
        """Lets everything happen that can."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def answer(self, *numbers: int) -> None:
        self.predictor.answer(*numbers)
        await self.turn()

    @property
    def sent(self) -> list[list[int]]:
        return [call.first_ids for call in self.predictor.calls]


@asynccontextmanager
async def bench(binding: Binding = BINDING, **settings: Any) -> AsyncIterator[Bench]:
    with ThreadPoolExecutor(1) as executor:
        yield Bench(executor, replace(SETTINGS, **settings), binding)


async def test_an_idle_service_sends_at_once_and_then_batches() -> None:
    async with bench() as b:
        tasks = [await b.send(1), await b.send(2), await b.send(3, 4), await b.send(5)]
        assert b.sent == [[1]]
        await b.answer(0)
        assert b.sent == [[1], [2, 3, 4, 5]]
        await b.answer(1)
        assert [await task for task in tasks] == [[1], [2], [3, 4], [5]]
        assert [call.in_task for call in b.predictor.calls] == [False] * 2, "which would cost more"


async def test_what_arrives_in_one_turn_leaves_together() -> None:
    async with bench() as b:
        context = Context("id", {})
        runs = [b.scheduler.run([Encoding([one], [0])], first_logit, context, lambda encoding: 1) for one in (1, 2, 3)]
        together = asyncio.gather(*runs)
        await b.turn()
        assert b.sent == [[1, 2, 3]]
        await b.answer()
        assert await together == [[1], [2], [3]]


async def test_a_large_request_is_split_over_the_places() -> None:
    async with bench(max_batches_in_flight=2) as b:
        task = await b.send(*range(1, 11))
        assert b.sent == [[1, 2, 3, 4], [5, 6, 7, 8]]
        await b.answer(1)
        await b.answer(0, 2)
        assert await task == list(range(1, 11))


async def test_a_cancelled_request_leaves_the_queue() -> None:
    async with bench() as b:
        first, second, third = await b.send(1), await b.send(2), await b.send(3)
        second.cancel()
        await b.turn()
        await b.answer(0)
        assert b.sent == [[1], [3]]
        await b.answer(1)
        assert [await first, await third] == [[1], [3]]
        with pytest.raises(asyncio.CancelledError):
            await second


async def test_only_a_batch_that_nobody_waits_for_is_cancelled() -> None:
    async with bench() as b:
        blocker, one, two = await b.send(1), await b.send(2), await b.send(3)
        await b.answer(0)
        one.cancel()
        await b.turn()
        assert not b.predictor.calls[1].cancelled
        two.cancel()
        await b.turn()
        assert b.predictor.calls[1].cancelled
        assert await blocker == [1]
        after = await b.send(4)
        await b.answer(2)
        assert await after == [4]


async def test_a_place_is_free_again_after_a_cancelled_call() -> None:
    async with bench() as b:
        task, waiting = await b.send(1), await b.send(2)
        task.cancel()
        await b.turn()
        assert b.sent == [[1], [2]]
        await b.answer(1)
        assert await waiting == [2]


async def test_an_instance_that_can_not_be_decoded_fails_its_own_request_alone() -> None:
    def refuse(index: int, rows: Mapping[str, Array]) -> Any:
        raise PredictorError("NaN")

    async with bench() as b:
        blocker, bad, good = await b.send(1), await b.send(2, decode=refuse), await b.send(3)
        await b.answer(0)
        await b.answer(1)
        assert [await blocker, await good] == [[1], [3]]
        with pytest.raises(PredictorError, match="NaN"):
            await bad


async def test_a_batch_that_the_model_refuses_is_asked_for_again_by_request() -> None:
    async with bench() as b:
        blocker, bad, good = await b.send(1), await b.send(2, 3), await b.send(4)
        await b.answer(0)
        b.predictor.fail(1, PredictorError("raised"))
        await b.turn()
        assert b.sent[2:] == [[2, 3]]
        b.predictor.fail(2, PredictorError("raised"))
        await b.turn()
        assert b.sent[3:] == [[4]]
        await b.answer(3)
        assert await good == [4] and await blocker == [1]
        with pytest.raises(PredictorError, match="raised"):
            await bad


async def test_an_instance_of_a_client_that_left_fails_nobody_else() -> None:
    async with bench() as b:
        blocker, bad, good = await b.send(1), await b.send(2), await b.send(3)
        await b.answer(0)
        bad.cancel()
        await b.turn()
        b.predictor.fail(1, PredictorError("raised"))
        await b.turn()
        assert b.sent[2:] == [[3]]
        await b.answer(2)
        assert await good == [3] and await blocker == [1]


async def test_a_model_that_refuses_everything_is_not_asked_one_by_one_for_ever() -> None:
    async with bench() as b:
        for round in range(MOST_REFUSED + 2):
            before = len(b.sent)
            blocker, one, two = await b.send(1), await b.send(2), await b.send(3)
            calls = 0
            while not (blocker.done() and one.done() and two.done()):
                b.predictor.fail(before + calls, PredictorError("sick"))
                calls += 1
                await b.turn()
            for task in (blocker, one, two):
                with pytest.raises(PredictorError, match="sick"):
                    await task
            assert calls == (4 if round < MOST_REFUSED else 2), round


async def test_a_call_that_can_not_be_stopped_keeps_its_place() -> None:
    async with bench() as b:
        b.predictor.stops = False
        task, waiting = await b.send(1), await b.send(2)
        task.cancel()
        await b.turn()
        assert b.sent == [[1]] and not b.predictor.calls[0].cancelled
        await b.answer(0)
        assert b.sent == [[1], [2]]
        await b.answer(1)
        assert await waiting == [2]


async def test_a_call_that_the_transport_breaks_off_is_answered() -> None:
    async with bench() as b:
        task = await b.send(1)
        b.predictor.calls[0].end.cancel()
        with pytest.raises(PredictorUnavailable, match="broken off"):
            await task
        after = await b.send(2)
        await b.answer(1)
        assert await after == [2]


async def test_nothing_to_predict() -> None:
    async with bench() as b:
        assert await b.scheduler.run([], first_logit, Context("id", {}), lambda encoding: 1) == []


async def test_those_who_left_leave_nothing_in_the_queue() -> None:
    async with bench() as b:
        blocker = await b.send(1)
        for _ in range(10):
            gone = await b.send(*range(100))
            gone.cancel()
            await b.turn()
        assert len(b.scheduler._waiting._arrived) <= 2 * MOST_GONE + 100
        await b.answer(0)
        assert await blocker == [1] and b.sent == [[1]]


async def test_an_outage_is_not_multiplied() -> None:
    async with bench() as b:
        blocker, one, two = await b.send(1), await b.send(2), await b.send(3)
        await b.answer(0)
        b.predictor.fail(1, PredictorUnavailable("down"))
        for task in (one, two):
            with pytest.raises(PredictorUnavailable, match="down"):
                await task
        assert await blocker == [1] and len(b.sent) == 2


async def test_the_callers_deadline_ends_a_request_and_no_other() -> None:
    async with bench() as b:
        blocker = await b.send(1)
        late = await b.send(2, deadline=asyncio.get_running_loop().time())
        patient = await b.send(3)
        with pytest.raises(CallersDeadline, match="before the caller's deadline"):
            await late
        await b.answer(0)
        assert b.sent == [[1], [3]]
        await b.answer(1)
        assert [await blocker, await patient] == [[1], [3]]


async def test_the_services_own_timeout() -> None:
    async with bench(timeout=0.0) as b:
        task = await b.send(1)
        with pytest.raises(PredictorTimeout, match=r"in 0 s \(--predictor_request_timeout_seconds\)"):
            await task


async def test_requests_with_different_authorization_never_share_a_batch() -> None:
    async with bench() as b:
        headers = [{"authorization": one, "x-request-id": str(number)} for number, one in enumerate("aabb")]
        tasks = [await b.send(number, headers=one) for number, one in enumerate(headers)]
        for number in range(3):
            await b.answer(number)
        assert b.sent == [[0], [1], [2, 3]]
        assert [call.headers for call in b.predictor.calls] == [headers[0], headers[1], headers[2]]
        assert [await task for task in tasks] == [[0], [1], [2], [3]]


async def test_the_sizes_of_outputs_go_along() -> None:
    async with bench() as b:
        task = await b.send(1, 2, length=5)
        assert b.predictor.calls[0].sizes == {"logits": 2 * 5 * 4}
        await b.answer()
        await task
    free = replace(BINDING, outputs=(replace(LOGITS, sizes=(-1, -1)),))
    async with bench(free) as b:
        task = await b.send(1)
        assert b.predictor.calls[0].sizes == {}
        await b.answer()
        await task


@pytest.mark.parametrize(("cost", "on_the_loop"), [(INLINE_COST, True), (INLINE_COST + 1, False)])
async def test_long_decoding_is_done_in_a_thread(cost: int, on_the_loop: bool) -> None:
    def where(index: int, rows: Mapping[str, Array]) -> Any:
        return threading.current_thread() is threading.main_thread()

    async with bench() as b:
        task = await b.send(1, decode=where, cost=cost)
        b.predictor.answer()
        assert await task == [on_the_loop]


async def test_batches_are_counted() -> None:
    masked = replace(BINDING, inputs=(IDS, InputBinding("attention_mask", "attention_mask", "INT64")), masked=True)
    async with bench(masked) as b:
        blocker, one, two = await b.send(1), await b.send(2, length=4), await b.send(3, length=3)
        await b.answer(0)
        await b.answer(1)
        await asyncio.gather(blocker, one, two)
        shown = b.metrics.render().decode()
    assert 'hf_transformer_batch_tokens_total{kind="real"} 10.0' in shown
    assert 'hf_transformer_batch_tokens_total{kind="padding"} 1.0' in shown
    assert "hf_transformer_batch_instances_count 2.0" in shown and "hf_transformer_batch_instances_sum 3.0" in shown
