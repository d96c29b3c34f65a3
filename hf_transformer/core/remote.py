"""Batches in another process: with several workers, one process forms the batches of all (app/batcher.py).

A worker tokenizes and decodes. Its RemoteScheduler has the interface of Scheduler, sends encodings to the batcher over
a socket, and gets the rows of each. All messages of an iteration of the event loop are one frame: two lengths, the
bytes of large arrays, and a MessagePack list of the types below.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
import struct
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import msgspec
import numpy as np

from hf_transformer.core.batch import PaddingPolicy
from hf_transformer.core.batch_costs import BatchCosts, ConstantCosts
from hf_transformer.core.contract import Signature
from hf_transformer.core.labelled_batch import LabelledShape, make_builder
from hf_transformer.core.scheduler import (
    BAD_ANSWER,
    INLINE_COST,
    ConcurrencyLimit,
    Decode,
    Entry,
    Scheduler,
    SchedulerSettings,
    Submission,
)
from hf_transformer.errors import (
    CallersDeadline,
    PredictorDenied,
    PredictorError,
    PredictorTimeout,
    PredictorUnavailable,
    RequestError,
)
from hf_transformer.observability.metrics import ModelMetrics, Work
from hf_transformer.predictor import Connections, open_predictor
from hf_transformer.predictor.base import Predictor, PredictorSettings
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding

logger = logging.getLogger(__name__)

HEAD = struct.Struct("<QQ")
"""A frame's head: the bytes of its arrays, and of its messages."""
LARGE_BYTES = 4096
"""The size from which an array has its bytes before the messages. Encoding a megabyte takes 0.8 ms, this 0.2."""
ALIGNMENT = 8
RECEIVE_BYTES = 256 * 2**10
"""Size of the buffer for small frames; a larger one gets its own."""
MAX_UNREAD_BYTES = 256 * 2**20
"""Bytes that one end may leave unread before the other end's requests fail. The supervisor replaces a process that
hangs. The last batch may exceed it."""
MAX_UNDECODED_BYTES = 64 * 2**20
"""Bytes of rows that wait for threads of a worker, above which it reads no more. Then the batcher fails the worker's
requests at MAX_UNREAD_BYTES, so that slow decoding takes no memory without a bound."""
NO_WORK = Work(0, 0, 0, 0)
ERRORS: Mapping[str, type[RequestError]] = {
    error.__name__: error for error in (PredictorUnavailable, PredictorTimeout, PredictorError, PredictorDenied)
}
"""The errors of a predictor that keep their type between the processes."""
LOST = "the process that forms the batches has ended and is restarted"
UNREAD = "the process that forms the batches does not read its requests"


@dataclass(frozen=True, slots=True)
class PredictorRecipe:
    """The arguments of ``open_predictor``, equal in all workers. ``model_name`` is the served model's, for metrics."""

    model_name: str
    protocol: str
    settings: PredictorSettings
    retries: int
    retry_budget: float
    circuit_failures: int
    embeds: bool

    def open(self, metrics: ModelMetrics, connections: Connections) -> Predictor:
        """Makes the predictor. Raises ConfigError."""
        return open_predictor(
            self.protocol,
            self.settings,
            metrics,
            connections=connections,
            retries=self.retries,
            retry_budget=self.retry_budget,
            circuit_failures=self.circuit_failures,
            embeds=self.embeds,
        )


@dataclass(frozen=True, slots=True)
class SchedulerRecipe:
    """The arguments of a scheduler of texts.

    Args:
        max_shared_bytes: the maximum bytes of a batch's outputs in shared memory, 0 for none.
        instances: the number of the model's instances at the predictor; None if it is unknown.
        words: for texts behind labels, see make_builder; None for others. Only a scheduler in the worker serves them.
    """

    model_name: str
    signature: Signature
    policy: PaddingPolicy
    settings: SchedulerSettings
    max_shared_bytes: int
    instances: int | None
    words: LabelledShape | None = None

    def make(
        self, predictor: Predictor, executor: Executor, metrics: ModelMetrics, limit: ConcurrencyLimit
    ) -> Scheduler[Encoding]:
        """Makes the scheduler, and sets the count of ``limit``, which all schedulers of a predictor share."""
        settings = self.settings
        limit.count = settings.max_batches_in_flight
        # With several predictors behind one address, the flag says how many batches run at a time.
        running = None if self.instances is None else max(self.instances, settings.max_batches_in_flight - 1)
        has_one_shape = self.signature.length is not None and self.signature.exact_rows is not None
        builder = make_builder(
            self.words,
            self.signature,
            self.policy,
            max_tokens=settings.max_batch_tokens,
            max_output_bytes=settings.max_batch_output_bytes,
            max_learnt_output_bytes=settings.max_learnt_output_bytes,
            allow_in_shared_memory=outputs_in_shared_memory(self.max_shared_bytes, predictor),
            costs=(ConstantCosts if has_one_shape else BatchCosts)(running, self.model_name),
        )
        return Scheduler(predictor, builder, settings, executor=executor, metrics=metrics, limit=limit)


def outputs_in_shared_memory(limit: int, predictor: Predictor) -> Callable[[int], bool] | None:
    """Returns a function for EncodingBatchBuilder that reports whether outputs may currently use shared memory.

    Returns None if ``limit``, the maximum of outputs in shared memory, is 0.
    """
    return (lambda size: size <= limit and predictor.shares(size)) if limit else None


class Text(msgspec.Struct, array_like=True):
    """An encoding. ``type_ids`` is empty if all are 0, or the model has no such input."""

    ids: list[int]
    type_ids: list[int]
    attended: int | None


class Open(msgspec.Struct, array_like=True, tag=0):
    """Makes a scheduler. ``recipe`` is a pickled pair of PredictorRecipe and SchedulerRecipe."""

    scheduler: int
    recipe: bytes


class Close(msgspec.Struct, array_like=True, tag=1):
    """Releases a scheduler, which has no requests."""

    scheduler: int


class Submit(msgspec.Struct, array_like=True, tag=2):
    """Submits a request."""

    request: int
    scheduler: int
    over_grpc: bool
    headers: dict[str, str]
    texts: list[Text]


class Forget(msgspec.Struct, array_like=True, tag=8):
    """Removes the metrics of a model that is no longer served."""

    model_name: str


class Leave(msgspec.Struct, array_like=True, tag=3):
    """Ends a request before its answer."""

    request: int


class Trial(msgspec.Struct, array_like=True, tag=4):
    """Runs one inference outside all batches, answered by Answered or Failed."""

    request: int
    scheduler: int
    text: Text


class Data(msgspec.Struct, array_like=True):
    """One array: numpy's name of its dtype, its shape, and its bytes, or their number if they precede the messages."""

    dtype: str
    shape: tuple[int, ...]
    data: Any

    @classmethod
    def of(cls, array: Array) -> Data:
        return cls(array.dtype.str, array.shape, array.tobytes())

    def array(self) -> Array:
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


class Row(msgspec.Struct, array_like=True):
    """The outputs of a request's ``number``-th text, by role."""

    number: int
    outputs: dict[str, Data]


class Rows(msgspec.Struct, array_like=True, tag=5):
    """The outputs of some texts of a request. ``queue`` and ``traceparent`` are those of its Context.

    ``answered`` is the time of the predictor's answer: the processes of a machine share the clock of perf_counter.
    """

    request: int
    answered: float
    queue: float
    traceparent: str
    rows: list[Row]


class Answered(msgspec.Struct, array_like=True, tag=6):
    """Answers a Trial."""

    request: int


class Failed(msgspec.Struct, array_like=True, tag=7):
    """Fails a request. ``error`` is a name in ERRORS, or empty for an error of the service; ``kind`` is its kind."""

    request: int
    error: str
    message: str
    kind: str

    @classmethod
    def of(cls, request: int, error: BaseException) -> Failed:
        name = next((base.__name__ for base in type(error).__mro__ if base.__name__ in ERRORS), "")
        return cls(request, name, str(error) if name else type(error).__name__, getattr(error, "kind", ""))

    def exception(self) -> Exception:
        """Makes the error for the request."""
        kind = ERRORS.get(self.error)
        if kind is None:
            return RuntimeError(f"the process that forms the batches failed: {self.message}")
        return kind(self.message, self.kind) if self.kind else kind(self.message)


Question: TypeAlias = Open | Close | Submit | Leave | Trial | Forget
Reply: TypeAlias = Rows | Answered | Failed
Message = TypeVar("Message")


class Frames(asyncio.BufferedProtocol, Generic[Message]):
    """One end of the socket. Messages that are sent in one iteration of the event loop share a frame.

    Args:
        receive: called with the messages of each frame.
        lost: called once the other end is closed.
    """

    encode: ClassVar[Callable[[Any], bytes]] = msgspec.msgpack.Encoder().encode

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[list[Message]],
        receive: Callable[[list[Message]], None],
        lost: Callable[[], None],
    ) -> None:
        self._decode = decoder.decode
        self._receive = receive
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._small = bytearray(RECEIVE_BYTES)
        self._large: bytearray | None = None  # of a frame that has no room in the other buffer
        self._filled = 0
        self._unsent: list[object] = []
        self._arrays: list[bytes] = []
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self.is_open = True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._small if self._large is None else self._large)[self._filled :]

    def buffer_updated(self, size: int) -> None:
        self._filled += size
        if self._large is not None:
            if self._filled == len(self._large):
                frame, self._large, self._filled = self._large, None, 0
                self._deliver(memoryview(frame))
            return
        small, start, filled = self._small, 0, self._filled
        while filled - start >= HEAD.size:
            size = HEAD.size + sum(HEAD.unpack_from(small, start))
            if start + size > filled:
                if size > len(small):
                    self._large = bytearray(size)
                    self._large[: filled - start] = small[start:filled]
                    self._filled = filled - start
                    return
                break
            start += size
            self._deliver(memoryview(bytes(small[start - size : start])))
        if start:
            small[: filled - start] = small[start:filled]
            self._filled = filled - start

    def _deliver(self, frame: memoryview) -> None:
        size, start = HEAD.unpack_from(frame)[0], HEAD.size
        messages = self._decode(frame[start + size :])
        if size:
            _attach(messages, frame[start : start + size])
        self._receive(messages)

    def send(self, message: object) -> None:
        """Sends a message after this iteration of the event loop."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(message)

    def send_rows(self, message: Rows) -> None:
        """Sends rows like ``send``. Takes the bytes of large arrays out of the message."""
        for data in _arrays_of(message):
            size = len(data.data)
            if size >= LARGE_BYTES:
                self._arrays += [data.data, bytes(-size % ALIGNMENT)]
                data.data = size
        self.send(message)

    @property
    def unsent_bytes(self) -> int:
        """The bytes that the other end has not read yet, without those of this iteration."""
        return self._transport.get_write_buffer_size() if self.is_open else 0

    def read(self, reads: bool) -> None:
        """Stops or continues to read."""
        if self.is_open:
            if reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def close(self) -> None:
        """Closes the socket at once."""
        if self.is_open:
            self._transport.abort()

    def _flush(self) -> None:
        messages, self._unsent, arrays, self._arrays = self._unsent, [], self._arrays, []
        if self.is_open:
            frame = Frames.encode(messages)
            head = HEAD.pack(sum(map(len, arrays)), len(frame))
            if arrays:
                self._transport.writelines([head, *arrays, frame])
            else:
                self._transport.write(head + frame)


def _arrays_of(message: Rows) -> Iterator[Data]:
    return (data for row in message.rows for data in row.outputs.values())


def _attach(messages: Sequence[object], arrays: memoryview) -> None:
    """Gives large arrays the bytes that were sent before the messages."""
    start = 0
    for message in messages:
        if isinstance(message, Rows):
            for data in _arrays_of(message):
                if isinstance(data.data, int):
                    end = start + data.data
                    data.data = arrays[start:end]
                    start = end + -end % ALIGNMENT


class BatcherLink:
    """A worker's connection to the batcher, an async context manager.

    The supervisor sends the worker's end of each connection over ``introductions``: at the start of this worker, and at
    each new start of the batcher. Without a connection all requests fail with PredictorUnavailable.
    """

    def __init__(self, introductions: socket.socket) -> None:
        self._introductions = introductions
        self._numbers = count()
        self._recipes: dict[int, bytes] = {}
        self._waiting: dict[int, Callable[[Reply | Exception], None]] = {}
        self._frames: Frames[Reply] | None = None
        self._connecting: asyncio.Task[Any] | None = None
        self._undecoded = 0
        self._decoder = msgspec.msgpack.Decoder(list[Reply])

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._introductions.setblocking(False)
        self._loop.add_reader(self._introductions, self._introduce)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.remove_reader(self._introductions)
        self._introductions.close()
        if self._frames is not None:
            self._frames.close()

    def open(self, recipe: tuple[PredictorRecipe, SchedulerRecipe]) -> int:
        """Makes a scheduler at the batcher, also at each one that follows. Returns its number."""
        number = next(self._numbers)
        self._recipes[number] = pickle.dumps(recipe)
        if self._frames is not None:
            self._frames.send(Open(number, self._recipes[number]))
        return number

    def close_from_any_thread(self, number: int) -> None:
        """Releases a scheduler. The garbage collector may call it."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._close, number)

    def ask(self, make: Callable[[int], Question], answered: Callable[[Reply | Exception], None]) -> int:
        """Sends a message with a new number. Returns the number, for ``leave``.

        ``answered`` gets each reply, and PredictorUnavailable if the batcher ends. Raises it without a batcher, and if
        the batcher leaves more than MAX_UNREAD_BYTES unread.
        """
        if self._frames is None:
            raise PredictorUnavailable(LOST)
        if self._frames.unsent_bytes > MAX_UNREAD_BYTES:
            raise PredictorUnavailable(UNREAD)
        number = next(self._numbers)
        self._waiting[number] = answered
        self._frames.send(make(number))
        return number

    def leave(self, number: int, *, tell: bool) -> None:
        """Ends the interest in a number's replies; ``tell`` if the batcher still works on it."""
        if self._waiting.pop(number, None) is not None and tell and self._frames is not None:
            self._frames.send(Leave(number))

    def count_undecoded(self, size: int) -> None:
        """Counts bytes of rows that wait for a thread, or, if negative, that one has decoded."""
        before, self._undecoded = self._undecoded, self._undecoded + size
        was_full, is_full = before > MAX_UNDECODED_BYTES, self._undecoded > MAX_UNDECODED_BYTES
        if self._frames is not None and was_full != is_full:
            self._frames.read(not is_full)

    def forget(self, model_name: str) -> None:
        """Removes the batcher's metrics of a model that is no longer served."""
        if self._frames is not None:
            self._frames.send(Forget(model_name))

    def _close(self, number: int) -> None:
        del self._recipes[number]
        if self._frames is not None:
            self._frames.send(Close(number))

    def _introduce(self) -> None:
        """Receives a new connection."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._introductions, 1, 1)
        except BlockingIOError:
            return
        if not data:  # the supervisor has ended
            self._loop.remove_reader(self._introductions)
            return
        self._connecting = self._loop.create_task(self._connect(socket.socket(fileno=descriptors[0])))

    async def _connect(self, end: socket.socket) -> None:
        old, self._frames = self._frames, None
        if old is not None:
            old.close()
            self._fail_all()
        frames = Frames(self._decoder, self._receive, lambda: self._lose(frames))
        await self._loop.create_unix_connection(lambda: frames, sock=end)
        self._frames = frames
        if self._undecoded > MAX_UNDECODED_BYTES:
            frames.read(False)
        for number, recipe in self._recipes.items():
            frames.send(Open(number, recipe))

    def _lose(self, frames: Frames[Reply]) -> None:
        if self._frames is frames:
            self._frames = None
            self._fail_all()

    def _fail_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            answered(PredictorUnavailable(LOST))

    def _receive(self, replies: list[Reply]) -> None:
        for reply in replies:
            answered = self._waiting.get(reply.request)
            if answered is not None:
                answered(reply)


class RemoteScheduler:
    """A scheduler of texts in the batcher, with the interface of Scheduler. It decodes in this process.

    Timeouts and deadlines are watched here, so a batcher that hangs delays no error.

    Args:
        recipe: what the batcher makes its scheduler from; equal recipes of all workers share one.
        executor: runs long decoding.
    """

    work = NO_WORK
    """The batcher exports the work of all workers."""

    def __init__(
        self,
        link: BatcherLink,
        recipe: tuple[PredictorRecipe, SchedulerRecipe],
        *,
        executor: Executor,
        metrics: ModelMetrics,
    ) -> None:
        self._link = link
        self._executor = executor
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._timeout = recipe[1].settings.timeout
        self._has_types = any(field.role == "token_type_ids" for field in recipe[1].signature.inputs)
        self._number = link.open(recipe)
        self._requests: dict[Submission, int] = {}
        self._arrived: list[Arrival] = []
        """The rows of this iteration of the event loop."""
        weakref.finalize(self, link.close_from_any_thread, self._number).atexit = False

    def submit(self, entries: Sequence[Entry[Encoding]], decode: Decode, options: Any, context: Context) -> Submission:
        """Sends the entries of a request to the batcher, see Scheduler.submit."""
        loop = self._loop
        request = Submission(entries, decode, options, context, loop.create_future())
        if not entries:
            request.future.set_result(None)
            return request
        submit = partial(self._message, context, entries)
        try:
            self._requests[request] = self._link.ask(submit, partial(self._on_reply, request))
        except PredictorUnavailable as lost:
            request.fail(lost)
            return request
        deadline, timeout = context.deadline, loop.time() + self._timeout
        if deadline is not None and deadline < timeout:
            error = CallersDeadline("no answer before the caller's deadline")
            request.timer = loop.call_at(deadline, request.fail, error)
        else:
            limit = f"{self._timeout:g} s (--predictor_request_timeout_seconds)"
            late = PredictorTimeout(f"no answer from the predictor in {limit}, waiting for its turn included")
            request.timer = loop.call_at(timeout, request.fail, late)
        return request

    def leave(self, request: Submission) -> None:
        """Ends a request, with or without an answer."""
        if request.timer is not None:
            request.timer.cancel()
        number = self._requests.pop(request, None)
        if number is not None:
            self._link.leave(number, tell=request.remaining > 0)
        if request.remaining:
            request.future.cancel()
        request.entries = ()

    async def trial(self, item: Encoding) -> None:
        """Runs one inference outside all batches and limits, see Scheduler.trial."""
        answer: asyncio.Future[None] = self._loop.create_future()

        def on_reply(reply: Reply | Exception) -> None:
            if not answer.done():
                error = reply.exception() if isinstance(reply, Failed) else reply
                if isinstance(error, Exception):
                    answer.set_exception(error)
                else:
                    answer.set_result(None)

        number = self._link.ask(lambda number: Trial(number, self._number, self._text(item)), on_reply)
        try:
            await answer
        finally:
            self._link.leave(number, tell=not answer.done() or answer.cancelled())

    def _message(self, context: Context, entries: Sequence[Entry[Encoding]], number: int) -> Submit:
        texts = [self._text(entry.item) for entry in entries]
        return Submit(number, self._number, context.over_grpc, dict(context.headers), texts)

    def _text(self, item: Encoding) -> Text:
        return Text(item.ids, item.type_ids if self._has_types and any(item.type_ids) else [], item.attended)

    def _on_reply(self, request: Submission, reply: Reply | Exception) -> None:
        if request.future.done():
            return
        if isinstance(reply, Failed):
            request.fail(reply.exception())
        elif isinstance(reply, Exception):
            request.fail(reply)
        elif isinstance(reply, Rows):
            context = request.context
            context.queue = max(context.queue, reply.queue)
            context.batch_traceparent = reply.traceparent or context.batch_traceparent
            if not self._arrived:
                self._loop.call_soon(self._decode_arrived)
            self._arrived.append((request, request.entries, reply))

    def _decode_arrived(self) -> None:
        """Decodes all arrived rows, together in a thread if they are many: most are of one batch."""
        arrived, self._arrived = self._arrived, []
        if sum(entries[row.number].cost for _, entries, reply in arrived for row in reply.rows) <= INLINE_COST:
            self._finish(arrived, _decode(arrived))
            return
        size = sum(len(data.data) for _, _, reply in arrived for data in _arrays_of(reply))
        self._link.count_undecoded(size)

        def finish(done: asyncio.Future[list[Exception | None]]) -> None:
            self._link.count_undecoded(-size)
            self._finish(arrived, done.result())

        self._loop.run_in_executor(self._executor, _decode, arrived).add_done_callback(finish)

    def _finish(self, arrived: Sequence[Arrival], errors: Sequence[Exception | None]) -> None:
        for (request, _, reply), error in zip(arrived, errors, strict=True):
            self._finish_one(request, reply, error)

    def _finish_one(self, request: Submission, reply: Rows, error: Exception | None) -> None:
        """Counts decoded rows, and ends a request without remaining entries."""
        if request.future.done():
            return
        if error is not None:
            if isinstance(error, PredictorError):
                self._metrics.predictor_errors.add(1, BAD_ANSWER)
            request.fail(error)
            return
        request.answered = reply.answered
        request.remaining -= len(reply.rows)
        if not request.remaining:
            request.future.set_result(None)


Arrival: TypeAlias = tuple[Submission, Sequence[Entry[Encoding]], Rows]
"""Rows that have arrived, with the request and its entries, which it has no more once it has ended."""


def _decode(arrived: Sequence[Arrival]) -> list[Exception | None]:
    """Decodes the rows of requests that have not ended. Returns the first error of each."""
    return [
        None if request.future.done() else _decode_one(request, entries, reply) for request, entries, reply in arrived
    ]


def _decode_one(request: Submission, entries: Sequence[Entry[Encoding]], reply: Rows) -> Exception | None:
    for row in reply.rows:
        entry = entries[row.number]
        rows = {role: data.array() for role, data in row.outputs.items()}
        try:
            entry.answer = request.decode(entry.owner, entry.item, rows, request.options)
        except Exception as error:
            return error
    return None
