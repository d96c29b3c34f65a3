"""Several workers as one service: ready together, and with metrics that outlive a worker."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from multiprocessing.connection import Connection
from time import time
from typing import Any

import pytest

from hf_transformer.observability.board import Family, WorkerBoard, added_up
from hf_transformer.observability.metrics import Metrics
from tests.observability.measured import measured

pytestmark = pytest.mark.slow

V1, READY = 'hf_transformer_requests_total{api="v1",status="200"}', 'hf_transformer_model_ready{model_name="bert"}'
IN_FLIGHT, QUEUE = "hf_transformer_requests_in_flight", "hf_transformer_queue_seconds"
LAST = "hf_transformer_last_inference_timestamp_seconds"


def value(metrics: Metrics, name: str) -> float | None:
    found = [line for line in metrics.render().decode().splitlines() if line.startswith(f"{name} ")]
    assert len(found) <= 1
    return float(found[0].split()[-1]) if found else None


def worker(board: WorkerBoard, in_flight: int, ready: bool) -> tuple[Metrics, AbstractAsyncContextManager[None]]:
    board.claim()
    metrics = Metrics("bert")
    metrics.requests_in_flight.set_function(lambda: in_flight)
    metrics.ready.set(ready)
    return metrics, metrics.share(board)


def work(board: WorkerBoard, orders: Connection) -> None:
    """A worker that does what it is told, and shows its metrics each time; its model is not ready."""
    metrics, _ = worker(board, 5, False)
    while True:
        orders.send(metrics.render())
        match orders.recv():
            case bool(ready):
                board.set_ready(ready=ready)
            case int(requests):
                for _ in range(requests):
                    metrics.count_request("v1", 200)
                    metrics.observe(measured(queue=0.003))
            case bytes(part):  # dies after it has written as much of its next copy
                setattr(os, "pwrite", partial(write_and_die, os.pwrite, part))  # noqa: B010 - a partial is no function
                metrics.render()


def write_and_die(write: Callable[[int, bytes, int], int], part: bytes, file: int, copy: bytes, start: int) -> None:
    write(file, part, start)
    os._exit(0)


class Worker:
    def __init__(self, board: WorkerBoard) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.orders, theirs = spawn.Pipe()
        self.process = spawn.Process(target=work, args=(board, theirs))
        self.process.start()
        theirs.close()
        self.shown: bytes = self.orders.recv()

    def tell(self, order: bool | int) -> None:
        self.orders.send(order)
        self.shown = self.orders.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.orders.close()


@pytest.fixture
def board() -> WorkerBoard:
    return WorkerBoard(2)


@pytest.fixture
def start(board: WorkerBoard) -> Iterator[Any]:
    """Starts a worker that is killed after the test."""
    workers = []

    def start_one() -> Worker:
        workers.append(Worker(board))
        return workers[-1]

    yield start_one
    for one in workers:
        one.kill()


def test_ready_once_all_are_and_a_replacement_takes_the_place_of_the_dead(board: WorkerBoard, start: Any) -> None:
    first, second = start(), start()
    assert board.waiting_for == 2
    first.tell(True)
    assert board.waiting_for == 1
    first.kill()
    second.tell(True)
    assert board.waiting_for == 1  # the dead one's word does not count
    second.tell(False)
    third = start()
    assert board.waiting_for == 2
    second.tell(True)
    third.tell(True)
    assert board.waiting_for == 0
    third.tell(False)
    assert board.waiting_for == 0, "once all are ready they stay so for the others"


def test_counts_outlive_their_workers(board: WorkerBoard, start: Any) -> None:
    metrics, _ = worker(board, 2, True)
    metrics.count_request("v1", 200)
    other = start()
    assert (value(metrics, V1), value(metrics, IN_FLIGHT), value(metrics, READY)) == (1, 7, 0)
    other.tell(10)
    assert (value(metrics, V1), value(metrics, f"{QUEUE}_count")) == (11, 10)
    assert value(metrics, f'{QUEUE}_bucket{{le="0.005"}}') == 10
    assert f"{V1} 11.0".encode() in other.shown
    other.kill()
    # Not replaced yet: what it had counted is still true, its state is not.
    assert (value(metrics, V1), value(metrics, IN_FLIGHT), value(metrics, READY)) == (11, 2, 1)
    replacement = start()
    assert (value(metrics, V1), value(metrics, IN_FLIGHT)) == (11, 7)
    replacement.tell(3)
    assert (value(metrics, V1), value(metrics, f"{QUEUE}_count")) == (14, 13)
    last = value(metrics, LAST)
    assert last and time() - 60 < last <= time(), "only the dead workers have answered"
    replacement.kill()
    assert value(metrics, V1) == 14
    assert value(metrics, LAST) == last


async def test_a_number_that_can_not_be_told_once_does_not_end_the_renewal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hf_transformer.observability.board.PERIOD", 0.001)
    board = WorkerBoard(1)
    board.claim()
    metrics = Metrics("bert")
    told = 0

    def tell() -> int:
        nonlocal told
        told += 1
        if told in (2, 3):
            raise RuntimeError("not now")
        return told

    metrics.requests_in_flight.set_function(tell)
    async with metrics.share(board):
        async with asyncio.timeout(20):
            while told < 5:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)
            metrics.count_request("v1", 200)
            while "'v1'" not in str(board.read(0)):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.001)
        metrics.count_request("grpc", 200)
    assert "'grpc'" in str(board.read(0)), "and there is a last one at the end"
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def copy_of(letter: str, length: int) -> list[Family]:
    return [[letter * length, "", "counter", []]]


@pytest.mark.parametrize("reads", range(4))
def test_a_copy_that_is_replaced_while_it_is_read_is_read_again(monkeypatch: pytest.MonkeyPatch, reads: int) -> None:
    board = WorkerBoard(1)
    board.claim()
    board.write(copy_of("a", 1000))
    read, left = os.pread, reads

    def read_slowly(file: int, length: int, start: int) -> bytes:
        nonlocal left
        left -= 1
        if left == -1:  # both halves are written before the reader goes on
            board.write(copy_of("b", 1000))
            board.write(copy_of("c", 2000))
        return read(file, length, start)

    monkeypatch.setattr("os.pread", read_slowly)
    assert board.read(0) in ([copy_of("c", 2000)] if reads < 3 else [copy_of("a", 1000), copy_of("c", 2000)])


@pytest.mark.parametrize("length", [3, 16, 500])
def test_a_worker_that_dies_while_it_writes_breaks_no_scrape(board: WorkerBoard, start: Any, length: int) -> None:
    metrics, _ = worker(board, 2, True)
    metrics.count_request("v1", 200)
    other = start()
    other.tell(10)
    other.orders.send(b"\7" * length)
    other.process.join()
    assert other.process.exitcode == 0
    assert value(metrics, V1) == 11
    replacement = start()
    replacement.tell(3)
    assert value(metrics, V1) == 14


def test_what_is_the_smallest_the_largest_and_the_sum() -> None:
    def families(most: float, total: float, created: float, gauge: float, opened: float) -> list[Family]:
        return [
            ["process_max_fds", "", "gauge", [("process_max_fds", {}, most)]],
            ["n", "", "counter", [("n_total", {"a": "b"}, total), ("n_created", {"a": "b"}, created)]],
            ["g", "", "gauge", [("g", {}, gauge)]],
            ["process_open_fds", "", "gauge", [("process_open_fds", {}, opened)]],
        ]

    assert added_up(families(3, 3, 3, 3, 3), families(2, 2, 2, 2, 2)) == families(2, 5, 2, 5, 3)


def test_the_sum_of_one_looks_as_it_does_alone() -> None:
    board = WorkerBoard(1)
    alone, shared = Metrics("bert"), Metrics("bert")
    board.claim()
    shared.share(board)
    for metrics in (alone, shared):
        metrics.count_request("v1", 200)
        metrics.observe(measured(preprocess=0.1, queue=0.2, predict=0.3, postprocess=0.4))

    def lines(metrics: Metrics) -> list[str]:
        text = metrics.render().decode()
        return [one for one in text.splitlines() if not re.search(f"process_|_created|^{LAST} ", one)]

    assert lines(shared) == lines(alone)
