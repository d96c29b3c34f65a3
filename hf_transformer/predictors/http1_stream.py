"""An answer of an HTTP/1.1 server that is read while it comes, on a connection of its own.

Leaving it early is closing the connection, so one that is kept for other requests would gain little. Who reads slowly
slows down the server: no more is received than the reader's buffer holds.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final, Self

from hf_transformer.predictors.address import Address
from hf_transformer.predictors.http1 import CONNECT_SECONDS
from hf_transformer.predictors.http1_bodies import ChunkedBody, UntilClose
from hf_transformer.predictors.http1_errors import (
    ConnectDeadline,
    ConnectTimeout,
    DeadlineExceeded,
    Disconnected,
    MalformedAnswer,
    NoAnswer,
    NotHttp,
)
from hf_transformer.predictors.http1_parser import HEAD_LIMIT, Head, parse_head

_AT_ONCE: Final = 2**16
"""Bytes received at once, and half of what is received ahead of the reader."""


class StreamedAnswer:
    """An answer whose head has come. Its methods raise Http1Error, apart from ``close``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int) -> None:
        """limit: the most bytes that may come at once."""
        self._reader = reader
        self._writer = writer
        self._limit = limit
        self._head: Head
        self._body: ChunkedBody | UntilClose | None = None
        self._left = 0
        self._timer: asyncio.TimerHandle | None = None
        self._late = False
        self._closed = False

    @property
    def status(self) -> int:
        return self._head.status

    @property
    def headers(self) -> Mapping[str, str]:
        """Names are lower-case."""
        return self._head.headers

    async def begin(self, request: bytes, deadline: float) -> Self:
        """Sends the request and awaits the head. ``deadline``, of the loop's clock, bounds the whole answer."""
        self._timer = asyncio.get_running_loop().call_at(deadline, self._time_is_up)
        self._writer.write(request)
        self._head = await self._next_head()
        while self._head.status < 200:
            if self._head.status == 101:
                raise MalformedAnswer("it changes to another protocol, which was not asked for")
            self._head = await self._next_head()
        if self._head.length is None:
            self._body = ChunkedBody(self._limit) if self._head.chunked else UntilClose(self._limit)
        else:
            self._left = self._head.length
        return self

    async def read(self) -> bytes:
        """The next bytes of the body; none at its end."""
        body = self._body
        if body is None:
            return await self._rest()
        while not body.complete:
            data = await self._received(_AT_ONCE)
            if not data and isinstance(body, UntilClose):
                return b""
            if not data:
                raise self._ended("in the middle of its answer")
            body.feed(data)
            if body.data:
                return body.take()
        return b""

    def close(self) -> None:
        """Closes the connection, without a further word."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._writer.transport.abort()

    async def _rest(self) -> bytes:
        """The next bytes of a body of known length."""
        if self._left == 0:
            return b""
        data = await self._received(min(self._left, _AT_ONCE))
        if not data:
            raise self._ended("in the middle of its answer")
        self._left -= len(data)
        return data

    async def _next_head(self) -> Head:
        try:
            raw = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as exc:
            if exc.partial and not b"HTTP/1.".startswith(exc.partial[:7]):
                raise NotHttp(f"it begins with {exc.partial[:40]!r}") from exc
            raise self._ended("in the middle of its answer" if exc.partial else "without an answer") from exc
        except asyncio.LimitOverrunError as exc:
            raise MalformedAnswer(f"its head has more than {HEAD_LIMIT} bytes") from exc
        except OSError as exc:
            raise self._ended("without an answer", exc) from exc
        return parse_head(raw[:-4])

    async def _received(self, most: int) -> bytes:
        try:
            return await self._reader.read(most)
        except OSError as exc:
            raise self._ended("in the middle of its answer", exc) from exc

    def _ended(self, where: str, cause: OSError | None = None) -> Disconnected | DeadlineExceeded:
        """The error for a connection that ends here."""
        if self._late:
            return DeadlineExceeded("the time for the whole call is over")
        if self._closed:
            return Disconnected("the connection was closed here")
        kind = NoAnswer if where == "without an answer" else Disconnected
        return kind(f"{cause.strerror or cause} ({where})" if cause else f"it closed the connection {where}")

    def _time_is_up(self) -> None:
        self._late = True
        self._writer.transport.abort()


async def open_streamed(address: Address, tls: ssl.SSLContext | None, deadline: float, limit: int) -> StreamedAnswer:
    """A new connection, on which nothing was sent yet.

    Raises:
        Http1Error: ConnectTimeout or ConnectDeadline.
        OSError: there is no connection.
    """
    seconds = min(CONNECT_SECONDS, deadline - asyncio.get_running_loop().time())
    host = address.host
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(
                host,
                address.port,
                ssl=tls,
                server_hostname=host.rstrip(".") if tls is not None else None,
                limit=HEAD_LIMIT,
            )
    except TimeoutError as exc:
        if seconds < CONNECT_SECONDS:
            raise ConnectDeadline("the time for the whole call is over, and there is no connection") from exc
        raise ConnectTimeout(f"no connection within {seconds:g} s") from exc
    return StreamedAnswer(reader, writer, limit)
