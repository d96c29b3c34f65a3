"""gRPC over bare HTTP/2, for requests that no library sends. Source: RFC 9113, and RFC 7541, 6.2."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hf_transformer.commands.loopback import HOST
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb

DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, END_HEADERS = 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


START = PREFACE + frame(SETTINGS, 0, 0, b"")
"""The first bytes of each connection."""


def field(name: bytes, value: bytes, *, kept: bool = False) -> bytes:
    """A header field without Huffman coding; ``kept`` adds it to the connection's dynamic table."""
    excess = len(value) - 127
    length = bytes((len(value),)) if excess < 0 else bytes((127, excess & 127 | 128, excess >> 7))
    return (b"\x40" if kept else b"\0") + bytes((len(name),)) + name + length + value


def call_fields(method: str) -> bytes:
    """The header fields of a call."""
    path = f"/{SERVICE}/{method}".encode()
    fields = {b":method": b"POST", b":scheme": b"http", b":path": path, b":authority": b"x", b"te": b"trailers"}
    fields[b"content-type"] = b"application/grpc"
    return b"".join(field(name, value) for name, value in fields.items())


@asynccontextmanager
async def bare_call(
    port: int, method: str, message: pb.ModelInferRequest, request_id: bytes = b"1"
) -> AsyncIterator[asyncio.StreamReader]:
    """Sends one request and yields a reader of the response's frames. After 64 KiB of messages the server is blocked,
    since the client sends no window update."""
    fields, body = call_fields(method) + field(b"x-request-id", request_id), message.SerializeToString()
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(START + frame(HEADERS, END_HEADERS, 1, fields))
        writer.write(frame(DATA, END_STREAM, 1, b"\0" + len(body).to_bytes(4, "big") + body))
        yield reader
    finally:
        writer.close()
        await writer.wait_closed()
