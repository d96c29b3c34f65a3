"""HTTP/1.1 as bytes: builds requests line by line, and reads responses from bytes, sockets and asyncio streams.

By default a request asks the demo model.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, NamedTuple

from hf_transformer.commands.loopback import HOST
from tests.support.polling import SECONDS
from tests.support.service import Service

TEXT = "The capital of france is [MASK]."
BODY = json.dumps({"instances": [TEXT]}).encode()
ANSWER = b'{"predictions":["paris"]}'
PREDICT = "/v1/models/bert:predict"
HOST_LINE = "Host: x"
HEAD_END = b"\r\n\r\n"
CHUNK_SIZE = re.compile(rb"([0-9a-f]+)\r\n")


def request(start: str, *lines: str, body: bytes = b"") -> bytes:
    """A request with this first line, Host, and these header lines, unchecked."""
    return "\r\n".join((start, HOST_LINE, *lines, "", "")).encode("latin-1") + body


def get(path: str, *lines: str) -> bytes:
    """A GET without a body."""
    return request(f"GET {path} HTTP/1.1", *lines)


def post(body: bytes = BODY, *lines: str, target: str = PREDICT, version: str = "1.1") -> bytes:
    """A complete POST with a Content-Length."""
    return request(f"POST {target} HTTP/{version}", f"Content-Length: {len(body)}", *lines, body=body)


def post_head(*lines: str) -> bytes:
    """The head of a POST to the demo model, without a Content-Length."""
    return request(f"POST {PREDICT} HTTP/1.1", *lines)


def unfinished(*lines: str, length: int = 10) -> bytes:
    """The head of a POST that announces a body of ``length`` bytes."""
    return post_head(f"Content-Length: {length}", *lines)


class RawResponse(NamedTuple):
    """A response as the client got it; ``body`` is without the chunks' framing."""

    head: bytes
    body: bytes = b""

    @property
    def status(self) -> int:
        return int(self.head[9:12])

    @property
    def headers(self) -> dict[str, str]:
        """Values by names in lower case."""
        fields = (line.partition(":") for line in self.head.decode("latin-1").split("\r\n")[1:-2])
        return {name.lower(): value.strip() for name, _, value in fields}

    @property
    def error(self) -> str:
        """The message of our own error body."""
        content = json.loads(self.body)
        assert list(content) == ["error"], content
        message: str = content["error"]
        return message


class Incomplete(Exception):
    """The response has at least ``missing`` bytes more."""

    def __init__(self, missing: int) -> None:
        super().__init__(missing)
        self.missing = missing


def split_response(received: bytes) -> tuple[RawResponse, bytes]:
    """The first response and the bytes behind it. Raises Incomplete."""
    end = received.find(HEAD_END) + len(HEAD_END)
    if end < len(HEAD_END):
        raise Incomplete(1)
    response = RawResponse(received[:end])
    if response.status == 100:
        return response, received[end:]
    headers = response.headers
    if headers.get("transfer-encoding") != "chunked":
        end, body = _take(received, end, int(headers["content-length"]))
        return response._replace(body=body), received[end:]
    parts = [b"last"]
    while parts[-1]:
        size = CHUNK_SIZE.match(received, end)
        if size is None:
            raise Incomplete(1)
        end, part = _take(received, size.end(), int(size[1], 16) + 2)
        parts.append(part[:-2])
    return response._replace(body=b"".join(parts[1:])), received[end:]


def _take(received: bytes, start: int, size: int) -> tuple[int, bytes]:
    end = start + size
    if len(received) < end:
        raise Incomplete(end - len(received))
    return end, received[start:end]


def responses_in(received: bytes) -> list[RawResponse]:
    """The responses in some bytes, which end with the last of them."""
    responses = []
    while received:
        response, received = split_response(received)
        responses.append(response)
    return responses


# Blocking sockets


@contextmanager
def connected(service: Service) -> Iterator[socket.socket]:
    """A connection without Nagle's delays."""
    with socket.create_connection((HOST, service.port), SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def send(connection: socket.socket, *parts: bytes) -> bool:
    """Sends the parts; False if the service closes the connection before it has them all."""
    try:
        for part in parts:
            connection.sendall(part)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def next_response(connection: socket.socket, *parts: bytes) -> RawResponse:
    """Sends the parts and reads one response; the connection may stay open."""
    for part in parts:
        connection.sendall(part)
    received = b""
    while True:
        data = connection.recv(2**16)
        assert data, f"closed after {received!r}"
        received += data
        with suppress(Incomplete):
            return split_response(received)[0]


def all_responses(connection: socket.socket) -> list[RawResponse]:
    """The responses until the service closes the connection."""
    received = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(2**16):
            received += data
    return responses_in(received)


def exchange(service: Service, *parts: bytes) -> list[RawResponse]:
    """Sends the parts over one connection; the responses until the service closes it."""
    with connected(service) as connection:
        send(connection, *parts)
        return all_responses(connection)


# asyncio streams


async def read_response(reader: asyncio.StreamReader) -> RawResponse:
    """The next response, and no byte behind it. Raises asyncio.IncompleteReadError if the connection ends within it."""
    received = await reader.readuntil(HEAD_END)
    while True:
        try:
            return split_response(received)[0]
        except Incomplete as error:
            received += await reader.readexactly(error.missing)


class RawHttpClient:
    """One connection to a server; each read has ``SECONDS``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def leave(self) -> None:
        """Closes the connection at once."""
        self.writer.transport.abort()

    async def until(self, end: bytes) -> bytes:
        """Reads up to and including these bytes."""
        async with asyncio.timeout(SECONDS):
            return await self.reader.readuntil(end)

    async def response(self, sent: bytes = b"") -> RawResponse:
        """Sends a request and reads the next response."""
        self.send(sent)
        async with asyncio.timeout(SECONDS):
            return await read_response(self.reader)

    async def rest(self) -> bytes:
        """Reads until the connection is closed."""
        async with asyncio.timeout(SECONDS):
            return await self.reader.read()


@asynccontextmanager
async def connected_to(port: int, **tls: Any) -> AsyncIterator[RawHttpClient]:
    """A connection, closed at the end."""
    reader, writer = await asyncio.open_connection(HOST, port, **tls)
    try:
        yield RawHttpClient(reader, writer)
    finally:
        writer.close()
