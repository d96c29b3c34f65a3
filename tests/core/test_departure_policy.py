"""The policy of departures with known costs, and the holds of the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from benchmarks.departures import LoadCell, simulate
from hf_transformer.core.batch import EncodingBatchBuilder, PaddingPolicy
from hf_transformer.core.batch_costs import COLD_BATCHES, GROUP, BatchCosts, BatchTimer, ConstantCosts
from hf_transformer.core.contract import Signature
from hf_transformer.core.departures import (
    INITIAL_LEAD,
    LATE_SHARE,
    MIN_FIXED_SHARE,
    MIN_HOLD_SECONDS,
    RETURN_SHARE,
    Departures,
)
from hf_transformer.errors import CallersDeadline, PredictorUnavailable
from tests.core.scheduling import MASKED, SIGNATURE, SchedulerHarness, scheduling
from tests.support.polling import until

FIXED, TOKEN = 0.01, 0.0001
"""Seconds of a batch and of a token."""


class KnownCosts(BatchCosts):
    """Costs that are known from the start."""

    def __init__(self, fixed: float = FIXED, token: float = TOKEN, instances: int | None = 1) -> None:
        super().__init__(instances)
        self.known = fixed, token

    @property
    def is_fitted(self) -> bool:
        return True

    @property
    def _line(self) -> tuple[float, float]:
        return self.known

    @property
    def mean_seconds(self) -> float:
        return self.known[0] + 100 * self.known[1]

    def first_end(self) -> tuple[float, float] | None:
        self._weight = 1.0  # as after the first group
        return super().first_end()


def answered(policy: Departures, rows: int, returned: float, at: float = 0.0) -> None:
    """A batch of ``rows`` texts that ends ``at``, whose clients all have asked again ``returned`` seconds later."""
    policy.answered(policy.sent(at - FIXED, rows), at, rows, rows)
    for _ in range(rows):
        policy.arrived(at + returned)


def test_nothing_waits_before_anything_is_learnt() -> None:
    policy = Departures(BatchCosts(1))
    policy.sent(0.0, 100)
    assert policy.hold(0.001, 5) == 0


def test_a_batch_leaves_before_the_expected_end_of_the_running_one() -> None:
    policy = Departures(KnownCosts())
    policy.sent(1.0, 100)
    seconds = FIXED + 100 * TOKEN
    assert policy.hold(1.001, 64) == pytest.approx(seconds * (1 - INITIAL_LEAD) - 0.001)
    assert policy.hold(1.0 + seconds, 64) == 0, "the end is overdue"


@pytest.mark.parametrize("instances", [1, 2, 3])
def test_no_batch_waits_while_an_instance_is_free(instances: int) -> None:
    policy = Departures(KnownCosts(instances=instances))
    for number in range(instances):
        assert policy.hold(1.0, 64) == 0, number
        policy.sent(1.0, 100)
    assert policy.hold(1.0, 64) > 0


def test_no_batch_waits_if_its_fixed_cost_is_small() -> None:
    most = round(FIXED / MIN_FIXED_SHARE - FIXED, 6) / TOKEN
    for tokens, waits in ((most - 1, True), (most + 1, False)):
        policy = Departures(KnownCosts())
        policy.sent(1.0, int(tokens))
        assert (policy.hold(1.0, 64) > 0) is waits


def test_one_batch_of_all_clients_waits_for_those_who_return() -> None:
    policy = Departures(KnownCosts())
    answered(policy, 4, returned=0.002)
    timer = policy.sent(1.0, 40)
    end = 1.0 + FIXED + 40 * TOKEN
    assert policy.hold(1.001, 4) == pytest.approx(end + 0.002 - 1.001)
    policy.answered(timer, 1.02, 3, 3)
    assert policy.hold(1.02, 4) == pytest.approx(0.002), "until the clients of the last batch are back"
    policy.arrived(1.021)
    policy.arrived(1.021)
    assert not policy.is_complete
    policy.arrived(1.021)
    assert policy.is_complete
    assert policy.hold(1.0215, 4) == 0
    assert policy.hold(1.03, 4) == 0, "some never come back"


def test_arrivals_during_a_run_do_not_end_the_wait_for_its_end() -> None:
    policy = Departures(KnownCosts())
    answered(policy, 2, returned=0.002)
    policy.sent(1.0, 40)
    assert policy.hold(1.0, 4) > FIXED
    for _ in range(10):
        policy.arrived(1.001)
    assert not policy.is_complete


@pytest.mark.parametrize("rows, waits", [(4, True), (16, False)])
def test_batches_take_turns_if_all_clients_together_return_too_late(rows: int, waits: bool) -> None:
    policy = Departures(KnownCosts())
    for number in range(50):
        answered(policy, 4, returned=RETURN_SHARE * FIXED / 2, at=float(number))
    policy.answered(policy.sent(60.0, 40), 60.02, 4, 4)
    assert (policy.hold(60.02, rows) > 0) is waits


def test_a_lone_client_never_waits() -> None:
    policy, now = Departures(KnownCosts()), 0.0
    for _ in range(100):
        policy.arrived(now)
        assert policy.hold(now, 1) == 0
        timer = policy.sent(now, 10)
        now += FIXED
        policy.answered(timer, now, 1, 1)
        now += 0.0005


def test_a_request_of_many_texts_counts_once_with_its_last_batch() -> None:
    policy = Departures(KnownCosts())
    answered(policy, 2, returned=0.002)
    policy.answered(policy.sent(1.0, 80), 1.02, 8, 0)
    assert policy.hold(1.02, 8) == 0, "the request has more texts in the queue, and no other client is expected"
    policy.answered(policy.sent(1.02, 80), 1.04, 8, 1)
    assert policy.hold(1.04, 2) > 0
    policy.arrived(1.041)
    assert policy.hold(1.041, 2) == 0


def test_turns_are_equal_but_do_not_divide_the_oldest_request() -> None:
    policy = Departures(KnownCosts())
    timer = policy.sent(1.0, 100)
    assert policy.share(1.0, 64, 1) == 32
    assert policy.share(1.0, 64, 40) == 40
    policy.failed(timer, 1.02)
    assert policy.share(100.0, 64, 1) == 64, "after a pause"


def test_nothing_waits_for_a_model_whose_instances_are_unknown() -> None:
    policy = Departures(KnownCosts(instances=None))
    answered(policy, 4, returned=0.002)
    policy.sent(1.0, 40)
    assert policy.hold(1.001, 64) == 0
    assert policy.share(1.001, 64, 1) == 64


def test_a_batch_of_one_shape_is_a_fixed_cost() -> None:
    costs = ConstantCosts(1)
    for number in range(COLD_BATCHES + GROUP):
        assert not costs.is_fitted
        costs.stop(costs.start(number, 1024), number + 0.01)
    assert costs.is_fitted
    assert costs.fixed_seconds == pytest.approx(0.01)
    costs.start(100.0, 1024)
    assert costs.first_end() == pytest.approx((100.01, 0.01))


@pytest.mark.parametrize("signature", [SIGNATURE, MASKED, replace(MASKED, length=16), replace(MASKED, exact_rows=8)])
def test_each_model_of_several_rows_learns_its_costs(signature: Signature) -> None:
    costs = BatchCosts(1)
    assert EncodingBatchBuilder(signature, PaddingPolicy(0, left=False), costs=costs).costs is costs
    one_row = replace(signature, max_rows=1, exact_rows=None)
    assert EncodingBatchBuilder(one_row, PaddingPolicy(0, left=False), costs=costs).costs is None


def test_a_client_that_stays_away_makes_others_wait_once() -> None:
    policy = Departures(KnownCosts())
    answered(policy, 2, returned=0.002)
    policy.answered(policy.sent(1.0, 20), 1.02, 2, 2)
    policy.arrived(1.021)
    assert policy.hold(1.021, 1) > 0
    policy.answered(policy.sent(1.023, 10), 1.04, 1, 1)
    policy.arrived(1.041)
    assert policy.hold(1.041, 1) == 0


@pytest.mark.parametrize("late", [True, False])
def test_the_lead_grows_with_late_batches_and_shrinks_with_early_ones(late: bool) -> None:
    policy = Departures(KnownCosts())
    seconds = FIXED + 100 * TOKEN

    def held(now: float) -> float:
        timer = policy.sent(now, 100)
        lead = seconds - policy.hold(now, 64)
        if late:
            policy.answered(timer, now + seconds, 1, 1)
            timer = policy.sent(now + seconds, 100)
        else:
            following = policy.sent(now + seconds / 2, 100)
            policy.answered(timer, now + seconds, 1, 1)
            timer = following
        policy.failed(timer, now + 2 * seconds)
        return lead

    leads = [held(float(number)) for number in range(300)]
    assert leads[0] == pytest.approx(INITIAL_LEAD * seconds)
    if late:
        assert leads[-1] == pytest.approx(seconds), "nothing waits"
        assert sorted(leads) == pytest.approx(leads)
    else:
        assert leads[-1] == pytest.approx(0, abs=LATE_SHARE * seconds)


def test_a_short_rest_is_no_reason_for_a_timer() -> None:
    policy = Departures(KnownCosts())
    policy.sent(1.0, 100)
    end = 1.0 + (FIXED + 100 * TOKEN) * (1 - INITIAL_LEAD)
    assert policy.hold(end - 0.9 * MIN_HOLD_SECONDS, 64) == 0
    assert policy.hold(end - 1.1 * MIN_HOLD_SECONDS, 64) > 0


# Simulated: the policy finds the better plan by itself.


@pytest.mark.parametrize("fixed, row, clients", [(20.0, 0.01, 4), (8.0, 0.05, 16), (8.0, 0.001, 16), (8.0, 0.01, 4)])
def test_a_closed_loop_in_front_of_a_device_is_close_to_the_best_plan(fixed: float, row: float, clients: int) -> None:
    for texts, share in (("9 tokens", 0.9), ("mixed", 0.8)):
        cell = LoadCell(fixed, row, clients, texts)
        held, never = simulate(cell, holds=True), simulate(cell, holds=False)
        assert share < held.rate / cell.best_rate < 1.1
        assert held.rate > 1.15 * never.rate
        assert held.p50 < never.p50


@pytest.mark.parametrize("clients", [1, 4, 64])
def test_a_model_that_is_slow_per_row_is_as_fast_as_without_holds(clients: int) -> None:
    cell = LoadCell(0.1, 1.0, clients, "9 tokens")
    assert simulate(cell, holds=True).rate > 0.97 * simulate(cell, holds=False).rate


@pytest.mark.parametrize("rate", [100.0, 1000.0, 5000.0])
def test_an_open_loop_waits_no_longer(rate: float) -> None:
    for fixed, row in ((1.0, 0.01), (8.0, 0.05)):
        cell = LoadCell(fixed, row, 1, "9 tokens")
        held, never = simulate(cell, holds=True, rate=rate), simulate(cell, holds=False, rate=rate)
        assert held.p50 < 1.05 * never.p50


# In the scheduler


class Held(Departures):
    """Holds each batch for ``seconds`` while another one runs."""

    def __init__(self, seconds: float) -> None:
        super().__init__(BatchCosts(1))
        self.seconds = seconds
        self.running = 0
        self.complete = False

    @property
    def is_complete(self) -> bool:
        return self.complete

    def hold(self, now: float, rows: int) -> float:
        return self.seconds if self.running else 0.0

    def sent(self, now: float, tokens: int) -> BatchTimer:
        self.running += 1
        return super().sent(now, tokens)

    def answered(self, timer: BatchTimer, now: float, rows: int, requests: int) -> None:
        self.running -= 1
        super().answered(timer, now, rows, requests)

    def failed(self, timer: BatchTimer, now: float) -> None:
        self.running -= 1
        super().failed(timer, now)


@asynccontextmanager
async def holding(seconds: float = 3600.0) -> AsyncIterator[tuple[SchedulerHarness, Held]]:
    """A scheduler of batches of at most 8 texts, 3 in flight, with one batch in flight."""
    builder = EncodingBatchBuilder(MASKED, PaddingPolicy(0, left=False), costs=BatchCosts(1))
    async with scheduling(MASKED, builder, max_batches_in_flight=3) as b:
        policy = b.scheduler._departures = Held(seconds)
        first = await b.send(100)
        assert b.sent == [[100]]
        yield b, policy
        with suppress(PredictorUnavailable):
            await b.answer_all(first)
        assert b.scheduler._hold is None


async def test_held_texts_share_the_batch_that_leaves_after_the_answer() -> None:
    async with holding() as (b, _):
        tasks = [await b.send(number) for number in (1, 2, 3)]
        assert b.sent == [[100]]
        await b.answer(0)
        assert b.sent == [[100], [1, 2, 3]]
        assert await b.answer_all(*tasks) == [[1], [2], [3]]


async def test_a_request_alone_is_one_batch_while_batches_take_turns() -> None:
    builder = EncodingBatchBuilder(MASKED, PaddingPolicy(0, left=False), costs=KnownCosts())
    async with scheduling(MASKED, builder, max_batches_in_flight=3) as b:
        for number in (1, 10, 20):
            request = await b.send(*range(number, number + 5))
            assert b.sent[-1] == [*range(number, number + 5)]
            await b.answer_all(request)


async def test_held_texts_leave_at_their_time() -> None:
    async with holding(0.001) as (b, _):
        tasks = [await b.send(number) for number in (1, 2)]
        await until(lambda: sum(map(len, b.sent)) > 2)
        assert b.sent in ([[100], [1, 2]], [[100], [1], [2]]), "the second may come after the time of the first"
        assert await b.answer_all(*tasks) == [[1], [2]]


async def test_held_texts_leave_once_all_clients_are_back() -> None:
    async with holding() as (b, policy):
        tasks = [await b.send(number) for number in (1, 2)]
        policy.complete = True
        tasks.append(await b.send(3))
        assert b.sent == [[100], [1, 2, 3]]
        assert await b.answer_all(*tasks) == [[1], [2], [3]]


async def test_a_full_batch_is_not_held() -> None:
    async with holding() as (b, _):
        tasks = [await b.send(number) for number in range(1, 8)]
        assert b.sent == [[100]]
        tasks.append(await b.send(8))
        assert b.sent == [[100], [1, 2, 3, 4, 5, 6, 7, 8]]
        tasks.append(await b.send(*range(11, 20)))
        assert b.sent[2:] == [[11, 12, 13, 14, 15, 16, 17, 18]], "the ninth text waits for others"
        assert await b.answer_all(*tasks) == [*([number] for number in range(1, 9)), [*range(11, 20)]]


async def test_held_texts_leave_after_a_failure_of_the_running_batch() -> None:
    async with holding() as (b, _):
        task = await b.send(1)
        await b.fail(0, PredictorUnavailable("gone"))
        assert b.sent == [[100], [1]]
        assert await b.answer_all(task) == [[1]]


async def test_held_texts_whose_client_leaves_are_not_sent() -> None:
    async with holding(0.001) as (b, _):
        task = await b.send(1)
        task.cancel()
        await until(lambda: b.scheduler._hold is None)
        assert (b.sent, len(b.scheduler._queue)) == ([[100]], 0)
        other = await b.send(2)
        await until(lambda: len(b.sent) > 1)
        assert await b.answer_all(other) == [[2]]


async def test_a_deadline_passes_while_a_text_is_held() -> None:
    async with holding() as (b, _):
        task = await b.send(1, deadline=asyncio.get_running_loop().time() + 0.001)
        with pytest.raises(CallersDeadline):
            await task
        assert b.sent == [[100]]
