"""Batches of several workers at one batcher: shared, with the answers of one process, and with clear ends."""

from __future__ import annotations

import asyncio
import gc
import inspect
import pickle
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import uvloop

from hf_transformer.app import batcher as batcher_module
from hf_transformer.app.batcher import Batcher
from hf_transformer.core import remote as remote_module
from hf_transformer.core.batch import PaddingPolicy
from hf_transformer.core.remote import (
    HEAD,
    RECEIVE_BYTES,
    BatcherLink,
    Data,
    Failed,
    Frames,
    Open,
    PredictorRecipe,
    RemoteScheduler,
    Row,
    Rows,
    SchedulerRecipe,
    Submit,
    Text,
)
from hf_transformer.errors import (
    PREDICTORS,
    CallersDeadline,
    PredictorError,
    PredictorTimeout,
    PredictorUnavailable,
    RequestError,
)
from hf_transformer.observability.metrics import Metrics, ModelMetrics
from hf_transformer.predictor import Connections
from hf_transformer.predictor.base import Outputs, Predictor, PredictorSettings
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import Array, Tensor
from hf_transformer.types.tokenization import Encoding
from tests.core.scheduling import MASKED, SETTINGS, first_logit, run, text
from tests.support.scripted_predictor import RecordedCall, ScriptedPredictor

SCHEDULER = SchedulerRecipe("bert", MASKED, PaddingPolicy(0, left=False), SETTINGS, 0, 1)
PREDICTOR = PredictorRecipe("bert", "v2", PredictorSettings("bert", "nobody"), 0, 0.1, 0, False)


class Closing(ScriptedPredictor):
    """Records its end. Answers at once with so many ``labels``, if they are set."""

    labels = 0

    async def respond(self, made: RecordedCall) -> Outputs:
        if not self.labels:
            return await super().respond(made)
        logits = np.repeat(made.ids[:, :, np.newaxis].astype(np.float32), self.labels, 2)
        return {"logits": Tensor("logits", "FP32", logits)}

    async def close(self) -> None:
        self.events.append("closed")


class Plane:
    """A batcher over scripted predictors, one for each recipe, and any number of workers in the same process."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.executor = executor
        self.predictors: dict[PredictorRecipe, Closing] = {}
        self.batcher = Batcher(executor, Metrics())
        self.metrics = Metrics().of("bert")
        self.links: list[tuple[BatcherLink, socket.socket]] = []

    def open(self, recipe: PredictorRecipe, metrics: ModelMetrics, connections: Connections) -> Predictor:
        return self.predictors.setdefault(recipe, Closing())

    @property
    def predictor(self) -> Closing:
        return self.predictors.setdefault(PREDICTOR, Closing())

    async def worker(self) -> BatcherLink:
        """Starts a worker that is connected."""
        ours, theirs = socket.socketpair()
        link = BatcherLink(theirs)
        await link.__aenter__()
        self.links.append((link, ours))
        await self.introduce(ours)
        return link

    async def introduce(self, ours: socket.socket) -> None:
        """Connects a worker with the present batcher."""
        end, workers_end = socket.socketpair()
        with workers_end:
            socket.send_fds(ours, [b"\0"], [workers_end.fileno()])
        before = len(self.batcher.workers)
        await self.batcher.connect(end)
        await turns()
        assert len(self.batcher.workers) == before + 1

    def scheduler(self, link: BatcherLink, **changes: Any) -> RemoteScheduler:
        recipe = PREDICTOR, replace(SCHEDULER, **changes)
        return RemoteScheduler(link, recipe, executor=self.executor, metrics=self.metrics)


async def turns(number: int = 60) -> None:
    """Lets the sockets of both ends deliver."""
    for _ in range(number):
        await asyncio.sleep(0.0005)


@asynccontextmanager
async def plane(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Plane]:
    with ThreadPoolExecutor(2) as executor:
        made = Plane(executor)
        monkeypatch.setattr(PredictorRecipe, "open", lambda recipe, *more: made.open(recipe, *more))
        try:
            yield made
        finally:
            for link, ours in made.links:
                await link.__aexit__(None, None, None)
                ours.close()
            await turns()
            assert not made.batcher.workers
            await made.batcher.end()


async def until_calls(predictor: ScriptedPredictor, number: int) -> None:
    for _ in range(1000):
        if len(predictor.calls) == number:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{len(predictor.calls)} calls, expected {number}")


def ask(scheduler: RemoteScheduler, *first: int, **options: Any) -> asyncio.Task[list[Any]]:
    return asyncio.ensure_future(run(scheduler, [text(3, one) for one in first], **options))


@pytest.mark.parametrize("workers", [1, 2, 4])
async def test_the_batches_of_all_workers_form_in_one_place(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    async with plane(monkeypatch) as made:
        schedulers = [made.scheduler(await made.worker()) for _ in range(workers)]
        await turns()
        waiting = ask(schedulers[0], 1)
        await until_calls(made.predictor, 1)
        tasks = [ask(schedulers[number % workers], number) for number in range(2, 10)]
        await turns()
        assert len(made.predictor.calls) == 1, "the limit is one batch in flight"
        made.predictor.calls[0].end.set_result(None)
        await until_calls(made.predictor, 2)
        assert sorted(made.predictor.calls[1].first_ids) == [*range(2, 10)]
        made.predictor.calls[1].end.set_result(None)
        assert await asyncio.gather(waiting, *tasks) == [[number] for number in range(1, 10)]


async def test_a_request_in_several_batches_is_answered_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async with plane(monkeypatch) as made:
        task = ask(made.scheduler(await made.worker()), *range(1, 13))
        for number in (0, 1):
            await until_calls(made.predictor, number + 1)
            made.predictor.calls[number].end.set_result(None)
        assert await task == [*range(1, 13)]


@pytest.mark.parametrize("cost", [1, 10**6], ids=["inline", "in a thread"])
async def test_an_error_of_decoding_fails_its_own_request(monkeypatch: pytest.MonkeyPatch, cost: int) -> None:
    def decode(number: int, item: Encoding, rows: Mapping[str, Array], options: Any) -> Any:
        if item.ids[0] == 2:
            raise PredictorError("not a number")
        return first_logit(number, item, rows, options)

    async with plane(monkeypatch) as made:
        scheduler = made.scheduler(await made.worker())
        bad, good = ask(scheduler, 2, decode=decode, cost=cost), ask(scheduler, 3, decode=decode, cost=cost)
        await until_calls(made.predictor, 1)
        made.predictor.calls[0].end.set_result(None)
        assert await good == [3]
        with pytest.raises(PredictorError, match="not a number"):
            await bad


def errors_of_predictors() -> list[RequestError]:
    """One error of each class that a predictor raises."""
    errors: list[RequestError] = []
    for base in PREDICTORS:
        public = [one for one in base.__subclasses__() if one.__module__ == base.__module__]
        for kind in (base, *public):
            takes_kind = "kind" in inspect.signature(kind.__init__).parameters
            errors.append(kind("a message", "a kind") if takes_kind else kind("a message"))
    return errors


@pytest.mark.parametrize("error", errors_of_predictors(), ids=lambda error: type(error).__name__)
async def test_errors_keep_their_class_text_and_kind(monkeypatch: pytest.MonkeyPatch, error: RequestError) -> None:
    """So that the statuses, codes and retries are those of one process."""
    async with plane(monkeypatch) as made:
        task = ask(made.scheduler(await made.worker()), 1)
        await until_calls(made.predictor, 1)
        made.predictor.calls[0].end.set_exception(error)
        with pytest.raises(RequestError) as raised:
            await task
        assert type(raised.value) is type(error) and str(raised.value) == str(error)
        assert getattr(raised.value, "kind", "") == getattr(error, "kind", "")
        assert (raised.value.status, raised.value.grpc_code) == (error.status, error.grpc_code)
        assert raised.value.retry_after == error.retry_after


async def test_a_bug_at_the_batcher_is_an_internal_error_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    async with plane(monkeypatch) as made:
        task = ask(made.scheduler(await made.worker()), 1)
        await until_calls(made.predictor, 1)
        made.predictor.calls[0].end.set_exception(KeyError("a secret"))
        with pytest.raises(RuntimeError, match="KeyError") as raised:
            await task
        assert "secret" not in str(raised.value)


async def test_cancelled_and_late_requests_leave_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    async with plane(monkeypatch) as made:
        scheduler = made.scheduler(await made.worker())
        first = ask(scheduler, 1)
        await until_calls(made.predictor, 1)
        cancelled, kept = ask(scheduler, 2), ask(scheduler, 3)
        soon = asyncio.get_running_loop().time() + 0.01
        late = ask(scheduler, 4, context=Context("id", {}, deadline=soon))
        with pytest.raises(CallersDeadline):
            await late
        cancelled.cancel()
        await turns()
        made.predictor.calls[0].end.set_result(None)
        await until_calls(made.predictor, 2)
        assert made.predictor.calls[1].first_ids == [3]
        made.predictor.calls[1].end.set_result(None)
        assert [await first, await kept] == [[1], [3]]


async def test_a_batcher_that_never_answers_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async with plane(monkeypatch) as made:
        scheduler = made.scheduler(await made.worker(), settings=replace(SETTINGS, timeout=0.05))
        monkeypatch.setattr(batcher_module.WorkerConnection, "_submit", lambda self, question: None)
        with pytest.raises(PredictorTimeout, match="no answer"):
            await ask(scheduler, 1)


class HostileWorker(asyncio.Protocol):
    """A worker that sends requests and reads no answer before ``read``."""

    def __init__(self, batcher: Batcher) -> None:
        self.batcher = batcher
        self.received = bytearray()

    async def connect(self) -> None:
        end, ours = socket.socketpair()
        before = self.batcher.workers.copy()
        await self.batcher.connect(end)
        [self.at_batcher] = self.batcher.workers - before
        self.transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
        self.transport.pause_reading()
        self.send(Open(0, pickle.dumps((PREDICTOR, SCHEDULER))))

    def data_received(self, data: bytes) -> None:
        self.received += data

    def send(self, *messages: Any) -> None:
        frame = msgspec.msgpack.encode(messages)
        self.transport.write(HEAD.pack(0, len(frame)) + frame)

    async def read(self) -> list[Rows | Failed]:
        """Reads all that was sent."""
        self.transport.resume_reading()
        await turns()
        decode, replies = msgspec.msgpack.Decoder(list[Rows | Failed]).decode, list[Rows | Failed]()
        while self.received:
            arrays, size = HEAD.unpack_from(self.received)
            start = HEAD.size + arrays
            replies += decode(self.received[start : start + size])
            del self.received[: start + size]
        return replies


async def test_a_worker_that_reads_nothing_delays_no_other_and_costs_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its requests fail with 503 once it has left too much unread, and their texts leave the queue."""
    most = 300_000
    monkeypatch.setattr(batcher_module, "MAX_UNREAD_BYTES", most)
    async with plane(monkeypatch) as made:
        hostile = HostileWorker(made.batcher)
        await hostile.connect()
        await turns()
        made.predictor.labels = 10_000
        for number in range(1, 101):
            hostile.send(Submit(number, 0, False, {}, [Text([number], [], None)] * 3))
            await turns(2)
        one = 3 * 10_000 * 4
        assert most < hostile.at_batcher.frames.unsent_bytes < most + 2 * one
        other = made.scheduler(await made.worker())
        assert await asyncio.wait_for(ask(other, 7), 20.0) == [7]
        assert not hostile.at_batcher._requests and not other._requests
        replies = await hostile.read()
        failed = [reply for reply in replies if isinstance(reply, Failed)]
        assert failed and {(one.error, one.message) for one in failed} == {
            ("PredictorUnavailable", "the worker does not read its answers")
        }
        assert {reply.request for reply in replies} == {*range(1, 101)}
        hostile.transport.close()
        await turns()


async def test_rows_that_wait_for_threads_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker reads no more until they are decoded, and then all requests have their answers."""
    row, most = 3 * 10_000 * 4, 300_000
    monkeypatch.setattr(remote_module, "MAX_UNDECODED_BYTES", most)
    goes_on = threading.Event()

    def decode(number: int, item: Encoding, rows: Mapping[str, Array], options: Any) -> Any:
        assert goes_on.wait(30)
        return first_logit(number, item, rows, options)

    async with plane(monkeypatch) as made:
        made.predictor.labels = 10_000
        link = await made.worker()
        scheduler = made.scheduler(link)
        tasks = []
        for number in range(1, 41):
            tasks.append(ask(scheduler, number, decode=decode, cost=10**6))
            await turns(2)
        [at_batcher] = made.batcher.workers
        assert most < link._undecoded <= most + 2 * row
        assert at_batcher.frames.unsent_bytes > 10 * row
        goes_on.set()
        assert await asyncio.gather(*tasks) == [[number] for number in range(1, 41)]
        assert link._undecoded == 0


async def test_requests_fail_at_once_while_the_batcher_leaves_too_much_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "MAX_UNREAD_BYTES", 100_000)
    ours, theirs = socket.socketpair()
    end, workers_end = socket.socketpair()  # whose other end reads nothing
    async with BatcherLink(theirs) as link:
        with workers_end:
            socket.send_fds(ours, [b"\0"], [workers_end.fileno()])
        await turns()
        scheduler = Plane(ThreadPoolExecutor(1)).scheduler(link)
        tasks = []
        for _ in range(1000):
            tasks.append(ask(scheduler, *range(1, 300)))
            await asyncio.sleep(0)
            if tasks[-1].done():
                break
        with pytest.raises(PredictorUnavailable, match="does not read its requests"):
            await tasks.pop()
        assert len(tasks) < 900 and not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    end.close()
    ours.close()


async def test_a_message_that_fails_at_the_batcher_fails_its_request_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with plane(monkeypatch) as made:
        link = await made.worker()
        scheduler = made.scheduler(link)
        await turns()
        answers: list[Any] = []
        link.ask(lambda number: Submit(number, 99, False, {}, []), answers.append)
        await turns()
        assert isinstance(answers[0], Failed) and "can't be handled" in caplog.text
        task = ask(scheduler, 5)
        await until_calls(made.predictor, 1)
        made.predictor.calls[0].end.set_result(None)
        assert await task == [5]


async def test_predictors_are_closed_before_the_batcher_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those, too, whose last worker has just ended: an open region of shared memory would stay."""
    async with plane(monkeypatch) as made:
        link = await made.worker()
        scheduler = made.scheduler(link)
        await turns()
        predictor = made.predictor

        async def close() -> None:
            await asyncio.sleep(0.05)
            predictor.events.append("closed late")

        monkeypatch.setattr(predictor, "close", close)
        [worker] = made.batcher.workers
        worker.frames.close()
        for _ in range(1000):
            if not made.batcher.workers:
                break
            await asyncio.sleep(0)
        await made.batcher.end()
        assert predictor.events[-1] == "closed late"
        del scheduler


async def test_the_end_of_the_batcher_fails_its_requests_and_the_next_one_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with plane(monkeypatch) as made:
        link = await made.worker()
        scheduler = made.scheduler(link)
        task = ask(scheduler, 1)
        await until_calls(made.predictor, 1)
        for worker in list(made.batcher.workers):
            worker.frames.close()
        with pytest.raises(PredictorUnavailable, match="restarted"):
            await task
        with pytest.raises(PredictorUnavailable, match="restarted"):
            await ask(scheduler, 1)
        made.predictors.clear()
        await turns()
        await made.introduce(made.links[0][1])
        task = ask(scheduler, 5)
        await until_calls(made.predictor, 1)
        made.predictor.calls[0].end.set_result(None)
        assert await task == [5]


async def test_the_end_of_a_worker_drops_its_queued_texts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with plane(monkeypatch) as made:
        leaving, staying = await made.worker(), await made.worker()
        first, second = made.scheduler(leaving), made.scheduler(staying)
        running = ask(second, 1)
        await until_calls(made.predictor, 1)
        lost, kept = ask(first, 2), ask(second, 3)
        await turns()
        await leaving.__aexit__(None, None, None)
        made.links.pop(0)[1].close()
        with pytest.raises(PredictorUnavailable):
            await lost
        await turns()
        made.predictor.calls[0].end.set_result(None)
        await until_calls(made.predictor, 2)
        assert made.predictor.calls[1].first_ids == [3]
        made.predictor.calls[1].end.set_result(None)
        assert [await running, await kept] == [[1], [3]]


async def test_an_old_and_a_new_scheduler_live_until_the_last_worker_releases_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with plane(monkeypatch) as made:
        links = [await made.worker() for _ in range(2)]
        old = [made.scheduler(link) for link in links]
        new = made.scheduler(links[0], instances=2)
        await turns()
        opened = made.batcher._predictors[0].schedulers
        assert [one.users for one in opened] == [2, 1]
        old.pop()
        gc.collect()
        await turns()
        assert [one.users for one in opened] == [1, 1]
        old.pop()
        gc.collect()
        await turns()
        assert [one.users for one in opened] == [1] and "closed" not in made.predictor.events
        del new
        gc.collect()
        await turns()
        assert not opened and not made.batcher._predictors and made.predictor.events[-1] == "closed"


async def test_rows_keep_dtype_shape_and_values() -> None:
    for array in (np.arange(6, dtype="<f2").reshape(2, 3)[:, ::2], np.zeros((0, 2), "<f4"), np.full((), 3, "<f4")):
        copy = Data.of(array).array()
        assert copy.dtype == array.dtype and copy.shape == array.shape and np.array_equal(copy, array)


@pytest.mark.parametrize("run_loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_frames_of_all_sizes_arrive_whole(run_loop: Callable[[Any], Any]) -> None:
    """Small ones in one read, large ones in many, and more arrays than a write takes at once (1,024)."""
    sizes = [0, 1, 7, 1023, 1024, 1025, 5000, RECEIVE_BYTES // 4, RECEIVE_BYTES, 3_000_001]
    lists = [[size] for size in sizes] + [sizes, [1025 + number for number in range(1500)]]

    async def exchange() -> None:
        ends, loop = socket.socketpair(), asyncio.get_running_loop()
        received: list[Rows] = []
        decoder = msgspec.msgpack.Decoder(list[Rows | Failed])
        frames = [Frames[Any](decoder, received.extend, lambda: None) for _ in ends]
        for one, end in zip(frames, ends, strict=True):
            await loop.create_unix_connection(lambda one=one: one, sock=end)  # type: ignore[misc]
        sent = []
        for number, found in enumerate(lists * 3):
            arrays = [np.random.default_rng(size).random(size, np.float32) for size in found]
            sent.append(arrays)
            frames[0].send_rows(
                Rows(number, 0.0, 0.0, "", [Row(at, {"a": Data.of(each)}) for at, each in enumerate(arrays)])
            )
            if number % 3:
                await asyncio.sleep(0)
        for _ in range(5000):
            if len(received) == len(sent):
                break
            await asyncio.sleep(0.002)
        for number, (message, arrays) in enumerate(zip(received, sent, strict=True)):
            assert message.request == number
            for row, array in zip(message.rows, arrays, strict=True):
                found_array = row.outputs["a"].array()
                assert np.array_equal(found_array, array) and found_array.flags.aligned
        frames[0].close()
        frames[1].close()
        await asyncio.sleep(0.01)

    run_loop(exchange())


async def test_a_trial_runs_at_the_batcher(monkeypatch: pytest.MonkeyPatch) -> None:
    async with plane(monkeypatch) as made:
        scheduler = made.scheduler(await made.worker())
        task = asyncio.ensure_future(scheduler.trial(text(3)))
        await until_calls(made.predictor, 1)
        made.predictor.calls[0].end.set_exception(PredictorError("broken"))
        with pytest.raises(PredictorError, match="broken"):
            await task
