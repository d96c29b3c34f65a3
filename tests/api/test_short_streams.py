"""Requests for generated text on their short way: they are counted once, whoever ends them, and hold nothing then."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from hf_transformer.api.base import Call, Reply
from hf_transformer.api.endpoint import Endpoint
from hf_transformer.errors import InvalidInput, PredictorError
from tests.api.generating import PROMPT, Bench, Exchange, bench, events
from tests.api.short_exchange import ShortExchange
from tests.api.short_response import Answers

PATH = "/openai/v1/completions"
FIELDS = {"model": "gpt2", "prompt": PROMPT, "max_tokens": 20}
REQUESTS: dict[str, tuple[str, Any]] = {
    "whole": (PATH, FIELDS),
    "stream": (PATH, {**FIELDS, "stream": True, "stream_options": {"include_usage": True}}),
    "V1": ("/v1/models/gpt2:predict", {"instances": [PROMPT]}),
    "V1 stream": ("/v1/models/gpt2:predict", {"instances": [PROMPT], "parameters": {"stream": True}}),
    "generate_stream": ("/v2/models/gpt2/generate_stream", {"text_input": PROMPT}),
    "refused": (PATH, {**FIELDS, "max_tokens": -1}),
    "no JSON": (PATH, b"{"),
}


async def told(made: Bench, way: type[Exchange] | type[ShortExchange], path: str, body: Any) -> Any:
    """Status, headers without those that differ each time, and the body without the moment that it tells."""
    async with way(made.app, path, body, x_request_id="17") as exchange:
        status, found = await exchange.head()
        content = await exchange.rest()
    found.pop("server-timing", None)
    found.pop("content-length", None)  # is the server's on the short way
    return status, found, [one for one in content.split(b",") if b"created" not in one]


@pytest.mark.parametrize("name", REQUESTS)
async def test_both_ways_tell_the_same(name: str) -> None:
    path, body = REQUESTS[name]
    async with bench() as made:
        short = await told(made, ShortExchange, path, body)
        assert short == await told(made, Exchange, path, body)
        assert short[0] == (400 if name in ("refused", "no JSON") else 200)
    assert sum(made.requests(api, short[0]) for api in ("openai", "v1", "generate")) == 2


@pytest.mark.parametrize("after", [0, 2], ids=["before the first piece", "after it"])
async def test_both_ways_tell_of_an_error(after: int) -> None:
    async with bench(fails=PredictorError("it broke"), after=after) as made:
        short = await told(made, ShortExchange, *REQUESTS["stream"])
        assert short == await told(made, Exchange, *REQUESTS["stream"])
        assert made.requests("openai", 502) == 2 and short[0] == (200 if after else 502)


async def test_a_body_may_be_compressed() -> None:
    async with bench() as made:
        body = gzip.compress(json.dumps(FIELDS).encode())
        async with ShortExchange(made.app, PATH, body, content_encoding="gzip") as exchange:
            assert (await exchange.head())[0] == 200
        assert made.service.bodies.held == 0


async def test_a_client_that_leaves_at_once_is_counted_and_nothing_is_begun() -> None:
    async with bench() as made:
        async with ShortExchange(made.app, PATH, FIELDS) as exchange:
            exchange.leave()
        assert exchange.offered == 0 and not exchange.broken
        assert made.requests("openai", 499) == 1 and not made.generator.asked
        assert made.service.bodies.held == 0


@pytest.mark.parametrize("begun", [False, True])
async def test_a_server_that_gives_the_task_up_has_the_connection_closed(begun: bool) -> None:
    gate = asyncio.Semaphore(0)
    async with bench(gate=gate) as made:
        async with ShortExchange(made.app, *REQUESTS["stream"]) as exchange:
            if begun:
                gate.release()
                await exchange.head()
                assert events(await exchange.piece() or b"")
            else:
                await asyncio.sleep(0.01)
            exchange.task.cancel()
            await asyncio.wait([exchange.task])
            assert exchange.broken and exchange.task.cancelled()
            assert await exchange.rest() == b""
        assert made.service.bodies.held == 0


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Without the collector, which would hide that objects refer to each other."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("end", ["answered", "left at once", "left", "left unread", "refused", "over"])
@pytest.mark.parametrize("name", ["stream", "whole"])
async def test_at_its_end_a_request_holds_nothing(uncollected: None, name: str, end: str) -> None:
    path, fields = REQUESTS[name]
    body = json.dumps({**fields, "max_tokens": -1 if end == "refused" else 20}).encode()
    gate = asyncio.Semaphore(0)
    async with bench(gate=gate) as made:
        exchange = ShortExchange(made.app, path, body, reads=end != "left unread")
        before = sys.getrefcount(body)
        async with exchange:
            assert sys.getrefcount(body) > before
            if end == "left at once":
                exchange.leave()
            gate.release()
            await asyncio.sleep(0.02)
            if end == "over":
                made.service.streams.end_within(0.0)
                await asyncio.sleep(0.02)
            if end in ("answered", "over"):
                for _ in range(20):
                    gate.release()
                await exchange.head()
                await exchange.rest()
        assert sys.getrefcount(body) == before
        assert made.service.bodies.held == 0


@pytest.mark.parametrize("end", ["failed", "over"])
async def test_a_stream_that_ends_before_its_first_piece_holds_nothing(uncollected: None, end: str) -> None:
    body = json.dumps(REQUESTS["stream"][1]).encode()
    gate = asyncio.Semaphore(0)
    async with bench(gate=gate, fails=PredictorError("it broke")) as made:
        exchange = ShortExchange(made.app, PATH, body)
        before = sys.getrefcount(body)
        async with exchange:
            await asyncio.sleep(0.01)
            if end == "failed":
                gate.release()
            else:
                made.service.streams.end_within(0.0)
            assert (await exchange.head())[0] == (502 if end == "failed" else 503)
            await exchange.rest()
        assert sys.getrefcount(body) == before


class Untold(Exception):
    """Even the answer to an error could not be made."""


class Unanswered(Answers):
    """Is told to close the connection, perhaps by a task."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = 0

    def hold(self, task: asyncio.Task[None]) -> None:
        """Does not keep it: what it fails with is told to the event loop."""

    def break_off(self) -> None:
        self.broken += 1


@pytest.mark.parametrize("name", ["short_way", "short_way_in_task"])
async def test_a_fault_that_can_not_be_told_closes_the_connection(name: str) -> None:
    """Its client would wait for ever."""

    async def handle(call: Call) -> Reply:
        await asyncio.sleep(0)
        raise InvalidInput("wrong")

    def untold(message: str, status: int) -> bytes:
        raise Untold(message)

    raised: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context["exception"]))
    async with bench() as made:
        response = Unanswered()
        getattr(Endpoint("v1", handle, untold, made.service), name)("/path", {})([])(b"{}", "http", response)
        for _ in range(5):
            await asyncio.sleep(0)
        assert response.broken == 1 and not response.all
        assert made.service.bodies.held == 0
    gc.collect()
    assert [type(error) for error in raised] == [Untold]
