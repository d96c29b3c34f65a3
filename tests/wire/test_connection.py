"""One connection of the class: its bytes in any pieces, and whatever happens to it at each moment and in any order."""

from __future__ import annotations

import asyncio
import errno
import gc
import random
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from hf_transformer.server.http import HttpConnection, HttpRequest
from hf_transformer.types.http import Request, Response, Stream
from tests.support.raw_http import PREDICT, post, request
from tests.wire.connection import (
    HEADER_BYTES,
    LIMITS,
    SEEN,
    STATUS,
    Door,
    Mirror,
    Settings,
    Wire,
    byte_by_byte,
    opened,
    outcome,
    settled,
)
from tests.wire.corpus import BAD_CHUNK, CHUNKED, GET, HIDDEN, SEQUENCES, UPGRADE
from tests.wire.differential import run

# The same bytes in any pieces are the same requests, those that uvicorn's class sees, and get the same answers.

LONG = "X-Long: " + "a" * (HEADER_BYTES - 200)
TRAILERS = b"".join(b"X-%d: %s\r\n" % (number, b"b" * 500) for number in range(9))
SENT = {
    **SEQUENCES,
    "a long head": request("GET /g HTTP/1.1", LONG) * 2,
    "a head that is too long": request("GET /g HTTP/1.1", LONG, LONG) + GET,
    "a head that is too long behind another": GET + request("GET /g HTTP/1.1", LONG, LONG) + GET,
    "a head that is too long behind an upgrade": request("GET /u HTTP/1.1", *UPGRADE)
    + request("GET /g HTTP/1.1", LONG, LONG),
    "trailers that are too long": GET + CHUNKED[:-2] + TRAILERS + b"\r\n" + GET,
    "a head of an upgrade that is too long": GET + request("GET /u HTTP/1.1", *UPGRADE, LONG, LONG) + GET,
    "a head of an upgrade that is long": GET + request("GET /u HTTP/1.1", *UPGRADE, LONG) + GET,
    "large bodies": post(b"x" * 5000) + post(b"y" * 5000),
}
STEP = 97
"""Bytes between the cuts of a long request; a short one is cut at every byte."""


@pytest.mark.parametrize("sent", SENT.values(), ids=list(SENT))
async def test_cut_at_every_byte_and_byte_by_byte(sent: bytes) -> None:
    whole = await outcome(sent)
    assert whole.is_in_order
    assert all(seen.path != "/hidden" for seen in whole.seen)
    for cut in range(1, len(sent), 1 if len(sent) < 1000 else STEP):
        assert (await outcome(sent[:cut], sent[cut:])).shown == whole.shown, cut
    assert (await outcome(*byte_by_byte(sent))).shown == whole.shown


async def test_damaged_requests_are_those_that_uvicorns_class_sees() -> None:
    """The whole test is ``python -m tests.wire.differential``."""
    kinds, findings = await run(1500, seed=1)
    assert findings == []
    assert kinds.total() == 1500 and kinds["the same"] > 750


# At each moment

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
        assert [(seen.path, seen.body) for seen in mirror.seen] == [(PREDICT, HIDDEN), ("/g", b"")]
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
    "a bad chunk": BAD_CHUNK,
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


# In any order: it neither hangs nor breaks, and its answers are in order.

ROUNDS = 400
WHOLE = (*SEQUENCES.values(), post(b"x" * 100_000), post(b"y" * 100_000, "Expect: 100-continue"))


class MoodyDoor(Door):
    """Answers at once, when it is let, early, or as a stream."""

    def __init__(self, rng: random.Random) -> None:
        self.mirror = Mirror()
        super().__init__(self.mirror)
        self._rng = rng
        self.gate = asyncio.Event()

    async def handle(self, request: Request) -> Response | Stream:
        match self._rng.randrange(4):
            case 0:
                return Response(413, b"", [])
            case 1:
                await self.gate.wait()
        answer = await super().handle(request)
        if isinstance(answer, Response) and self._rng.random() < 0.3:
            return Stream(200, answer.body, self._parts(), answer.headers[:2])
        return answer

    async def _parts(self) -> Any:
        for _ in range(3):
            await asyncio.sleep(0)
            yield b"part"


async def live(rng: random.Random) -> None:
    settings = Settings(door := MoodyDoor(rng))
    connection = settings.connection()
    wire = Wire(connection)
    data = b"".join(rng.choice(WHOLE) for _ in range(rng.randrange(1, 5)))
    late = 0.0
    while data and not wire.done:
        match rng.randrange(40):
            case 0:
                wire.full = True
            case 1 | 2:
                wire.drain()
            case 3:
                late += rng.choice((0, LIMITS.seconds / 2))
                connection.sweep(asyncio.get_running_loop().time() + late)
            case 4 | 5:
                door.gate.set()
            case 6:
                door.gate.clear()
            case 7 if rng.random() < 0.2:
                settings.ending = True
                connection.shutdown()
            case 8 if rng.random() < 0.1:
                connection.break_off()
            case number if number < 24 and not wire.paused:
                behind_a_head = data.rfind(b"\r\n\r\n", 0, rng.choice((100, 300, 900))) + 4
                size = rng.choice((1, 7, 50, 500, 70_000, behind_a_head))
                connection.data_received(data[:size])
                data = data[size:]
            case _:
                await asyncio.sleep(0)
        if wire.paused:
            door.gate.set()
            wire.drain()
            await settled()
            assert wire.done or not wire.paused, "it does not read on"
    door.gate.set()
    wire.drain()
    await settled()
    answered, seen = SEEN.findall(wire.received), [one.digest for one in door.mirror.seen]
    left = iter(seen)
    assert all(one in left for one in answered), "an answer that is not in order"
    if not wire.done:
        assert not wire.paused and not any(request.complete for request in connection._requests)
        connection.sweep(asyncio.get_running_loop().time() + 10 * LIMITS.seconds)
        await settled()
        assert wire.done, "no deadline"
    wire.close()
    await settled()
    assert not settings.state.connections and len({id(one) for one, _ in door.ends}) == len(door.ends)


@pytest.mark.parametrize("seed", range(4))
async def test_any_order(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(ROUNDS):
        try:
            await live(random.Random(f"{seed} {number}"))
        except AssertionError as error:
            raise AssertionError(f"round {number}") from error
    assert not caplog.records
