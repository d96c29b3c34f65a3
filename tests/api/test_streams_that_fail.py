"""Streams that fail leave nothing to the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import Iterator

import pytest

from hf_transformer.api.sending import Pushing, Sender
from hf_transformer.errors import PredictorError
from hf_transformer.generation.channel import Channel
from hf_transformer.generation.text import Text
from hf_transformer.generation.types import Step
from hf_transformer.generation.writing import OneText, SeveralTexts
from tests.api.generating import Bench, Exchange
from tests.api.short_exchange import ShortExchange
from tests.api.test_following import PATH, PartExchange, begun, body, pushing

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def unlogged() -> Iterator[None]:
    """pytest keeps what is logged, and with it errors and what they know."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("way", [PartExchange, ShortExchange], ids=["ASGI", "the short way"])
@pytest.mark.parametrize("end", ["late", "late in the middle", "no token"])
async def test_a_stream_that_fails_holds_nothing(end: str, way: type[Exchange] | type[ShortExchange]) -> None:
    async with pushing(timeout=30.0 if end == "no token" else 0.05) as made:
        gc.collect()
        gc.disable()
        try:
            async with way(made.app, PATH, body()) as exchange:
                if end != "late":
                    await begun(made)
                    made.pushed.push(made.steps()[0])
                await exchange.head()
                if end == "no token":
                    made.pushed.push(Step(ids=(-1,)))
                assert b'"error"' in await exchange.rest()
                await exchange.task
            await asyncio.sleep(0)
            left = {type(one) for one in gc.get_objects()}
        finally:
            gc.enable()
    assert not left & {Text, OneText, Pushing, Sender}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_two_texts_that_fail_hold_nothing(stream: bool) -> None:
    error = PredictorError("broken")
    made = Bench(fails=error, after=1)
    await made.model.look()
    gc.collect()
    gc.disable()
    try:
        asked = json.dumps({"model": "gpt2", "prompt": "The capital", "n": 2, "stream": stream}).encode()
        async with Exchange(made.app, "/openai/v1/completions", asked) as exchange:
            await exchange.head()
            assert b"broken" in await exchange.rest()
            await exchange.task
        await asyncio.sleep(0.01)
        error.with_traceback(None)  # the one that the script itself keeps
        left = {type(one) for one in gc.get_objects()}
    finally:
        gc.enable()
        made.executor.shutdown()
    assert not left & {Text, Channel, SeveralTexts}
