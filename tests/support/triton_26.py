"""A Triton of 2026 in front of the real one of 2024: it answers as the newer release does where the two differ.

Written after the sources of release 26.07: server metadata (no new extensions), the refusal to register and unregister
shared memory of clients (501, UNIMPLEMENTED; the list of regions is answered, and empty), and the limit of an HTTP
request's JSON. Everything else is passed on to the real Triton, byte for byte over REST, message for message over gRPC.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.commands.loopback import HOST
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb

ROOT: Final = Path(__file__).parents[2]
VERSION: Final = "2.71.0"
EXTENSIONS: Final = (
    *("classification", "sequence", "model_repository", "model_repository(unload_dependents)", "schedule_policy"),
    *("model_configuration", "system_shared_memory", "cuda_shared_memory", "binary_tensor_data", "parameters"),
    *("statistics", "trace", "logging"),
)
DISALLOWED: Final = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
MAX_JSON_BYTES: Final = 2**26
SHARED_MEMORY: Final = re.compile(r"/v2/(system|cuda)sharedmemory(/region/[^/]+)?/(un)?register")
SERVICE: Final = "/inference.GRPCInferenceService/"
UNLIMITED: Final = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class Triton26(LocalTriton):
    """A real Triton behind the emulation, which is a process of its own: ``python -m tests.support.triton_26``."""

    _front: subprocess.Popen[str] | None = None

    def start(self) -> None:
        super().start()
        command = [sys.executable, "-m", "tests.support.triton_26", str(self.http_port), str(self.grpc_port)]
        self._front = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._front.stdout is not None
        self._ports = self._front.stdout.readline().split()

    def stop(self) -> None:
        if self._front is not None:
            self._front.kill()
            self._front.communicate()
            self._front = None
        super().stop()

    @property
    def http_address(self) -> str:
        return f"{HOST}:{self._ports[0] if self._front else self.http_port}"

    @property
    def grpc_address(self) -> str:
        return f"{HOST}:{self._ports[1] if self._front else self.grpc_port}"


async def serve(http_port: int, grpc_port: int) -> None:
    """Listens on two free ports, which it prints, until it is killed."""
    rest = await asyncio.start_server(partial(connection, http_port), HOST, 0, limit=2**20)
    server = grpc.aio.server(handlers=[Front(f"{HOST}:{grpc_port}")], options=(*UNLIMITED, ("grpc.so_reuseport", 0)))
    front_grpc_port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    print(rest.sockets[0].getsockname()[1], front_grpc_port, flush=True)
    await server.wait_for_termination()


async def connection(http_port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection of a client, and one to the real Triton. A client sends one request at a time."""
    try:
        upstream, sending = await asyncio.open_connection(HOST, http_port, limit=2**20)
    except OSError:
        writer.transport.abort()
        return
    tasks = [asyncio.create_task(copied(upstream, writer)), asyncio.create_task(asked(reader, sending, writer))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in (sending, writer):
            one.close()
            with suppress(OSError):
                await one.wait_closed()


async def copied(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Passes on what the real Triton sends."""
    while data := await source.read(2**16):
        target.write(data)
        await target.drain()


async def asked(client: asyncio.StreamReader, triton: asyncio.StreamWriter, answers: asyncio.StreamWriter) -> None:
    """Passes a client's requests on, but for those that a Triton of 2026 answers otherwise."""
    while True:
        try:
            head = await client.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        line, _, fields = head.decode("latin-1").partition("\r\n")
        lengths = re.findall(r"(?im)^content-length: *(\d+)", fields)
        length = int(lengths[0]) if lengths else 0
        method, path, _ = line.split(" ", 2)
        headers = re.findall(r"(?im)^inference-header-content-length: *(\d+)", fields)
        own = answer_of(method, path, int(headers[0]) if headers else length)
        if own is not None:
            await client.readexactly(length)
            status, body = own
            content = json.dumps(body).encode()
            fields = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
            answers.write(f"HTTP/1.1 {status}\r\n{fields}".encode() + content)
            await answers.drain()
            continue
        triton.write(head)
        while length:
            data = await client.read(min(length, 2**16))
            if not data:
                return
            length -= len(data)
            triton.write(data)
            await triton.drain()


def answer_of(method: str, path: str, json_length: int) -> tuple[str, Mapping[str, Any]] | None:
    """The status line and body of an answer that differs from the older Triton's; None for all others.

    ``json_length`` is without the binary tensors behind the JSON, which Triton does not limit.
    """
    if method == "POST" and SHARED_MEMORY.fullmatch(path):
        return "501 Not Implemented", {"error": DISALLOWED}
    if method == "GET" and path == "/v2":
        return "200 OK", {"name": "triton", "version": VERSION, "extensions": EXTENSIONS}
    if method == "POST" and json_length > MAX_JSON_BYTES:
        said = (
            f"request JSON size of {json_length} bytes exceeds the maximum allowed input size of {MAX_JSON_BYTES} bytes"
        )
        return "400 Bad Request", {"error": f"{said}. Use --http-max-input-size to increase the limit."}
    return None


class Front(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic when it runs
    """All methods of the real Triton at ``address``, as bytes."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel: grpc.aio.Channel | None = None

    def service(self, details: Any) -> Any:
        method = details.method
        if method == f"{SERVICE}ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream)

        async def unary(message: bytes, context: Any) -> bytes:
            name = method.removeprefix(SERVICE)
            if name.endswith(("SharedMemoryRegister", "SharedMemoryUnregister")):
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, DISALLOWED)
            if name == "ServerMetadata":
                return pb.ServerMetadataResponse(
                    name="triton", version=VERSION, extensions=EXTENSIONS
                ).SerializeToString()
            call = self._connected().unary_unary(method, None, None)(message, metadata=passed_on(context))
            return await answered(call, context)

        return grpc.unary_unary_rpc_method_handler(unary)

    def _connected(self) -> grpc.aio.Channel:
        if self._channel is None:
            quick = (("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200))
            self._channel = grpc.aio.insecure_channel(self._address, options=(*UNLIMITED, *quick))
        return self._channel

    async def _stream(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        call = self._connected().stream_stream(f"{SERVICE}ModelStreamInfer", None, None)(
            messages, metadata=passed_on(context)
        )
        try:
            async for answer in call:
                yield answer
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
        finally:
            call.cancel()


async def answered(call: Any, context: Any) -> bytes:
    """The answer of the real Triton, or its error; a client that leaves is passed on."""
    try:
        found: bytes = await call
        return found
    except grpc.aio.AioRpcError as error:
        await context.abort(error.code(), error.details() or "")
        raise
    finally:
        call.cancel()


def passed_on(context: Any) -> list[tuple[str, str | bytes]]:
    """A client's metadata, without what belongs to its own connection."""
    return [pair for pair in context.invocation_metadata() if not pair[0].startswith(("grpc-", "user-agent"))]


if __name__ == "__main__":
    asyncio.run(serve(*map(int, sys.argv[1:])))
