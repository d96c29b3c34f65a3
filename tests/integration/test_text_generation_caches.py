"""A model that takes caches, on the real Triton: the choices of one prompt, and the limit of all caches."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.conftest import Serve
from tests.integration.generating import COMPLETIONS, client_of, complete, start

MODEL = "gpt2_past"
PROMPT = "The capital of france is"
LIMIT = 240 * 1024
"""Of 240 tokens: one has two layers' keys and values, 64 FP32 each."""
LONG = {"max_tokens": 150, "temperature": 0, "ignore_eos": True}


async def test_the_choices_of_a_prompt_are_those_of_their_seeds(serve: Serve) -> None:
    service = start(serve, MODEL)
    async with client_of(service) as client:
        how = {"max_tokens": 12, "temperature": 1.3, "ignore_eos": True}
        together = await complete(client, service, PROMPT, n=8, seed=40, **how)
        alone = [await complete(client, service, PROMPT, seed=40 + choice, **how) for choice in range(8)]
    texts = [one["text"] for one in together["choices"]]
    assert texts == [one["choices"][0]["text"] for one in alone]
    assert len(set(texts)) > 2
    assert together["usage"]["prompt_tokens"] == alone[0]["usage"]["prompt_tokens"]
    assert together["usage"]["completion_tokens"] == 8 * 12


async def test_texts_that_do_not_fit_at_the_same_time_wait_for_each_other(serve: Serve) -> None:
    service = start(serve, MODEL, "grpc-v2", f"--max_cache_bytes={LIMIT}")
    async with client_of(service) as client:
        alone = await complete(client, service, PROMPT, **LONG)
        runs = [complete(client, service, PROMPT, **LONG, stream=stream) for stream in (False, True)]
        for found in await asyncio.gather(*runs):
            assert found["choices"][0]["text"] == alone["choices"][0]["text"]
            assert found["usage"] == alone["usage"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_text_that_can_never_fit_is_refused_and_choices_wait_for_each_other(serve: Serve, stream: bool) -> None:
    service = start(serve, MODEL, "grpc-v2", f"--max_cache_bytes={LIMIT}")
    body: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "stream": stream, **LONG}
    async with client_of(service) as client:
        response = await client.post(COMPLETIONS, json={**body, "max_tokens": 240, "ignore_eos": True})
        assert response.status_code == 413, response.text
        needed = (7 + 239) * 1024  # the prompt, and all new tokens but the last one
        assert f"needs {needed} bytes, --max_cache_bytes allows {LIMIT}" in response.json()["error"]["message"]
        assert "retry-after" not in response.headers
        assert (await client.post(COMPLETIONS, json={**body, "n": 4})).status_code == 200
