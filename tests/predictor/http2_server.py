"""An HTTP/2 server in the hands of a script, frame by frame; and a stream that notes what reaches it."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from hpack import Decoder

from hf_transformer.predictor.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    PREFACE,
    SETTINGS,
    SETTINGS_ACK,
    head,
)
from hf_transformer.predictor.http2_headers import encode_fields
from tests.predictor.fault_server import Connection, scripted

GOOD_HEAD = (("content-type", "application/grpc"),)
OK = (("grpc-status", "0"),)
STATUS_200 = b"\x88"
"""In HPACK's static table."""


class Frame(NamedTuple):
    """One frame that the client has sent."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class Request(NamedTuple):
    """One call."""

    stream: int
    fields: Mapping[str, str]
    message: bytes


class Peer:
    """The server's side of one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.number = connection.number
        self.decoder = Decoder()

    async def begin(self, settings: Mapping[int, int] | None = None) -> None:
        """Exchanges the first words."""
        assert await self.connection.reader.readexactly(len(PREFACE)) == PREFACE
        await self.send(settings_of(settings or {}))
        assert (await self.frame()).kind == SETTINGS
        await self.send(SETTINGS_ACK)

    async def frame(self, *kinds: int) -> Frame:
        """The next frame, of one of these kinds if any are given; others are passed over."""
        while True:
            high, low, kind, flags, stream = HEAD.unpack(await self.connection.reader.readexactly(HEAD_BYTES))
            payload = await self.connection.reader.readexactly(high << 8 | low)
            if not kinds or kind in kinds:
                return Frame(kind, flags, stream, payload)

    async def request(self) -> Request:
        """The next call, which is all there before another begins."""
        begun = await self.frame(HEADERS)
        fields = {
            str(name, "latin-1"): str(value, "latin-1") for name, value in self.decoder.decode(begun.payload, raw=True)
        }
        body = b""
        while True:
            part = await self.frame(DATA)
            body += part.payload
            if part.flags & END_STREAM:
                return Request(begun.stream, fields, body[5:])

    async def send(self, *frames: bytes) -> None:
        await self.connection.send(b"".join(frames))


Script = Callable[[Peer], Awaitable[None]]


def serving(script: Script) -> AbstractAsyncContextManager[str]:
    """Serves every connection by the script and closes it at the script's end; gives host:port."""

    async def run(connection: Connection) -> None:
        await script(Peer(connection))

    return scripted(run)


def answering(answer: Callable[[Peer, Request], Awaitable[None]], settings: Mapping[int, int] | None = None) -> Script:
    """A script that begins and then answers every call in turn."""

    async def script(peer: Peer) -> None:
        await peer.begin(settings)
        while True:
            await answer(peer, await peer.request())

    return script


def settings_of(values: Mapping[int, int]) -> bytes:
    payload = b"".join(struct.pack(">HI", key, value) for key, value in values.items())
    return head(len(payload), SETTINGS, 0, 0) + payload


def headers(stream: int, *fields: tuple[str, str], end: bool = False, status: bytes = STATUS_200) -> bytes:
    block = status + encode_fields(fields)
    return head(len(block), HEADERS, END_HEADERS | (END_STREAM if end else 0), stream) + block


def trailers(stream: int, *fields: tuple[str, str]) -> bytes:
    return headers(stream, *fields, end=True, status=b"")


def data(stream: int, payload: bytes, end: bool = False) -> bytes:
    return head(len(payload), DATA, END_STREAM if end else 0, stream) + payload


def message(content: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(content)) + content


def good(stream: int, *contents: bytes) -> bytes:
    """A whole answer."""
    return (
        headers(stream, *GOOD_HEAD)
        + b"".join(data(stream, message(content)) for content in contents)
        + trailers(stream, *OK)
    )
