"""The HTTP APIs over real connections: behind our own HTTP class, and as a plain ASGI application behind uvicorn's.

Generated text as it comes: places, statuses, headers, and clients that leave.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hf_transformer.commands.local_triton import HOST
from tests.api.generating import PROMPT, Bench, bench
from tests.integration.hostile.wire import SECONDS
from tests.integration.server.serving import running, serving

STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "OpenAI": ("/openai/v1/completions", {"model": "gpt2", "prompt": PROMPT, "stream": True}),
    "OpenAI, two texts": (
        "/openai/v1/completions",
        {"model": "gpt2", "prompt": PROMPT, "stream": True, "n": 2, "temperature": 0.5},
    ),
    "V1": ("/v1/models/gpt2:predict", {"instances": [PROMPT], "parameters": {"stream": True}}),
    "V2": ("/v2/models/gpt2/generate_stream", {"text_input": PROMPT}),
}
every_api = pytest.mark.parametrize(("path", "body"), STREAMS.values(), ids=STREAMS)


@asynccontextmanager
async def plain(app: Any) -> AsyncIterator[tuple[uvicorn.Server, int]]:
    """A server that has nothing of ours but the application."""
    config = uvicorn.Config(app, http=HttpToolsProtocol, ws="none", lifespan="on", log_config=None)
    async with running(server := uvicorn.Server(config)) as port:
        yield server, port


@asynccontextmanager
async def client_of(serve: Any = serving, **options: Any) -> AsyncIterator[tuple[Bench, httpx.AsyncClient]]:
    """A service with a scripted model, and a client of it without a pool: a stream that is left is closed."""
    limits = httpx.Limits(max_keepalive_connections=0)
    async with bench(**options) as made, serve(made.app) as (_, port):
        url = f"http://{HOST}:{port}"
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=SECONDS, trust_env=False) as client:
            yield made, client


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.001)


def answered(made: Bench, status: int) -> bool:
    """Whether one request was counted with this status, and none is in flight."""
    counts = [made.requests(api, status) for api in ("openai", "v1", "generate")]
    return sum(counts) == 1 and made.in_flight == 0


async def test_endpoints_and_the_other_routes_behind_uvicorns_class(caplog: pytest.LogCaptureFixture) -> None:
    predict = "/v1/models/gpt2:predict"
    async with client_of(plain) as (_, client):
        answer = await client.post(predict, json={"instances": [PROMPT]}, headers={"x-request-id": "1"})
        predicted = {"predictions": [[{"generated_text": f"{PROMPT} paris."}]]}
        assert (answer.status_code, answer.json()) == (200, predicted)
        assert answer.headers["x-request-id"] == "1" and int(answer.headers["content-length"]) == len(answer.content)
        assert (await client.get("/v2/models/gpt2/ready")).json() == {"name": "gpt2", "ready": True}
        assert (await client.get("/no/such/path")).status_code == 404
        assert (await client.put(predict)).status_code == 405
        assert (await client.head("/v2/health/live")).status_code == 200
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@every_api
@pytest.mark.parametrize("serve", [serving, plain], ids=["our class", "uvicorn's"])
async def test_a_piece_is_sent_before_the_next_one_is_made(
    serve: Any, path: str, body: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Semaphore(2)
    async with client_of(serve, gate=gate) as (made, client), client.stream("POST", path, json=body) as response:
        pieces = response.aiter_bytes()
        assert response.status_code == 200 and response.headers["transfer-encoding"] == "chunked"
        assert len(await anext(pieces)) > 0
        assert made.generator.running > 0 and made.generator.given <= 2
        for _ in range(20):
            gate.release()
        rest = b"".join([piece async for piece in pieces])
        assert b"." in rest and b"error" not in rest
        await until(lambda: answered(made, 200))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@every_api
@pytest.mark.parametrize("begun", [False, True], ids=["before the first piece", "behind it"])
async def test_a_client_that_leaves_ends_the_generation_at_once(path: str, body: Any, begun: bool) -> None:
    """No token comes any more, and nothing is being sent: the connection alone tells."""
    async with client_of(gate=asyncio.Semaphore(2 * begun)) as (made, client):

        async def ask() -> None:
            async with client.stream("POST", path, json=body) as response:
                await anext(response.aiter_bytes())
                came.set()
                await asyncio.Event().wait()

        came = asyncio.Event()
        asking = asyncio.create_task(ask())
        await (came.wait() if begun else until(lambda: bool(made.generators) and made.generator.running > 0))
        assert made.generator.running > 0
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: made.generator.running == 0)
        await until(lambda: answered(made, 499))


@every_api
async def test_the_headers_of_a_stream(path: str, body: Any) -> None:
    timing = "generate" not in path
    async with client_of(timing=timing) as (_, client):
        response = await client.post(path, json=body, headers={"x-request-id": "17"})
        kind = "application/jsonl" if "predict" in path else "text/event-stream"
        headers = response.headers
        assert headers["content-type"] == kind and headers["x-request-id"] == "17"
        assert headers["cache-control"] == "no-cache" and "content-length" not in headers
        assert ("server-timing" in headers) is timing
        if timing:
            stages = dict(one.split(";dur=") for one in headers["server-timing"].split(", "))
            assert stages.keys() == {"parse", "tokenize", "queue", "predict", "decode"}
