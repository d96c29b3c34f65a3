"""What one more batch costs, learnt from the times of a model whose costs are known."""

from __future__ import annotations

import logging
import math
import random
import re
from collections.abc import Callable, Iterable

import pytest

from hf_transformer.core.batch_costs import COLD, ENOUGH, FIRST, GUESS, LEAST, WORTH, BatchCosts, Timing

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


@pytest.mark.parametrize("part", [0.5, 1.0, 1.5, 2.5])
def test_an_event_loop_that_sees_the_ends_late_does_not_hide_a_large_overhead(part: float) -> None:
    """``part`` is what of a batch's time a turn of the loop takes: what comes meanwhile is seen at its end."""
    costs = BatchCosts(1)
    taken = line(5000)
    work_off(costs, SIZES * 5, taken, turn=part * taken(300))
    assert costs.overhead > 500


def test_large_and_small_batches_that_take_turns_differ_enough() -> None:
    costs = BatchCosts(1)
    work_off(costs, [16, 256] * 500, line(50))
    assert costs.overhead == pytest.approx(50, rel=0.01)


def test_times_too_short_for_the_clock_teach_nothing() -> None:
    costs = BatchCosts(1)
    work_off(costs, SIZES, lambda tokens: 0.0)
    assert costs.overhead == GUESS
    assert not costs.outweighed(10**9)


def test_nothing_is_believed_of_few_batches_and_nothing_learnt_of_the_first() -> None:
    costs = BatchCosts(1)
    ended = work_off(costs, SIZES[:COLD], lambda tokens: 60.0)
    ended = work_off(costs, SIZES[COLD : FIRST - 1], line(30), started=ended)
    assert costs.overhead == GUESS
    work_off(costs, SIZES[FIRST - 1 : FIRST], line(30), started=ended)
    assert 100 < costs.overhead < GUESS, "the guess still counts more"


def test_that_others_keep_the_model_busy_at_times_changes_little() -> None:
    chosen, costs = random.Random(1), BatchCosts(1)
    own = line(20)
    work_off(costs, SIZES * 5, lambda tokens: own(tokens) + (own(300) if chosen.random() < 0.2 else 0.0))
    assert 20 < costs.overhead < 50  # their mean would be 84


def test_a_call_that_hangs_changes_little() -> None:
    costs = BatchCosts(1)
    ended = work_off(costs, SIZES, line(20))
    ended = work_off(costs, [8] * 5, lambda tokens: 60.0, started=ended)
    work_off(costs, SIZES, line(20), started=ended)
    assert costs.overhead == pytest.approx(20, rel=0.3)


def test_a_model_that_changes_is_learnt_anew() -> None:
    costs = BatchCosts(1)
    ended = work_off(costs, SIZES, line(10))
    work_off(costs, SIZES * 10, line(1000), started=ended)
    assert costs.overhead == pytest.approx(1000, rel=0.2)


def test_tokens_that_cost_nothing_make_a_large_overhead_and_batches_that_do_not_the_least() -> None:
    free, full = BatchCosts(1), BatchCosts(1)
    work_off(free, SIZES, lambda tokens: 0.002)
    work_off(full, SIZES, lambda tokens: 1e-4 * tokens**1.1)
    assert 10_000 < free.overhead < float("inf")
    assert full.overhead == LEAST


def test_where_all_batches_are_alike_larger_ones_are_tried() -> None:
    costs = BatchCosts(1)
    ended = work_off(costs, SIZES, line(10))
    before = costs.overhead
    work_off(costs, [256] * 5000, line(10), started=ended)
    assert costs.overhead > 10 * before


def test_a_guess_that_makes_all_batches_alike_is_doubted_and_then_gives_way_to_what_is_learnt() -> None:
    costs = BatchCosts(1)
    ended = work_off(costs, [256] * 500, line(10))
    assert costs.overhead > 10 * GUESS
    assert not costs.outweighed(10**9), "a doubted guess is not known"
    work_off(costs, SIZES * 2, line(10), started=ended)
    assert costs.overhead == pytest.approx(10, rel=0.05)


def test_what_is_learnt_is_told_once_when_the_guess_counts_little(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    costs = BatchCosts(1)
    ended = work_off(costs, SIZES[:100], line(30))
    assert caplog.messages == []
    ended = work_off(costs, SIZES[100:], line(30), started=ended)
    work_off(costs, SIZES * 5, line(30), started=ended)
    [message] = caplog.messages
    said = re.match(r"one more batch takes the model as long as (\d+) more tokens", message)
    assert said is not None
    assert 30 <= int(said[1]) < 45


def test_a_batch_may_have_half_its_cost_in_padding_and_a_limited_size() -> None:
    costs = BatchCosts(1)
    costs.overhead = 20.0
    padding = int(WORTH * 20)
    assert costs.allow(100, 100 - padding)
    assert not costs.allow(100, 99 - padding)
    assert costs.allow(ENOUGH * 20, ENOUGH * 20)
    assert not costs.allow(ENOUGH * 20 + 1, ENOUGH * 20 + 1)


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
    work_off(costs, SIZES[: FIRST - 1], line(120.0))
    assert not costs.outweighed(10**9)
    work_off(costs, SIZES[FIRST - 1 :], line(120.0))
    assert (costs.outweighed(110), costs.outweighed(130)) == (False, True)
    work_off(costs, [300] * 10_000, line(120.0), started=100.0)
    assert costs.overhead > 200, "equal batches are doubted"
    assert costs.outweighed(130), "not so what was learnt before"
