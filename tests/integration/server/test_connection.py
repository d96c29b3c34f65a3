"""Connections of a server in this process, before an application that answers when the test lets it."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from hf_transformer.commands.local_triton import HOST
from tests.integration.server.processes import SECONDS, get, new_certificate, status_of
from tests.integration.server.serving import Gate, serving


async def test_who_waits_for_an_answer_may_take_its_time_with_the_next_request() -> None:
    app = Gate()
    async with serving(app, seconds=0.2) as (_, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(get("/gate") + get("/")[:-2])
        await app.waiting.wait()
        other, others_writer = await asyncio.open_connection(HOST, port)
        others_writer.write(get("/")[:-2])
        assert status_of(await other.read()) == 408  # its time was over later than the first one's would have been
        app.open.set()
        assert status_of(await reader.readuntil(b"\r\n\r\n")) == 200
        for one in (writer, others_writer):
            one.close()


async def test_without_keep_alive_a_new_connection_is_not_closed_at_once() -> None:
    async with serving(Gate(), SECONDS, keep_alive=0) as (_, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        await asyncio.sleep(0.3)
        writer.write(get("/"))
        assert status_of(await reader.read()) == 200  # and it is closed behind the answer
        writer.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder: Path = tmp_path_factory.mktemp("certificate") / "new"
    new_certificate(folder, "localhost")
    return str(folder / "tls.crt"), str(folder / "tls.key")


async def test_a_handshake_that_is_done_after_the_end_has_begun_gets_no_answer(certificate: tuple[str, str]) -> None:
    """Nobody has asked anything there; a status would be taken for the answer to what is asked next."""
    app = Gate()
    trusting = ssl.create_default_context(cafile=certificate[0])
    async with serving(app, SECONDS, certificate) as (server, port):
        late, late_writer = await asyncio.open_connection(HOST, port)
        reader, writer = await asyncio.open_connection(HOST, port, ssl=trusting, server_hostname="localhost")
        writer.write(get("/gate"))
        await app.waiting.wait()  # the one before it has been accepted too
        server.should_exit = True
        with pytest.raises(ConnectionError):
            while True:  # until the server listens no longer
                (await asyncio.open_connection(HOST, port))[1].close()
        await late_writer.start_tls(trusting, server_hostname="localhost")
        assert await late.read() == b""
        app.open.set()
        assert status_of(await reader.read()) == 200
        for one in (writer, late_writer):
            one.close()


async def test_a_handshake_that_does_not_come_is_broken_off(certificate: tuple[str, str]) -> None:
    async with serving(Gate(), 0.2, certificate) as (_, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        assert await reader.read() == b""
        writer.close()
