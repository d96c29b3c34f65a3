"""Workers' metrics as one, also of workers that are gone."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection

import pytest

from hf_transformer.observability.metrics import Metrics
from hf_transformer.observability.worker_metrics import (
    HALF,
    HEADER,
    PERIOD,
    PLACE,
    Board,
    SharedMetrics,
    Total,
    as_family,
)
from hf_transformer.types import Context, Timings
from hf_transformer.workers import Roster

V1, READY = 'hf_transformer_requests_total{api="v1",status="200"}', 'hf_transformer_model_ready{model_name="bert"}'
IN_FLIGHT, QUEUE = "hf_transformer_requests_in_flight", "hf_transformer_queue_seconds"


def value(metrics: Metrics, name: str) -> float | None:
    found = [line for line in metrics.render().decode().splitlines() if line.startswith(f"{name} ")]
    assert len(found) <= 1
    return float(found[0].split()[-1]) if found else None


def worker(board: Board, roster: Roster, in_flight: int, ready: bool) -> tuple[Metrics, SharedMetrics]:
    roster.claim()
    metrics = Metrics("bert")
    metrics.watch_in_flight(lambda: in_flight, lambda: 0)
    metrics.set_ready(ready)
    return metrics, metrics.share(board)


def work(board: Board, roster: Roster, orders: Connection) -> None:
    """A worker that counts as many requests as it is told, and shows its metrics; it is not ready."""
    metrics, _ = worker(board, roster, 5, False)
    while True:
        orders.send(metrics.render())
        for _ in range(orders.recv()):
            metrics.count_request("v1", 200)
            metrics.observe([Context("r", {}, Timings(queue=0.003))])


class Worker:
    def __init__(self, board: Board, roster: Roster) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.orders, theirs = spawn.Pipe()
        self.process = spawn.Process(target=work, args=(board, roster, theirs))
        self.process.start()
        self.shown: bytes = self.orders.recv()

    def count(self, requests: int) -> None:
        self.orders.send(requests)
        self.shown = self.orders.recv()

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


def test_counts_outlive_their_workers() -> None:
    roster = Roster(2)
    board = Board(roster)
    metrics, _ = worker(board, roster, 2, True)
    metrics.count_request("v1", 200)
    other = Worker(board, roster)
    try:
        assert (value(metrics, V1), value(metrics, IN_FLIGHT), value(metrics, READY)) == (1, 7, 0)
        other.count(10)
        assert (value(metrics, V1), value(metrics, f"{QUEUE}_count")) == (11, 10)
        assert value(metrics, f'{QUEUE}_bucket{{le="0.005"}}') == 10
        assert f"{V1} 11.0".encode() in other.shown
    finally:
        other.kill()
    # Nobody replaces it yet: what it had counted is true still, how it was is not.
    assert (value(metrics, V1), value(metrics, IN_FLIGHT), value(metrics, READY)) == (11, 2, 1)
    replacement = Worker(board, roster)
    try:
        assert (value(metrics, V1), value(metrics, IN_FLIGHT)) == (11, 7)
        replacement.count(3)
        assert (value(metrics, V1), value(metrics, f"{QUEUE}_count")) == (14, 13)
    finally:
        replacement.kill()
    assert value(metrics, V1) == 14


async def test_the_copy_is_renewed() -> None:
    roster = Roster(1)
    board = Board(roster)
    metrics, shared = worker(board, roster, 0, True)
    async with shared:
        await asyncio.sleep(0)
        before = board.read(0)
        metrics.count_request("v1", 200)
        async with asyncio.timeout(PERIOD + 20):
            while board.read(0) == before or b'"v1"' not in board.read(0):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
        metrics.count_request("grpc", 200)
    assert b'"grpc"' in board.read(0)


async def test_a_number_that_can_not_be_told_once_does_not_end_the_renewal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hf_transformer.observability.worker_metrics.PERIOD", 0.001)
    roster = Roster(1)
    board = Board(roster)
    roster.claim()
    metrics = Metrics("bert")
    told = 0

    def tell() -> int:
        nonlocal told
        told += 1
        if told in (2, 3):
            raise RuntimeError("not now")
        return told

    metrics.watch_in_flight(tell, lambda: 0)
    async with metrics.share(board):
        async with asyncio.timeout(20):
            while told < 5:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)
    assert board.read(0)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


class Meanwhile(Board):
    """A board whose copies are replaced while somebody reads."""

    copies: tuple[bytes, ...] = ()

    def _start(self, place: int, half: int) -> int:
        copies, self.copies = self.copies, ()
        for copy in copies:
            self.write(copy)
        return super()._start(place, half)


def test_a_copy_that_is_replaced_while_it_is_read_is_read_again() -> None:
    roster = Roster(1)
    roster.claim()
    board = Meanwhile(roster)
    board.write(b"a" * 1000)
    board.copies = (b"b" * 1000, b"c" * 2000)  # the second one takes the place of what is being read
    assert board.read(0) == b"c" * 2000


@pytest.mark.parametrize("written", ["half of the copy", "the copy", "half of the header"])
def test_a_worker_that_dies_while_it_writes_breaks_no_scrape(written: str) -> None:
    roster = Roster(2)
    board = Board(roster)
    metrics, _ = worker(board, roster, 2, True)
    metrics.count_request("v1", 200)
    other = Worker(board, roster)
    other.count(10)
    other.kill()
    number = max(board._header(1, half)[0] for half in (0, 1)) + 1
    new = b"[" * 5000
    os.pwrite(board._file, new[:2500] if written == "half of the copy" else new, board._start(1, number % 2))
    if written == "half of the header":
        os.pwrite(board._file, HEADER.pack(number, len(new), 7)[:12], PLACE + number % 2 * HEADER.size)
    assert value(metrics, V1) == 11
    replacement = Worker(board, roster)
    try:
        replacement.count(3)
        assert value(metrics, V1) == 14
    finally:
        replacement.kill()


def test_what_is_the_smallest_the_largest_and_the_sum() -> None:
    total = Total()
    for number in (3.0, 2.0):
        total.add(
            [
                ["process_max_fds", "", "gauge", [["process_max_fds", {}, number]]],
                ["n", "", "counter", [["n_total", {"a": "b"}, number], ["n_created", {"a": "b"}, number]]],
                ["g", "", "gauge", [["g", {}, number]]],
                ["process_open_fds", "", "gauge", [["process_open_fds", {}, number]]],
            ]
        )
    assert [as_family(metric) for metric in total.metrics()] == [
        ["process_max_fds", "", "gauge", [["process_max_fds", {}, 2.0]]],
        ["n", "", "counter", [["n_total", {"a": "b"}, 5.0], ["n_created", {"a": "b"}, 2.0]]],
        ["g", "", "gauge", [["g", {}, 5.0]]],
        ["process_open_fds", "", "gauge", [["process_open_fds", {}, 3.0]]],
    ]


def test_the_sum_of_one_looks_as_it_does_alone() -> None:
    roster = Roster(1)
    alone, shared = Metrics("bert"), Metrics("bert")
    roster.claim()
    shared.share(Board(roster))
    for metrics in (alone, shared):
        metrics.count_request("v1", 200)
        metrics.observe([Context("r", {}, Timings(0.1, 0.2, 0.3, 0.4))])

    def lines(metrics: Metrics) -> list[str]:
        text = metrics.render().decode()
        return [one for one in text.splitlines() if "process_" not in one and "_created" not in one]

    assert lines(shared) == lines(alone)


def test_metrics_that_are_too_long_are_shown_and_not_shared(caplog: pytest.LogCaptureFixture) -> None:
    roster = Roster(1)
    board = Board(roster)
    metrics, _ = worker(board, roster, 0, True)
    for number in range(HALF // 50):
        metrics.count_request("v1", number)
    assert value(metrics, V1) == 1
    assert value(metrics, V1) == 1
    assert board.read(0) == b""
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_one_worker_too_many_shows_the_others_and_itself() -> None:
    roster = Roster(1)
    board = Board(roster)
    other = Worker(board, roster)
    try:
        metrics, _ = worker(board, roster, 0, True)
        assert board.own is None
        other.count(2)
        metrics.count_request("v1", 200)
        assert value(metrics, V1) == 3
    finally:
        other.kill()
