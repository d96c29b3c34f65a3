"""Batching of instances from all requests. No answer depends on the other instances of its batch.

The scheduler sends queued instances when the concurrency limit has a free slot, the event loop has delivered what has
arrived, and the policy of departures.py does not wait for more. A lone instance leaves at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Generic, TypeVar

import numpy as np

from hf_transformer.core.batch import BatchBuilder, Packed
from hf_transformer.core.departures import Departures
from hf_transformer.core.queue import Queue
from hf_transformer.errors import CallersDeadline, PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.observability.metrics import ModelMetrics, Work
from hf_transformer.predictor.base import ModelCall, Predictor
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import Array, Tensor

Item = TypeVar("Item")

Decode = Callable[[Any, Any, Mapping[str, Array], Any], Any]
"""Makes an entry's answer from its owner, item, outputs by role and the request's options, see Task.decode."""

INLINE_COST = 20_000
"""Maximum packing or decoding cost of a batch on the event loop (see Task.decode_cost), about 5 ms. A thread takes 0.06
to 0.15 ms more."""

MAX_OUTPUT_BYTES = 4 * 2**20
"""Default maximum of a batch's outputs without shared memory. Twice the size costs 20 % of the requests per second."""

MAX_SHARED_OUTPUT_BYTES = 8 * 2**20
"""Default maximum of a batch's outputs in shared memory. Half the size needs a third more CPU time (benchmarks/,
"Batches in flight")."""

MAX_LEARNT_OUTPUT_BYTES = 64 * 2**20
"""Maximum of a batch's outputs while the learnt fixed cost is more than half of the batch's time. The two limits above
suit a CPU's cache; in front of a fast device a larger batch saves more."""

MAX_STEP_OUTPUT_BYTES = 256 * 2**20
"""Default maximum of a generation step's outputs. The duration of a step is almost independent of the number of texts,
until the transfer of the outputs takes longer."""

MAX_REFUSED_IN_A_ROW = 8
"""Consecutive refused shared batches after which FailureIsolation limits retries. The instances are then an unlikely
cause, and retries multiply the load."""

ISOLATION_INTERVAL_SECONDS = 2.0
"""Minimum interval of retries after MAX_REFUSED_IN_A_ROW. It also limits the time for which one client's bad instances
fail other clients' requests."""

QUIET_ITERATIONS, MAX_ITERATIONS = 8, 24
"""Iterations of the event loop for which a batch of gRPC calls waits: without a new instance, after which the loop has
delivered what has arrived, and altogether. grpc.aio delivers one call after another, each in four to six iterations,
whereas one iteration delivers all requests over HTTP (docs/decisions/0008)."""

BAD_ANSWER = "error"
"""The failure code of a successful call with an answer that breaks the contract or can't be decoded."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Limits of the batches at one predictor.

    Args:
        max_batches_in_flight: the maximum number of batches without an answer.
        max_batch_tokens: the maximum number of tokens in one batch, including padding.
        max_batch_output_bytes: the maximum bytes of all outputs of one batch.
        max_learnt_output_bytes: the same, for a batch whose time is mostly fixed; 0 for no further outputs.
        timeout: the timeout of a request in seconds, including its time in the queue.
    """

    max_batches_in_flight: int
    max_batch_tokens: int
    max_batch_output_bytes: int
    timeout: float
    max_learnt_output_bytes: int = 0


class ConcurrencyLimit:
    """A semaphore for ``count`` batches at one predictor. Not thread-safe.

    After the replacement of a model, the new and the old scheduler share the semaphore. Schedulers get free slots in
    the order of their requests. ``count`` may change at any time.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._taken = 0
        self._callbacks: dict[Callable[[], None], None] = {}

    @property
    def has_slot(self) -> bool:
        """Whether a slot is free."""
        return self._taken < self.count

    def acquire(self) -> None:
        self._taken += 1

    def call_when_free(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` once after a slot becomes free. A second registration has no effect."""
        self._callbacks[callback] = None

    def release(self) -> None:
        """Releases a slot, and calls callbacks while slots are free."""
        self._taken -= 1
        while self._callbacks and self.has_slot:
            callback = next(iter(self._callbacks))
            del self._callbacks[callback]
            callback()


class FailureIsolation:
    """Decides whether the scheduler sends the requests of a refused shared batch again, each in its own batch.

    Any answered batch resets the count of refused batches. After ``max_refused`` consecutive refused batches, a retry
    is allowed only once per ISOLATION_INTERVAL_SECONDS.
    """

    def __init__(self, max_refused: int = MAX_REFUSED_IN_A_ROW) -> None:
        self._max_refused = max_refused
        self._refused_in_a_row = 0
        self._next_isolation = 0.0

    def answered(self) -> None:
        """Records an answered batch."""
        self._refused_in_a_row = 0

    def retries_alone(self, now: float) -> bool:
        """Records a shared batch that the model refused at ``now``, in seconds. Returns whether to retry requests."""
        self._refused_in_a_row += 1
        if self._refused_in_a_row > self._max_refused and now < self._next_isolation:
            return False
        self._next_isolation = now + ISOLATION_INTERVAL_SECONDS
        return True


class Submission:
    """The queued and sent entries of one request.

    Attributes:
        future: done after all entries have answers, or after the request failed.
        remaining: the number of entries without an answer.
        submitted: the time of the submission (time.perf_counter).
        answered: the time of the predictor's last answer (time.perf_counter).
        timer: the caller's deadline; None if the scheduler's timeout is earlier.
    """

    __slots__ = ("answered", "context", "decode", "entries", "future", "options", "remaining", "submitted", "timer")

    def __init__(
        self,
        entries: Sequence[Entry[Any]],
        decode: Decode,
        options: Any,
        context: Context,
        future: asyncio.Future[None],
    ) -> None:
        self.entries = entries
        self.remaining = len(entries)
        self.decode = decode
        self.options = options
        self.context = context
        self.future = future
        self.submitted = self.answered = perf_counter()
        self.timer: asyncio.TimerHandle | None = None

    def fail(self, error: Exception) -> None:
        """Fails the request with its own copy of the error, since a raise changes the error object."""
        if not self.future.done():
            self.future.set_exception(copy(error) if isinstance(error, RequestError) else error)


class Entry(Generic[Item]):
    """One instance of a request.

    Attributes:
        item: the input of the model: an encoding, or a step of a text.
        owner: the caller's object for the instance, an argument of ``decode``.
        cost: the cost of ``decode``, in units of INLINE_COST.
        answer: the result of ``decode``, or its error.
        length, key: attributes of queue.Queueable, set by the scheduler.
        request: the entry's request, set by the scheduler.
    """

    __slots__ = ("answer", "cost", "item", "key", "length", "owner", "request")

    request: Submission
    length: int
    key: str
    answer: Any

    def __init__(self, item: Item, owner: Any, cost: int) -> None:
        self.item = item
        self.owner = owner
        self.cost = cost


class Scheduler(Generic[Item]):
    """Sends instances to one predictor in batches. Each batch is an asyncio task of the running event loop.

    A batch has the headers of its oldest request. Requests with different ``authorization`` never share a batch. A
    cancelled or timed-out request leaves the queue, but its sent batches continue.

    Args:
        builder: makes batches of items.
        executor: runs long packing and decoding.
        limit: the predictor's concurrency limit; None makes a limit of ``settings.max_batches_in_flight``.
    """

    def __init__(
        self,
        predictor: Predictor,
        builder: BatchBuilder[Item],
        settings: SchedulerSettings,
        *,
        executor: Executor,
        metrics: ModelMetrics,
        limit: ConcurrencyLimit | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._predictor = predictor
        self._builder = builder
        self._executor = executor
        self._metrics = metrics
        self._timeout = settings.timeout
        self._limit = ConcurrencyLimit(settings.max_batches_in_flight) if limit is None else limit
        self._queue: Queue[Entry[Item]] = Queue(lambda entry: builder.limits(entry.item))
        self._running: dict[int, Sequence[Entry[Item]]] = {}  # the entries of each batch, by the list's id
        self._batches: set[asyncio.Task[None]] = set()  # the event loop references tasks weakly
        self._is_forming = self._is_creating = self._waits = False
        """Whether a batch is forming, whether the event loop is creating its task, and whether it waits for others."""
        self._arrived = 0  # all instances so far
        self._unanswered: dict[Submission, None] = {}  # submissions with the scheduler's timeout, in order
        self._timer: asyncio.TimerHandle | None = None  # one for all submissions: a timer takes 3 us
        self._isolation = FailureIsolation()
        self._departures = None if builder.costs is None else Departures(builder.costs)
        self._hold: asyncio.TimerHandle | None = None  # until the departure of the next batch
        self._hold_rows = 0  # the number of queued instances that ends the hold

    def submit(self, entries: Sequence[Entry[Item]], decode: Decode, options: Any, context: Context) -> Submission:
        """Queues the entries of a request. Await the ``future`` of the result, and call ``leave`` in a ``finally``.

        Args:
            decode: makes an entry's answer before the release of the predictor's buffer, perhaps in a thread.

        The future raises:
            PredictorTimeout: the scheduler's timeout passed.
            CallersDeadline: ``context.deadline`` passed.
            RequestError: an entry failed.
        """
        loop, bucket, queue = self._loop, self._builder.bucket, self._queue
        request = Submission(entries, decode, options, context, loop.create_future())
        if not entries:
            request.future.set_result(None)
        authorization = context.headers.get("authorization", "")
        self._arrived += len(entries)
        if not context.over_grpc:
            self._waits = False
        for entry in entries:
            group, entry.length = bucket(entry.item)
            entry.key = f"{authorization} {group}" if group else authorization
            entry.request = request
            queue.add(entry)
        deadline = context.deadline
        if deadline is not None and deadline < loop.time() + self._timeout:
            error = CallersDeadline("no answer before the caller's deadline")
            request.timer = loop.call_at(deadline, request.fail, error)
        else:
            self._unanswered[request] = None
            if self._timer is None:
                self._timer = loop.call_later(self._timeout, self._expire)
        if self._departures is not None:
            self._departures.arrived(request.submitted)
        if not self._is_forming:
            self._start_batch()
        return request

    def leave(self, request: Submission) -> None:
        """Ends a request, with or without an answer."""
        if request.timer is None:
            self._unanswered.pop(request, None)
        else:
            request.timer.cancel()
        if request.remaining:
            request.future.cancel()
            for entry in request.entries:
                self._queue.discard(entry)
        request.entries = ()  # breaks the reference cycle with the entries

    @property
    def work(self) -> Work:
        """The queued entries, and those in batches. A batch counts as running until its answers are decoded."""
        running = [entry.length for entries in self._running.values() for entry in entries]
        return Work(len(self._queue), self._queue.tokens, len(running), sum(running))

    @property
    def queued(self) -> Iterator[Item]:
        """The items of the queued entries."""
        return (entry.item for entry in self._queue)

    async def trial(self, item: Item) -> None:
        """Runs one inference outside all batches and limits. Raises RequestError for a failure or an invalid answer."""
        packed = self._builder.pack((item,))
        reply = await self._predictor.infer(ModelCall(packed.inputs, packed.outputs, {}))
        try:
            for rows in self._builder.unpack((item,), packed, reply.tensors):
                for role, data in rows.items():
                    if data.dtype.kind == "f" and np.isnan(data).any():
                        raise PredictorError(f"the model answered {role!r} with NaN")
        finally:
            reply.release()

    def _expire(self) -> None:
        """Fails all timed-out requests, and sets the timer for the oldest other request."""
        self._timer = None
        oldest = perf_counter() - self._timeout
        while self._unanswered:
            request = next(iter(self._unanswered))
            if request.submitted > oldest:
                self._timer = self._loop.call_later(request.submitted - oldest, self._expire)
                return
            del self._unanswered[request]
            limit = f"{self._timeout:g} s (--predictor_request_timeout_seconds)"
            request.fail(PredictorTimeout(f"no answer from the predictor in {limit}, waiting for its turn included"))

    def _start_batch(self) -> None:
        """Starts a batch if entries are queued, a slot is free and no hold goes on, else waits for these."""
        if not self._is_forming and self._queue:
            if self._limit.has_slot:
                if self._departures is not None and self._holds(self._departures):
                    return
                self._limit.acquire()
                self._is_forming = self._is_creating = True
                self._waits = next(iter(self._queue)).request.context.over_grpc
                batch = self._loop.create_task(self._run_batch())
                self._is_creating = False
                self._batches.add(batch)
                batch.add_done_callback(self._batches.discard)
            else:
                self._limit.call_when_free(self._start_batch)

    def _holds(self, departures: Departures) -> bool:
        """Whether the next batch waits for more instances. Begins or ends a hold."""
        queued = len(self._queue)
        if self._hold is not None:
            if queued < self._hold_rows and not departures.is_complete:
                return True
            self._end_hold()
            return False
        held = departures.hold(perf_counter(), self._queue.outstanding)
        if held:
            oldest = next(iter(self._queue))
            self._hold_rows = self._builder.limits(oldest.item).max_rows
            if queued < self._hold_rows:
                self._hold = self._loop.call_later(held, self._depart)
        return self._hold is not None

    def _end_hold(self) -> None:
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None

    def _reconsider_hold(self) -> None:
        """Starts the held batch, or a new hold, after the end of a batch."""
        if self._hold is not None:
            self._end_hold()
            self._start_batch()

    def _depart(self) -> None:
        """Starts the held batch at its time, if it has not left."""
        self._hold_rows = 0
        self._start_batch()
        self._end_hold()  # the queue may be empty by now, or all slots taken

    async def _run_batch(self) -> None:
        """Removes one batch from the queue and sends the batch.

        The batch forms in the next iteration of the event loop, so requests of this iteration share the batch.
        """
        if self._is_creating:  # an eager task, which runs before create_task returns
            await asyncio.sleep(0)
        if self._waits and (len(self._queue) > 1 or len(self._batches) > 1):
            await self._wait_for_arrivals()
        self._is_forming = False
        most, oldest = None, next(iter(self._queue), None)
        if self._departures is not None and oldest is not None:
            most = self._departures.share(perf_counter(), self._queue.recent, oldest.request.remaining)
        taken = self._queue.take(self._limit.count + 1, most)
        self._start_batch()
        entries = [entry for entry in taken if not entry.request.future.done()]
        self._running[id(entries)] = entries
        try:
            await self._send(entries)
        finally:
            del self._running[id(entries)]
            self._queue.answered(len(taken))
            # Callers with answers run first, so that their next instances can join the next batch.
            self._loop.call_soon(self._limit.release)

    async def _wait_for_arrivals(self) -> None:
        """Waits until QUIET_ITERATIONS without a new instance, MAX_ITERATIONS, a full batch, or a request over HTTP."""
        oldest = next(iter(self._queue), None)
        most = 0 if oldest is None else self._builder.limits(oldest.item).max_rows
        end, quiet = self._arrived - len(self._queue) + most, 0
        for _ in range(MAX_ITERATIONS):
            if quiet == QUIET_ITERATIONS or self._arrived >= end or not self._waits:
                return
            seen = self._arrived
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._arrived == seen else 0

    async def _send(self, entries: Sequence[Entry[Item]]) -> None:
        """Packs entries, calls the predictor once, and decodes the outputs."""
        if not entries:
            return
        timer = reply = None
        try:
            started = perf_counter()
            items = [entry.item for entry in entries]
            if self._builder.pack_cost(items) <= INLINE_COST:
                packed = self._builder.pack(items)
            else:
                packed = await self._loop.run_in_executor(self._executor, self._builder.pack, items)
                if not _has_waiting(entries):
                    return
            cost = _record_start(entries, started)
            self._metrics.observe_batch(len(entries), packed.real, packed.padding)
            departures = self._departures
            if departures is not None:
                timer = departures.sent(perf_counter(), packed.real + packed.padding)
            headers, wanted = entries[0].request.context.headers, partial(_has_waiting, entries)
            reply = await self._predictor.infer(ModelCall(packed.inputs, packed.outputs, headers, packed.sizes, wanted))
            try:
                answered = perf_counter()
                if departures is not None and timer is not None:
                    departures.answered(timer, answered, len(entries), _ended_requests(entries))
                    timer = None
                    self._reconsider_hold()
                if cost <= INLINE_COST:
                    self._decode(entries, items, packed, reply.tensors)
                else:
                    await self._loop.run_in_executor(
                        self._executor, self._decode, entries, items, packed, reply.tensors
                    )
            finally:
                reply.release()
            self._finish(entries, answered)
        except asyncio.CancelledError:
            self._fail(entries, PredictorUnavailable("the call to the predictor was broken off"))
            raise
        except Exception as error:
            if reply is not None and isinstance(error, PredictorError):
                self._metrics.predictor_errors.add(1, BAD_ANSWER)
            self._isolate_or_fail(entries, error)
        finally:
            if self._departures is not None and timer is not None:
                self._departures.failed(timer, perf_counter())
                self._reconsider_hold()

    def _decode(
        self, entries: Sequence[Entry[Item]], items: Sequence[Item], packed: Packed, outputs: Mapping[str, Tensor]
    ) -> None:
        """Verifies a batch's outputs and decodes each entry's rows. A decoding error becomes the entry's answer."""
        for entry, rows in zip(entries, self._builder.unpack(items, packed, outputs), strict=True):
            request = entry.request
            if request.future.done():
                continue
            try:
                entry.answer = request.decode(entry.owner, entry.item, rows, request.options)
            except Exception as error:
                entry.answer = error

    def _finish(self, entries: Sequence[Entry[Item]], answered: float) -> None:
        """Ends the requests without remaining entries, after the release of the predictor's buffer."""
        self._isolation.answered()
        is_bad = False
        for entry in entries:
            request = entry.request
            if request.future.done():
                continue
            if isinstance(entry.answer, Exception):
                is_bad = is_bad or isinstance(entry.answer, PredictorError)
                request.fail(entry.answer)
                continue
            request.answered = answered
            request.remaining -= 1
            if not request.remaining:
                request.future.set_result(None)
        if is_bad:
            self._metrics.predictor_errors.add(1, BAD_ANSWER)

    def _isolate_or_fail(self, entries: Sequence[Entry[Item]], error: Exception) -> None:
        """Queues the requests of a refused batch again, each for its own batch, since one bad instance may fail a whole
        batch. Fails the requests if such a retry is useless or not allowed."""
        is_about_the_call = isinstance(error, PredictorUnavailable | PredictorTimeout)
        is_shared = any(entry.request is not entries[0].request for entry in entries)
        if is_about_the_call or not is_shared or not self._isolation.retries_alone(self._loop.time()):
            self._fail(entries, error)
            return
        for entry in entries:
            if not entry.request.future.done():
                entry.key = f"{entry.key} {id(entry.request)}"
                self._queue.add(entry)
        self._limit.call_when_free(self._start_batch)

    def _fail(self, entries: Sequence[Entry[Item]], error: Exception) -> None:
        for entry in entries:
            entry.request.fail(error)


def _has_waiting(entries: Sequence[Entry[Any]]) -> bool:
    """Whether any request of a batch waits for an answer."""
    return any(not entry.request.future.done() for entry in entries)


def _ended_requests(entries: Sequence[Entry[Any]]) -> int:
    """Returns the number of requests whose last entries without an answer are all in this batch."""
    remaining: dict[Submission, int] = {}
    for entry in entries:
        request = entry.request
        remaining[request] = remaining.get(request, request.remaining) - 1
    return list(remaining.values()).count(0)


def _record_start(entries: Sequence[Entry[Any]], started: float) -> int:
    """Records the queue time and the trace in the contexts of a batch. Returns the batch's decoding cost."""
    first = entries[0].request
    traceparent = first.context.headers.get("traceparent")
    cost = 0
    for entry in entries:
        request = entry.request
        cost += entry.cost
        waited = started - request.submitted
        if waited > request.context.queue:
            request.context.queue = waited
        if traceparent and request is not first:
            request.context.batch_traceparent = traceparent
    return cost
