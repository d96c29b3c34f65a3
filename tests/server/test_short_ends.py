"""Requests on their short way whose client leaves, or whose server ends."""

from __future__ import annotations

import asyncio

from hf_transformer.commands.local_triton import HOST
from tests.integration.server.processes import SECONDS
from tests.integration.server.serving import serving
from tests.server.test_short_requests import Client, Ways, client_of, post


async def test_a_client_that_leaves_ends_the_work() -> None:
    app = Ways()
    app.open.clear()
    async with client_of(app) as client:
        client.send(post())
        await app.waiting.wait()
        assert not app.cancelled.is_set()
        client.writer.transport.abort()
        async with asyncio.timeout(SECONDS):
            await app.cancelled.wait()
        app.answer(0)  # to nobody


async def test_a_client_that_leaves_after_its_answer_ends_nothing() -> None:
    app = Ways()
    async with client_of(app) as client:
        client.send(post())
        await client.answer()
    assert not app.cancelled.is_set()


async def test_a_request_in_flight_is_answered_when_the_server_ends() -> None:
    app = Ways()
    app.open.clear()
    async with serving(app, SECONDS) as (server, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        client = Client(reader, writer)
        client.send(post())
        await app.waiting.wait()
        server.should_exit = True
        await asyncio.sleep(0.3)
        app.answer(0)
        answer = await client.rest()
        assert answer.count(b"connection: close\r\n") == 1 and answer.endswith(b"short:text")
        writer.close()
