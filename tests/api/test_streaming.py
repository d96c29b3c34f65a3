"""Answers that are sent as they come: their place, status, clients that leave or do not read, and the end."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from hf_transformer.api.gateway import GatewaySettings
from hf_transformer.generation.stream import QUEUED_PIECES
from tests.api.generating import PROMPT, Bench, Exchange, application, bench, events, post
from tests.predictor.scripted import until

PATH = "/openai/v1/completions"
LONG = " paris is the capital of france." * 20


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "gpt2", "prompt": PROMPT, "stream": True, "max_tokens": 200, **fields}


@pytest.mark.parametrize(
    ("texts", "ahead"),
    [
        (1, QUEUED_PIECES + 2),  # the queue, one that is being sent, one of each text that waits for room
        (2, QUEUED_PIECES + 3),
    ],
)
async def test_a_client_that_does_not_read_slows_the_model_down(texts: int, ahead: int) -> None:
    async with bench(text=LONG) as made:
        async with Exchange(made.app, PATH, body(n=texts), reads=False) as exchange:
            await until(lambda: exchange.offered == 1)
            for _ in range(1000):
                await asyncio.sleep(0)
            assert made.generator.given == ahead
            exchange.taken.set()
            assert events((await exchange.head(), await exchange.rest())[1])[-1] == "[DONE]"
        assert made.generator.given > QUEUED_PIECES + 3


async def test_a_client_that_does_not_read_may_leave() -> None:
    async with bench(text=LONG) as made:
        async with Exchange(made.app, PATH, body(), reads=False) as exchange:
            await until(lambda: exchange.offered == 1)
            exchange.leave()
            await exchange.task
        assert made.requests("openai", 499) == 1


async def test_the_end_of_the_service_while_the_client_does_not_read_the_head() -> None:
    async with bench() as made:
        async with Exchange(made.app, PATH, body(), reads=False) as exchange:
            await until(lambda: exchange.offered == 1)
            made.service.streams.end_within(0.0)
            await asyncio.sleep(0.01)
            exchange.taken.set()
            await exchange.head()
            assert b"the service is shutting down" in await exchange.rest()
        assert made.requests("openai", 503) == 1


async def test_a_stream_without_a_piece_ends_with_a_real_status() -> None:
    gate = asyncio.Semaphore(0)
    async with bench(gate=gate) as made, Exchange(made.app, PATH, body()) as exchange:
        await until(lambda: made.generator.running == 1)
        made.service.streams.end_within(0.05)
        status, headers = await exchange.head()
        assert status == 503 and headers["retry-after"] == "1"


async def test_a_stream_is_observed_once_it_is_over() -> None:
    gate = asyncio.Semaphore(0)
    count = 'request_predict_seconds_count{model_name="gpt2"}'
    async with bench(gate=gate) as made:
        async with Exchange(made.app, PATH, body()) as exchange:
            gate.release()
            await exchange.head()
            assert made.metric(count) == 0
            for _ in range(20):
                gate.release()
            await exchange.rest()
        assert made.metric(count) == 1


async def test_the_access_log_has_all_bytes_of_a_stream(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("tests.access")
    caplog.set_level(logging.INFO, logger.name)
    async with bench() as made:
        app = application(made.service, GatewaySettings(access_log="%(s)s %(B)s", logger=logger))
        async with Exchange(app, PATH, body()) as exchange:
            await exchange.head()
            content = await exchange.rest()
    assert [record.getMessage() for record in caplog.records] == [f"200 {len(content)}"]


async def test_a_fault_of_the_service_is_logged_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench() as made:
        seen = 0

        def broken(*args: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen > 1:
                raise ZeroDivisionError("a prompt")
            return [{"index": 0, "text": "x", "logprobs": None, "finish_reason": None}]

        monkeypatch.setattr("hf_transformer.api.openai.completions.CompletionForm.chunks", broken)
        status, found = await post(made, PATH, body(), x_request_id="17")
        assert status == 200
        assert found[-1]["error"]["message"] == "internal error; the log has it under 17"
        assert made.requests("openai", 500) == 1
        assert "request 17 failed by a fault of the service" in caplog.text


async def test_a_stream_goes_on_while_another_model_takes_the_place_of_its_own() -> None:
    gate = asyncio.Semaphore(0)
    async with bench(gate=gate) as made, Exchange(made.app, PATH, body()) as exchange:
        gate.release()
        await exchange.head()
        await rebind(made)
        old, new = made.generators
        for _ in range(20):
            gate.release()
        assert events(await exchange.rest())[-1] == "[DONE]"
        assert old.given > 1 and not new.asked


async def rebind(made: Bench) -> None:
    """The predictor has another model from now on, and the service sees it."""
    from dataclasses import replace

    from hf_transformer.types import TensorSpec

    made.predictor.spec = replace(made.predictor.spec, outputs=(TensorSpec("other", "INT32", (1,)),))
    async with asyncio.timeout(20):
        while len(made.generators) < 2:
            assert await made.model.look() == ""
            await asyncio.sleep(0.001)
