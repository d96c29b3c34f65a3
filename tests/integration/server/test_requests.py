"""Requests as clients send them: whole, cut, in chunks, one behind the other, broken; what the client gets for each."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from hf_transformer.server.http import HttpConnection
from tests.integration.server.processes import new_certificate
from tests.integration.server.serving import Echo, client_of, running, serving
from tests.support.raw_http import RawHttpClient, connected_to, get, post, post_head, responses_in

PAUSE = 0.05
"""Seconds after which more bytes are another read of the server's."""


async def bodies_of(client: RawHttpClient, number: int) -> list[bytes]:
    return [(await client.response()).body for _ in range(number)]


async def test_the_bytes_of_a_response_and_what_the_application_gets() -> None:
    async with client_of(app := Echo()) as client:
        start, body = await client.response(post(b"text", "X-Name: Value"))
        assert body == b"echo:text"
        lines = start.split(b"\r\n")
        assert lines[0] == b"HTTP/1.1 200 OK" and lines[1].startswith(b"date: ")
        assert lines[2] == b"content-type: text/plain" and lines[3].startswith(b"x-request-id: ")
        assert lines[4:] == [b"x-content-type-options: nosniff", b"content-length: 9", b"", b""]
    [scope] = app.scopes
    assert scope["scheme"] == "http"
    assert list(scope["headers"]) == [(b"host", b"x"), (b"content-length", b"4"), (b"x-name", b"Value")]


async def test_requests_behind_one_that_is_worked_on_wait_for_it() -> None:
    app = Echo()
    app.open.clear()
    async with client_of(app) as client:
        client.send(post(b"1") + post(b"2") + post(b"3"))
        await app.called.wait()
        await asyncio.sleep(PAUSE)
        assert app.bodies == [b"1"]
        app.open.set()
        assert await bodies_of(client, 3) == [b"echo:1", b"echo:2", b"echo:3"]
        client.send(post(b"4"))
        assert await bodies_of(client, 1) == [b"echo:4"]


async def test_without_keep_alive_a_connection_ends_behind_its_answers() -> None:
    """A new connection is not closed at once, but behind its answers: that to a request that came along too."""

    class Slow(Echo):
        async def respond(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(PAUSE)
            await super().respond(scope, receive, send)

    async with client_of(Slow(), keep_alive=0) as client:
        await asyncio.sleep(0.3)
        client.send(post(b"1") + post(b"2"))
        assert [answer.body for answer in responses_in(await client.rest())] == [b"echo:1", b"echo:2"]


async def test_fields_behind_a_body_count_for_their_own_request_only() -> None:
    """The server takes 8,192 bytes of a request's fields; these are 5,000."""
    fields = b"".join(b"X-%d: %s\r\n" % (one, b"a" * 1000) for one in range(5))
    sent = post_head("Transfer-Encoding: chunked") + b"2\r\nte\r\n0\r\n" + fields + b"\r\n"
    async with client_of(Echo()) as client:
        for times in (1, 1, 3):
            client.send(times * sent)
            assert await bodies_of(client, times) == [b"echo:te"] * times


async def test_a_body_that_came_unasked_is_not_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(Echo()) as client:
        client.send(post(b"text", "Expect: 100-continue") + b"no HTTP\r\n\r\n")
        assert [answer.status for answer in responses_in(await client.rest())] == [200, 400]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_who_waits_for_an_answer_may_take_its_time_with_the_next_request() -> None:
    app = Echo()
    app.open.clear()
    async with serving(app, seconds=0.2) as (_, port), connected_to(port) as client, connected_to(port) as slow:
        client.send(post() + get("/")[:-2])
        await app.called.wait()
        slow.send(get("/")[:-2])
        [late] = responses_in(await slow.rest())
        assert late.status == 408  # its time was over later than the first one's would have been
        app.open.set()
        assert (await client.response()).status == 200


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder: Path = tmp_path_factory.mktemp("certificate") / "new"
    return new_certificate(folder, "localhost")


async def test_a_handshake_that_is_done_after_the_end_has_begun_gets_no_answer(certificate: tuple[str, str]) -> None:
    """The connection has no request yet: a client would take a status for the answer to its first one."""
    app = Echo()
    app.open.clear()
    trusting = ssl.create_default_context(cafile=certificate[0])
    tls: dict[str, Any] = {"ssl": trusting, "server_hostname": "localhost"}
    async with (
        serving(app, certificate=certificate) as (server, port),
        connected_to(port) as late,
        connected_to(port, **tls) as client,
    ):
        client.send(post())
        await app.called.wait()  # the connection before it has been accepted too
        server.should_exit = True
        with pytest.raises(ConnectionError):
            while True:  # until the server listens no longer
                async with connected_to(port):
                    pass
        await late.writer.start_tls(trusting, server_hostname="localhost")
        assert await late.rest() == b""
        app.open.set()
        assert (await client.rest()).startswith(b"HTTP/1.1 200")


async def test_a_handshake_that_does_not_come_is_broken_off(certificate: tuple[str, str]) -> None:
    async with client_of(Echo(), seconds=0.2, certificate=certificate) as client:
        assert await client.rest() == b""


class Watched(asyncio.Protocol):
    """A protocol class that notes its calls; the event loop's own are those of asyncio.Protocol."""

    made: dict[str, Any] = {}  # noqa: RUF012 - one server at a time
    asked: set[str] = set()  # noqa: RUF012

    def __init__(self, **given: Any) -> None:
        Watched.made = given

    def __getattribute__(self, name: str) -> Any:
        if not hasattr(asyncio.Protocol, name):
            Watched.asked.add(name)
        return super().__getattribute__(name)

    def connection_made(self, transport: Any) -> None:
        self.made["server_state"].connections.add(self)
        self.transport = transport
        transport.write(b"made")

    def connection_lost(self, exc: Exception | None) -> None:
        self.made["server_state"].connections.discard(self)

    def shutdown(self) -> None:
        self.transport.close()


async def test_uvicorn_passes_and_calls_only_what_our_protocol_class_expects() -> None:
    """Written down nowhere, so a new version may differ."""
    server = uvicorn.Server(uvicorn.Config(Echo(), http=Watched, lifespan="on", log_config=None))
    async with running(server) as port, connected_to(port) as client:
        client.send(get("/"))
        assert await client.until(b"made") == b"made"
        server.should_exit = True
        assert await client.rest() == b""
    assert Watched.made.keys() == {"config", "server_state", "app_state", "_loop"}
    assert Watched.asked - {"made", "transport"} == {"shutdown"}
    state = Watched.made["server_state"]
    assert [name for name, _ in state.default_headers] == [b"date", b"server"]
    assert state.connections == set() and state.total_requests == 0
    assert hasattr(HttpConnection, "shutdown")
