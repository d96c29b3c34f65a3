"""A stream may end at whatever moment: it is counted once, nothing goes on for it, and what was sent of it is whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.api.generating import PROMPT, Bench, Exchange, bench

PATH = "/openai/v1/completions"
TURNS = 40
"""Turns of the event loop, in more than which each of these streams is over."""
TEXT = " paris is."


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "gpt2", "prompt": PROMPT, "stream": True, **fields}


REQUESTS: dict[str, tuple[str, Any]] = {
    "one text": (PATH, body(stream_options={"include_usage": True})),
    "two texts": (PATH, body(n=2)),
    "V1, several instances": ("/v1/models/gpt2:predict", {"instances": [PROMPT] * 2, "parameters": {"stream": True}}),
    "one event": ("/v2/models/gpt2/generate_stream", {"text_input": PROMPT, "stream": False}),
}


def counted(made: Bench) -> dict[str, float]:
    """The requests that were counted, by their status."""
    found: dict[str, float] = {}
    for line in made.metrics.render().decode().splitlines():
        if line.startswith("hf_transformer_requests_total{") and (number := float(line.split()[-1])):
            status = line.partition('status="')[2].partition('"')[0]
            found[status] = found.get(status, 0) + number
    return found


async def ended(made: Bench, name: str, end: str, turns: int) -> bytes | None:
    """Ends a stream after so many turns. Gives what was sent of its body, None where not even a head was."""
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
async def test_its_client_may_leave_at_any_moment(name: str) -> None:
    async with bench(text=TEXT) as made:
        for turns in range(TURNS):
            await ended(made, name, "left", turns)
            assert made.in_flight == 0 and made.service.admission.bytes == 0
            assert all(one.running == 0 for one in made.generators)
            assert made.metric("hf_transformer_generations_in_flight") == 0
            assert sum(counted(made).values()) == turns + 1
        await asyncio.sleep(0)
        assert counted(made).keys() == {"200", "499"}
        assert made.metric('request_predict_seconds_count{model_name="gpt2"}') >= counted(made)["200"]


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
async def test_the_service_may_end_at_any_moment(name: str) -> None:
    seen: set[str] = set()
    for turns in range(TURNS):
        async with bench(text=TEXT) as made:
            content = await ended(made, name, "over", turns)
            assert made.service.admission.bytes == 0
            assert made.metric("hf_transformer_generations_in_flight") == 0
            [(status, number)] = counted(made).items()
            assert number == 1 and content is not None
            assert (b"shutting down" in content) == (status == "503")
            assert content.endswith(b"\n") or not content.startswith(b"data")
            seen.add(status)
    assert seen == {"200", "503"}
