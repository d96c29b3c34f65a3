"""One connection to an HTTP/1.1 server: one request at a time, never two."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, cast

from hf_transformer.predictor.http1_alarm import Alarm
from hf_transformer.predictor.http1_errors import AnswerTooLarge, DeadlineExceeded, Disconnected
from hf_transformer.predictor.http1_parser import Answer, AnswerReader


class Owner(Protocol):
    """Who keeps connections."""

    def made(self, connection: Connection) -> None:
        """It is open now."""

    def free(self, connection: Connection) -> None:
        """The answer has come, and another request may be sent."""

    def lost(self, connection: Connection) -> None:
        """No other request may be sent, ever."""

    def ended(self, connection: Connection) -> None:
        """Its socket is closed. Comes after ``lost``."""


class Hold:
    """Has a request go on to its end though whoever waits for it is cancelled.

    Either that takes effect afterwards: the one who made the request raises ``cancelled``, if it is not None, once the
    request has ended. Or, with ``leave``, at once: then ``rest`` ends with the request. It costs nothing while nobody
    is cancelled; a task of its own for the request would cost as much as the request.
    """

    __slots__ = ("cancelled", "late", "leave", "released", "rest", "waits_for")

    def __init__(self, *, leave: bool = False) -> None:
        self.leave = leave
        self.cancelled: asyncio.CancelledError | None = None
        self.released = False
        """Whether a cancellation ends the request after all."""
        self.late: Answer | Exception | None = None
        """How the request has ended, if that was before the cancelled task could run."""
        self.rest: asyncio.Future[Answer] | None = None
        self.waits_for: asyncio.Future[Any] | None = None
        """What the caller waits for: a connection, or the answer."""

    def break_off(self) -> None:
        """Ends the request now, with CancelledError for whoever waits for it."""
        self.released = True
        if self.waits_for is not None:
            self.waits_for.cancel()


class Connection(Alarm, asyncio.BufferedProtocol):
    """Sends a request and awaits its answer, as often as the server lets it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reader: AnswerReader, owner: Owner) -> None:
        super().__init__(loop)
        self._reader = reader
        self._owner = owner
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[Answer] | None = None
        self._hold: Hold | None = None
        self.open = False
        """Whether a request may be sent, when none is under way."""
        self.idle_since = 0.0
        """Seconds on the loop's clock; kept by the owner."""

    def send(
        self, head: bytes, body: Sequence[bytes | memoryview], deadline: float, hold: Hold | None
    ) -> asyncio.Future[Answer]:
        """Sends one request, and gives what its answer comes in. That is awaited with ``answered``.

        head: all of a small request; of a large one all but its ``body``, which nobody may change before the answer is
        there.
        deadline: on the loop's clock.
        """
        self._reader.begin()
        waiter: asyncio.Future[Answer] = self._loop.create_future()
        self._waiter = waiter
        self._hold = hold
        if hold is not None:
            hold.waits_for = waiter
        self._deadline = deadline
        if self._alarm > deadline:
            self._watch(deadline)
        if body:
            self._transport.writelines((head, *body))
        else:
            self._transport.write(head)
        return waiter

    async def answered(self, waiter: asyncio.Future[Answer], hold: Hold | None) -> Answer:
        """The answer to a request that was sent.

        Raises:
            Http1Error: any but ConnectTimeout. Whatever the reader's ``room`` raises.
        """
        try:
            return await waiter
        except (asyncio.CancelledError, GeneratorExit) as error:
            return await self.gone_on(waiter, error, hold)

    async def gone_on(self, waiter: asyncio.Future[Answer], error: BaseException, hold: Hold | None) -> Answer:
        """The answer to a request whose caller was cancelled, with ``error``: where the ``hold`` is for that, else the
        connection is closed and the error raised."""
        while not (hold is None or hold.released) and isinstance(error, asyncio.CancelledError):
            hold.cancelled = error
            if not waiter.cancelled():
                return waiter.result()
            if hold.late is not None:
                return _outcome(hold.late)
            self._waiter = hold.waits_for = waiter = self._loop.create_future()
            if hold.leave:
                hold.rest = waiter
                raise error
            try:
                return await waiter
            except (asyncio.CancelledError, GeneratorExit) as again:
                error = again
        if self._waiter is waiter:  # once answered, the connection may serve another request
            self._waiter = None
            self.abort()
        raise error

    def abort(self) -> None:
        """Closes the connection without a further word; a request under way fails."""
        self._close(Disconnected("the connection was closed here"))

    # What follows is called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.open = True
        self._owner.made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._waiter is None:  # nobody has asked for anything
            self.abort()
            return
        try:
            answer = self._reader.updated(nbytes)
        except MemoryError as exc:
            error = AnswerTooLarge("it does not fit into memory")
            error.__cause__ = exc
            self._close(error)
        except Exception as exc:  # an event loop would only log it
            self._close(exc)
        else:
            if answer is not None:
                self._finish(answer)

    def eof_received(self) -> None:
        """The server has closed its side. Ours is closed by the transport, since None is returned."""
        if self._waiter is None:
            self.abort()
            return
        try:
            answer = self._reader.end()
        except Exception as exc:
            self._close(exc)
        else:
            self._finish(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._close(self._reader.cut_off(exc))
        self._owner.ended(self)

    # The end of a request.

    def _finish(self, answer: Answer) -> None:
        """Hands the answer over. One that came before the request was all sent ends the connection."""
        waiter, self._waiter = self._waiter, None
        keep = self.open and self._reader.keep_alive and self._transport.get_write_buffer_size() == 0
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)
        elif self._hold is not None:  # cancelled, and its task does not know yet
            self._hold.late = answer
        else:
            keep = False
        if keep:
            self._owner.free(self)
        else:
            self.abort()

    def _close(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
        elif waiter is not None and self._hold is not None:
            self._hold.late = error
        self._stop_timer()
        if self.open:
            self.open = False
            self._transport.abort()
            self._owner.lost(self)

    def _is_waiting(self) -> bool:
        return self._waiter is not None

    def _expire(self) -> None:
        self._close(DeadlineExceeded("the time for the whole call is over"))


def _outcome(late: Answer | Exception) -> Answer:
    if isinstance(late, Exception):
        raise late
    return late
