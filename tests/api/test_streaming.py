"""Streams: admission, status, clients that disconnect or do not read, and shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hf_transformer.commands.loopback import HOST
from hf_transformer.generation.stream import MAX_QUEUED_PIECES
from hf_transformer.types.tensors import TensorSpec
from tests.api.generating import PROMPT, Exchange, ServedModel, counted, events, post, served_model
from tests.integration.server.serving import running, serving
from tests.support.polling import SECONDS, until

PATH = "/openai/v1/completions"
LONG = " paris is the capital of france." * 20


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "gpt2", "prompt": PROMPT, "stream": True, "max_tokens": 200, **fields}


@pytest.mark.parametrize(
    ("texts", "ahead"),
    [
        (1, MAX_QUEUED_PIECES + 2),  # the queue, a piece of each text being sent, and one of each waiting for room
        (2, MAX_QUEUED_PIECES + 4),
    ],
)
async def test_a_slow_reader_slows_the_generation(texts: int, ahead: int) -> None:
    async with served_model(text=LONG) as made:
        async with Exchange(made.app, PATH, body(n=texts), reads=False) as exchange:
            await until(lambda: exchange.offered == 1)
            for _ in range(1000):
                await asyncio.sleep(0)
            assert made.generator.given == ahead
            exchange.taken.set()
            assert events((await exchange.head(), await exchange.rest())[1])[-1] == "[DONE]"
        assert made.generator.given > MAX_QUEUED_PIECES + 3


async def test_a_stream_without_a_piece_ends_with_its_status() -> None:
    gate = asyncio.Semaphore(0)
    async with served_model(gate=gate) as made, Exchange(made.app, PATH, body()) as exchange:
        await until(lambda: made.generator.running == 1)
        made.service.streams.end_within(0.05)
        status, headers = await exchange.head()
        assert status == 503 and headers["retry-after"] == "1"


async def test_a_stream_is_observed_once_it_is_over() -> None:
    gate = asyncio.Semaphore(0)
    count = 'request_predict_seconds_count{model_name="gpt2"}'
    async with served_model(gate=gate) as made:
        async with Exchange(made.app, PATH, body()) as exchange:
            gate.release()
            await exchange.head()
            assert made.metric(count) == 0
            for _ in range(20):
                gate.release()
            await exchange.rest()
        assert made.metric(count) == 1


async def test_a_fault_of_the_service_is_logged_and_ends_the_stream(
    made: ServedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen = 0

    def broken(*args: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen > 1:
            raise ZeroDivisionError("a prompt")
        return [b'{"index":0,"text":"x","logprobs":null,"finish_reason":null}']

    monkeypatch.setattr("hf_transformer.api.openai.completions.CompletionAnswer.choices", broken)
    status, found = await post(made, PATH, body(), x_request_id="17")
    assert status == 200
    assert found[-1]["error"]["message"] == "internal error; the log has it under 17"
    assert made.requests("openai", 500) == 1
    assert "request 17 failed by a fault of the service" in caplog.text


@pytest.mark.parametrize(("end", "status"), [("left", 499), ("over", 503)])
async def test_an_unread_stream_ends_with_its_client_or_the_service(end: str, status: int) -> None:
    async with served_model(text=LONG) as made:
        async with Exchange(made.app, PATH, body(), reads=False) as exchange:
            await until(lambda: exchange.offered == 1)
            if end == "left":
                exchange.leave()
                await exchange.task
            else:
                made.service.streams.end_within(0.0)
                await asyncio.sleep(0.01)
                exchange.taken.set()
                await exchange.head()
                assert b"the service is shutting down" in await exchange.rest()
        assert made.requests("openai", status) == 1


async def test_a_stream_outlives_the_reload_of_its_model() -> None:
    gate = asyncio.Semaphore(0)
    async with served_model(gate=gate) as made, Exchange(made.app, PATH, body()) as exchange:
        gate.release()
        await exchange.head()
        made.predictor.spec = replace(made.predictor.spec, outputs=(TensorSpec("other", "INT32", (1,)),))
        async with asyncio.timeout(20):
            while len(made.generators) < 2:
                assert await made.model.check_predictor() == ""
                await asyncio.sleep(0.001)
        old, new = made.generators
        for _ in range(20):
            gate.release()
        assert events(await exchange.rest())[-1] == "[DONE]"
        assert old.given > 1 and not new.asked


# A stream may end at any moment: it is counted once, its generation ends, and it sends only complete pieces.

TURNS = 40
"""Turns of the event loop after which each of these streams has ended."""
REQUESTS: dict[str, tuple[str, Any]] = {
    "one text": (PATH, body(stream_options={"include_usage": True})),
    "two texts": (PATH, body(n=2)),
    "V1, several instances": ("/v1/models/gpt2:predict", {"instances": [PROMPT] * 2, "parameters": {"stream": True}}),
    "one event": ("/v2/models/gpt2/generate_stream", {"text_input": PROMPT, "stream": False}),
}


async def ended(made: ServedModel, name: str, end: str, turns: int) -> bytes | None:
    """Ends a stream after some turns. Returns the sent part of its body, None without a head."""
    path, fields = REQUESTS[name]
    async with Exchange(made.app, path, fields) as exchange:
        for _ in range(turns):
            await asyncio.sleep(0)
        if end == "left":
            exchange.leave()
        else:
            made.service.streams.end_within(0.0)
        await asyncio.wait([exchange.task])
        exchange.task.result()
        if not exchange.offered:
            return None
        await exchange.head()
        return await exchange.rest() if end == "over" else b""


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_client_may_disconnect_at_any_moment(name: str) -> None:
    async with served_model(text=" paris is.") as made:
        for turns in range(TURNS):
            await ended(made, name, "left", turns)
            assert made.in_flight == 0 and made.service.admission.bytes == 0
            assert all(one.running == 0 for one in made.generators)
            assert made.metric("hf_transformer_generations_in_flight") == 0
            assert sum(counted(made.metrics).values()) == turns + 1
        await asyncio.sleep(0)
        assert counted(made.metrics).keys() == {"200", "499"}
        assert made.metric('request_predict_seconds_count{model_name="gpt2"}') >= counted(made.metrics)["200"]


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
async def test_the_service_may_shut_down_at_any_moment(name: str) -> None:
    seen: set[str] = set()
    for turns in range(TURNS):
        async with served_model(text=" paris is.") as made:
            content = await ended(made, name, "over", turns)
            assert made.service.admission.bytes == 0
            assert made.metric("hf_transformer_generations_in_flight") == 0
            [(status, number)] = counted(made.metrics).items()
            assert number == 1 and content is not None
            assert (b"shutting down" in content) == (status == "503")
            assert content.endswith(b"\n") or not content.startswith(b"data")
            seen.add(status)
    assert seen == {"200", "503"}


# Over real connections, behind our HTTP protocol class and behind uvicorn's


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
    """A uvicorn server with its own HTTP protocol class."""
    config = uvicorn.Config(app, http=HttpToolsProtocol, ws="none", lifespan="on", log_config=None)
    async with running(server := uvicorn.Server(config)) as port:
        yield server, port


@asynccontextmanager
async def client_of(serve: Any = serving, **options: Any) -> AsyncIterator[tuple[ServedModel, httpx.AsyncClient]]:
    """A service with a scripted model, and a client without keep-alive, which closes abandoned streams."""
    limits = httpx.Limits(max_keepalive_connections=0)
    async with served_model(**options) as made, serve(made.app) as (_, port):
        url = f"http://{HOST}:{port}"
        async with httpx.AsyncClient(
            base_url=url, limits=limits, timeout=SECONDS, trust_env=False, verify=False
        ) as client:
            yield made, client


def answered(made: ServedModel, status: int) -> bool:
    """Whether exactly one request was counted with this status and none is in flight."""
    counts = [made.requests(api, status) for api in ("openai", "v1", "generate")]
    return sum(counts) == 1 and made.in_flight == 0


async def test_all_routes_work_behind_uvicorn_s_protocol(caplog: pytest.LogCaptureFixture) -> None:
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
async def test_a_piece_is_sent_before_the_next_is_generated(
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
@pytest.mark.parametrize("begun", [False, True], ids=["before the first piece", "after it"])
async def test_a_disconnect_ends_the_generation_at_once(path: str, body: Any, begun: bool) -> None:
    """No token is generated and nothing is sent, so only the connection shows the disconnect."""
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
            assert stages.keys() == {"parse", "queue", "predict", "decode"}  # none of a word cache
