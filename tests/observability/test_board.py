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
from time import perf_counter, time
from typing import Any

import pytest

from hf_transformer.observability.board import WorkerBoard, merged
from hf_transformer.observability.metrics import Metrics
from hf_transformer.observability.series import Family
from tests.observability.measured import measured

pytestmark = pytest.mark.slow

V1, READY = (
    'hf_transformer_requests_total{api="v1",model_name="bert",status="200"}',
    'hf_transformer_model_ready{model_name="bert"}',
)
IN_FLIGHT, QUEUE_COUNT = "hf_transformer_requests_in_flight", 'hf_transformer_queue_seconds_count{model_name="bert"}'
LAST = 'hf_transformer_last_inference_timestamp_seconds{model_name="bert"}'


def value(metrics: Metrics, name: str) -> float | None:
    samples = [line for line in metrics.render().decode().splitlines() if line.startswith(f"{name} ")]
    assert len(samples) <= 1
    return float(samples[0].split()[-1]) if samples else None


def worker(board: WorkerBoard, in_flight: int, ready: bool) -> tuple[Metrics, AbstractAsyncContextManager[None]]:
    board.claim()
    metrics = Metrics()
    metrics.requests_in_flight.set_function(lambda: in_flight)
    metrics.of("bert").ready.set(ready)
    return metrics, metrics.share(board)


def work(board: WorkerBoard, orders: Connection) -> None:
    """Runs a worker that obeys orders, and sends its metrics after each. Its model is not ready."""
    metrics, _ = worker(board, 5, False)
    while True:
        orders.send(metrics.render())
        match orders.recv():
            case bool(ready):
                board.set_ready(ready)
            case int(requests):
                for _ in range(requests):
                    metrics.count_request("v1", 200, model="bert")
                    metrics.of("bert").observe(measured(queue=0.003))
            case (str(name), int(requests)):
                answer(metrics, name, requests)
            case str(name):
                metrics.forget(name)
            case bytes(part):  # dies after it has written these bytes of its next copy
                setattr(os, "pwrite", partial(write_and_die, os.pwrite, part))  # noqa: B010 - a partial is no function
                metrics.render()


def answer(metrics: Metrics, name: str, requests: int) -> None:
    """Counts requests of a model, each answered and failed."""
    model = metrics.of(name)
    for _ in range(requests):
        model.observe(measured(predict=0.1))
        metrics.count_request("v1", 400, model=name)


def write_and_die(write: Callable[[int, bytes, int], int], part: bytes, file: int, copy: bytes, start: int) -> None:
    write(file, part, start)
    os._exit(0)


class Worker:
    def __init__(self, board: WorkerBoard) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.orders, workers_end = spawn.Pipe()
        self.process = spawn.Process(target=work, args=(board, workers_end))
        self.process.start()
        workers_end.close()
        self.metrics: bytes = self.orders.recv()

    def order(self, order: bool | int | str | tuple[str, int]) -> None:
        self.orders.send(order)
        self.metrics = self.orders.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.orders.close()


@pytest.fixture
def board() -> WorkerBoard:
    return WorkerBoard(2)


@pytest.fixture
def start(board: WorkerBoard) -> Iterator[Any]:
    """Starts workers that are killed after the test."""
    workers = []

    def start_one() -> Worker:
        workers.append(Worker(board))
        return workers[-1]

    yield start_one
    for running in workers:
        running.kill()


def test_workers_become_ready_together_and_a_replacement_takes_the_slot_of_the_dead(
    board: WorkerBoard, start: Any
) -> None:
    first, second = start(), start()
    assert board.waiting_for == 2
    first.order(True)
    assert board.waiting_for == 1
    first.kill()
    second.order(True)
    assert board.waiting_for == 1, "the dead worker's readiness does not count"
    second.order(False)
    third = start()
    assert board.waiting_for == 2
    second.order(True)
    third.order(True)
    assert board.waiting_for == 0
    third.order(False)
    assert board.waiting_for == 0, "once all have been ready, each is ready or not for itself"


def test_a_worker_that_starts_later_leaves_the_names_as_they_are(board: WorkerBoard, start: Any) -> None:
    board.unloaded, board.uncounted = ["bert"], ["gpt", "réranker"]
    start().order(True)
    assert board.unloaded == ["bert"] and board.uncounted == ["gpt", "réranker"]


def test_counters_outlive_their_workers(board: WorkerBoard, start: Any) -> None:
    metrics, _ = worker(board, 2, True)
    metrics.count_request("v1", 200, model="bert")
    second = start()
    assert (value(metrics, V1), value(metrics, IN_FLIGHT), value(metrics, READY)) == (1, 7, 0)
    second.order(10)
    assert (value(metrics, V1), value(metrics, QUEUE_COUNT)) == (11, 10)
    assert value(metrics, 'hf_transformer_queue_seconds_bucket{le="0.005",model_name="bert"}') == 10
    assert f"{V1} 11.0".encode() in second.metrics
    second.kill()
    # Before its replacement, its counters are still valid, its gauges are not.
    assert (value(metrics, V1), value(metrics, IN_FLIGHT), value(metrics, READY)) == (11, 2, 1)
    replacement = start()
    assert (value(metrics, V1), value(metrics, IN_FLIGHT)) == (11, 7)
    replacement.order(3)
    assert (value(metrics, V1), value(metrics, QUEUE_COUNT)) == (14, 13)
    last = value(metrics, LAST)
    assert last and time() - 60 < last <= time(), "only the dead workers answered requests"
    replacement.kill()
    assert value(metrics, V1) == 14
    assert value(metrics, LAST) == last


async def test_a_failing_gauge_does_not_end_the_writing_of_copies(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hf_transformer.observability.board.PERIOD_SECONDS", 0.001)
    board = WorkerBoard(1)
    board.claim()
    metrics = Metrics()
    calls = 0

    def gauge() -> int:
        nonlocal calls
        calls += 1
        if calls in (2, 3):
            raise RuntimeError("not now")
        return calls

    metrics.requests_in_flight.set_function(gauge)
    async with metrics.share(board):
        async with asyncio.timeout(20):
            while calls < 5:  # noqa: ASYNC110 - no event announces it
                await asyncio.sleep(0.001)
            metrics.count_request("v1", 200)
            while "'v1'" not in str(board.read(0)):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.001)
        metrics.count_request("grpc", 200)
    assert "'grpc'" in str(board.read(0)), "a last copy is written at the end"
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def copy_of(letter: str, length: int) -> list[Family]:
    return [Family(letter * length, "", "counter", (), [], {})]


@pytest.mark.parametrize("reads", range(4))
def test_a_copy_that_is_replaced_while_it_is_read_is_read_again(monkeypatch: pytest.MonkeyPatch, reads: int) -> None:
    board = WorkerBoard(1)
    board.claim()
    board.write(copy_of("a", 1000))
    read, remaining = os.pread, reads

    def read_slowly(file: int, length: int, start: int) -> bytes:
        nonlocal remaining
        remaining -= 1
        if remaining == -1:  # both halves are written before the reader goes on
            board.write(copy_of("b", 1000))
            board.write(copy_of("c", 2000))
        return read(file, length, start)

    monkeypatch.setattr("os.pread", read_slowly)
    assert board.read(0) in ([copy_of("c", 2000)] if reads < 3 else [copy_of("a", 1000), copy_of("c", 2000)])


def test_a_worker_that_dies_while_it_writes_breaks_no_scrape(board: WorkerBoard, start: Any) -> None:
    metrics, _ = worker(board, 2, True)
    metrics.count_request("v1", 200, model="bert")
    for requests, written in ((1, 3), (11, 16), (21, 500)):
        replacement = start()
        assert value(metrics, V1) == requests
        replacement.order(10)
        replacement.orders.send(b"\7" * written)
        replacement.process.join()
        assert replacement.process.exitcode == 0
        assert value(metrics, V1) == requests + 10
    start().order(3)
    assert value(metrics, V1) == 34


def test_metrics_are_merged_by_minimum_maximum_or_sum() -> None:
    def families(most: float, total: float, created: float, gauge: float, opened: float) -> list[Family]:
        return [
            Family("process_max_fds", "", "gauge", (), (), {(): [most]}),
            Family("n", "", "counter", ("a",), (), {("b",): [total, created]}),
            Family("h", "", "histogram", (), (0.5,), {(): [total, total, total]}),
            Family("g", "", "gauge", (), (), {(): [gauge]}),
            Family("process_open_fds", "", "gauge", (), (), {(): [opened]}),
        ]

    assert merged(families(3, 3, 3, 3, 3), families(2, 2, 2, 2, 2)) == families(2, 5, 2, 5, 3)


def test_the_metrics_of_one_worker_look_the_same_through_the_board() -> None:
    board = WorkerBoard(1)
    alone, shared = Metrics(), Metrics()
    board.claim()
    shared.share(board)
    for metrics in (alone, shared):
        metrics.of("bert").observe(measured(preprocess=0.1, queue=0.2, predict=0.3, postprocess=0.4))

        metrics.count_request("v1", 200, model="bert")

    def lines(metrics: Metrics) -> list[str]:
        text = metrics.render().decode()
        return [line for line in text.splitlines() if not re.search(f"process_|_created|^{LAST} ", line)]

    assert lines(shared) == lines(alone)


def test_workers_add_up_the_series_of_each_model(board: WorkerBoard, start: Any) -> None:
    metrics, _ = worker(board, 2, True)
    metrics.of("gpt2").ready.set(1)
    second = start()
    for name, here, there in (("bert", 2, 3), ("gpt2", 1, 0)):
        answer(metrics, name, here)
        second.order((name, there))
    totals = metrics.totals_of(["bert", "gpt2"])
    assert [totals["bert"][key] for key in ("answered", "failed")] == [5, 5]
    assert [totals["gpt2"][key] for key in ("answered", "failed")] == [1, 1]
    assert value(metrics, 'request_predict_seconds_bucket{le="0.1",model_name="bert"}') == 5
    gpt2 = READY.replace("bert", "gpt2"), LAST.replace("bert", "gpt2")
    assert (value(metrics, READY), value(metrics, gpt2[0])) == (0, 0), "the second worker is not ready"
    assert value(metrics, LAST) == metrics.totals("bert")["last"] > 0
    second.order("gpt2")
    assert (value(metrics, gpt2[0]), value(metrics, gpt2[1])) == (1, metrics.totals("gpt2")["last"])
    second.order("bert")
    assert (metrics.totals("bert")["answered"], value(metrics, READY)) == (2, 1), "the first worker still serves it"
    metrics.forget("bert")
    assert b'model_name="bert"' not in metrics.render()


def test_a_forgotten_model_of_a_dead_worker_is_forgotten_by_its_replacement(board: WorkerBoard) -> None:
    dead, replacement = Metrics(), Metrics()
    board.claim()
    dead.share(board)
    for name in ("bert", "gpt2"):
        dead.of(name).observe(measured())
        dead.count_request("v1", 200, model=name)
    dead.count_request("keys", 401)
    dead.render()
    replacement.share(board)
    assert (value(replacement, V1), replacement.totals("gpt2")["answered"]) == (1, 1)
    replacement.forget("bert")
    assert b'model_name="bert"' not in replacement.render()
    assert replacement.totals("gpt2")["answered"] == 1
    assert value(replacement, 'hf_transformer_requests_total{api="keys",model_name="",status="401"}') == 1


def test_a_copy_with_fifty_models_is_small_and_comes_back_as_it_was(board: WorkerBoard) -> None:
    metrics = Metrics()
    for number in range(50):
        name = f"model {number}"
        metrics.of(name).observe(measured(predict=0.1))
        for api in ("v1", "v2", "grpc", "openai", "generate"):
            for status in (200, 400, 503):
                metrics.count_request(api, status, perf_counter(), name)
    board.claim()
    families = list(metrics.families())
    board.write(families)
    assert {family.name: family.series for family in board.read(0)} == {
        family.name: family.series for family in families
    }
    assert os.fstat(board._file).st_blocks * 512 < 2**20
