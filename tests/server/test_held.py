"""Requests whose heads come without all of their bodies, as many clients send them; see test_held_cut.py too."""

from __future__ import annotations

import asyncio
import random
import time

import httptools
import pytest

from hf_transformer.commands.local_triton import HOST
from hf_transformer.server.connection import SENDING, SILENT
from hf_transformer.server.known_heads import KnownHeads
from hf_transformer.server.plain_heads import LONGEST, MOST_DIGITS, PlainHeads
from hf_transformer.server.short_requests import MOST_HELD
from tests.integration.server.processes import (
    SECONDS,
    status_of,
)
from tests.integration.server.serving import serving
from tests.server.scripted import Site, turns
from tests.server.test_plain_heads import FRAMED, HARMLESS, MESH, Counted, Parsed, bytes_changed, lines_changed, mixed
from tests.server.test_short_requests import CHUNKED, Client, Ways, client_of, post

USUAL = post()
HEAD = USUAL[:-4]


@pytest.fixture
def site() -> Site:
    return Site(KnownHeads(), body_bytes=2**20)


async def ways_of(site: Site, *reads: bytes) -> list[bytes]:
    """Which way each request went."""
    wire = await site.run(reads)
    return [answer.partition(b":")[0] for answer in wire.written.split(b"\r\n\r\n")[1:]]


async def test_head_and_body_by_themselves_go_the_short_way(site: Site) -> None:
    assert await ways_of(site, *[HEAD, b"text"] * 5) == [b"short"] * 5
    assert await ways_of(site, HEAD, b"t", b"e", b"xt", HEAD + b"te", b"xt") == [b"short"] * 2
    mesh = [read for number in range(5) for read in (post(b"text", *MESH, f"X: {number}")[:-4], b"text")]
    assert await ways_of(site, *mesh) == [b"short"] * 5


async def test_such_a_head_is_learnt_as_any_other(site: Site) -> None:
    await ways_of(site, *[HEAD, b"text"] * 5)
    assert len(site.known) == 1 and len(site.app.asked) == 2  # from its second time on
    await ways_of(site, USUAL, HEAD, b"more")
    assert len(site.app.asked) == 2 and [one.body for one in site.app.taken[-2:]] == [b"text", b"more"]


async def test_larger_bodies_go_the_long_way(site: Site) -> None:
    for size, way in ((MOST_HELD, b"short"), (MOST_HELD + 1, b"long")):
        whole = post(b"a" * size)
        for _ in range(3):
            assert await ways_of(site, whole[:-size], whole[-size:]) == [way]
        assert await ways_of(site, whole[:-1], whole[-1:]) == [way]
        assert await ways_of(site, whole, whole) == [b"short"] * 2


async def test_heads_of_longer_ones_are_not_read_in_vain() -> None:
    known = KnownHeads()
    known.plain = plain = Counted()
    site = Site(known, body_bytes=2**20)
    for head in (HEAD.replace(b": 4", b": 10000"), CHUNKED):
        await site.run([head])
    assert not plain.asked
    for head in (HEAD, HEAD.lower().replace(b"post /short http", b"POST /short HTTP")):
        await site.run([head, b"text"])
    assert plain.asked == plain.count == len(site.app.taken) == 2


async def test_what_the_application_refuses_by_its_head_is_not_waited_for() -> None:
    site = Site(KnownHeads(), body_bytes=4)
    assert await ways_of(site, USUAL[:-4], b"text") == [b"short"]
    longer = post(b"longer")
    await site.teach(longer)
    assert await ways_of(site, longer[:-6], b"longer") == [b"long"]


@pytest.mark.parametrize(
    "whole",
    [
        post(b"text", "Expect: 100-continue"),
        post(b"text", "Connection: close"),
        post(b"text", "Upgrade: h2c"),
        post(b"text", version="1.0"),
        post(b"text", target="/other"),
        post(b"text", "X: \xe9"),
        HEAD.replace(b": 4", b": 04") + b"text",
        HEAD.replace(b": 4", b": " + b"0" * MOST_DIGITS + b"4") + b"text",
        HEAD.replace(b"POST", b"PUT") + b"text",
    ],
)
async def test_odd_heads_are_not_held(site: Site, whole: bytes) -> None:
    for _ in range(3):
        connection, _ = site.connect()
        connection.data_received(whole[:-4])
        assert connection._held is None and not connection.in_head
        connection.connection_lost(None)
        await turns()


async def test_what_else_comes_is_left_to_the_parser(site: Site) -> None:
    assert await ways_of(site, HEAD, USUAL[-4:] + USUAL, USUAL) == [b"long", b"long", b"short"]
    assert await ways_of(site, HEAD, b"text" + HEAD, b"text") == [b"long", b"long"]
    wire = await site.run([HEAD, b"textno HTTP\r\n\r\n"])
    assert status_of(wire.written) == 400 and wire.written.count(b"HTTP/1.1") == 1


def reads_of(data: bytes) -> bool:
    """Whether a head is held, or begun; the parser has to say the same of it and of a body of that length."""
    read = PlainHeads().read(data, LONGEST, MOST_HELD)
    if read is None:
        return False
    target, headers, end, length = read
    missing = length - (len(data) - end)
    assert 0 <= missing <= MOST_HELD
    parsed = Parsed(data + b"\0" * missing)
    assert (parsed.begun, parsed.ended, parsed.method, parsed.version) == (1, 1, b"POST", "1.1")
    assert parsed.keep_alive and not parsed.upgrade and b"expect" not in dict(headers)
    assert (target, list(headers), len(parsed.body)) == (parsed.target, parsed.headers, length)
    if missing:
        assert not Parsed(data + b"\0" * (missing - 1)).ended
    return missing > 0


def test_what_is_held_is_what_the_parser_reads() -> None:
    whole = post(b"text", "Connection: keep-alive", "X-Name: a b")
    cases = [*bytes_changed(whole[:-4], range(256)), *lines_changed(post(b"text", *MESH)[:-4])]
    assert 1000 < sum(map(reads_of, cases)) < len(cases) / 2
    draw = random.Random(1)
    changed = (mixed(seed) for seed in range(10_000))
    assert sum(reads_of(data[: draw.choice((-4, -3, -1))]) for data in changed) > 100
    assert {line for line in FRAMED if reads_of(post(b"text", line)[:-4])} == HARMLESS


@pytest.mark.parametrize("length", [b"9" * 5000, b"9" * MOST_DIGITS, b"", b"-4", b"4_0", b"\xb2", b"0x4", b"4,4"])
def test_lengths_that_are_none(length: bytes) -> None:
    head = HEAD.replace(b": 4", b": " + length)
    assert not reads_of(head) and not reads_of(head + b"text")
    assert PlainHeads().read(CHUNKED, LONGEST, MOST_HELD) is None
    with pytest.raises(httptools.HttpParserError):
        Parsed(HEAD.replace(b": 4", b": 4_0"))


async def test_what_is_held_is_a_request_that_is_being_sent(site: Site) -> None:
    for before in ([], [USUAL]):
        connection, wire = site.connect()
        for read in before:
            connection.data_received(read)
        idle = connection.state()
        assert idle is not None and idle.kind == SILENT
        connection.data_received(HEAD)
        sending = connection.state()
        assert connection._held is not None and connection.timeout_keep_alive_task is None
        assert sending is not None and sending.kind == SENDING and not sending.is_still(idle)
        connection.shutdown()
        connection.data_received(b"te")
        now = connection.state()
        assert not wire.closing and now is not None and now.is_still(sending)  # a byte now and then does not help
        connection.data_received(b"xt")
        assert wire.written.endswith(b"short:text")
        last = connection.state()
        assert last is not None and last.kind == SILENT and not last.is_still(now)


async def test_without_keep_alive_what_is_held_is_not_cut_off() -> None:
    """uvicorn's timer, which closes the connection, runs when the next request is read."""
    site = Site(KnownHeads(), late=True, keep_alive=0, body_bytes=4)
    site.app.open.clear()
    connection, wire = site.connect()
    connection.data_received(USUAL)
    site.answer()
    connection.data_received(HEAD)
    await turns()
    assert not wire.closing
    connection.data_received(b"text")
    site.answer()
    await turns()
    assert wire.closing and wire.written.count(b"short:text") == 2


async def test_nothing_is_begun_on_a_connection_that_is_closed_or_was_refused_meanwhile(site: Site) -> None:
    for end in ("close", "refuse"):
        connection, wire = site.connect()
        connection.data_received(HEAD)
        if end == "close":
            wire.close()
        else:
            connection.refuse(503, "no")
        connection.data_received(b"text")
        await turns()
        assert not site.app.taken and b"short:" not in wire.written
        connection.connection_lost(None)
        await turns()


async def test_a_slow_client_is_told_so_while_its_request_is_held() -> None:
    app = Ways()
    async with client_of(app, seconds=0.3) as client:
        client.send(USUAL)
        assert (await client.answer())[1] == b"short:text"
        client.send(HEAD)
        began = time.monotonic()
        for _ in range(3):
            await asyncio.sleep(0.05)
            client.send(b"a")
        answer = await client.rest()
        assert status_of(answer) == 408 and answer.count(b"HTTP/1.1") == 1 and time.monotonic() - began > 0.3
    assert len(app.taken) == 1


async def test_a_request_that_is_held_when_the_server_ends_is_answered() -> None:
    async with serving(Ways(), SECONDS) as (server, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        client = Client(reader, writer)
        client.send(HEAD)
        await asyncio.sleep(0.1)
        server.should_exit = True
        await asyncio.sleep(0.3)
        client.send(b"text")
        answer = await client.rest()
        assert answer.count(b"connection: close\r\n") == 1 and answer.endswith(b"short:text")
        writer.close()


async def test_a_request_that_is_held_for_too_long_then_is_broken_off() -> None:
    async with serving(Ways(), SECONDS) as (server, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(HEAD)
        await asyncio.sleep(0.1)
        for connection in list(server.server_state.connections):
            connection.break_off()  # type: ignore[union-attr]  # all are ours
        answer = await Client(reader, writer).rest()
        assert status_of(answer) == 503 and answer.count(b"HTTP/1.1") == 1
        writer.close()
