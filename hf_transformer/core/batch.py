"""What is on its way to the predictor: requests, their instances, and the batches that these are in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from time import perf_counter
from typing import Any, Generic, TypeVar

from hf_transformer.eager import Eager
from hf_transformer.errors import PredictorError, RequestError
from hf_transformer.types import Array, Context

Item = TypeVar("Item")

Decode = Callable[[int, Mapping[str, Array]], Any]
"""Called with an instance's index and its own rows of the outputs, by role; what it gives is the answer."""


class Request:
    """One request's instances on their way. ``future`` is done once all are answered, or one has failed.

    ``entries`` are its instances in the queue, those that have left it included; an instance that queues once more is
    there twice.
    """

    __slots__ = ("answers", "batches", "context", "decode", "entries", "future", "left", "since", "timer")

    def __init__(self, count: int, decode: Decode, context: Context, future: asyncio.Future[None]) -> None:
        self.answers: list[Any] = [None] * count
        self.left = count
        self.decode = decode
        self.context = context
        self.future = future
        self.since = perf_counter()
        self.timer: asyncio.TimerHandle | None = None
        self.batches: list[Batch[Any]] = []
        self.entries: list[Entry[Any]] = []

    def answer(self, index: int, rows: Mapping[str, Array], started: float) -> float:
        """Decodes one instance's rows, or fails the request, and no other one, with what goes wrong there. That began
        at ``started``; gives the time now, when the next one begins."""
        if self.future.done():
            return started
        try:
            self.answers[index] = self.decode(index, rows)
        except Exception as error:
            self.answers[index] = error
        now = perf_counter()
        self.context.timings.postprocess += now - started
        return now

    def settle(self, index: int) -> bool:
        """Counts one instance as answered; on the event loop, after ``answer``.

        Returns:
            Whether the model's answer could not be decoded, which is the predictor's fault.
        """
        found = self.answers[index]
        left = self.left = self.left - 1
        if isinstance(found, Exception):
            self.fail(found)
            return isinstance(found, PredictorError)
        if not left and not self.future.done():
            self.future.set_result(None)
        return False

    def fail(self, error: Exception) -> None:
        """Gives the whole request up. Each gets an error of its own: raising it changes it."""
        if not self.future.done():
            self.future.set_exception(copy(error) if isinstance(error, RequestError) else error)
        self.leave()

    def leave(self) -> None:
        """Nobody waits for the answers any more."""
        for batch in tuple(self.batches):
            batch.leave(self)


class Entry(Generic[Item]):
    """One instance; see waiting.Entry. ``item`` is what the model gets: one encoding, or one step of a text."""

    __slots__ = ("cost", "index", "item", "key", "length", "request", "taken")

    def __init__(self, request: Request, index: int, item: Item, length: int, key: str, cost: int) -> None:
        self.request = request
        self.index = index
        self.item = item
        self.length = length
        self.key = key
        self.cost = cost
        self.taken = False

    @property
    def gone(self) -> bool:
        return self.request.future.done()


class Batch(Generic[Item]):
    """Instances at the predictor, of one request or of many. ``shared`` says which it was when they left;
    ``requests`` are those that still wait. ``cost`` is what it takes to decode all of them."""

    __slots__ = ("cost", "entries", "may_be_cancelled", "requests", "shared", "task")

    def __init__(self, entries: Sequence[Entry[Item]]) -> None:
        self.entries = entries
        if len(entries) == 1:
            [entry] = entries
            self.requests, self.cost = {entry.request}, entry.cost
        else:
            self.requests = {entry.request for entry in entries}
            self.cost = sum([entry.cost for entry in entries])
        self.shared = len(self.requests) > 1
        self.may_be_cancelled = False  # until it is sent, and then where it may be tried again
        self.task: Eager[None] | None = None
        for request in self.requests:
            request.batches.append(self)

    def departs(self, started: float) -> None:
        """It leaves for the predictor, with the headers of its oldest request; its packing began at ``started``."""
        for entry in self.entries:
            request = entry.request
            timings = request.context.timings
            waited = started - request.since
            if waited > timings.queue:
                timings.queue = waited
        first = self.entries[0].request
        if self.shared and (traceparent := first.context.headers.get("traceparent")):
            for entry in self.entries:
                if entry.request is not first:
                    entry.request.context.sent_with = traceparent

    def leave(self, request: Request) -> None:
        """A request that nobody waits for any more; after the last one the call is not tried again.

        The one under way keeps its place until its end: another one in its stead would be one too many at the
        predictor. A batch that is not packed yet is then not sent.
        """
        self.requests.discard(request)
        request.batches.remove(self)
        if not self.requests and self.task is not None and self.may_be_cancelled:
            self.task.cancel()

    def close(self) -> None:
        """It has ended. Requests may still refer to it, so it lets go of them: only the collector would find those."""
        self.entries = ()
        self.requests = set()
        self.task = None  # a failed one refers to its error, and that to the frames that hold this batch
