"""Lets instances of all requests share batches, so that no answer depends on what it shared one with.

Nobody waits for company: while a place at the predictor is free, what there is leaves at once. While all places are
taken instances queue, and leave together as soon as one is free.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from hf_transformer.batches import Filling, own_rows, pack, verify
from hf_transformer.binding import Binding, OutputBinding
from hf_transformer.deadlines import Deadlines
from hf_transformer.errors import PredictorTimeout, PredictorUnavailable
from hf_transformer.in_flight import Batch, Decode, Entry, Request
from hf_transformer.metrics import Metrics
from hf_transformer.predictors.base import Predictor
from hf_transformer.types import Array, Context, Encoding, Tensor
from hf_transformer.waiting import BatchLimits, Waiting

INLINE_COST = 20_000
"""Decoding of a batch that costs more (see Task.decode_cost) is done in a thread; about 5 ms of work, as long as a
thread keeps the interpreter before others get their turn (sys.getswitchinterval)."""


MOST_REFUSED = 8
"""Batches that the model refuses in a row before their requests are no longer asked for one by one: then it is not the
instances that break it, and to ask more would multiply the trouble."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """How much goes to the predictor at a time.

    ``timeout`` is in seconds and bounds a whole request, waiting for a place included; so does the caller's deadline.
    """

    max_batches_in_flight: int
    max_batch_tokens: int
    max_batch_output_bytes: int
    timeout: float


class Scheduler:
    """Sends instances to one predictor, in batches, ``settings.max_batches_in_flight`` of them at a time.

    A batch whose requests differ is sent with the headers of the one that has waited longest; requests with different
    ``authorization`` never share one. ``executor`` has the threads for long decoding. It is made, and used, on one
    event loop.
    """

    def __init__(
        self,
        predictor: Predictor,
        binding: Binding,
        filling: Filling,
        settings: SchedulerSettings,
        *,
        executor: Executor,
        metrics: Metrics,
    ) -> None:
        # Asked for once: each get_running_loop asks the kernel for the process's id.
        self._loop = asyncio.get_running_loop()
        self._predictor = predictor
        self._binding = binding
        self._filling = filling
        self._executor = executor
        self._metrics = metrics
        self._deadlines = Deadlines(settings.timeout)
        self._places = settings.max_batches_in_flight
        self._output_names = [output.name for output in binding.outputs]
        self._has_token_axes = any(axis.tokens for output in binding.outputs for axis in output.axes)
        self._waiting: Waiting[Entry] = Waiting(batch_limits(binding, settings))
        self._in_flight: set[asyncio.Task[None]] = set()
        self._woken = False
        self._refused_in_a_row = 0

    async def run(
        self, encodings: Sequence[Encoding], decode: Decode, context: Context, cost: Callable[[Encoding], int]
    ) -> list[Any]:
        """Gives one answer per encoding, in their order.

        ``decode`` runs while the predictor's buffer is held; in a thread if the ``cost`` of the batch is high. If one
        instance fails the others of the request are given up, and nobody else's.

        Raises:
            PredictorTimeout: not all answers were there in time.
            RequestError: the first failure of an instance.
        """
        if not encodings:
            return []
        loop = self._loop
        request = Request(len(encodings), decode, context, loop.create_future())
        key = context.headers.get("authorization", "")
        entries = [Entry(request, index, one, key, cost(one)) for index, one in enumerate(encodings)]
        for entry in entries:
            self._waiting.add(entry)
        self._deadlines.add(request, loop)
        if not self._woken and len(self._in_flight) < self._places:
            # At the end of this turn of the event loop: what arrives in one turn leaves together.
            self._woken = True
            loop.call_soon(self._send_waiting)
        try:
            await request.future
        except BaseException:
            request.future.cancel()
            request.leave()
            self._waiting.left(sum(not entry.taken for entry in entries))
            raise
        finally:
            self._deadlines.remove(request)
        return request.answers

    def _send_waiting(self) -> None:
        self._woken = False
        loop = self._loop
        while len(self._in_flight) < self._places:
            entries = self._waiting.take()
            if not entries:
                return
            batch = Batch(entries)
            batch.task = loop.create_task(self._send(batch))
            self._in_flight.add(batch.task)
            batch.task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self._send_waiting()

    async def _send(self, batch: Batch) -> None:
        try:
            await self._infer(batch)
            self._refused_in_a_row = 0
        except (PredictorUnavailable, PredictorTimeout) as error:
            self._fail(batch.entries, error)
        except asyncio.CancelledError:
            # Nobody waits for a batch that was cancelled for that; one that the transport broke off has to be answered.
            self._fail(batch.entries, PredictorUnavailable("the call to the predictor was broken off"))
            raise
        except Exception as error:
            self._refused_in_a_row += 1
            if batch.shared and self._refused_in_a_row <= MOST_REFUSED:
                self._ask_again_alone(batch.entries)
            else:
                self._fail(batch.entries, error)
        finally:
            batch.close()

    def _ask_again_alone(self, entries: Sequence[Entry]) -> None:
        """One instance may have broken the model for the others: each request goes to the end of the queue, to leave
        without company."""
        for entry in entries:
            if not entry.gone:
                key = f"{entry.key} {id(entry.request)}"
                self._waiting.add(Entry(entry.request, entry.index, entry.encoding, key, entry.cost))

    def _fail(self, entries: Sequence[Entry], error: Exception) -> None:
        for entry in entries:
            entry.request.fail(error)

    async def _infer(self, batch: Batch) -> None:
        """One call to the predictor, and the answers of its instances."""
        entries = batch.entries
        started = time.perf_counter()
        inputs = pack([entry.encoding for entry in entries], self._binding, self._filling)
        self._observe(entries, inputs[0], started)
        headers = entries[0].request.context.headers
        if batch.shared and (traceparent := headers.get("traceparent")):
            for entry in entries:
                if entry.request is not entries[0].request:
                    entry.request.context.sent_with = traceparent
        sizes = self._sizes(inputs[0])
        batch.may_be_cancelled = self._predictor.stops_when_cancelled(sizes)
        async with self._predictor.infer(inputs, self._output_names, headers, sizes=sizes) as outputs:
            decode = partial(self._decode, entries, inputs[0].shape, outputs)
            if sum(entry.cost for entry in entries) <= INLINE_COST:
                decode()
            else:
                await _to_the_end(asyncio.get_running_loop().run_in_executor(self._executor, decode))
        for entry in entries:
            entry.request.settle(entry.index)

    async def canary(self, encoding: Encoding) -> None:
        """Has the model infer once, beside all batches, and verifies the answer. Raises RequestError."""
        inputs = pack([encoding], self._binding, self._filling)
        async with self._predictor.infer(inputs, self._output_names, {}) as outputs:
            self._verified(inputs[0].shape, outputs)

    def _observe(self, entries: Sequence[Entry], ids: Tensor, started: float) -> None:
        real = sum(entry.length for entry in entries)
        self._metrics.observe_batch(len(entries), real, ids.data.size - real)
        for entry in entries:
            timings = entry.request.context.timings
            timings.queue = max(timings.queue, started - entry.request.since)

    def _sizes(self, ids: Tensor) -> dict[str, int]:
        """Bytes of each output of a batch, where its configuration tells."""
        rows, width = ids.shape if self._binding.batch_axis else (1, ids.shape[0])
        sizes = {output.name: output.row_bytes(width) for output in self._binding.outputs}
        return {name: rows * size for name, size in sizes.items() if size is not None}

    def _verified(self, shape: tuple[int, ...], outputs: Mapping[str, Tensor]) -> list[tuple[OutputBinding, Array]]:
        """The outputs of a batch whose ids have this shape, each with its binding. Raises PredictorError."""
        batch_axis = self._binding.batch_axis
        rows, width = shape if batch_axis else (1, shape[0])
        return [
            (output, verify(outputs[output.name], output, rows, width, batch_axis)) for output in self._binding.outputs
        ]

    def _decode(self, entries: Sequence[Entry], shape: tuple[int, ...], outputs: Mapping[str, Tensor]) -> None:
        """Verifies a batch's outputs and hands every instance its own rows."""
        verified = self._verified(shape, outputs)
        for row, entry in enumerate(entries):
            if self._has_token_axes:
                mine = {
                    output.role: own_rows(data[row], output, entry.length, self._filling) for output, data in verified
                }
            else:
                mine = {output.role: data[row] for output, data in verified}
            entry.request.answer(entry.index, mine)


async def _to_the_end(work: asyncio.Future[None]) -> None:
    """Waits for a thread's work, also when cancelled: it reads a buffer that is given back afterwards."""
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


def batch_limits(binding: Binding, settings: SchedulerSettings) -> BatchLimits:
    """What a model's configuration and the settings allow in one batch."""
    return BatchLimits(
        max_rows=binding.max_rows,
        max_tokens=settings.max_batch_tokens,
        max_output_bytes=settings.max_batch_output_bytes,
        output_bytes=lru_cache(maxsize=4096)(binding.output_bytes),
        padding=binding.masked or binding.length is not None,
        fixed_length=binding.length,
    )
