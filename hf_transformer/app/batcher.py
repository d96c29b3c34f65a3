"""The batcher: the process that forms the batches of all workers (--workers above 1).

Workers that split the requests would have smaller batches. The batcher has the scheduler and the predictor of each
model, and neither tokenizers nor tasks. Equal recipes of the workers (core/remote.py) share a scheduler, so the batcher
follows each change of the models: an old and a new scheduler exist side by side until the last worker releases one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
import uvloop

from hf_transformer.core.remote import (
    MAX_UNREAD_BYTES,
    Answered,
    Close,
    Data,
    Failed,
    Forget,
    Frames,
    Leave,
    Open,
    PredictorRecipe,
    Question,
    Row,
    Rows,
    SchedulerRecipe,
    Submit,
    Text,
    Trial,
)
from hf_transformer.core.scheduler import ConcurrencyLimit, Entry, Scheduler, Submission
from hf_transformer.errors import PredictorUnavailable, RequestError
from hf_transformer.observability.board import WorkerBoard
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor import Connections
from hf_transformer.predictor.base import Predictor
from hf_transformer.server.memory import freeze_garbage_collector, keep_freed_blocks
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding

logger = logging.getLogger(__name__)

COPIED_BYTES = 1024
"""Number of bytes copied in one time unit of the scheduler's INLINE_COST, a quarter of a microsecond."""
UNREAD = "the worker does not read its answers"
THREADS = 4
"""Threads for the packing and copying of very large batches."""


@dataclass(slots=True, eq=False)
class OpenPredictor:
    """A predictor, and the schedulers that use it."""

    recipe: PredictorRecipe
    predictor: Predictor
    opening: asyncio.Task[None]
    limit: ConcurrencyLimit = field(default_factory=lambda: ConcurrencyLimit(0))
    schedulers: list[OpenScheduler] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class OpenScheduler:
    """A scheduler, and the number of the workers' schedulers that it stands for."""

    recipe: SchedulerRecipe
    predictor: OpenPredictor
    scheduler: Scheduler[Encoding]
    users: int = 0


class Batcher:
    """Forms the batches of all workers. ``metrics`` are its share of the service's metrics."""

    def __init__(self, executor: ThreadPoolExecutor, metrics: Metrics) -> None:
        self.executor = executor
        self.metrics = metrics
        self.workers: set[WorkerConnection] = set()
        self._connections = Connections()
        self._predictors: list[OpenPredictor] = []
        self._unserved: set[str] = set()  # removed models whose metrics are still shown
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[None]] = set()

    async def connect(self, end: socket.socket) -> None:
        """Serves a worker at the other end of a socket, until the worker closes it."""
        worker = WorkerConnection(self)
        self.workers.add(worker)
        await asyncio.get_running_loop().create_unix_connection(lambda: worker.frames, sock=end)

    def open(self, recipe: tuple[PredictorRecipe, SchedulerRecipe]) -> OpenScheduler:
        """Returns the scheduler of an equal recipe, or makes it. Raises ConfigError."""
        for_predictor, for_scheduler = recipe
        self._unserved.discard(for_predictor.model_name)
        predictor = next((one for one in self._predictors if one.recipe == for_predictor), None)
        if predictor is None:
            metrics = self.metrics.of(for_predictor.model_name)
            metrics.ready.set(1)  # the workers' readiness decides
            opened = for_predictor.open(metrics, self._connections)
            predictor = OpenPredictor(for_predictor, opened, self.spawn(_open(opened)))
            self._predictors.append(predictor)
        known = next((one for one in predictor.schedulers if one.recipe == for_scheduler), None)
        if known is None:
            metrics = self.metrics.of(for_predictor.model_name)
            scheduler = for_scheduler.make(predictor.predictor, self.executor, metrics, predictor.limit)
            metrics.watch_work(scheduler)
            known = OpenScheduler(for_scheduler, predictor, scheduler)
            predictor.schedulers.append(known)
        known.users += 1
        return known

    def close(self, scheduler: OpenScheduler) -> None:
        """Releases a scheduler, and closes its predictor after the last one."""
        scheduler.users -= 1
        predictor = scheduler.predictor
        if scheduler.users:
            return
        predictor.schedulers.remove(scheduler)
        if not predictor.schedulers:
            self._predictors.remove(predictor)
            closing = self.spawn(_close(predictor))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            self._forget(predictor.recipe.model_name)

    def forget(self, model_name: str) -> None:
        """Removes the metrics of a model, once no worker uses it."""
        self._unserved.add(model_name)
        self._forget(model_name)

    def _forget(self, name: str) -> None:
        if name in self._unserved and all(one.recipe.model_name != name for one in self._predictors):
            self._unserved.remove(name)
            self.metrics.forget(name)

    def spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        """Runs a coroutine as a task."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def end(self) -> None:
        """Closes all predictors."""
        for predictor in self._predictors:
            await _close(predictor)
        if self._closing:
            await asyncio.wait(self._closing)


async def _open(predictor: Predictor) -> None:
    await predictor.open()
    with suppress(RequestError):
        await predictor.model_spec()  # so that shared memory is registered before the first batch


async def _close(predictor: OpenPredictor) -> None:
    predictor.opening.cancel()
    await asyncio.wait([predictor.opening])
    await predictor.predictor.close()


class WorkerConnection:
    """The schedulers and the requests of one worker."""

    decoder = msgspec.msgpack.Decoder(list[Question])

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._schedulers: dict[int, OpenScheduler] = {}
        self._requests: dict[int, tuple[Scheduler[Encoding], Submission]] = {}
        self._trials: dict[int, asyncio.Task[Any]] = {}
        self._rows: dict[int, list[Row]] = {}
        """The rows of this iteration of the event loop, by request."""
        self._handlers: Mapping[type, Callable[[Any], None]] = {
            Open: self._open,
            Close: self._close,
            Submit: self._submit,
            Leave: self._leave,
            Trial: self._trial,
            Forget: self._forget,
        }
        self.frames = Frames(self.decoder, self._receive, self._end)

    def _receive(self, questions: list[Question]) -> None:
        for question in questions:
            try:
                self._handlers[type(question)](question)
            except Exception as error:  # a bug: an unhandled error would end the worker's connection
                logger.exception("a message of a worker can't be handled")
                if isinstance(question, Submit | Trial):
                    self.frames.send(Failed.of(question.request, error))

    def _open(self, question: Open) -> None:
        # Only processes that the supervisor started have the other end of this socket.
        self._schedulers[question.scheduler] = self._batcher.open(pickle.loads(question.recipe))  # noqa: S301

    def _close(self, question: Close) -> None:
        self._batcher.close(self._schedulers.pop(question.scheduler))

    def _forget(self, question: Forget) -> None:
        self._batcher.forget(question.model_name)

    def _submit(self, question: Submit) -> None:
        number, opened = question.request, self._schedulers[question.scheduler]
        context = Context("", question.headers, over_grpc=question.over_grpc)
        signature = opened.recipe.signature
        entries = [
            Entry(_encoding(text), (number, place), signature.output_bytes(len(text.ids)) // COPIED_BYTES)
            for place, text in enumerate(question.texts)
        ]
        submission = opened.scheduler.submit(entries, self._take, None, context)
        self._requests[number] = opened.scheduler, submission
        submission.future.add_done_callback(partial(self._end_request, number))

    def _take(self, owner: tuple[int, int], item: Encoding, rows: Mapping[str, Array], options: Any) -> None:
        """Copies the outputs of a text, perhaps in a thread."""
        row = Row(owner[1], {role: Data.of(array) for role, array in rows.items()})
        if threading.get_ident() == self._thread:
            self._add(owner[0], row)
        else:
            self._loop.call_soon_threadsafe(self._add, owner[0], row)

    def _add(self, number: int, row: Row) -> None:
        if not self._rows:
            self._loop.call_soon(self._send_rows)
        self._rows.setdefault(number, []).append(row)

    def _send_rows(self) -> None:
        rows_of, self._rows = self._rows, {}
        for number, rows in rows_of.items():
            request = self._requests.get(number)
            if request is None:
                continue
            scheduler, submission = request
            if self.frames.unsent_bytes > MAX_UNREAD_BYTES:
                del self._requests[number]
                self.frames.send(Failed.of(number, PredictorUnavailable(UNREAD)))
                scheduler.leave(submission)
                continue
            context = submission.context
            self.frames.send_rows(Rows(number, perf_counter(), context.queue, context.batch_traceparent, rows))

    def _end_request(self, number: int, future: asyncio.Future[None]) -> None:
        """Releases a request with all its answers, or fails it. The last rows may still wait for ``_send_rows``."""
        error = None if future.cancelled() else future.exception()
        if number in self._rows:
            self._send_rows()
        request = self._requests.pop(number, None)
        if request is None:
            return
        scheduler, submission = request
        if error is not None:
            self.frames.send(Failed.of(number, error))
        scheduler.leave(submission)

    def _leave(self, question: Leave) -> None:
        request = self._requests.pop(question.request, None)
        if request is not None:
            request[0].leave(request[1])
        trial = self._trials.get(question.request)
        if trial is not None:
            trial.cancel()

    def _trial(self, question: Trial) -> None:
        number, scheduler = question.request, self._schedulers[question.scheduler].scheduler

        async def run() -> None:
            try:
                await scheduler.trial(_encoding(question.text))
                self.frames.send(Answered(number))
            except Exception as error:
                self.frames.send(Failed.of(number, error))
            finally:
                del self._trials[number]

        self._trials[number] = self._batcher.spawn(run())

    def _end(self) -> None:
        """Drops the requests of a worker that has ended."""
        for scheduler, submission in self._requests.values():
            scheduler.leave(submission)
        self._requests.clear()
        for trial in self._trials.values():
            trial.cancel()
        for opened in self._schedulers.values():
            self._batcher.close(opened)
        self._schedulers.clear()
        self._batcher.workers.discard(self)


def _encoding(text: Text) -> Encoding:
    return Encoding(text.ids, text.type_ids or [0] * len(text.ids), attended=text.attended)


class BatcherProcess:
    """Runs a Batcher until its supervisor and all workers have closed their sockets.

    Attributes:
        loop: the event loop, once the batcher serves.
    """

    def __init__(self, board: WorkerBoard, introductions: socket.socket) -> None:
        self._board = board
        self._introductions = introductions
        self.loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> None:
        """Runs the event loop. Ignores signals: the workers need the batcher until they have ended."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        freeze_garbage_collector()
        keep_freed_blocks()
        uvloop.run(self._serve())

    async def _serve(self) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        self._board.claim_batcher()
        metrics = Metrics()
        executor = ThreadPoolExecutor(THREADS, "batcher")
        batcher = Batcher(executor, metrics)

        def introduce() -> None:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._introductions, 1, 1)
            except BlockingIOError:
                return
            if data:
                batcher.spawn(batcher.connect(socket.socket(fileno=descriptors[0])))
            else:
                loop.remove_reader(self._introductions)
                ended.set()

        async with AsyncExitStack() as stack:
            stack.callback(executor.shutdown, wait=False, cancel_futures=True)
            await stack.enter_async_context(metrics.share(self._board))
            stack.push_async_callback(batcher.end)
            self._introductions.setblocking(False)
            loop.add_reader(self._introductions, introduce)
            self.loop = loop
            logger.info("Started batcher process [%s]", os.getpid())
            await ended.wait()
            while batcher.workers:  # noqa: ASYNC110 - the end of a process
                await asyncio.sleep(0.02)
