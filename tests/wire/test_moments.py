"""One connection of the class, and what happens to it at each moment."""

from __future__ import annotations

import asyncio
import errno
import gc
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from hf_transformer.server.http import HttpConnection, HttpRequest
from hf_transformer.types import Request, Response, Stream
from tests.wire.connection import HEADER_BYTES, LIMITS, STATUS, Door, Mirror, Settings, Wire, opened, settled
from tests.wire.corpus import GET, HIDDEN, UPGRADE, post, request

FAR = 1e9
"""Seconds: a time of the event loop at which every deadline is over."""


async def test_a_body_that_begins_while_another_is_answered_is_read_and_has_a_deadline() -> None:
    """Its head pauses the reading, and nothing of its body is there that the application could take."""
    mirror = Mirror()
    async with opened(Door(mirror)) as wire:
        await wire.feed(GET + post(b"text")[:-4])
        assert not wire.paused
        wire.protocol.sweep(FAR)
        await settled()
        assert wire.received.count(b"HTTP/1.1") == 2 and b"HTTP/1.1 408" in wire.received and wire.done
    async with opened(Door(mirror)) as wire:
        await wire.feed(GET + post(b"text")[:-4], b"text")
        assert wire.received.count(b"HTTP/1.1 200") == 2 and mirror.seen[-1].body == b"text"


@pytest.mark.parametrize("codings", [["gzip, chunked"], ["gzip", "chunked"]], ids=["one line", "two lines"])
async def test_a_coding_that_is_not_understood_costs_no_other_request_its_answer(codings: list[str]) -> None:
    """501 belongs to the request that has the coding, and is told by its own path; the application never sees it."""
    mirror = Mirror()
    door = Door(mirror)
    async with opened(door) as wire:
        await wire.feed(GET + request("POST /%7A HTTP/1.1", *[f"Transfer-Encoding: {one}" for one in codings]))
        assert STATUS.findall(wire.received) == [b"200", b"501"] and wire.done
        assert [one.path for one, _ in door.ends] == ["/g", "/z"] and len(mirror.seen) == 1


async def test_the_body_of_a_request_to_upgrade_is_its_body() -> None:
    """Java's HttpClient sends its first request so; behind a proxy it would hide a request."""
    mirror = Mirror()
    async with opened(Door(mirror)) as wire:
        await wire.feed(post(HIDDEN, *UPGRADE) + GET)
        assert [(seen.path, seen.body) for seen in mirror.seen] == [("/p", HIDDEN), ("/g", b"")]
        await wire.feed(request("GET /u HTTP/1.1", *UPGRADE) * 3000)
        assert STATUS.findall(wire.received) == [b"200"] * 3002 == [b"200"] * len(mirror.seen)


@pytest.mark.parametrize(("version", "asked"), [("1.1", True), ("1.0", False)])
async def test_a_client_of_http_1_0_is_not_asked_for_its_body(version: str, asked: bool) -> None:
    """A server must not (RFC 9110, 10.1.1)."""
    async with opened(Door(Mirror())) as wire:
        await wire.feed(request(f"POST /e HTTP/{version}", "Content-Length: 4", "Expect: 100-continue"))
        assert wire.received == (b"HTTP/1.1 100 Continue\r\n\r\n" if asked else b"")
        await wire.feed(b"text")
        assert STATUS.findall(wire.received)[-1] == b"200"


ENDS = {
    "idle": b"",
    "half a head": b"GET /g HT",
    "half a body": post(b"text")[:-1],
    "half a body behind another": GET + post(b"text")[:-1],
    "asked for the body": post(b"text", "Expect: 100-continue")[:-4],
    "an answer": GET,
    "an answer and no more": request("GET /g HTTP/1.1", "Connection: close"),
    "no HTTP": b"nonsense\r\n\r\n",
    "a bad chunk": request("POST /g HTTP/1.1", "Transfer-Encoding: chunked") + b"2\r\nte\r\nzz\r\n",
    "a head that is too long": request("GET /g HTTP/1.1", "X-Long: " + "a" * HEADER_BYTES),
    "501": request("POST /z HTTP/1.1", "Transfer-Encoding: gzip, chunked"),
    "an upgrade": request("GET /u HTTP/1.1", *UPGRADE),
}


class StreamDoor(Door):
    """Answers each request with a stream, once it has its body; ``open`` are under way."""

    open = 0

    async def handle(self, request: Request) -> Response | Stream:
        while await request.read():
            pass
        parts = self._parts()
        return Stream(200, await anext(parts), parts, [])

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        self.open += 1
        try:
            for _ in range(3):
                yield b"part"
                await asyncio.sleep(0)
        finally:
            self.open -= 1


async def lose(sent: bytes, turns: int, door: Door) -> None:
    """A connection that is lost so many turns of the event loop after its client has sent something."""
    settings = Settings(door)
    wire = Wire(settings.connection())
    wire.full = isinstance(door, StreamDoor) and turns > 2
    if sent:
        wire.protocol.data_received(sent)
    for _ in range(turns):
        await asyncio.sleep(0)
    wire.close()
    await settled()
    assert len({id(request) for request, _ in door.ends}) == len(door.ends) and not settings.state.connections
    assert not isinstance(door, StreamDoor) or not door.open
    door.ends.clear()
    for handle in asyncio.get_running_loop()._scheduled:  # type: ignore[attr-defined]
        handle.cancel()  # what lingers, lingers for a second


@pytest.mark.parametrize("door_of", [Door, StreamDoor])
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 9])
async def test_a_connection_that_is_lost_is_freed_without_the_collector(turns: int, door_of: type[Door]) -> None:
    """At whatever moment: each request that had its turn ends once, and nothing refers back to any of it."""
    gc.collect()
    gc.disable()
    gc.freeze()  # what is there already is not looked through
    try:
        for name, sent in ENDS.items():
            await lose(sent, turns, door_of(Mirror()))
            assert [one for one in gc.get_objects() if type(one) in (HttpConnection, HttpRequest)] == [], name
    finally:
        gc.unfreeze()
        gc.enable()


async def test_a_stream_that_fails_behind_what_its_client_has_not_read_yet_is_broken_off() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"one", b"two"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        raise ValueError("broken")

    async with opened(Door(app)) as wire:
        wire.full = True
        await wire.feed(GET)
        assert not wire.closed
        wire.drain()
        await settled()
        assert wire.received.endswith(b"3\r\none\r\n3\r\ntwo\r\n") and wire.closed


class ResetWire(Wire):
    """Its client has reset the connection, which nobody has noticed yet."""

    def write_eof(self) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")


async def test_a_client_that_has_reset_what_it_is_refused_on_leaves_no_traceback() -> None:
    wire = ResetWire(Settings(Door(Mirror())).connection())
    connection = wire.protocol
    wire.protocol.data_received(b"nonsense\r\n\r\n")
    task = connection._task
    await settled()
    assert task.done() and task.exception() is None
    wire.close()
    await settled()


async def test_a_client_that_reads_nothing_of_an_answer_is_cut_off_in_time() -> None:
    """Each byte that it reads begins its time anew."""
    async with opened(Door(Mirror())) as wire:
        wire.full = True
        await wire.feed(GET)
        connection, now = wire.protocol, asyncio.get_running_loop().time()
        for later, read in ((0, 0), (LIMITS.seconds, 1), (2 * LIMITS.seconds, 0)):
            wire.unsent -= read
            connection.sweep(now + later)
            assert not wire.closed
        connection.sweep(now + 2 * LIMITS.seconds + 1)
        assert wire.closed
