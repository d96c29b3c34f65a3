"""The learnt overhead of batches, from simulated models with known costs, and its use in batch formation."""

from __future__ import annotations

import logging
import math
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

import pytest

from hf_transformer.core.batch import EncodingBatchBuilder, PaddingBuckets, PaddingPolicy
from hf_transformer.core.batch_costs import (
    COLD_BATCHES,
    FIRST_FIT,
    GROUP,
    INITIAL_OVERHEAD,
    MAX_BATCH_OVERHEADS,
    MAX_PADDING_OVERHEADS,
    MIN_OVERHEAD,
    BatchCosts,
    BatchTimer,
)
from hf_transformer.core.contract import Signature
from hf_transformer.core.queue import BatchLimits
from hf_transformer.errors import PredictorUnavailable
from tests.core.scheduling import MASKED, scheduling, text

SIZES = random.Random(7).choices(range(8, 601), k=400)


def simulate(
    costs: BatchCosts,
    sizes: Iterable[int],
    seconds: Callable[[int], float],
    *,
    instances: int = 1,
    started: float = 0.0,
    turn: float = 0.0,
) -> float:
    """Runs batches of ``sizes`` tokens, one more than ``instances`` in flight. Returns the end of the last batch.

    ``seconds`` gives the time of a batch by its tokens. The event loop sees ends only every ``turn`` seconds, at once
    if 0.
    """
    now, sizes = started, iter(sizes)
    free = [started] * instances
    in_flight: list[tuple[float, int, BatchTimer]] = []
    while True:
        while len(in_flight) <= instances and (tokens := next(sizes, None)) is not None:
            timer = costs.start(now, tokens)
            free.sort()
            free[0] = max(now, free[0]) + seconds(tokens)
            in_flight.append((free[0], tokens, timer))
        if not in_flight:
            return now
        first = min(in_flight, key=lambda batch: batch[0])
        in_flight.remove(first)
        end, tokens, timer = first
        now = max(now, math.ceil(end / turn) * turn if turn else end)
        costs.stop(timer, now)


def line(overhead: float, per_token: float = 1e-4) -> Callable[[int], float]:
    return lambda tokens: per_token * (overhead + tokens)


@pytest.mark.parametrize("instances", [1, 2, 4])
@pytest.mark.parametrize("overhead", [10.0, 120.0, 4000.0])
def test_the_overhead_is_learnt_from_the_times_of_batches(overhead: float, instances: int) -> None:
    costs = BatchCosts(instances)
    simulate(costs, SIZES * 4, line(overhead), instances=instances)
    assert costs.overhead == pytest.approx(overhead, rel=0.01)


def test_times_on_a_line_outweigh_the_initial_overhead_soon() -> None:
    costs = BatchCosts(1)
    simulate(costs, SIZES[:150], line(4000))
    assert 1500 < costs.overhead < 4000, "by the decay of the initial overhead alone: 803"


def test_batches_of_one_size_ask_for_a_small_one_until_the_fixed_cost_is_known() -> None:
    costs, wanted = BatchCosts(1), []
    for number in range(FIRST_FIT + 4 * GROUP):
        wanted.append(costs.wants_small_batch)
        tokens = 100 if costs.wants_small_batch else 200
        costs.stop(costs.start(number, tokens), number + line(50)(tokens))
    first, second = wanted[:FIRST_FIT], wanted[FIRST_FIT:]
    assert not any(first)
    assert second[:GROUP] == [True] * GROUP
    assert not any(second[GROUP:]), "one group of small batches is enough"
    assert costs.is_fitted


HANGING, COLD_START = ([8] * 5, lambda tokens: 60.0), (SIZES[:COLD_BATCHES], lambda tokens: 60.0)
BUSY = random.Random(1)
PHASES: dict[str, tuple[list[Any], float, float]] = {
    "alternating sizes": ([([16, 256] * 500, line(50))], 49.5, 50.5),
    "times below the clock's resolution": ([(SIZES, lambda tokens: 0.0)], INITIAL_OVERHEAD, INITIAL_OVERHEAD),
    "too few": ([(SIZES[: FIRST_FIT - 1], line(30))], INITIAL_OVERHEAD, INITIAL_OVERHEAD),
    "the initial overhead weighs more": (
        [COLD_START, (SIZES[COLD_BATCHES:FIRST_FIT], line(30))],
        100,
        INITIAL_OVERHEAD - 1,
    ),
    "a call hangs": ([(SIZES, line(20)), HANGING, (SIZES, line(20))], 14, 26),
    "a changing model": ([(SIZES, line(10)), (SIZES * 10, line(1000))], 800, 1200),
    "tokens cost nothing": ([(SIZES, lambda tokens: 0.002)], 10_000, 10**9),
    "batches cost nothing": ([(SIZES, lambda tokens: 1e-4 * tokens**1.1)], MIN_OVERHEAD, MIN_OVERHEAD),
    "equal batches: larger ones are tried": ([([256] * 500, line(10))], 10 * INITIAL_OVERHEAD, 10**9),
    "a grown overhead is corrected": ([([256] * 500, line(10)), (SIZES * 2, line(10))], 9.5, 10.5),
    # A plain fit gives 84.
    "other clients keep the model busy": (
        [(SIZES * 5, lambda tokens: line(20)(tokens) + (line(20)(300) if BUSY.random() < 0.2 else 0.0))],
        *(20, 50),
    ),
}


@pytest.mark.parametrize(("phases", "least", "most"), PHASES.values(), ids=PHASES)
def test_the_overhead_follows_the_model_and_resists_disturbances(
    phases: list[Any], least: float, most: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    costs, ended = BatchCosts(1), 0.0
    for sizes, seconds in phases:
        ended = simulate(costs, sizes, seconds, started=ended)
    assert least <= costs.overhead <= most
    lines = [re.match(r"one more batch takes the model as long as (\d+) more tokens", line) for line in caplog.messages]
    assert len(lines) <= 1 and all(lines), "at most one line"


def test_the_log_states_the_overhead_when_the_initial_one_counts_little(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    costs = BatchCosts(1)
    ended = simulate(costs, SIZES[:100], line(30))
    assert caplog.messages == []
    simulate(costs, [*SIZES[100:], *SIZES * 5], line(30), started=ended)
    assert 30 <= int(caplog.messages[0].split()[9]) < 45


@pytest.mark.parametrize("part", [0.5, 1.0, 1.5, 2.5])
def test_a_slow_event_loop_does_not_hide_a_large_overhead(part: float) -> None:
    """``part`` is the time of a turn of the event loop, as a fraction of a batch's."""
    costs, seconds = BatchCosts(1), line(5000)
    simulate(costs, SIZES * 5, seconds, turn=part * seconds(300))
    assert costs.overhead > 500


def test_padding_is_limited_to_half_an_overhead_and_size_to_many() -> None:
    costs = BatchCosts(1)
    costs.overhead = 20.0
    padding = int(MAX_PADDING_OVERHEADS * 20)
    assert costs.allow(100, 100 - padding) and not costs.allow(100, 99 - padding)
    most = MAX_BATCH_OVERHEADS * 20
    assert costs.allow(most, most) and not costs.allow(most + 1, most + 1)
    for changes in ({"length": 16}, {"exact_rows": 8}):
        builder = builder_of(BatchCosts(1), signature=replace(MASKED, **cast(Any, changes)))
        assert builder.limits(text(3)).costs is None, "one length, or rows are free"


def test_batches_without_an_answer_teach_nothing_and_free_the_model() -> None:
    costs = BatchCosts(1)
    first, second, third = (costs.start(0.0, 100) for _ in range(3))
    costs.stop(second, 1.0, answered=False)  # given up while the model runs the first
    costs.stop(first, 2.0, answered=False)
    costs.stop(third, 3.0, answered=False)
    assert (costs.mean_seconds, costs.fixed_seconds, costs.overhead) == (0.0, 0.0, INITIAL_OVERHEAD)
    assert costs.first_end() is None, "no instance runs a batch"


@pytest.mark.parametrize("instances", [1, 2])
def test_the_first_end_is_that_of_the_oldest_running_batch(instances: int) -> None:
    costs = BatchCosts(instances)
    ended = simulate(costs, SIZES, line(120.0), instances=instances)
    timers = [costs.start(ended + number, 200) for number in range(instances)]
    waiting = costs.start(ended + 5, 700)
    seconds = line(120.0)(200)
    assert costs.first_end() == pytest.approx((ended + seconds, seconds), rel=0.01)
    costs.stop(timers[0], ended + 6)
    for timer in timers[1:]:
        costs.stop(timer, ended + 6)
        assert costs.first_end() is None, "an instance is free"
        costs.start(ended + 7, 700)
    seconds = line(120.0)(700)
    assert costs.first_end() == pytest.approx((ended + 6 + seconds, seconds), rel=0.01)
    costs.stop(waiting, ended + 8)


def test_outputs_may_be_larger_while_a_batch_is_mostly_fixed_cost() -> None:
    limits = BatchLimits(
        *(64, 10**6, 4000, lambda width: 100 * width), padding=True, costs=BatchCosts(1), max_learnt_output_bytes=8000
    )
    costs = cast(BatchCosts, limits.costs)
    assert limits.allow(4, 10, 40) and not limits.allow(5, 10, 50), "before the first fit"
    simulate(costs, SIZES, line(60.0))
    assert limits.allow(5, 10, 50)
    assert not limits.allow(7, 10, 70), "more tokens than the fixed cost"
    costs = cast(BatchCosts, replace(limits, costs=BatchCosts(1)).costs)
    simulate(costs, SIZES, line(4000.0))
    limits = replace(limits, costs=costs)
    assert limits.allow(8, 10, 80) and not limits.allow(9, 10, 90), "8,000 bytes"
    assert not replace(limits, max_learnt_output_bytes=0).allow(5, 10, 50)


def test_before_the_first_fit_padding_is_a_share_of_the_batch() -> None:
    costs = BatchCosts(1)
    costs.overhead = 10_000.0
    assert costs.allow(100, 75) and not costs.allow(100, 74)
    simulate(costs, SIZES, line(10_000.0))
    assert costs.allow(100, 10)


def test_tokens_outweigh_the_overhead_once_it_is_fitted() -> None:
    costs = BatchCosts(1)
    ended = simulate(costs, SIZES[: FIRST_FIT - 1], line(120.0))
    assert not costs.outweighed(10**9)
    ended = simulate(costs, SIZES[FIRST_FIT - 1 :], line(120.0), started=ended)
    assert (costs.outweighed(110), costs.outweighed(130)) == (False, True)
    simulate(costs, [300] * 10_000, line(120.0), started=ended)
    assert costs.overhead > 200, "equal batches let the overhead grow"
    assert costs.outweighed(130), "the fitted overhead stays"


# In the scheduler


class RecordedCosts(BatchCosts):
    """Costs with a set overhead. ``tokens`` lists the tokens of ended batches, 0 for a batch without an answer."""

    def __init__(self, overhead: float) -> None:
        super().__init__(1)
        self.overhead = overhead
        self.tokens: list[int] = []

    def stop(self, timer: BatchTimer, now: float, *, answered: bool = True) -> None:
        self.tokens.append(timer.tokens if answered else 0)
        super().stop(timer, now, answered=answered)


def builder_of(
    costs: BatchCosts, buckets: PaddingBuckets | None = None, signature: Signature = MASKED
) -> EncodingBatchBuilder:
    policy = PaddingPolicy(0, left=False, buckets=buckets)
    return EncodingBatchBuilder(signature, policy, max_tokens=10**6, max_output_bytes=10**9, costs=costs)


NEAR = 400 - int(MAX_PADDING_OVERHEADS * INITIAL_OVERHEAD)
"""The shortest text that shares a batch with a text of 400 tokens under the initial overhead."""


@pytest.mark.parametrize(
    ("overhead", "buckets", "lengths", "shapes"),
    [
        (INITIAL_OVERHEAD, None, [10, 10, 13], [(3, 13)]),
        (12.0, None, [10, 10, 13], [(3, 13)]),
        (11.0, None, [10, 10, 13], [(2, 10), (1, 13)]),
        (INITIAL_OVERHEAD, None, [400, NEAR, NEAR, NEAR], [(2, 400), (2, NEAR)]),
        (4.0, None, [9, 12, 16, 10], [(2, 10), (1, 12), (1, 16)]),
        (4.0, PaddingBuckets(16, 512), [9, 12, 16, 10, 17], [(4, 16), (1, 32)]),  # equally long in one bucket
    ],
)
async def test_texts_share_a_batch_if_that_saves_more_than_their_padding_costs(
    overhead: float, buckets: PaddingBuckets | None, lengths: list[int], shapes: list[tuple[int, int]]
) -> None:
    costs = RecordedCosts(overhead)
    async with scheduling(builder=builder_of(costs, buckets)) as b:
        blocker, task = await b.send(1, length=16), await b.send_texts(*[text(length, length) for length in lengths])
        assert await b.answer_all(blocker, task) == [[1], lengths]
        assert b.shapes == [(1, 16), *shapes]
        assert costs.tokens == [rows * width for rows, width in b.shapes], "padding included"
        task = await b.send(1)
        b.predictor.fail(-1, PredictorUnavailable("gone"))
        with pytest.raises(PredictorUnavailable):
            await task
        assert costs.tokens[-1] == 0
