"""What goes with a response's head, and what with its end, on the short way: as few writes as there can be."""

from __future__ import annotations

import pytest

from hf_transformer.server.known_heads import KnownHeads
from hf_transformer.short_way import Response
from tests.server.scripted import Site, Wire
from tests.server.test_short_requests import post

pytestmark = pytest.mark.asyncio

LINES = b"content-type: text/plain\r\n"


@pytest.fixture
def site() -> Site:
    return Site(KnownHeads(), late=True)


def asked(site: Site, *, paused: bool = False) -> tuple[Response, Wire]:
    """A request that waits for its response, whose client does not read if ``paused``."""
    site.app.open.clear()
    connection, wire = site.connect()
    connection.data_received(post())
    if paused:
        connection.pause_writing()
    return site.app.taken[-1].response, wire


async def test_head_and_first_part_are_one_write(site: Site) -> None:
    response, wire = asked(site)
    assert response.begin(200, LINES, b"first") is True
    assert wire.writes == 1
    head, _, chunk = wire.written.partition(b"\r\n\r\n")
    assert head.endswith(b"\r\n" + LINES + b"transfer-encoding: chunked") and chunk == b"5\r\nfirst\r\n"


async def test_the_last_parts_and_the_end_are_one_write(site: Site) -> None:
    response, wire = asked(site)
    response.begin(200, LINES)
    assert wire.written.endswith(b"\r\n\r\n")
    before = len(wire.written)
    response.end(b"one", b"", b"x" * 17)
    assert wire.writes == 2
    assert wire.written[before:] == b"3\r\none\r\n11\r\n" + b"x" * 17 + b"\r\n0\r\n\r\n"
    response.end(b"again")
    assert wire.writes == 2


async def test_a_client_that_does_not_read_gets_the_head_alone(site: Site) -> None:
    response, wire = asked(site, paused=True)
    assert response.begin(200, LINES, b"first") is False
    assert wire.written.endswith(b"\r\n\r\n") and b"first" not in wire.written
    assert response.part(b"first") is False


async def test_nothing_goes_to_a_client_that_has_gone(site: Site) -> None:
    site.app.open.clear()
    connection, wire = site.connect()
    connection.data_received(post())
    connection.connection_lost(None)
    response = site.app.taken[-1].response
    assert response.begin(200, LINES, b"first") is False
    response.end(b"last")
    assert wire.writes == 0
