"""Lets instances of all requests share batches, so that no answer depends on the others in its batch.

An instance never waits for others to fill a batch: while the concurrency limit leaves room, all that is queued leaves
at once. Otherwise instances queue, and leave together as soon as a batch has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Generic, TypeVar

import numpy as np

from hf_transformer.core.batch import BatchBuilder, Packed
from hf_transformer.core.queue import Queue
from hf_transformer.errors import (
    CallersDeadline,
    PredictorError,
    PredictorTimeout,
    PredictorUnavailable,
    RequestError,
)
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import ModelCall, Predictor
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import Array, Tensor

Item = TypeVar("Item")

Decode = Callable[[Any, Any, Mapping[str, Array], Any], Any]
"""Called with an entry's owner and item, its own part of the outputs by role, and the request's options; what it
returns is the answer. See Task.decode."""

INLINE_COST = 20_000
"""A batch that costs more to decode (see Task.decode_cost) is decoded in a thread; about 5 ms of work, as long as a
thread keeps the interpreter before others get their turn (sys.getswitchinterval)."""

OUTPUT_BYTES = 4 * 2**20
"""Of a batch whose outputs come inline, where no flag says it. Twice as much costs a fifth of the requests there."""

SHARED_OUTPUT_BYTES = 8 * 2**20
"""The same through shared memory: a quarter less CPU than with half as much (benchmarks/, "Batches in flight")."""

STEP_OUTPUT_BYTES = 256 * 2**20
"""The same for a step of texts that are being generated. It has much to gain, since a model needs about as long for one
text as for all, until moving its outputs takes longer than that."""

MOST_REFUSED = 8
"""Shared batches that the model refuses in a row before their requests are no longer sent again one by one: then it is
hardly the instances that break it, and more calls would multiply the trouble."""

ALONE_AGAIN_SECONDS = 2.0
"""After that, one shared batch in so many seconds is sent again one by one all the same. One client may send many
instances that break the model, which must not cost others their answers for longer than this."""

BAD_ANSWER = "error"
"""The failure code of a call that has succeeded, but whose answer breaks the contract or can't be decoded."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """How much goes to the predictor at a time.

    ``timeout`` is in seconds and bounds how long a request waits for its answers, its time in the queue included; so
    does the caller's deadline.
    """

    max_batches_in_flight: int
    max_batch_tokens: int
    max_batch_output_bytes: int
    timeout: float


class ConcurrencyLimit:
    """Room for ``count`` batches at one predictor, for one event loop.

    Schedulers share it: a model that was replaced has a new scheduler while requests still queue in the old one. Those
    that find no room get it in the order in which they asked. ``count`` may change at any time.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._taken = 0
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def has_room(self) -> bool:
        """Whether another batch may be sent."""
        return self._taken < self.count

    def take(self) -> None:
        """Counts a batch that is sent."""
        self._taken += 1

    def call_when_free(self, pump: Callable[[], None]) -> None:
        """Has ``pump`` called once when there is room, which it may take or leave to the next. Asking twice does
        nothing."""
        self._waiting[pump] = None

    def give_back(self) -> None:
        """Counts a batch that has ended."""
        self._taken -= 1
        while self._waiting and self.has_room:
            pump = next(iter(self._waiting))
            del self._waiting[pump]
            pump()


class FailureIsolation:
    """Decides whether the requests of a shared batch that the model refused are sent again, each alone.

    A single answer, of whatever batch, shows that the model works, and resets the count. A batch of one request is not
    counted: it says nothing about others.
    """

    def __init__(self) -> None:
        self._in_a_row = 0
        self._alone_again = 0.0

    def answered(self) -> None:
        """Counts a batch that was answered."""
        self._in_a_row = 0

    def sends_again(self, now: float) -> bool:
        """Counts a shared batch that was refused just ``now``, in seconds of any one clock."""
        self._in_a_row += 1
        if self._in_a_row > MOST_REFUSED and now < self._alone_again:
            return False
        self._alone_again = now + ALONE_AGAIN_SECONDS
        return True


class Submission:
    """One request's entries on their way.

    ``future`` is done once all of them have answers, or the request has failed. ``since`` is when the request came, and
    ``answered`` when the predictor had answered its last batch, both of time.perf_counter.
    """

    __slots__ = ("answered", "context", "decode", "entries", "future", "options", "remaining", "since", "timer")

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
        self.since = self.answered = perf_counter()
        self.timer: asyncio.TimerHandle | None = None

    def fail(self, error: Exception) -> None:
        """Fails the whole request. Each request gets an error of its own, since raising one changes it."""
        if not self.future.done():
            self.future.set_exception(copy(error) if isinstance(error, RequestError) else error)


class Entry(Generic[Item]):
    """One instance of a request.

    Attributes:
        item: what the model gets: one encoding, or one step of a text.
        owner: what the caller knows it by.
        cost: how long ``decode`` takes for it, in the units of INLINE_COST.
        answer: what ``decode`` has made of its outputs, or the error that it has raised.
        length, key: the scheduler's; entries with different keys never share a batch.
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
    """Sends instances to one predictor in batches, each of them in a task of its own.

    A batch of several requests is sent with the headers of the one that has waited longest. Requests with different
    ``authorization`` never share a batch. A request that ends early, because its client has left or its time is over,
    ends only its own waiting: what is queued of it is dropped, and a batch that was sent goes on.

    Args:
        form: what an instance is, and how instances become batches.
        executor: has the threads for long packing and decoding.
        limit: the predictor's concurrency limit; one of its own, ``settings.max_batches_in_flight``, if None.

    It is made, and used, on one event loop.
    """

    def __init__(
        self,
        predictor: Predictor,
        form: BatchBuilder[Item],
        settings: SchedulerSettings,
        *,
        executor: Executor,
        metrics: Metrics,
        limit: ConcurrencyLimit | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._predictor = predictor
        self._form = form
        self._costs = form.costs
        self._executor = executor
        self._metrics = metrics
        self._timeout = settings.timeout
        self._limit = ConcurrencyLimit(settings.max_batches_in_flight) if limit is None else limit
        self._queue: Queue[Entry[Item]] = Queue(lambda entry: form.limits(entry.item))
        self._batches: set[asyncio.Task[None]] = set()  # the event loop itself holds tasks weakly
        self._departure: asyncio.Task[None] | None = None
        """The batch that leaves in the next turn of the event loop."""
        self._unanswered: dict[Submission, None] = {}  # those without a deadline of their own, the oldest first
        self._timer: asyncio.TimerHandle | None = None  # one for all of these: a timer costs 3 us
        self._isolation = FailureIsolation()

    def submit(self, entries: Sequence[Entry[Item]], decode: Decode, options: Any, context: Context) -> Submission:
        """Queues the entries of a request. The caller awaits the ``future`` of what is returned, and calls ``leave`` in
        the end, whatever happens.

        Args:
            decode: makes an answer of an entry's outputs while the predictor's buffer is held; in a thread if the
                batch costs much.

        The future raises:
            PredictorTimeout: not all answers were there in time.
            CallersDeadline: not all answers were there before ``context.deadline``.
            RequestError: the first failure of an entry. The others of the request are then dropped.
        """
        loop, bucket, queue = self._loop, self._form.bucket, self._queue
        request = Submission(entries, decode, options, context, loop.create_future())
        if not entries:
            request.future.set_result(None)
        owner = context.headers.get("authorization", "")
        for entry in entries:
            group, entry.length = bucket(entry.item)
            entry.key = f"{owner} {group}" if group else owner
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
        if self._departure is None:
            self._pump()
        return request

    def leave(self, request: Submission) -> None:
        """Ends a request, answered or not."""
        if request.timer is None:
            self._unanswered.pop(request, None)
        else:
            request.timer.cancel()
        if request.remaining:
            request.future.cancel()
            for entry in request.entries:
                self._queue.discard(entry)
        request.entries = ()  # they refer to the request, which would be left to the garbage collector

    async def trial(self, item: Item) -> None:
        """Has the model infer once, outside of all batches and limits, and verifies the answer, NaN included.

        Raises:
            RequestError: the model does not answer, or answers wrongly.
        """
        packed = self._form.pack((item,))
        reply = await self._predictor.infer(ModelCall(packed.inputs, packed.outputs, {}))
        try:
            for rows in self._form.unpack((item,), packed, reply.tensors):
                for role, data in rows.items():
                    if data.dtype.kind == "f" and np.isnan(data).any():
                        raise PredictorError(f"the model answered {role!r} with NaN")
        finally:
            reply.release()

    def _expire(self) -> None:
        """Fails the requests whose time is over. They are the oldest; the next timer is for the oldest one left."""
        self._timer = None
        since = perf_counter() - self._timeout
        while self._unanswered:
            request = next(iter(self._unanswered))
            if request.since > since:
                self._timer = self._loop.call_later(request.since - since, self._expire)
                return
            del self._unanswered[request]
            limit = f"{self._timeout:g} s (--predictor_request_timeout_seconds)"
            request.fail(PredictorTimeout(f"no answer from the predictor in {limit}, waiting for its turn included"))

    def _pump(self) -> None:
        """Has a batch leave if there is anything to send, and room for it.

        It leaves in the next turn of the event loop, with all that is queued by then.
        """
        if self._departure is None and self._queue:
            if self._limit.has_room:
                self._limit.take()
                self._departure = self._loop.create_task(self._depart())
                self._batches.add(self._departure)
                self._departure.add_done_callback(self._batches.discard)
            else:
                self._limit.call_when_free(self._pump)

    async def _depart(self) -> None:
        """One batch: one call to the predictor, and the answers of its entries."""
        self._departure = None
        taken = self._queue.take(self._limit.count + 1)
        self._pump()
        try:
            await self._send([entry for entry in taken if not entry.request.future.done()])
        finally:
            self._queue.answered(len(taken))
            # Once those who were answered have run: what they send next can be in the very next batch.
            self._loop.call_soon(self._limit.give_back)

    async def _send(self, entries: Sequence[Entry[Item]]) -> None:
        if not entries:
            return
        timing = reply = None
        try:
            started = perf_counter()
            items = [entry.item for entry in entries]
            if self._form.pack_cost(items) <= INLINE_COST:
                packed = self._form.pack(items)
            else:
                packed = await self._loop.run_in_executor(self._executor, self._form.pack, items)
                if not _wanted(entries):
                    return
            cost = _note_departure(entries, started)
            self._metrics.observe_batch(len(entries), packed.real, packed.padding)
            if self._costs is not None:
                timing = self._costs.sent(perf_counter())
            headers, wanted = entries[0].request.context.headers, partial(_wanted, entries)
            reply = await self._predictor.infer(ModelCall(packed.inputs, packed.outputs, headers, packed.sizes, wanted))
            try:
                answered = perf_counter()
                if timing is not None:
                    timing.ended(answered, packed.real + packed.padding)
                if cost <= INLINE_COST:
                    self._decode(entries, items, packed, reply.tensors)
                else:
                    await self._loop.run_in_executor(
                        self._executor, self._decode, entries, items, packed, reply.tensors
                    )
            finally:
                reply.release()
            self._settle(entries, answered)
        except asyncio.CancelledError:
            self._fail(entries, PredictorUnavailable("the call to the predictor was broken off"))
            raise
        except Exception as error:
            if reply is not None and isinstance(error, PredictorError):
                self._metrics.predictor_errors.add(1, BAD_ANSWER)
            self._failed(entries, error)
        finally:
            if timing is not None and not timing.over:
                timing.ended(perf_counter())

    def _decode(
        self, entries: Sequence[Entry[Item]], items: Sequence[Item], packed: Packed, outputs: Mapping[str, Tensor]
    ) -> None:
        """Verifies a batch's outputs, and decodes each entry's own part. One that can't be decoded keeps its error in
        place of an answer."""
        for entry, rows in zip(entries, self._form.unpack(items, packed, outputs), strict=True):
            request = entry.request
            if request.future.done():
                continue
            try:
                entry.answer = request.decode(entry.owner, entry.item, rows, request.options)
            except Exception as error:
                entry.answer = error

    def _settle(self, entries: Sequence[Entry[Item]], answered: float) -> None:
        """Hands the answers over, once the predictor's buffer is given back."""
        self._isolation.answered()
        wrong = False
        for entry in entries:
            request = entry.request
            if request.future.done():
                continue
            if isinstance(entry.answer, Exception):
                wrong = wrong or isinstance(entry.answer, PredictorError)
                request.fail(entry.answer)
                continue
            request.answered = answered
            request.remaining -= 1
            if not request.remaining:
                request.future.set_result(None)
        if wrong:
            self._metrics.predictor_errors.add(1, BAD_ANSWER)

    def _failed(self, entries: Sequence[Entry[Item]], error: Exception) -> None:
        """Fails the requests of a batch, or sends each again alone: one instance may have broken the model for all."""
        is_about_the_call = isinstance(error, PredictorUnavailable | PredictorTimeout)
        is_shared = any(entry.request is not entries[0].request for entry in entries)
        if is_about_the_call or not is_shared or not self._isolation.sends_again(self._loop.time()):
            self._fail(entries, error)
            return
        for entry in entries:
            if not entry.request.future.done():
                entry.key = f"{entry.key} {id(entry.request)}"
                self._queue.add(entry)
        self._limit.call_when_free(self._pump)

    def _fail(self, entries: Sequence[Entry[Item]], error: Exception) -> None:
        for entry in entries:
            entry.request.fail(error)


def _wanted(entries: Sequence[Entry[Any]]) -> bool:
    """Whether any request of a batch still waits for its answer."""
    return any(not entry.request.future.done() for entry in entries)


def _note_departure(entries: Sequence[Entry[Any]], started: float) -> int:
    """Notes in all requests of a batch how long they were queued, and with whose trace it is sent. Returns what it
    costs to decode the batch."""
    first = entries[0].request
    traceparent = first.context.headers.get("traceparent")
    cost = 0
    for entry in entries:
        request = entry.request
        cost += entry.cost
        waited = started - request.since
        if waited > request.context.queue:
            request.context.queue = waited
        if traceparent and request is not first:
            request.context.batch_traceparent = traceparent
    return cost
