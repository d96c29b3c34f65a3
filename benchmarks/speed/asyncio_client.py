"""One Triton call after the other with the least that an asyncio program can do, for so many seconds; prints one line
of JSON.

A protocol on uvloop's event loop, the request encoded once, the response's head searched for nothing but its length.
No client in Python has less to do, so this is what a call costs before anything is done for anybody.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from pathlib import Path
from typing import cast

import numpy as np
import uvloop

from benchmarks.speed.bare_calls import figures, flags
from benchmarks.speed.bodies import HEADER, Region, binary
from benchmarks.speed.cases import SYNTHETIC
from benchmarks.speed.http_calls import Body, post
from hf_transformer.commands.local_triton import SHARED_MEMORY

WARM_UP = 20
_LENGTH = b"content-length:"
_MEMORY = "/v2/systemsharedmemory/region"


class Calls(asyncio.BufferedProtocol):
    """A connection on which one request follows the other."""

    def __init__(self, largest: int) -> None:
        self._buffer = bytearray(largest + 4096)
        self._view = memoryview(self._buffer)
        self._have = 0
        self._end = 0
        self._waiter: asyncio.Future[int]
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._have :]

    def buffer_updated(self, nbytes: int) -> None:
        self._have += nbytes
        if not self._end:
            head = self._buffer.find(b"\r\n\r\n", 0, self._have)
            if head < 0:
                return
            fields = bytes(self._view[:head]).lower()
            at = fields.index(_LENGTH) + len(_LENGTH)
            self._end = head + 4 + int(fields[at:].split(b"\r\n", 1)[0])
        if self._have >= self._end:
            self._waiter.set_result(self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._waiter.done():
            self._waiter.set_exception(exc or ConnectionError("Triton has closed the connection"))

    async def call(self, request: bytes) -> memoryview:
        """Sends a request. The response, head and all; valid until the next call."""
        self._have = self._end = 0
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._view[: await self._waiter]


async def measure(options: argparse.Namespace, region: Region | None) -> dict[str, float]:
    """Calls until the time is over."""
    model = next(model for model in SYNTHETIC if model.name == options.model)
    host, port = options.url.split(":")
    body = binary(model, [[1] * options.tokens], region)[0]
    request = (
        f"POST /v2/models/{model.name}/infer HTTP/1.1\r\nHost: {options.url}\r\n{HEADER}: {body.json_length}\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {len(body.content)}\r\n\r\n"
    ).encode() + body.content
    _, calls = await asyncio.get_running_loop().create_connection(lambda: Calls(options.output_bytes), host, int(port))
    for _ in range(WARM_UP):
        response = await calls.call(request)
        if not bytes(response[:12]).endswith(b" 200"):
            raise ValueError(bytes(response[:500]))
    times: list[float] = []
    started = now = time.perf_counter()
    while now - started < options.seconds:
        response = await calls.call(request)
        if region is None:
            np.frombuffer(response[-options.output_bytes :], np.float32)
        before, now = now, time.perf_counter()
        times.append(now - before)
    return figures(times, now - started)


def main() -> None:
    """Measures and prints."""
    options = flags(__doc__)
    if options.shared_memory == "none":
        print(json.dumps(uvloop.run(measure(options, None))))
        return
    region = Region(f"hf_transformer_bench_{os.getpid()}", options.output_bytes, 1)
    port = int(options.url.split(":")[1])
    file: Path = SHARED_MEMORY / region.name
    try:
        file.write_bytes(bytes(options.output_bytes))
        content = {"key": f"/{region.name}", "offset": 0, "byte_size": options.output_bytes}
        post(port, f"{_MEMORY}/{region.name}/register", Body(json.dumps(content).encode()))
        print(json.dumps(uvloop.run(measure(options, region))))
        post(port, f"{_MEMORY}/{region.name}/unregister", Body(b"{}"))
    finally:
        file.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
