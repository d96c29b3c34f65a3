"""Batching across requests, with a scripted predictor."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.core.scheduler import INLINE_COST, MAX_REFUSED_IN_A_ROW, ConcurrencyLimit, FailureIsolation
from hf_transformer.errors import (
    CallersDeadline,
    PredictorError,
    PredictorTimeout,
    PredictorUnavailable,
    RequestError,
)
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding
from tests.core.scheduling import LOGITS, MASKED, SIGNATURE, SchedulerHarness, first_logit, run, scheduling, text

TEXT = Encoding([101, 7, 102], [0, 0, 0])


def nan(number: int, item: Encoding, rows: Mapping[str, Array], options: Any) -> Any:
    raise PredictorError("NaN")


async def test_an_idle_service_sends_at_once_and_then_batches() -> None:
    async with scheduling() as b:
        tasks = [await b.send(1), await b.send(2), await b.send(3, 4), await b.send(5)]
        assert b.sent == [[1]]
        await b.answer(0)
        assert b.sent == [[1], [2, 3, 4, 5]]
        await b.answer(1)
        assert [await task for task in tasks] == [[1], [2], [3, 4], [5]]
        assert all(call.released for call in b.predictor.calls)
        together = asyncio.gather(*[run(b.scheduler, [text(1, number)]) for number in (1, 2, 3)])
        await b.predictor.turn()
        assert b.sent[2:] == [[1, 2, 3]], "what arrives in one turn leaves together"
        await b.answer()
        assert await together == [[1], [2], [3]]
        assert await run(b.scheduler, []) == []


async def test_batches_are_counted_and_have_the_sizes_of_outputs_that_are_known() -> None:
    async with scheduling(MASKED) as b:
        await b.answer_all(await b.send(1), await b.send(2, length=4), await b.send(3, length=3))
        page = b.metrics.render().decode()
    assert 'hf_transformer_batch_tokens_total{kind="real",model_name="bert"} 10.0' in page
    assert 'hf_transformer_batch_tokens_total{kind="padding",model_name="bert"} 1.0' in page
    assert 'hf_transformer_batch_instances_count{model_name="bert"} 2.0' in page
    assert 'hf_transformer_batch_instances_sum{model_name="bert"} 3.0' in page
    free = replace(SIGNATURE, outputs=(replace(LOGITS, sizes=(-1, -1)),))
    for signature, sizes in ((SIGNATURE, {"logits": 2 * 5 * 4}), (free, {})):
        async with scheduling(signature) as b:
            task = await b.send(1, 2, length=5)
            assert b.predictor.calls[0].given.sizes == sizes
            await b.answer_all(task)


async def test_a_large_request_is_split_over_the_concurrency_limit() -> None:
    async with scheduling(max_batches_in_flight=2) as b:
        task = await b.send(*range(1, 11))
        assert b.sent == [[1, 2, 3, 4], [5, 6, 7, 8]]
        await b.answer(1)
        await b.answer(0, 2)
        assert await task == list(range(1, 11))


async def test_requests_with_different_authorization_never_share_a_batch() -> None:
    async with scheduling() as b:
        headers = [{"authorization": key, "x-request-id": str(number)} for number, key in enumerate("aabb")]
        tasks = [await b.send(number, headers=sent) for number, sent in enumerate(headers)]
        assert await b.answer_all(*tasks) == [[0], [1], [2], [3]]
        assert b.sent == [[0], [1], [2, 3]]
        assert [call.given.headers for call in b.predictor.calls] == headers[:3]


@pytest.mark.parametrize(("cost", "on_the_loop"), [(INLINE_COST, True), (INLINE_COST + 1, False)])
async def test_long_decoding_is_done_in_a_thread(cost: int, on_the_loop: bool) -> None:
    def where(number: int, item: Encoding, rows: Mapping[str, Array], options: Any) -> Any:
        return threading.current_thread() is threading.main_thread()

    async with scheduling() as b:
        task = await b.send(1, decode=where, cost=cost)
        b.predictor.answer()
        assert await task == [on_the_loop]


async def test_an_answered_caller_can_join_the_next_batch() -> None:
    async with scheduling() as b:
        context = Context("id", {})

        async def steps() -> list[Any]:
            return [(await run(b.scheduler, [text(1, number)], context=context))[0] for number in (1, 3)]

        stepping = asyncio.create_task(steps())
        await b.predictor.turn()
        waited = context.queue
        waiting = await b.send(2, length=1)
        await b.answer(0)
        assert b.sent == [[1], [2, 3]] and context.queue >= waited > 0.0
        await b.answer(1)
        assert (await stepping, await waiting) == ([1, 3], [2])


# Requests that end early


async def test_a_cancelled_request_leaves_the_queue_and_takes_no_rows_of_a_batch() -> None:
    async with scheduling() as b:
        first, left, *others = await b.send(1), await b.send(7, 8, 9), await b.send(2), await b.send(3)
        left.cancel()
        await b.predictor.turn()
        assert await b.answer_all(first, *others) == [[1], [2], [3]]
        assert b.sent == [[1], [2, 3]] and left.cancelled()


async def test_a_request_leaves_the_queue_and_a_batch_goes_on_without_its_clients() -> None:
    async with scheduling() as b:
        sent, gone, two, three = await b.send(1), await b.send(7, 8, 9), await b.send(2), await b.send(3)
        gone.cancel()
        wanted = b.predictor.calls[0].given.wanted
        assert wanted is not None and wanted()
        sent.cancel()
        await b.predictor.turn()
        assert not wanted() and not b.predictor.calls[0].cancelled and b.sent == [[1]]
        await b.answer(0)
        assert b.sent == [[1], [2, 3]] and b.predictor.calls[0].released and gone.cancelled()
        assert await b.answer_all(two, three) == [[2], [3]]


@pytest.mark.parametrize("turns", range(4))
async def test_a_batch_is_not_sent_if_all_its_clients_have_left_before(turns: int) -> None:
    """The request leaves before or after the batch is formed."""
    async with scheduling() as b:
        task = asyncio.create_task(run(b.scheduler, [TEXT]))
        for _ in range(turns):
            await asyncio.sleep(0)
        if b.sent:
            assert turns >= 2 and await b.answer_all(task) == [[101]]
            return
        task.cancel()
        await b.predictor.turn()
        assert await b.answer_all(await b.send(2)) == [[2]] and b.sent == [[2]]


async def test_a_batch_is_not_sent_if_all_its_clients_leave_while_it_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduling() as b:
        packing, go, pack = threading.Event(), threading.Event(), b.builder.pack

        def slowly(items: Any) -> Any:
            packing.set()
            go.wait(10)
            return pack(items)

        monkeypatch.setattr(b.builder, "pack", slowly)
        monkeypatch.setattr(b.builder, "pack_cost", lambda items: INLINE_COST + 1)
        left, staying = await b.send(1), await b.send(2)
        await asyncio.to_thread(packing.wait, 10)
        left.cancel()
        go.set()
        async with asyncio.timeout(20):
            while not b.sent:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.001)
        assert b.sent == [[2]]
        assert await b.answer_all(staying) == [[2]]


async def test_the_callers_deadline_ends_a_request_and_no_other() -> None:
    async with scheduling() as b:
        now = asyncio.get_running_loop().time()
        blocker, late, patient = await b.send(1), await b.send(2, deadline=now), await b.send(3, deadline=now + 10_000)
        with pytest.raises(CallersDeadline, match="before the caller's deadline"):
            await asyncio.wait_for(late, 20)
        assert await b.answer_all(blocker, patient) == [[1], [3]]
        assert b.sent == [[1], [3]]
    async with scheduling(timeout=0.0) as b:
        task = await b.send(1)
        with pytest.raises(PredictorTimeout, match=r"in 0 s \(--predictor_request_timeout_seconds\)"):
            await asyncio.wait_for(task, 20)
        await b.answer()


async def test_an_answered_request_leaves_no_work_to_the_collector() -> None:
    class Decode:
        def __call__(self, number: int, item: Encoding, rows: Mapping[str, Array], options: Any) -> Any:
            return first_logit(number, item, rows, options)

    gc.collect()
    gc.disable()
    try:
        async with scheduling() as b:
            decode = Decode()
            gone = weakref.ref(decode)
            task = await b.send(1, 2, decode=decode)
            await b.answer()
            assert await task == [1, 2]
            del decode, task
            b.predictor.calls.clear()  # ``wanted`` references the entries
            await b.predictor.turn()
            assert gone() is None
    finally:
        gc.enable()


# Failures


async def test_an_instance_that_can_not_be_decoded_fails_its_own_request_alone() -> None:
    def fault(number: int, item: Encoding, rows: Mapping[str, Array], options: Any) -> Any:
        raise ValueError("a fault of ours")

    async with scheduling() as b:
        blocker, *bad = [await b.send(1), *[await b.send(2, decode=nan) for _ in range(2)]]
        broken, good = await b.send(3, decode=fault), await b.send(4)
        await b.answer(0)
        await b.answer(1)
        assert [await blocker, await good] == [[1], [4]]
        for task, error in ((bad[0], PredictorError), (bad[1], PredictorError), (broken, ValueError)):
            with pytest.raises(error):
                await task
        # Once for the call that all of them shared.
        assert (
            'hf_transformer_predictor_errors_total{kind="error",model_name="bert"} 1.0' in b.metrics.render().decode()
        )


async def test_a_batch_that_the_model_refuses_is_sent_again_by_request() -> None:
    async with scheduling() as b:
        blocker, bad, good, gone = await b.send(1), await b.send(2, 3), await b.send(4), await b.send(5)
        await b.answer(0)
        gone.cancel()
        await b.fail(1, PredictorError("raised"))
        assert b.sent[2:] == [[2, 3]]
        await b.fail(2, PredictorError("raised"))
        assert b.sent[3:] == [[4]]
        assert await b.answer_all(good, blocker) == [[4], [1]]
        with pytest.raises(PredictorError, match="raised"):
            await bad
        assert len(b.sent) == 4


@pytest.mark.parametrize(
    "error", [PredictorUnavailable("down"), PredictorTimeout("late")], ids=lambda error: error.status
)
async def test_an_outage_is_not_multiplied(error: RequestError) -> None:
    async with scheduling() as b:
        blocker, *shared = await b.send(1), await b.send(2), await b.send(3)
        await b.answer(0)
        b.predictor.fail(1, error)
        for task in shared:
            with pytest.raises(type(error), match=str(error)):
                await asyncio.wait_for(task, 20)
        assert await blocker == [1] and len(b.sent) == 2


async def test_a_model_that_refuses_everything_is_not_called_one_by_one_for_ever() -> None:
    async with scheduling() as b:
        for number in range(MAX_REFUSED_IN_A_ROW + 2):
            before = len(b.sent)
            tasks = [await b.send(1), await b.send(2), await b.send(3)]
            calls = 0
            while not all(task.done() for task in tasks):
                await b.fail(before + calls, PredictorError("sick"))
                calls += 1
            assert all(isinstance(task.exception(), PredictorError) for task in tasks)
            assert calls == (4 if number < MAX_REFUSED_IN_A_ROW else 2), number


def test_time_and_good_answers_bring_isolation_back() -> None:
    isolation = FailureIsolation(8)
    assert [isolation.retries_alone(10.0) for _ in range(10)] == [True] * 8 + [False, False]
    assert [isolation.retries_alone(now) for now in (12.0, 12.1, 14.0)] == [True, False, True]
    isolation.answered()
    assert [isolation.retries_alone(14.1) for _ in range(9)] == [True] * 8 + [False]


async def test_a_good_neighbour_is_answered_while_every_batch_has_a_bad_instance() -> None:
    async with scheduling() as b:
        for _ in range(2 * MAX_REFUSED_IN_A_ROW):
            tasks = [await b.send(first) for first in (0, 666, 1, 666)]
            while not all(task.done() for task in tasks):
                for number, call in enumerate(b.predictor.calls):
                    if 666 in b.sent[number] and not call.end.done():
                        b.predictor.fail(number, PredictorError("bad instance"))
                await b.answer()
            assert [isinstance(task.exception(), PredictorError) for task in tasks] == [False, True, False, True]


async def test_a_call_that_is_broken_off_is_answered() -> None:
    async with scheduling() as b:
        task = await b.send(1)
        b.predictor.calls[0].end.cancel()
        with pytest.raises(PredictorUnavailable, match="broken off"):
            await task
        assert await b.answer_all(await b.send(2)) == [[2]]


# The concurrency limit


@pytest.mark.parametrize("count", [1, 2])
async def test_two_schedulers_of_one_predictor_share_its_limit_in_turn(count: int) -> None:
    with ThreadPoolExecutor(1) as executor:
        limit = ConcurrencyLimit(count)
        old = SchedulerHarness(executor, limit=limit)
        new = SchedulerHarness(executor, limit=limit, predictor=old.predictor)
        tasks = [await old.send(*range(12)), await new.send(*range(100, 112))]
        for number in range(6):
            assert sum(not call.end.done() for call in old.predictor.calls) == min(count, 6 - number)
            await old.answer(number)
        if count == 1:
            assert [first for first, *_ in old.sent] == [0, 4, 100, 8, 104, 108]
        assert await asyncio.gather(*tasks) == [[*range(12)], [*range(100, 112)]]
        # Requests of a refused batch leave though the other scheduler sends nothing.
        blocker, *refused = await new.send(0), await old.send(1), await old.send(2)
        await old.answer()
        if count == 1:
            await old.fail(len(old.sent) - 1, PredictorError("bad"))
        assert await old.answer_all(blocker, *refused) == [[0], [1], [2]]


def test_a_limit_lowered_below_the_taken_slots_frees_none() -> None:
    limit = ConcurrencyLimit(2)
    called: list[int] = []

    def start(number: int) -> None:
        called.append(number)
        limit.acquire()

    limit.acquire()
    limit.acquire()
    limit.count = 1
    for number in range(2):
        limit.call_when_free(partial(start, number))
    limit.release()
    assert not limit.has_slot and called == []
    limit.release()
    assert called == [0]
    limit.release()
    assert called == [0, 1]


# Trial inference

FIVE, THREE = replace(SIGNATURE, length=5), [[101, 7, 102]]
DOUBLE = replace(SIGNATURE, outputs=(replace(LOGITS, datatype="FP64"),))
POOLED = replace(SIGNATURE, outputs=(replace(LOGITS, axes=LOGITS.axes[:1], sizes=(-1,)),))
PADDED = [[101, 7, 102, 0, 0]]
TRIALS: dict[str, tuple[Any, Any, int | None, str]] = {
    "free": (SIGNATURE, THREE, None, ""),
    "fixed length": (FIVE, PADDED, None, ""),
    "exact rows": (replace(SIGNATURE, exact_rows=2), THREE * 2, None, ""),
    "datatype": (DOUBLE, THREE, None, "configuration says FP64"),
    "shape": (POOLED, THREE, None, "with the shape"),
    "NaN first": (FIVE, PADDED, 0, "'logits' with NaN"),
    "NaN last": (FIVE, PADDED, 2, "'logits' with NaN"),
    "NaN in the padding": (FIVE, PADDED, 4, ""),
}


@pytest.mark.parametrize(("signature", "ids", "nan_at", "message"), TRIALS.values(), ids=TRIALS)
async def test_a_trial_is_packed_like_a_batch_and_waits_for_no_slot(
    signature: Any, ids: Any, nan_at: int | None, message: str
) -> None:
    async with scheduling(signature) as b:
        busy = await b.send(1, 2)
        trial = asyncio.create_task(b.scheduler.trial(TEXT))
        await b.predictor.turn()
        assert b.predictor.calls[-1].ids.tolist() == ids
        b.predictor.nan_at = nan_at
        b.predictor.answer(1)
        await asyncio.wait([trial])
        error = "" if trial.exception() is None else str(trial.exception())
        assert message in error and bool(message) == isinstance(trial.exception(), PredictorError)
        assert b.predictor.calls[-1].released and not busy.done()
        busy.cancel()
        await b.answer()


# All sequences of events

MOST_TEXTS = 10
numbers = st.integers(0, 50)
steps = st.one_of(
    st.tuples(st.just("send"), st.integers(1, MOST_TEXTS - 1), st.sampled_from(["a", "b"]), st.booleans()),
    st.tuples(st.sampled_from(["cancel", "answer", "break off"]), numbers),
    st.tuples(st.just("fail"), numbers, st.sampled_from([PredictorError, PredictorUnavailable, PredictorTimeout])),
    st.tuples(st.just("turn")),
)


async def perform(b: SchedulerHarness, step: tuple[Any, ...], requests: list[asyncio.Task[Any]]) -> None:
    calls = [call for call in b.predictor.calls if not call.end.done()]
    match step:
        case "send", count, owner, late:
            deadline = asyncio.get_running_loop().time() if late else None
            context = Context("id", {"authorization": owner}, deadline=deadline)
            texts = [text(3 + number % 2, MOST_TEXTS * len(requests) + number) for number in range(count)]
            requests.append(asyncio.create_task(run(b.scheduler, texts, context=context)))
        case "cancel", which:
            if requests:
                requests[which % len(requests)].cancel()
        case "answer", which if calls:
            calls[which % len(calls)].end.set_result(None)
        case "break off", which if calls:
            calls[which % len(calls)].end.cancel()
        case "fail", which, error if calls:
            calls[which % len(calls)].end.set_exception(error("it failed"))
        case ("turn",):
            await b.predictor.turn()


def work_of(b: SchedulerHarness, requests: Sequence[asyncio.Task[Any]], sizes: Sequence[int]) -> tuple[int, ...]:
    """The texts and tokens that wait, and those at the predictor, by the calls that it has seen."""
    last = {number: call for call in b.predictor.calls for number in call.first_ids}
    sent = [call for call in b.predictor.calls if not call.end.done()]
    waiting = []
    for which, (task, size) in enumerate(zip(requests, sizes, strict=True)):
        for number in range(size):
            call = last.get(MOST_TEXTS * which + number)
            if not task.done() and (call is None or (call.end.done() and call.end.exception() is not None)):
                waiting.append(3 + number % 2)
    return len(waiting), sum(waiting), sum(len(call.ids) for call in sent), sum(call.ids.size for call in sent)


async def run_sequence(sequence: list[tuple[Any, ...]]) -> None:
    async with scheduling(max_batches_in_flight=2) as b:
        b.scheduler._isolation = FailureIsolation(3)
        requests: list[asyncio.Task[Any]] = []
        sizes: list[int] = []
        for step in sequence:
            await perform(b, step, requests)
            assert sum(not call.end.done() for call in b.predictor.calls) <= 2
            if step[0] == "send":
                sizes.append(step[1])
            elif step[0] == "turn":
                assert b.scheduler.work == work_of(b, requests, sizes)
        await b.predictor.turn()
        while any(not call.end.done() for call in b.predictor.calls):
            await b.answer()
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(result, list | RequestError | asyncio.CancelledError) for result in results)
        queue = b.scheduler._queue
        assert not queue and not queue._groups and b.scheduler.work == (0, 0, 0, 0)
        assert b.scheduler._limit._taken == 0 and not b.scheduler._batches
        assert await b.answer_all(await b.send(*range(8))) == [[*range(8)]]


@given(sequence=st.lists(steps, max_size=40))
def test_any_sequence_of_events_ends_with_an_empty_scheduler(sequence: list[tuple[Any, ...]]) -> None:
    asyncio.run(run_sequence(sequence))
