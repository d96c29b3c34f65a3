"""One HttpConnection: bytes in any pieces, and events at any moment and in any order."""

from __future__ import annotations

import asyncio
import errno
import gc
import random
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from hf_transformer.server.http import UNREAD, HttpConnection, HttpRequest
from hf_transformer.types.http import Request, Response, Stream
from tests.support.raw_http import PREDICT, post, request
from tests.wire.connection import (
    HEADER_BYTES,
    LIMITS,
    SEEN,
    STATUS,
    Mirror,
    MirrorApplication,
    Settings,
    Wire,
    byte_by_byte,
    opened,
    outcome,
    settled,
)
from tests.wire.corpus import BAD_CHUNK, CHUNKED, GET, HIDDEN, SEQUENCES, UPGRADE
from tests.wire.differential import run

# Bytes in any pieces give the same requests and answers, and the requests are those of uvicorn's class.

LONG = "X-Long: " + "a" * (HEADER_BYTES - 200)
TRAILERS = b"".join(b"X-%d: %s\r\n" % (number, b"b" * 500) for number in range(9))
SENT = {
    **SEQUENCES,
    "a long head": request("GET /g HTTP/1.1", LONG) * 2,
    "a head that is too long": request("GET /g HTTP/1.1", LONG, LONG) + GET,
    "a head that is too long after another": GET + request("GET /g HTTP/1.1", LONG, LONG) + GET,
    "a head that is too long after an upgrade": request("GET /u HTTP/1.1", *UPGRADE)
    + request("GET /g HTTP/1.1", LONG, LONG),
    "trailers that are too long": GET + CHUNKED[:-2] + TRAILERS + b"\r\n" + GET,
    "a head of an upgrade that is too long": GET + request("GET /u HTTP/1.1", *UPGRADE, LONG, LONG) + GET,
    "a head of an upgrade that is long": GET + request("GET /u HTTP/1.1", *UPGRADE, LONG) + GET,
    "large bodies": post(b"x" * 5000) + post(b"y" * 5000),
}
STEP = 97
"""Bytes between the cuts of a long request. A short one is cut at each byte."""


@pytest.mark.parametrize("sent", SENT.values(), ids=list(SENT))
async def test_bytes_in_any_pieces_have_the_same_outcome(sent: bytes) -> None:
    whole = await outcome(sent)
    assert whole.is_in_order
    assert all(seen.path != "/hidden" for seen in whole.seen)
    for cut in range(1, len(sent), 1 if len(sent) < 1000 else STEP):
        assert (await outcome(sent[:cut], sent[cut:])).stable == whole.stable, cut
    assert (await outcome(*byte_by_byte(sent))).stable == whole.stable


async def test_damaged_requests_are_read_like_by_uvicorns_class() -> None:
    """``python -m tests.wire.differential`` runs more requests."""
    kinds, findings = await run(1500, seed=1)
    assert findings == []
    assert kinds.total() == 1500 and kinds["the same"] > 750


# Events at any moment

FAR = 1e9
"""Time of the event loop, in seconds, after every deadline."""


async def test_the_body_of_a_pipelined_request_is_read_and_has_a_deadline() -> None:
    """The head of the second request pauses reading before its body has arrived."""
    mirror = Mirror()
    async with opened(MirrorApplication(mirror)) as wire:
        await wire.feed(GET + post(b"text")[:-4])
        assert not wire.paused
        wire.protocol.sweep(FAR)
        await settled()
        assert wire.received.count(b"HTTP/1.1") == 2 and b"HTTP/1.1 408" in wire.received and wire.done
    async with opened(MirrorApplication(mirror)) as wire:
        await wire.feed(GET + post(b"text")[:-4], b"text")
        assert wire.received.count(b"HTTP/1.1 200") == 2 and mirror.seen[-1].body == b"text"


async def test_a_client_is_not_too_slow_while_the_service_does_not_read() -> None:
    """A deadline applies again once reading resumes."""
    mirror, gate = Mirror(), asyncio.Event()

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        await gate.wait()
        await mirror(scope, receive, send)

    sent = post(b"x" * 2 * UNREAD)
    for rest, statuses in ((sent[-UNREAD:], [b"200"]), (b"", [b"408"])):
        gate.clear()
        async with opened(MirrorApplication(waiting)) as wire:
            await wire.feed(sent[:-UNREAD])
            assert wire.paused
            wire.protocol.sweep(FAR)
            await settled()
            assert not wire.done and not wire.received
            gate.set()
            await wire.feed(rest)
            wire.protocol.sweep(FAR)
            await settled()
            assert STATUS.findall(wire.received) == statuses


@pytest.mark.parametrize("codings", [["gzip, chunked"], ["gzip", "chunked"]], ids=["one line", "two lines"])
async def test_an_unknown_transfer_coding_is_refused_after_the_answers_to_earlier_requests(codings: list[str]) -> None:
    """The refused request is finished under its own path, and the application never sees it."""
    mirror = Mirror()
    application = MirrorApplication(mirror)
    async with opened(application) as wire:
        await wire.feed(GET + request("POST /%7A HTTP/1.1", *[f"Transfer-Encoding: {coding}" for coding in codings]))
        assert STATUS.findall(wire.received) == [b"200", b"501"] and wire.done
        assert [request.path for request, _ in application.ends] == ["/g", "/z"] and len(mirror.seen) == 1


async def test_the_body_of_a_request_to_upgrade_is_not_taken_for_requests() -> None:
    """Java's HttpClient asks for an upgrade in its first request. Behind a proxy a body could hide a request."""
    mirror = Mirror()
    async with opened(MirrorApplication(mirror)) as wire:
        await wire.feed(post(HIDDEN, *UPGRADE) + GET)
        assert [(seen.path, seen.body) for seen in mirror.seen] == [(PREDICT, HIDDEN), ("/g", b"")]
        await wire.feed(request("GET /u HTTP/1.1", *UPGRADE) * 3000)
        assert STATUS.findall(wire.received) == [b"200"] * 3002 == [b"200"] * len(mirror.seen)


@pytest.mark.parametrize(("version", "expects"), [("1.1", True), ("1.0", False)])
async def test_only_clients_of_http_1_1_get_100_continue(version: str, expects: bool) -> None:
    """Source: RFC 9110, 10.1.1."""
    async with opened(MirrorApplication(Mirror())) as wire:
        await wire.feed(request(f"POST /e HTTP/{version}", "Content-Length: 4", "Expect: 100-continue"))
        assert wire.received == (b"HTTP/1.1 100 Continue\r\n\r\n" if expects else b"")
        await wire.feed(b"text")
        assert STATUS.findall(wire.received)[-1] == b"200"


ENDS = {
    "idle": b"",
    "half a head": b"GET /g HT",
    "half a body": post(b"text")[:-1],
    "half a body after another": GET + post(b"text")[:-1],
    "asked for the body": post(b"text", "Expect: 100-continue")[:-4],
    "an answer": GET,
    "an answer and no more": request("GET /g HTTP/1.1", "Connection: close"),
    "no HTTP": b"nonsense\r\n\r\n",
    "a bad chunk": BAD_CHUNK,
    "a head that is too long": request("GET /g HTTP/1.1", "X-Long: " + "a" * HEADER_BYTES),
    "501": request("POST /z HTTP/1.1", "Transfer-Encoding: gzip, chunked"),
    "an upgrade": request("GET /u HTTP/1.1", *UPGRADE),
}


class StreamApplication(MirrorApplication):
    """Answers each complete request with a stream. ``open`` is the number of unfinished streams."""

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


async def lose(sent: bytes, turns: int, application: MirrorApplication) -> None:
    """Loses a connection some turns of the event loop after its client has sent bytes."""
    settings = Settings(application)
    wire = Wire(settings.connection())
    wire.full = isinstance(application, StreamApplication) and turns > 2
    if sent:
        wire.protocol.data_received(sent)
    for _ in range(turns):
        await asyncio.sleep(0)
    wire.close()
    await settled()
    assert (
        len({id(request) for request, _ in application.ends}) == len(application.ends)
        and not settings.state.connections
    )
    assert not isinstance(application, StreamApplication) or not application.open
    application.ends.clear()
    for handle in asyncio.get_running_loop()._scheduled:  # type: ignore[attr-defined]
        handle.cancel()  # of connections that linger for a second


@pytest.mark.parametrize("make", [MirrorApplication, StreamApplication])
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 9])
async def test_a_lost_connection_is_freed_without_garbage_collection(turns: int, make: type[MirrorApplication]) -> None:
    """At any moment, each started request ends once, and no reference cycle remains."""
    gc.collect()
    gc.disable()
    gc.freeze()  # excludes existing objects
    try:
        for name, sent in ENDS.items():
            await lose(sent, turns, make(Mirror()))
            assert not any(type(item) in (HttpConnection, HttpRequest) for item in gc.get_objects()), name
    finally:
        gc.enable()  # without the frozen objects, as tests/conftest.py has it


async def test_a_stream_that_fails_is_broken_off_after_its_unread_parts() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"one", b"two"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        raise ValueError("broken")

    async with opened(MirrorApplication(app)) as wire:
        wire.full = True
        await wire.feed(GET)
        assert not wire.closed
        wire.drain()
        await settled()
        assert wire.received.endswith(b"3\r\none\r\n3\r\ntwo\r\n") and wire.closed


class ResetWire(Wire):
    """A transport whose client has reset the connection, unnoticed so far."""

    def write_eof(self) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")


async def test_refusing_a_client_that_has_reset_the_connection_raises_nothing() -> None:
    wire = ResetWire(Settings(MirrorApplication(Mirror())).connection())
    connection = wire.protocol
    wire.protocol.data_received(b"nonsense\r\n\r\n")
    task = connection._task
    await settled()
    assert task.done() and task.exception() is None
    wire.close()
    await settled()


async def test_a_client_that_does_not_read_its_answer_is_disconnected() -> None:
    """Each byte that it reads restarts the time limit."""
    async with opened(MirrorApplication(Mirror())) as wire:
        wire.full = True
        await wire.feed(GET)
        connection, now = wire.protocol, asyncio.get_running_loop().time()
        for later, read in ((0, 0), (LIMITS.seconds, 1), (2 * LIMITS.seconds, 0)):
            wire.unsent -= read
            connection.sweep(now + later)
            assert not wire.closed
        connection.sweep(now + 2 * LIMITS.seconds + 1)
        assert wire.closed


# Events in any order: the connection neither hangs nor fails, and its answers are in order.

ROUNDS = 400
WHOLE = (*SEQUENCES.values(), post(b"x" * 100_000), post(b"y" * 100_000, "Expect: 100-continue"))


class RandomApplication(MirrorApplication):
    """Answers at once, when ``gate`` is set, before reading the body, or as a stream."""

    def __init__(self, rng: random.Random) -> None:
        self.mirror = Mirror()
        super().__init__(self.mirror)
        self._rng = rng
        self.gate = asyncio.Event()
        self.unsent = 0

    async def handle(self, request: Request) -> Response | Stream:
        answer = await self._answer(request)
        if isinstance(answer, Response):
            self.unsent += 1
            answer.sent = self._sent
        return answer

    def _sent(self) -> None:
        self.unsent -= 1

    async def _answer(self, request: Request) -> Response | Stream:
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
    settings = Settings(application := RandomApplication(rng))
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
                application.gate.set()
            case 6:
                application.gate.clear()
            case 7 if rng.random() < 0.2:
                settings.ending = True
                connection.shutdown()
            case 8 if rng.random() < 0.1:
                connection.break_off()
            case number if number < 24 and not wire.paused:
                end_of_head = data.rfind(b"\r\n\r\n", 0, rng.choice((100, 300, 900))) + 4
                size = rng.choice((1, 7, 50, 500, 70_000, end_of_head))
                connection.data_received(data[:size])
                data = data[size:]
            case _:
                await asyncio.sleep(0)
        if wire.paused:
            application.gate.set()
            wire.drain()
            await settled()
            assert wire.done or not wire.paused, "reading does not resume"
    application.gate.set()
    wire.drain()
    await settled()
    remaining = iter([seen.digest for seen in application.mirror.seen])
    assert all(digest in remaining for digest in SEEN.findall(wire.received)), "an answer is out of order"
    if not wire.done:
        assert not wire.paused and not any(request.complete for request in connection._requests)
        connection.sweep(asyncio.get_running_loop().time() + 10 * LIMITS.seconds)
        await settled()
        assert wire.done, "no deadline"
    wire.close()
    await settled()
    assert not application.unsent, "an answer's bytes are held for ever"
    assert not settings.state.connections and len({id(request) for request, _ in application.ends}) == len(
        application.ends
    )


@pytest.mark.parametrize("seed", range(4))
async def test_events_in_any_order_leave_answers_in_order_and_a_deadline(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(ROUNDS):
        try:
            await live(random.Random(f"{seed} {number}"))
        except AssertionError as error:
            raise AssertionError(f"round {number}") from error
    assert not caplog.records
