"""Lets instances of all requests share batches, so that no answer depends on what it shared one with.

Nobody waits for company: while a place at the predictor is free, what there is leaves at once. While all places are
taken instances queue, and leave together as soon as one is free.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Generic, TypeVar

from hf_transformer.core.batch import Batch, Decode, Entry, Request
from hf_transformer.core.deadlines import Deadlines
from hf_transformer.core.packing import Form, Packed, refuse_nan
from hf_transformer.core.places import Places
from hf_transformer.core.queue import Waiting
from hf_transformer.core.refusals import Refusals
from hf_transformer.eager import Eager
from hf_transformer.errors import PredictorTimeout, PredictorUnavailable
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor import failures
from hf_transformer.predictor.base import Predictor
from hf_transformer.types import Context, Tensor

logger = logging.getLogger(__name__)

Item = TypeVar("Item")

INLINE_COST = 20_000
"""Decoding of a batch that costs more (see Task.decode_cost) is done in a thread; about 5 ms of work, as long as a
thread keeps the interpreter before others get their turn (sys.getswitchinterval)."""

OUTPUT_BYTES = 4 * 2**20
"""Of a batch whose outputs come inline, where no flag says it. Twice as much costs a fifth of the requests there."""

SHARED_OUTPUT_BYTES = 8 * 2**20
"""The same through shared memory: a quarter less CPU than with half as much (benchmarks/, "Batches in flight")."""

STEP_OUTPUT_BYTES = 256 * 2**20
"""The same for a step of texts that are being written. It has much to gain, since a model needs about as long for one
text as for all, until moving what it returns takes longer than that."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """How much goes to the predictor at a time.

    ``timeout`` is in seconds and bounds a whole request, waiting for a place included; so does the caller's deadline.
    """

    max_batches_in_flight: int
    max_batch_tokens: int
    max_batch_output_bytes: int
    timeout: float


class Scheduler(Generic[Item]):
    """Sends instances to one predictor, in batches, ``settings.max_batches_in_flight`` of them at a time.

    ``form`` says what an instance is, and makes the batches. One whose requests differ is sent with the headers of the
    one that has waited longest; requests with different ``authorization`` never share one. ``executor`` has the threads
    for long packing and decoding. ``places`` are those of the predictor, where another scheduler may send batches too;
    its own if None. It is made, and used, on one event loop.
    """

    def __init__(
        self,
        predictor: Predictor,
        form: Form[Item],
        settings: SchedulerSettings,
        *,
        executor: Executor,
        metrics: Metrics,
        places: Places | None = None,
    ) -> None:
        # Asked for once: each get_running_loop asks the kernel for the process's id.
        self._loop = asyncio.get_running_loop()
        self._predictor = predictor
        self._form = form
        self._costs = form.costs
        self._executor = executor
        self._metrics = metrics
        self._deadlines = Deadlines(settings.timeout)
        self._places = Places(settings.max_batches_in_flight) if places is None else places
        self._waiting: Waiting[Entry[Item]] = Waiting(lambda entry: form.limits(entry.item))
        self._in_flight: set[Batch[Item]] = set()
        """With what sends them, which nobody else may hold."""
        self._woken: asyncio.Handle | None = None
        self._refusals = Refusals()

    async def run(
        self, items: Sequence[Item], decode: Decode, context: Context, cost: Callable[[Item], int]
    ) -> list[Any]:
        """Gives one answer per item, in their order.

        ``decode`` runs while the predictor's buffer is held; in a thread if the ``cost`` of the batch is high. If one
        instance fails the others of the request are given up, and nobody else's.

        Raises:
            PredictorTimeout: not all answers were there in time.
            RequestError: the first failure of an instance.
        """
        if not items:
            return []
        request = Request(len(items), decode, context, self._loop.create_future())
        for index, item in enumerate(items):
            self._add(request, index, item, cost(item))
        self._begin(request)
        try:
            await request.future
        finally:
            self.leave(request)
        return request.answers

    def enter(self, item: Item, decode: Decode, context: Context, cost: int) -> Request:
        """``run`` of one item, without a coroutine of its own: the caller awaits the ``future`` of what this gives, and
        calls ``leave`` with it whatever happens."""
        request = Request(1, decode, context, self._loop.create_future())
        self._add(request, 0, item, cost)
        self._begin(request)
        return request

    def leave(self, request: Request) -> None:
        """Nobody waits for a request any more, answered or not."""
        self._deadlines.remove(request)
        if request.left:  # not all are answered: what still queues is forgotten
            request.future.cancel()
            request.leave()
            self._waiting.left(request.entries)
        request.entries.clear()  # they refer to the request: only the collector would find what it holds

    def submit(
        self, item: Item, decode: Decode, context: Context, cost: int, done: Callable[[Exception | None], None]
    ) -> Callable[[], object]:
        """``run`` of one item for a caller that does not wait: ``done`` is called once ``decode`` has been, or with the
        error. What it submits can be in the very next batch: that one has not left yet.

        Returns:
            What withdraws the item, if it is not answered yet; ``done`` is then not called.
        """
        request = self.enter(item, decode, context, cost)

        def ended(future: asyncio.Future[None]) -> None:
            self.leave(request)
            if not future.cancelled():
                error = future.exception()
                done(error if error is None or isinstance(error, Exception) else PredictorUnavailable(str(error)))

        request.future.add_done_callback(ended)
        return request.future.cancel

    def _add(self, request: Request, index: int, item: Item, cost: int) -> None:
        """Puts one of a request's items in the queue."""
        form, key = self._form, request.context.headers.get("authorization", "")
        if group := form.group(item):
            key = f"{key} {group}"
        entry = Entry(request, index, item, form.length(item), key, cost)
        request.entries.append(entry)
        self._waiting.add(entry)

    def _begin(self, request: Request) -> None:
        """Has a request sent that queues, and watches it."""
        self._deadlines.add(request, self._loop)
        if not self._places.free:
            self._places.await_free(self._send_waiting)
        elif self._woken is None:
            # At the end of this turn of the event loop: what arrives in one turn leaves together.
            self._woken = self._loop.call_soon(self._send_arrived)

    def _send_arrived(self) -> None:
        """Sends what has arrived in the last turn."""
        self._woken = None
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Sends what there is, as long as there are places."""
        while self._places.free:
            batch = self._next()
            if batch is None:
                return
            batch.task = Eager(self._send(batch), _log_failure)
        self._places.await_free(self._send_waiting)

    def _next(self) -> Batch[Item] | None:
        """A batch that takes a place; None if nobody waits."""
        entries = self._waiting.take(self._places.count + 1)
        if not entries:
            return None
        batch = Batch(entries)
        self._places.take()
        self._in_flight.add(batch)
        return batch

    async def _send(self, batch: Batch[Item]) -> None:
        """One call to the predictor, and the answers of its instances."""
        entries = batch.entries
        timing = None
        try:
            started = perf_counter()
            items = [entry.item for entry in entries]
            if self._form.pack_cost(items) <= INLINE_COST:
                packed = self._form.pack(items)
            else:
                packed = await self._loop.run_in_executor(self._executor, self._form.pack, items)
            if not batch.requests:  # nobody waits any more
                return
            batch.departs(started)
            batch.may_be_cancelled = self._predictor.stops_when_cancelled
            self._metrics.observe_batch(len(entries), packed.real, packed.padding)
            headers = entries[0].request.context.headers
            if self._costs is not None:
                timing = self._costs.sent(perf_counter())
            async with self._predictor.infer(packed.inputs, packed.outputs, headers, sizes=packed.sizes) as outputs:
                if timing is not None:
                    timing.ended(perf_counter(), packed.real + packed.padding)
                if batch.cost <= INLINE_COST:
                    self._decode(entries, items, packed, outputs)
                else:
                    decode = partial(self._decode, entries, items, packed, outputs)
                    await _to_the_end(self._loop.run_in_executor(self._executor, decode))
            self._settle(entries)
        except asyncio.CancelledError:
            # Nobody waits for a batch that was cancelled for that; one that the transport broke off has to be answered.
            self._fail(entries, PredictorUnavailable("the call to the predictor was broken off"))
            raise
        except Exception as error:
            self._failed(batch, error)
        finally:
            if timing is not None and not timing.over:
                timing.ended(perf_counter())
            batch.close()
            self._in_flight.discard(batch)
            self._waiting.answered(len(entries))
            # Once those who were answered have run: what they ask for next can be in the very next batch.
            self._loop.call_soon(self._places.give_back)

    def _failed(self, batch: Batch[Item], error: Exception) -> None:
        """The requests of a batch that is not answered get the error, or are asked for once more."""
        is_about_the_call = isinstance(error, PredictorUnavailable | PredictorTimeout)
        if not is_about_the_call and batch.shared and self._refusals.may_ask_again(self._loop.time()):
            self._ask_again_alone(batch.entries)
        else:
            self._fail(batch.entries, error)

    def _ask_again_alone(self, entries: Sequence[Entry[Item]]) -> None:
        """One instance may have broken the model for the others: each request goes to the end of the queue, to leave
        without company."""
        for entry in entries:
            if not entry.gone:
                key = f"{entry.key} {id(entry.request)}"
                # Another one: the queue may still hold the one that was taken.
                again = Entry(entry.request, entry.index, entry.item, entry.length, key, entry.cost)
                entry.request.entries.append(again)
                self._waiting.add(again)
        self._places.await_free(self._send_waiting)

    def _fail(self, entries: Sequence[Entry[Item]], error: Exception) -> None:
        for entry in entries:
            entry.request.fail(error)

    def _settle(self, entries: Sequence[Entry[Item]]) -> None:
        """Hands the answers over, now that the predictor's buffer is given back."""
        self._refusals.in_a_row = 0
        wrong = 0
        for entry in entries:
            wrong += entry.request.settle(entry.index)
        if wrong:
            self._metrics.count_predictor_error(failures.ERROR)  # the call has succeeded, its answer is of no use

    async def canary(self, item: Item) -> None:
        """Has the model infer once, beside all batches, and verifies the answer, NaN included. Raises RequestError."""
        packed = self._form.pack((item,))
        call = self._predictor.infer(packed.inputs, packed.outputs, {}, sizes={})  # as a batch, it goes on to its end
        async with call as outputs:
            for rows in self._form.unpack((item,), packed, outputs):
                for role, data in rows.items():
                    refuse_nan(data, role)

    def _decode(
        self, entries: Sequence[Entry[Item]], items: Sequence[Item], packed: Packed, outputs: Mapping[str, Tensor]
    ) -> None:
        """Verifies a batch's outputs and hands every instance its own part."""
        now = perf_counter()
        for entry, rows in zip(entries, self._form.unpack(items, packed, outputs), strict=True):
            now = entry.request.answer(entry.index, rows, now)


def _log_failure(result: None, error: BaseException | None) -> None:
    """What a task would have logged: batches answer their requests, whatever happens, and fail by a fault of ours."""
    if isinstance(error, Exception):
        logger.error("a batch ended by a fault of the service", exc_info=error)


async def _to_the_end(work: asyncio.Future[None]) -> None:
    """Waits for a thread's work, also when cancelled: it reads a buffer that is given back afterwards."""
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # nobody asks for it: else it would be logged
        raise
