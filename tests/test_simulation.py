"""The simulation of benchmarks/: queues with known results (M/M/1, M/D/1, M/M/c, processor sharing), and batches."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from benchmarks.simulation import (
    POLICIES,
    BatchSettings,
    Cores,
    Group,
    Hop,
    Load,
    Outcome,
    Process,
    Request,
    Service,
    ServiceTimes,
    Simulation,
    Then,
    Triton,
    offer,
)

REQUESTS = 30_000
SEEDS = (1, 2, 3)
"""The seeds are fixed, so each result is the same in every run."""
UNIT = 0.001
"""Seconds of a unit of time; the mean work of a request is one unit."""
CLOSE = 0.05
"""Relative error of a mean over all seeds: about three standard errors at these loads."""


def mean_latency(rate: float, build: Callable[[Simulation, random.Random], Callable[[Request, Then], None]]) -> float:
    """The mean latency over all seeds. Rate and latency are in units of time."""
    total = number = 0.0
    for seed in SEEDS:
        simulation, chance = Simulation(), random.Random(seed)
        load = Load(rate / UNIT, REQUESTS / rate * UNIT, (1,))
        outcome = offer(simulation, load, build(simulation, chance), random.Random(seed + 100))
        assert outcome.unanswered == 0
        total += sum(outcome.latencies)
        number += len(outcome.latencies)
    return total / number / UNIT


def erlang_c(servers: int, offered: float) -> float:
    """The probability of waiting in M/M/c for an offered load in erlangs."""
    last = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return last / (sum(offered**n / math.factorial(n) for n in range(servers)) + last)


@pytest.mark.parametrize("rho", [0.3, 0.7])
def test_a_process_with_exponential_work_is_an_mm1_queue(rho: float) -> None:
    def build(simulation: Simulation, chance: random.Random) -> Callable[[Request, Then], None]:
        process = Process(Cores(simulation, 1))
        return lambda request, then: process.run(chance.expovariate(1 / UNIT), then)

    assert mean_latency(rho, build) == pytest.approx(1 / (1 - rho), rel=CLOSE)


@pytest.mark.parametrize("rho", [0.3, 0.8])
def test_a_process_with_constant_work_is_an_md1_queue(rho: float) -> None:
    def build(simulation: Simulation, chance: random.Random) -> Callable[[Request, Then], None]:
        process = Process(Cores(simulation, 1))
        return lambda request, then: process.run(UNIT, then)

    assert mean_latency(rho, build) == pytest.approx(1 + rho / (2 * (1 - rho)), rel=CLOSE)


@pytest.mark.parametrize("instances", [2, 5])
def test_a_triton_without_the_dynamic_batcher_is_an_mmc_queue(instances: int) -> None:
    rate = 0.7 * instances

    def build(simulation: Simulation, chance: random.Random) -> Callable[[Request, Then], None]:
        triton = Triton(simulation, lambda rows, tokens: chance.expovariate(1 / UNIT), instances=instances)
        return lambda request, then: triton.call(1, request.length, then)

    expected = 1 + erlang_c(instances, rate) / (instances - rate)
    assert mean_latency(rate, build) == pytest.approx(expected, rel=CLOSE)


def test_processes_that_share_a_core_have_the_latency_of_processor_sharing() -> None:
    """Every request has a process of its own, as in M/G/1-PS, whose mean depends on the load only."""

    def build(simulation: Simulation, chance: random.Random) -> Callable[[Request, Then], None]:
        cores = Cores(simulation, 1)
        return lambda request, then: Process(cores).run(chance.choice((0.1, 1.9)) * UNIT, then)

    assert mean_latency(0.6, build) == pytest.approx(1 / (1 - 0.6), rel=CLOSE)


def test_two_processes_on_one_core_run_at_half_speed_and_on_two_at_full() -> None:
    assert ends_of_two(1) == pytest.approx([2.0, 3.0])
    assert ends_of_two(2) == pytest.approx([1.0, 2.0])


def ends_of_two(cores: int) -> list[float]:
    """When two processes that start together end, with 1 s and 2 s of work."""
    simulation = Simulation()
    shared = Cores(simulation, cores)
    ends: list[float] = []
    for seconds in (1.0, 2.0):
        Process(shared).run(seconds, lambda: ends.append(simulation.now))
    simulation.run()
    assert shared.busy_seconds == pytest.approx(3.0)
    return ends


def test_a_process_works_in_order_and_continues_a_job_first() -> None:
    simulation = Simulation()
    process = Process(Cores(simulation, 1))
    done: list[tuple[str, float]] = []

    def first() -> None:
        done.append(("first", simulation.now))
        process.run(1.0, lambda: done.append(("continued", simulation.now)), next_one=True)

    process.run(1.0, first)
    process.run(1.0, lambda: done.append(("second", simulation.now)))
    simulation.run()
    assert done == [("first", 1.0), ("continued", 2.0), ("second", 3.0)]


def test_the_dynamic_batcher_joins_waiting_calls_of_equal_width() -> None:
    runs: list[tuple[int, int]] = []

    def run_time(rows: int, tokens: int) -> float:
        runs.append((rows, tokens))
        return 1.0

    simulation = Simulation()
    triton = Triton(simulation, run_time, max_rows=8)
    answered: list[float] = []
    for rows, width in ((1, 10), (3, 10), (5, 10), (1, 10), (2, 20), (1, 10)):
        triton.call(rows, width, lambda: answered.append(simulation.now))
    simulation.run()
    assert runs == [(1, 10), (8, 80), (1, 10), (2, 40), (1, 10)]
    assert answered == [1.0, 2.0, 2.0, 3.0, 4.0, 5.0]


def service_of(simulation: Simulation, run_time: float, settings: BatchSettings) -> tuple[Service, list[int]]:
    """A service whose requests cost 1 ms of CPU before the model and nothing after it, and the rows of its calls."""
    rows: list[int] = []
    triton = Triton(simulation, lambda number, tokens: run_time)

    def call(number: int, width: int, then: Then) -> None:
        rows.append(number)
        triton.call(number, width, then)

    times = ServiceTimes(request=0.001, answer=0.0, batch=0.0, reply=0.0, call=0.0)
    return Service(simulation, Process(Cores(simulation, 1)), times, settings, call), rows


def test_a_lone_request_leaves_at_once_and_others_wait_for_a_slot() -> None:
    """The first and the second batch leave before the model has an answer; what arrives later shares the third."""
    simulation = Simulation()
    service, rows = service_of(simulation, 1.0, BatchSettings(max_rows=4, in_flight=2))
    answered: list[float] = []
    for number in range(8):
        ask = partial(service.ask, Request(10, 0.0), lambda: answered.append(simulation.now))
        simulation.after(0.01 * number, ask)
    simulation.run()
    assert rows == [1, 1, 4, 2]
    assert answered == pytest.approx([1.001, 2.001, *[3.001] * 4, *[4.001] * 2])


def test_requests_that_arrive_during_the_work_for_the_first_share_its_batch() -> None:
    simulation = Simulation()
    service, rows = service_of(simulation, 1.0, BatchSettings(max_rows=64, in_flight=2))
    for _ in range(5):
        service.ask(Request(10, 0.0), lambda: None)
    simulation.run()
    assert rows == [5]


def test_texts_of_very_different_length_do_not_share_a_batch() -> None:
    simulation = Simulation()
    service, rows = service_of(simulation, 1.0, BatchSettings(max_rows=64, in_flight=1))
    for length in (10, 500, 10, 500):
        service.ask(Request(length, 0.0), lambda: None)
    simulation.run()
    assert rows == [2, 2]


def test_balancers_choose() -> None:
    chosen = {}
    for name, make in POLICIES.items():
        balancer = make(random.Random(5))
        chosen[name] = [balancer.choose(number % 3, [4, 1, 1, 2]) for number in range(400)]
    assert chosen["round_robin"][:5] == [0, 1, 2, 3, 0]
    assert chosen["least_connections"][:4] == [1, 2, 1, 2]
    assert all(count > 70 for count in Counter(chosen["random"]).values())
    assert chosen["pinned"] == chosen["pinned"][:3] * 133 + chosen["pinned"][:1]


def test_a_group_counts_what_is_in_flight() -> None:
    group = Group(POLICIES["least_connections"](random.Random(1)), 2)
    ends: list[Then] = []
    asked: list[int] = []

    def ask(target: int, then: Then) -> None:
        asked.append(target)
        ends.append(then)

    for _ in range(3):
        group.ask(0, ask, lambda: None)
    assert group.in_flight == [1, 2]
    ends[0]()
    ends[2]()
    assert (asked, group.in_flight) == ([1, 0, 1], [1, 0])


def test_a_hop_works_before_and_after_the_answer() -> None:
    simulation = Simulation()
    hop = Hop(Process(Cores(simulation, 1)), 0.2)
    moments: list[float] = []
    hop.pass_through(lambda then: simulation.after(1.0, then), lambda: moments.append(simulation.now))
    simulation.run()
    assert moments == pytest.approx([1.2])


def test_latencies_count_from_when_a_request_is_due() -> None:
    """Clients with a clock of 1 s send late, half a second on average."""
    simulation = Simulation()
    load = Load(2.0, 10_000.0, (1,), tick=1.0)
    outcome = offer(simulation, load, lambda request, then: then(), random.Random(1))
    assert sum(outcome.latencies) / len(outcome.latencies) == pytest.approx(0.5, rel=CLOSE)
    assert outcome.rate == pytest.approx(2.0, rel=CLOSE)


def test_requests_without_an_answer_are_in_the_percentile() -> None:
    assert Outcome(1.0, [float(number) for number in range(100)]).percentile(0.99) == 98.0
    assert Outcome(1.0, [1.0] * 99, unanswered=1).percentile(0.99) == 1.0
    assert Outcome(1.0, [1.0] * 98, unanswered=2).percentile(0.99) == math.inf
