"""A gRPC call over bare HTTP/2, for what no library sends or does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hf_transformer.commands.local_triton import HOST
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb

DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4


@asynccontextmanager
async def bare_call(
    port: int, method: str, message: pb.ModelInferRequest, request_id: bytes = b"1"
) -> AsyncIterator[asyncio.StreamReader]:
    """Sends one request and gives what comes back, frame by frame: after 64 KiB of messages the server waits for more
    window, which it is never given. Source: RFC 9113, and the literal header fields of RFC 7541."""
    path = f"/{SERVICE}/{method}".encode()
    headers = {b":method": b"POST", b":scheme": b"http", b":path": path, b":authority": b"x", b"te": b"trailers"}
    headers |= {b"content-type": b"application/grpc", b"x-request-id": request_id}
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
    body = message.SerializeToString()
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(SETTINGS, 0, 0, b""))
        writer.write(_frame(HEADERS, END_HEADERS, 1, block))
        writer.write(_frame(DATA, END_STREAM, 1, b"\0" + len(body).to_bytes(4, "big") + body))
        yield reader
    finally:
        writer.close()
        await writer.wait_closed()


def _text(value: bytes) -> bytes:
    """A string without Huffman's code, of less than 16 KiB."""
    if len(value) < 127:
        return bytes((len(value),)) + value
    rest = len(value) - 127
    return bytes((127, rest & 127 | 128, rest >> 7)) + value


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
