"""What the tests of text generation share: the goldens, a client of streams, and what Triton says of its models."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from hf_transformer.commands.local_triton import LocalTriton
from tests.integration.conftest import goldens
from tests.support.service import Service

GOLDENS = goldens("text_generation")
TOKENS = GOLDENS["about"]["max_new_tokens"]
CHAT_TOKENS = GOLDENS["about"]["chat_tokens"]
CASES = {name: [case for case in GOLDENS["cases"] if case["model"] == name] for name in ("gpt2", "t5")}
CHATS = GOLDENS["chats"]
COMPLETIONS, CHAT_COMPLETIONS = "/openai/v1/completions", "/openai/v1/chat/completions"
GREEDY: Mapping[str, Any] = {"temperature": 0}
AT_ONCE = 16


def cases_of(model: str) -> list[Any]:
    """The goldens of a model's weights."""
    return CASES[model.partition("_")[0]]


@asynccontextmanager
async def client_of(service: Service, kept: int = 0) -> AsyncIterator[httpx.AsyncClient]:
    """Connections of the event loop; so many are kept for further requests."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=kept)
    async with httpx.AsyncClient(
        base_url=service.url, timeout=60.0, limits=limits, trust_env=False, verify=False
    ) as client:
        yield client


async def complete(client: httpx.AsyncClient, service: Service, prompt: str, **fields: Any) -> dict[str, Any]:
    """The answer of OpenAI's completions, which must succeed; streamed, as if it had not been."""
    body = {"model": service.model, "prompt": prompt, **fields}
    if not fields.get("stream"):
        response = await client.post(COMPLETIONS, json=body)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found
    body["stream_options"] = {"include_usage": True}
    async with client.stream("POST", COMPLETIONS, json=body) as response:
        assert response.status_code == 200, await response.aread()
        chunks = [chunk async for chunk in events(response)]
    return joined(chunks)


def joined(chunks: list[Any]) -> dict[str, Any]:
    """The chunks of one streamed completion as the answer that is not streamed."""
    *pieces, usage = chunks
    assert usage["choices"] == []
    text = "".join(piece["choices"][0]["text"] for piece in pieces)
    finish = [piece["choices"][0]["finish_reason"] for piece in pieces]
    assert finish[:-1] == [None] * (len(pieces) - 1)
    return {"choices": [{"text": text, "finish_reason": finish[-1]}], "usage": usage["usage"]}


async def events(response: httpx.Response) -> AsyncIterator[Any]:
    """The events of a stream, which must end with [DONE]."""
    done = False
    async for line in response.aiter_lines():
        if line:
            assert not done
            assert line.startswith("data: ")
            if done := line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            yield event
    assert done


async def side_by_side(ask: Callable[[Any], Awaitable[Any]], items: Iterable[Any], at_once: int = AT_ONCE) -> list[Any]:
    """The results of ``ask`` for each item, with a limited number of calls at a time."""
    places = asyncio.Semaphore(at_once)

    async def one(item: Any) -> Any:
        async with places:
            return await ask(item)

    return await asyncio.gather(*(one(item) for item in items))


def generations(triton: LocalTriton, model: str) -> dict[str, int]:
    """Counts of Triton's metrics for a test model: started, finished, cancelled and running."""
    text = httpx.get(f"http://{triton.metrics_address}/metrics", trust_env=False, verify=False).text
    counts = {
        state: int(float(value))
        for state, value in re.findall(
            rf'^test_generations{{model="{model}",state="(\w+)"}} (\S+)$', text, re.MULTILINE
        )
    }
    running = re.search(rf'^test_generations_running{{model="{model}"}} (\S+)$', text, re.MULTILINE)
    assert running is not None
    return counts | {"running": int(float(running[1]))}


def executions(triton: LocalTriton, model: str) -> int:
    """How many batches Triton has run."""
    url = f"http://{triton.http_address}/v2/models/{model}/stats"
    stats = httpx.get(url, trust_env=False, verify=False).json()["model_stats"][0]
    return int(stats["execution_count"])
