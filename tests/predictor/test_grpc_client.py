"""The gRPC client against a server that follows a script, for what no gRPC server can be made to do."""

from __future__ import annotations

import asyncio

import pytest

from hf_transformer.predictor import grpc_client, kinds
from hf_transformer.predictor.address import Address
from hf_transformer.predictor.grpc_client import authority
from hf_transformer.predictor.grpc_status import RpcError, Status
from hf_transformer.predictor.http2_frames import (
    GOAWAY,
    HEADERS,
    RST_STREAM,
    SETTINGS_ACK,
    WINDOW_UPDATE,
    Setting,
    head,
    ping_frame,
    reset_frame,
)
from tests.predictor.fault_server import Connection, nobody, scripted
from tests.predictor.grpc_calls import ask, echo, fails, goaway, opened
from tests.predictor.http2_server import (
    GOOD_HEAD,
    OK,
    Peer,
    Request,
    answering,
    data,
    good,
    headers,
    message,
    serving,
    settings_of,
    trailers,
)

pytestmark = pytest.mark.asyncio


async def test_what_is_sent() -> None:
    seen: list[Request] = []

    async def answer(peer: Peer, request: Request) -> None:
        seen.append(request)
        await peer.send(good(request.stream, b"world"))

    async with serving(answering(answer)) as host, opened(host, 1.5) as client:
        method = client.method("/a.B/C", [("x", "y")])
        for metadata in ((), (("a", "b"), ("authorization", "c"))):
            assert await client.unary(method, b"hello", metadata) == b"world"
    assert [one.stream for one in seen] == [1, 3]
    assert seen[1].message == b"hello"
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/a.B/C",
        ":authority": host,
        "content-type": "application/grpc",
        "te": "trailers",
        "grpc-accept-encoding": "identity",
        "x": "y",
        "grpc-timeout": "2500m",  # ours, and what a call that is given up may linger
    }
    assert seen[1].fields == {**fields, "a": "b", "authorization": "c"}
    first = int(seen[0].fields["grpc-timeout"].removesuffix("m"))
    assert 2000 < first <= 2500, "what is left when the connection stands"


@pytest.mark.parametrize(
    ("seconds", "value"),
    [(0.0001, "1m"), (1.0001, "1001m"), (600, "600000m"), (10**6, "1000000S"), (10**9, "99999999S")],
)
async def test_how_the_time_is_told(seconds: float, value: str) -> None:
    assert grpc_client._timeout_field(seconds).endswith(value.encode())


async def test_what_stands_for_host() -> None:
    assert authority(Address("triton", 80, False)) == "triton:80"
    assert authority(Address("fe80::1%eth0", 8001, True)) == "[fe80::1]:8001"
    assert authority(Address("bücher.example", 1, False)) == "xn--bcher-kva.example:1"


@pytest.mark.parametrize("step", [1, 3, 10])
async def test_an_answer_in_pieces(step: int) -> None:
    async def answer(peer: Peer, request: Request) -> None:
        wire = good(request.stream, b"the answer")
        for at in range(0, len(wire), step):
            await peer.send(wire[at : at + step])
            await asyncio.sleep(0)

    async with serving(answering(answer)) as host, opened(host) as client:
        assert [await ask(client), await ask(client)] == [b"the answer"] * 2


async def test_a_large_answer_in_frames_of_any_size() -> None:
    content = bytes(range(251)) * 20_000

    async def answer(peer: Peer, request: Request) -> None:
        wire, at, size = message(content), 0, 7
        await peer.send(headers(request.stream, *GOOD_HEAD))
        while at < len(wire):
            await peer.send(data(request.stream, wire[at : at + size]))
            at, size = at + size, size * 3
        await peer.send(trailers(request.stream, *OK))

    async with serving(answering(answer)) as host, opened(host) as client:
        assert await ask(client) == content
        assert await ask(client) == content


@pytest.mark.parametrize(
    ("frames", "status", "said"),
    [
        ([headers(1, *GOOD_HEAD, ("grpc-status", "9"), ("grpc-message", "%21"), end=True)], "FAILED_PRECONDITION", "!"),
        ([headers(1, *GOOD_HEAD), trailers(1, ("grpc-status", "5"))], "NOT_FOUND", ""),
        ([headers(1, *GOOD_HEAD), data(1, message(b"x")), trailers(1, ("grpc-status", "8"))], "RESOURCE_EXHAUSTED", ""),
        ([headers(1, *GOOD_HEAD), data(1, message(b"x")), trailers(1, ("a", "b"))], "UNKNOWN", "without a status"),
        ([headers(1, *GOOD_HEAD), data(1, message(b"x"), end=True)], "UNKNOWN", "without a status"),
        ([headers(1, ("content-type", "text/html")), data(1, b"<html>")], "UNKNOWN", "'text/html', expected appl"),
        ([headers(1, status=b"\x8d", end=True)], "UNIMPLEMENTED", "header with status: 404"),
        ([headers(1, status=b"\x8d"), data(1, b"not found", end=True)], "UNIMPLEMENTED", "header with status: 404"),
        ([headers(1, (":status", "503"), status=b"")], "UNAVAILABLE", "header with status: 503"),
        ([headers(1, ("a", "b"), status=b"")], "UNKNOWN", "header with status: "),
        ([headers(1, *GOOD_HEAD), data(1, message(b"x", flag=1))], "INTERNAL", "compressed"),
        ([headers(1, *GOOD_HEAD), data(1, message(b"x") * 2)], "INTERNAL", "more than one message"),
        ([headers(1, *GOOD_HEAD), trailers(1, *OK)], "INTERNAL", "no message"),
        ([headers(1, *GOOD_HEAD), data(1, message(b"xyz")[:-1]), trailers(1, *OK)], "INTERNAL", "middle of a message"),
        ([headers(1, *GOOD_HEAD), headers(1, *GOOD_HEAD)], "INTERNAL", "fields come in the middle"),
        ([data(1, message(b"x"))], "INTERNAL", "no header fields"),
        ([headers(1, *GOOD_HEAD), data(1, message(b"x" * 2000))], "RESOURCE_EXHAUSTED", "larger than max (2000 vs. "),
        ([reset_frame(1, 2)], "INTERNAL", "RST_STREAM with error code 2"),
        ([headers(1, *GOOD_HEAD), reset_frame(1, 8)], "CANCELLED", "RST_STREAM with error code 8"),
    ],
)  # fmt: skip
async def test_answers_that_are_errors(frames: list[bytes], status: str, said: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.begin()
        await peer.request()
        await peer.send(*frames)
        again = await peer.request()
        await peer.send(good(again.stream, b"fine"))

    async with serving(script) as host, opened(host, largest=1000) as client:
        with pytest.raises(RpcError) as caught:
            await ask(client)
        assert caught.value.status.name == status
        assert said in caught.value.details
        assert await ask(client) == b"fine", "the connection is as good as before"


async def test_interim_answers_are_passed_over() -> None:
    async def answer(peer: Peer, request: Request) -> None:
        early = headers(request.stream, (":status", "103"), ("link", "x"), status=b"")
        await peer.send(early * 3 + good(request.stream, b"fine"))

    async with serving(answering(answer)) as host, opened(host) as client:
        assert await ask(client) == b"fine"


async def test_a_frame_against_the_rules_ends_the_connection() -> None:
    told: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.begin()
        request = await peer.request()
        if peer.number == 0:
            await peer.send(headers(request.stream, *GOOD_HEAD), head(4, WINDOW_UPDATE, 0, 0) + bytes(4))
            told.append((await peer.frame(GOAWAY)).payload)
        else:
            await echo(peer, request)

    async with serving(script) as host, opened(host) as client:
        with pytest.raises(RpcError, match="breaks the rules of HTTP/2: a WINDOW_UPDATE") as caught:
            await ask(client)
        assert caught.value.status is Status.INTERNAL
        assert await ask(client) == b"hello", "on another connection"
    assert told[0][:8] == bytes(7) + b"\1" and b"WINDOW_UPDATE" in told[0]


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        ([], kinds.NO_ANSWER),
        ([ping_frame(b"12345678")], kinds.NO_ANSWER),
        ([headers(1, *GOOD_HEAD)], kinds.LOST),
        ([headers(1, *GOOD_HEAD), data(1, message(b"xyz")[:-1])], kinds.LOST),
        ([goaway(1, 11, b"too_many_pings")], kinds.NO_ANSWER),
    ],
    ids=["at once", "after a ping", "after its head", "midway", "as announced"],
)
@pytest.mark.parametrize("end", ["close", "reset"])
async def test_lost_connections(sent: list[bytes], kind: str, end: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.begin()
        await peer.request()
        await peer.send(*sent)
        if end == "reset":
            await asyncio.sleep(0.02)  # what was sent before would be lost with it, or not
            peer.connection.reset()

    error = await fails(script)
    assert (error.status, error.kind, error.settled) == (Status.UNAVAILABLE, kind, False)
    if sent and sent[0][3] == GOAWAY:
        assert "too_many_pings" in error.details


async def test_nobody_is_there() -> None:
    async with opened(nobody()) as client:
        with pytest.raises(RpcError, match="failed to connect: ") as caught:
            await ask(client)
    assert (caught.value.status, caught.value.kind, caught.value.settled) == (
        Status.UNAVAILABLE,
        kinds.CONNECTION,
        True,
    )


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it begins with b'HTTP/1.1"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "closed the connection"),
        (b"", "closed the connection"),
        (settings_of({}) + goaway(0), "GOAWAY"),
        (settings_of({Setting.MAX_CONCURRENT_STREAMS: 0}), "takes no calls"),
        (settings_of({Setting.MAX_FRAME_SIZE: 1}), "MAX_FRAME_SIZE is 1"),
    ],
    ids=["http/1", "tls", "nothing", "goaway", "no streams", "bad settings"],
)
async def test_no_server_for_us(sent: bytes, said: str) -> None:
    async def script(connection: Connection) -> None:
        await connection.reader.readexactly(24)
        await connection.send(sent)
        if said == "takes no calls":
            await connection.until_closed()

    async with scripted(script) as host, opened(host) as client:
        with pytest.raises(RpcError, match=said) as caught:
            await ask(client)
    assert (caught.value.kind, caught.value.settled) == (kinds.CONNECTION, True)


async def test_a_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_client, "CONNECT_SECONDS", 0.05)
    async with scripted(lambda connection: connection.until_closed()) as host, opened(host) as client:
        with pytest.raises(RpcError, match=r"no connection within 0.05 s") as caught:
            await ask(client)
    assert caught.value.kind == kinds.CONNECTION
    async with scripted(lambda connection: connection.until_closed()) as host, opened(host, 0.02) as client:
        with pytest.raises(RpcError, match=r"there is no connection") as caught:
            await ask(client)
    assert caught.value.status is Status.DEADLINE_EXCEEDED and caught.value.settled


async def test_late_settings_and_their_acknowledgment_are_waited_for() -> None:
    async def script(peer: Peer) -> None:
        await asyncio.sleep(0.05)
        await peer.begin({Setting.INITIAL_WINDOW_SIZE: 3})
        assert (await peer.frame()).kind == WINDOW_UPDATE
        assert head(0, (await peer.frame()).kind, 1, 0) == SETTINGS_ACK
        assert (await peer.frame()).kind == HEADERS
        assert (await peer.frame()).kind == WINDOW_UPDATE
        assert len((await peer.frame()).payload) == 3
        await peer.send(reset_frame(1, RST_STREAM))

    assert "RST_STREAM" in (await fails(script)).details
