"""What one more batch costs, learnt from the times of a model whose costs are known, and which texts then share one."""

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
from hf_transformer.core.batch_costs import COLD, ENOUGH, FIRST, GUESS, LEAST, WORTH, BatchCosts, Timing
from hf_transformer.core.contract import Signature
from hf_transformer.errors import PredictorUnavailable
from tests.core.bench import MASKED, bench, text

SIZES = random.Random(7).choices(range(8, 601), k=400)


def work_off(
    costs: BatchCosts,
    sizes: Iterable[int],
    seconds: Callable[[int], float],
    *,
    instances: int = 1,
    started: float = 0.0,
    turn: float = 0.0,
) -> float:
    """Batches of these tokens, one more at the model than it works on, each taking so many seconds; when the last one
    ended. That they have is seen every ``turn`` seconds, at once without one."""
    now, sizes = started, iter(sizes)
    free = [started] * instances
    under_way: list[tuple[float, int, Timing]] = []
    while True:
        while len(under_way) <= instances and (tokens := next(sizes, None)) is not None:
            timing = costs.sent(now)
            free.sort()
            free[0] = max(now, free[0]) + seconds(tokens)
            under_way.append((free[0], tokens, timing))
        if not under_way:
            return now
        first = min(under_way, key=lambda one: one[0])
        under_way.remove(first)
        end, tokens, timing = first
        now = max(now, math.ceil(end / turn) * turn if turn else end)
        timing.ended(now, tokens)


def line(overhead: float, per_token: float = 1e-4) -> Callable[[int], float]:
    return lambda tokens: per_token * (overhead + tokens)


@pytest.mark.parametrize("instances", [1, 2, 4])
@pytest.mark.parametrize("overhead", [10.0, 120.0, 4000.0])
def test_the_overhead_is_what_a_batch_costs_beside_its_tokens(overhead: float, instances: int) -> None:
    costs = BatchCosts(instances)
    work_off(costs, SIZES * 4, line(overhead), instances=instances)
    assert costs.overhead == pytest.approx(overhead, rel=0.01)


HANGS, COLD_START = ([8] * 5, lambda tokens: 60.0), (SIZES[:COLD], lambda tokens: 60.0)
BUSY = random.Random(1)
LEARNT: dict[str, tuple[list[Any], float, float]] = {
    "large and small ones that take turns": ([([16, 256] * 500, line(50))], 49.5, 50.5),
    "times too short for the clock": ([(SIZES, lambda tokens: 0.0)], GUESS, GUESS),
    "too few": ([(SIZES[: FIRST - 1], line(30))], GUESS, GUESS),
    "the guess counts more": ([COLD_START, (SIZES[COLD:FIRST], line(30))], 100, GUESS - 1),
    "a call hangs": ([(SIZES, line(20)), HANGS, (SIZES, line(20))], 14, 26),
    "a model that changes": ([(SIZES, line(10)), (SIZES * 10, line(1000))], 800, 1200),
    "tokens cost nothing": ([(SIZES, lambda tokens: 0.002)], 10_000, 10**9),
    "batches cost nothing": ([(SIZES, lambda tokens: 1e-4 * tokens**1.1)], LEAST, LEAST),
    "all alike: larger ones are tried": ([([256] * 500, line(10))], 10 * GUESS, 10**9),
    "a doubted guess gives way": ([([256] * 500, line(10)), (SIZES * 2, line(10))], 9.5, 10.5),
    # The mean would be 84.
    "others keep the model busy": (
        [(SIZES * 5, lambda tokens: line(20)(tokens) + (line(20)(300) if BUSY.random() < 0.2 else 0.0))],
        *(20, 50),
    ),
}


@pytest.mark.parametrize(("phases", "least", "most"), LEARNT.values(), ids=LEARNT)
def test_what_is_learnt(phases: list[Any], least: float, most: float, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    costs, ended = BatchCosts(1), 0.0
    for sizes, seconds in phases:
        ended = work_off(costs, sizes, seconds, started=ended)
    assert least <= costs.overhead <= most
    said = [re.match(r"one more batch takes the model as long as (\d+) more tokens", one) for one in caplog.messages]
    assert len(said) <= 1 and all(said), "it is told once"


def test_what_is_learnt_is_told_when_the_guess_counts_little(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    costs = BatchCosts(1)
    ended = work_off(costs, SIZES[:100], line(30))
    assert caplog.messages == []
    work_off(costs, [*SIZES[100:], *SIZES * 5], line(30), started=ended)
    assert 30 <= int(caplog.messages[0].split()[9]) < 45


@pytest.mark.parametrize("part", [0.5, 1.0, 1.5, 2.5])
def test_an_event_loop_that_sees_the_ends_late_does_not_hide_a_large_overhead(part: float) -> None:
    """``part`` is what of a batch's time a turn of the loop takes: what comes meanwhile is seen at its end."""
    costs, taken = BatchCosts(1), line(5000)
    work_off(costs, SIZES * 5, taken, turn=part * taken(300))
    assert costs.overhead > 500


def test_a_batch_may_have_half_its_cost_in_padding_and_a_limited_size() -> None:
    costs = BatchCosts(1)
    costs.overhead = 20.0
    padding = int(WORTH * 20)
    assert costs.allow(100, 100 - padding) and not costs.allow(100, 99 - padding)
    most = ENOUGH * 20
    assert costs.allow(most, most) and not costs.allow(most + 1, most + 1)
    for changes in ({"masked": False}, {"length": 16}, {"max_rows": 1}, {"exact_rows": 8}):
        signature = replace(MASKED, **cast(Any, changes))
        assert form(BatchCosts(1), signature=signature).costs is None, "lengths are never mixed, or rows cost nothing"


def test_batches_without_an_answer_teach_nothing_and_leave_their_place() -> None:
    costs = BatchCosts(1)
    first, second, third = (costs.sent(0.0) for _ in range(3))
    second.ended(1.0)  # given up while the model worked on the first
    first.ended(2.0)
    assert third.began == 2.0
    third.ended(3.0, 100)
    assert costs.sent(4.0).began == 4.0
    assert costs.overhead == GUESS


def test_tokens_outweigh_what_a_batch_costs_beside_them_once_it_is_known() -> None:
    costs = BatchCosts(1)
    ended = work_off(costs, SIZES[: FIRST - 1], line(120.0))
    assert not costs.outweighed(10**9)
    ended = work_off(costs, SIZES[FIRST - 1 :], line(120.0), started=ended)
    assert (costs.outweighed(110), costs.outweighed(130)) == (False, True)
    work_off(costs, [300] * 10_000, line(120.0), started=ended)
    assert costs.overhead > 200, "equal batches are doubted"
    assert costs.outweighed(130), "not so what was learnt before"


# In the scheduler


class Recorded(BatchCosts):
    """``tokens`` has those of every batch that has ended, 0 for one without an answer."""

    def __init__(self, overhead: float) -> None:
        super().__init__(1)
        self.overhead = overhead
        self.tokens: list[int] = []

    def ended(self, timing: Timing, now: float, tokens: int) -> None:
        self.tokens.append(tokens)
        super().ended(timing, now, tokens)


def form(
    costs: BatchCosts, widths: PaddingBuckets | None = None, signature: Signature = MASKED
) -> EncodingBatchBuilder:
    filling = PaddingPolicy(0, left=False, widths=widths)
    return EncodingBatchBuilder(signature, filling, max_tokens=10**6, max_output_bytes=10**9, costs=costs)


NEAR = 400 - int(WORTH * GUESS)
"""The shortest text that shares a batch with one of 400 tokens as long as only the guess is known."""


@pytest.mark.parametrize(
    ("overhead", "widths", "lengths", "shapes"),
    [
        (GUESS, None, [10, 10, 13], [(3, 13)]),
        (12.0, None, [10, 10, 13], [(3, 13)]),
        (11.0, None, [10, 10, 13], [(2, 10), (1, 13)]),
        (GUESS, None, [400, NEAR, NEAR, NEAR], [(2, 400), (2, NEAR)]),
        (4.0, None, [9, 12, 16, 10], [(2, 10), (1, 12), (1, 16)]),
        (4.0, PaddingBuckets(16, 512), [9, 12, 16, 10, 17], [(4, 16), (1, 32)]),  # these are padded alike anyway
    ],
)
async def test_texts_share_a_batch_where_that_saves_more_than_their_padding_costs(
    overhead: float, widths: PaddingBuckets | None, lengths: list[int], shapes: list[tuple[int, int]]
) -> None:
    costs = Recorded(overhead)
    async with bench(form=form(costs, widths)) as b:
        blocker, task = await b.send(1, length=16), await b.send_texts(*[text(length, length) for length in lengths])
        assert await b.answer_all(blocker, task) == [[1], lengths]
        assert b.shapes == [(1, 16), *shapes]
        assert costs.tokens == [rows * width for rows, width in b.shapes], "padding included"
        task = await b.send(1)
        b.predictor.fail(-1, PredictorUnavailable("gone"))
        with pytest.raises(PredictorUnavailable):
            await task
        assert costs.tokens[-1] == 0
