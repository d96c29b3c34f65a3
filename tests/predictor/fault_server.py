"""A TCP server that follows a script, for faults that a real Triton can't produce on demand."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

HOST = "127.0.0.1"
TLS = Path(__file__).with_name("tls")
CERTIFICATE, KEY = TLS / "localhost.pem", TLS / "localhost.key"


def server_context(mutual: bool = False) -> ssl.SSLContext:
    """The server's TLS context; ``mutual`` requires the same certificate from the client."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(CERTIFICATE))
    context.load_cert_chain(CERTIFICATE, KEY)
    context.verify_mode = ssl.CERT_REQUIRED if mutual else ssl.CERT_NONE
    return context


def client_context() -> ssl.SSLContext:
    """The client's TLS context, which trusts the server's certificate."""
    return ssl.create_default_context(cafile=str(CERTIFICATE))


class Connection:
    """One accepted connection, which a script serves."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader = reader
        self.writer = writer
        self.number = number
        """The number of the connection, from 0."""

    async def request(self) -> tuple[dict[str, str], bytes]:
        """Reads a request: its headers (lower-case names; the request line as ``""``) and its body."""
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return {"": first, **headers}, body

    async def answer(self, status: str, body: bytes = b"", *headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
        await self.send("\r\n".join(lines).encode() + body)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """Ends the connection with RST instead of FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def until_closed(self) -> None:
        """Waits until the client closes the connection."""
        while await self.reader.read(65536):
            pass

    async def forward(self, address: str) -> None:
        """Forwards all data to host:port and back, until one side closes."""
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        pipes = [asyncio.create_task(_pipe(*ends)) for ends in ((self.reader, writer), (reader, self.writer))]
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            writer.transport.abort()  # before any wait, which the test's end may cancel
            for pipe in pipes:
                pipe.cancel()
            await asyncio.gather(*pipes, return_exceptions=True)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


Script = Callable[[Connection], Awaitable[None]]


@asynccontextmanager
async def scripted(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Runs the script for every connection, and closes the connection at its end; yields host:port.

    A disconnecting client ends the script without an error.
    """
    count = 0
    running: set[asyncio.Task[None]] = set()
    opened: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        connection = Connection(reader, writer, count)
        count += 1
        try:
            await script(connection)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        task = asyncio.get_running_loop().create_task(serve(reader, writer))
        running.add(task)
        task.add_done_callback(running.discard)

    server = await asyncio.start_server(accept, HOST, 0, ssl=tls)
    try:
        yield f"{HOST}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for writer in opened:  # TLS would wait for the peer's close_notify, but the test's loop ends here
            with suppress(AttributeError):  # Python 3.11, if a transport that had data to send has closed by itself
                writer.transport.abort()
        await asyncio.sleep(0)
        await server.wait_closed()
