"""The service as a plain ASGI application, behind uvicorn's own HTTP class instead of ours."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hf_transformer.commands.local_triton import HOST
from tests.api.generating import PROMPT, Bench, bench, events

pytestmark = pytest.mark.asyncio

PREDICTED = {"predictions": [[{"generated_text": f"{PROMPT} paris."}]]}
PATH = "/openai/v1/completions"
STREAM = {"model": "gpt2", "prompt": PROMPT, "stream": True}


@asynccontextmanager
async def client_of(made: Bench) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a pool: a stream that is left is closed."""
    config = uvicorn.Config(made.app, http=HttpToolsProtocol, ws="none", lifespan="on", log_config=None)
    server = uvicorn.Server(config)
    listening = socket.create_server((HOST, 0))
    running = asyncio.create_task(server.serve([listening]))
    url, limits = f"http://{HOST}:{listening.getsockname()[1]}", httpx.Limits(max_keepalive_connections=0)
    try:
        await until(lambda: server.started)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=20, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        await running


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """uvicorn logs what an application raises."""
    yield
    assert not [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.WARNING]


async def test_endpoints_and_the_other_routes() -> None:
    async with bench() as made, client_of(made) as client:
        answer = await client.post(
            "/v1/models/gpt2:predict", json={"instances": [PROMPT]}, headers={"x-request-id": "1"}
        )
        assert (answer.status_code, answer.json()) == (200, PREDICTED)
        assert answer.headers["x-request-id"] == "1" and int(answer.headers["content-length"]) == len(answer.content)
        assert (await client.get("/v2/models/gpt2/ready")).json() == {"name": "gpt2", "ready": True}
        assert (await client.get("/no/such/path")).status_code == 404
        assert (await client.put("/v1/models/gpt2:predict")).status_code == 405
        assert (await client.head("/v2/health/live")).status_code == 200


async def test_a_stream() -> None:
    gate = asyncio.Semaphore(2)
    async with bench(gate=gate) as made, client_of(made) as client:
        async with client.stream("POST", PATH, json=STREAM) as response:
            assert response.status_code == 200 and response.headers["transfer-encoding"] == "chunked"
            pieces = response.aiter_bytes()
            first = await anext(pieces)
            assert made.generator.given <= 2
            for _ in range(20):
                gate.release()
            found = events(first + b"".join([piece async for piece in pieces]))
        assert "".join(one["choices"][0]["text"] for one in found[:-1]) == " paris." and found[-1] == "[DONE]"
        await until(lambda: made.requests("openai", 200) == 1)
