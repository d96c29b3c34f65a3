"""Streams whose pieces are sent in the moment in which they come, past the tasks that wait for their end."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from hf_transformer.api.access_log import AccessLog
from hf_transformer.api.sending import Pushing, Sender
from hf_transformer.api.watching import Watch
from hf_transformer.errors import PredictorError
from hf_transformer.generation.base import GeneratorSettings
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.text import Text
from hf_transformer.generation.types import Step
from hf_transformer.generation.writing import OneText
from hf_transformer.types import ModelSpec
from hf_transformer.whole_response import SEND_PART
from tests.api.generating import ALL, PROMPT, Bench, Exchange, events
from tests.generation.pushed import PushedGenerator
from tests.generation.scripted import LIMITS, SCHEDULING

pytestmark = pytest.mark.asyncio

PATH = "/openai/v1/completions"
CHAT = "/openai/v1/chat/completions"
TEXT = " paris is the capital of france. 😀 Ünïcode"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "gpt2", "prompt": PROMPT, "stream": True, "max_tokens": 200, **fields}


@dataclass
class PushedBench(Bench):
    """Its model's steps come when they are pushed."""

    timeout: float = 30.0
    pushed: PushedGenerator = field(default_factory=lambda: PushedGenerator(ALL))

    def build(self, spec: ModelSpec) -> GenerationPipeline:
        settings = GeneratorSettings(
            model_config={}, eos_ids=frozenset(), pad_id=0, max_length=256, scheduling=SCHEDULING
        )
        return GenerationPipeline(
            self.made_task,
            self.tokenizer,
            self.pushed,
            settings,
            executor=self.executor,
            limits=LIMITS,
            metrics=self.metrics,
            timeout=self.timeout,
        )

    def steps(self, text: str = TEXT) -> list[Step]:
        return [Step(ids=(number,)) for number in self.tokenizer.encode([text])[0].ids]


@asynccontextmanager
async def pushing(**options: Any) -> AsyncIterator[PushedBench]:
    made = PushedBench(**options)
    assert await made.model.look() == ""
    try:
        yield made
        assert made.in_flight == 0 and made.pushed.running == 0 and made.pushed.follower is None
        assert made.metric("hf_transformer_generations_in_flight") == 0
    finally:
        made.executor.shutdown()


class PartExchange(Exchange):
    """Whose server takes parts past ASGI, while ``takes`` says so."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._scope: Any = {**self._scope, SEND_PART: self._part}
        self.takes = True
        self.parts: list[bytes] = []

    def _part(self, piece: bytes) -> bool:
        if self.takes:
            self.parts.append(piece)
            self._messages.put_nowait({"type": "http.response.body", "body": piece, "more_body": True})
        return self.takes


async def followed(made: PushedBench, exchange: Exchange, first: Step) -> bytes:
    """The first piece, once what comes after it is followed."""
    await begun(made)
    made.pushed.push(first)
    assert (await exchange.head())[0] == 200
    piece = await exchange.piece()
    await until(lambda: made.pushed.follower is not None)
    assert piece is not None
    return piece


async def begun(made: PushedBench) -> None:
    await until(lambda: made.pushed.running == 1)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - there is nothing that tells of a change
            await asyncio.sleep(0.001)


def texts(content: bytes) -> list[str]:
    return [one["choices"][0].get("text", "") for one in events(content)[:-1] if one.get("choices")]


async def content_of(kind: type[Exchange], path: str, fields: Any, **options: Any) -> Sequence[Any]:
    """The events of a request whose steps come one at a time; without what differs between any two requests."""
    async with pushing(**options) as made, kind(made.app, path, fields, x_request_id="1") as exchange:
        steps = made.steps()
        await begun(made)
        for step in steps:
            made.pushed.push(step)
            await asyncio.sleep(0.001)
        made.pushed.push(Step(finish="stop"))
        await exchange.head()
        found = events(await exchange.rest())
        if kind is PartExchange:
            assert made.pushed.taken > 0
        for one in found[:-1]:
            one.pop("created", None)
        return found


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (PATH, body()),
        (PATH, body(stream_options={"include_usage": True}, echo=True)),
        (PATH, body(stop=["france", "never"])),
        (PATH, body(max_tokens=4)),
        (CHAT, {"model": "gpt2", "messages": [{"role": "user", "content": "Hi"}], "stream": True}),
    ],
    ids=["plain", "usage and echo", "stop string", "few tokens", "chat"],
)
async def test_the_answer_is_the_same(path: str, fields: Any) -> None:
    assert await content_of(PartExchange, path, fields) == await content_of(Exchange, path, fields)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/models/gpt2:predict", {"instances": [PROMPT], "parameters": {"stream": True}}),
        ("/v2/models/gpt2/generate_stream", {"text_input": PROMPT, "parameters": {"max_tokens": 9}}),
    ],
    ids=["V1", "V2"],
)
async def test_the_answer_is_the_same_in_all_apis(path: str, fields: Any) -> None:
    found = []
    for kind in (PartExchange, Exchange):
        async with pushing() as made, kind(made.app, path, fields) as exchange:
            first, *others = made.steps()
            if kind is PartExchange:
                content = await followed(made, exchange, first)
                for step in others[:3]:
                    made.pushed.push(step)
                assert len(cast(PartExchange, exchange).parts) == 3
                made.pushed.push(*others[3:], Step(finish="stop"))
            else:
                await begun(made)
                made.pushed.push(first, *others, Step(finish="stop"))
                content = b""
                await exchange.head()
            found.append(content + await exchange.rest())
    assert found[0] == found[1] and b"par" in found[0]


async def test_a_piece_is_sent_in_the_moment_in_which_it_comes() -> None:
    async with pushing() as made, PartExchange(made.app, PATH, body()) as exchange:
        first, *others = made.steps(" paris is the capital")
        await followed(made, exchange, first)
        for number, step in enumerate(others, 1):
            made.pushed.push(step)
            assert len(exchange.parts) == number
        made.pushed.push(Step(finish="stop"))
        content = await exchange.rest()
        assert "".join(texts(content)) == made.tokenizer.decode([step.ids[0] for step in others])
        assert made.pushed.asked_for == 2  # the first and the last


async def test_half_a_character_is_held_back() -> None:
    async with pushing() as made, PartExchange(made.app, PATH, body()) as exchange:
        first, *others = made.steps(" a😀")
        await followed(made, exchange, first)
        for step in others:
            made.pushed.push(step)
        assert "".join(one["choices"][0]["text"] for one in events(b"".join(exchange.parts))) == "😀"
        made.pushed.push(Step(finish="stop"))
        await exchange.rest()


async def test_a_client_that_does_not_read_gets_everything_later() -> None:
    async with pushing() as made, PartExchange(made.app, PATH, body()) as exchange:
        first, second, third, *others = made.steps()
        content = await followed(made, exchange, first)
        exchange.takes = False
        exchange.taken.clear()
        made.pushed.push(second)
        made.pushed.push(third)
        await asyncio.sleep(0.01)
        assert not exchange.parts and made.pushed.taken == 1  # the one that is on its way
        exchange.takes = True
        exchange.taken.set()
        made.pushed.push(*others, Step(finish="stop"))
        assert "".join(texts(content + await exchange.rest())) == TEXT


async def test_a_client_that_leaves_ends_the_generation_at_once() -> None:
    async with pushing() as made:
        async with PartExchange(made.app, PATH, body()) as exchange:
            await followed(made, exchange, made.steps()[0])
            exchange.leave()
            await exchange.task
            assert made.pushed.running == 0
        assert made.requests("openai", 499) == 1
        assert made.metric('hf_transformer_generations_total{finish="abandoned"}') == 1


async def test_nothing_of_a_stream_waits_for_the_garbage_collector() -> None:
    async with pushing() as made:
        gc.collect()
        gc.disable()
        try:
            async with PartExchange(made.app, PATH, body()) as exchange:
                await followed(made, exchange, made.steps()[0])
                made.pushed.push(Step(finish="stop"))
                await exchange.rest()
                await exchange.task
            await asyncio.sleep(0)
            left = {type(one) for one in gc.get_objects()}
        finally:
            gc.enable()
    assert not left & {Text, OneText, Watch, Pushing, Sender}


async def test_the_end_of_the_service_ends_a_stream_with_an_error() -> None:
    async with pushing() as made:
        async with PartExchange(made.app, PATH, body()) as exchange:
            await followed(made, exchange, made.steps()[0])
            made.service.streams.end_within(0.05)
            *_, last = events(await exchange.rest())
            assert last["error"]["message"] == "the service is shutting down"
        assert made.requests("openai", 503) == 1


async def test_the_deadline_ends_a_stream_with_an_error() -> None:
    async with pushing(timeout=0.2) as made:
        async with PartExchange(made.app, PATH, body()) as exchange:
            await followed(made, exchange, made.steps()[0])
            *_, last = events(await exchange.rest())
            assert "was not finished in 0.2 s" in last["error"]["message"]
        assert made.requests("openai", 504) == 1


async def test_an_error_of_the_predictor_comes_behind_what_came_before() -> None:
    async with pushing() as made:
        async with PartExchange(made.app, PATH, body()) as exchange:
            first, *others = made.steps()
            content = await followed(made, exchange, first)
            made.pushed.push(*others, PredictorError("it broke"))
            content += await exchange.rest()
            assert "".join(one["choices"][0]["text"] for one in events(content)[:-1]) == TEXT
            assert events(content)[-1]["error"]["message"] == "it broke"
        assert made.metric('hf_transformer_generations_total{finish="error"}') == 1


async def test_a_token_that_can_be_none_is_an_error() -> None:
    async with pushing() as made:
        async with PartExchange(made.app, PATH, body()) as exchange:
            await followed(made, exchange, made.steps()[0])
            made.pushed.push(Step(ids=(-1,)))
            *_, last = events(await exchange.rest())
            assert last["error"]["message"] == "the predictor gave -1 as a token's id"
        assert made.metric('hf_transformer_generations_total{finish="error"}') == 1


async def test_a_fault_of_the_service_is_logged_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with pushing() as made:
        async with PartExchange(made.app, PATH, body(), x_request_id="17") as exchange:
            first, second, *_ = made.steps()
            await followed(made, exchange, first)

            def broken(*args: Any) -> Any:
                raise ZeroDivisionError("a prompt")

            monkeypatch.setattr("hf_transformer.api.openai.completions.CompletionForm.chunks", broken)
            made.pushed.push(second)
            *_, last = events(await exchange.rest())
            assert last["error"]["message"] == "internal error; the log has it under 17"
        assert made.requests("openai", 500) == 1
        assert "request 17 failed by a fault of the service" in caplog.text


async def test_the_access_log_sees_all_bytes(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("tests.access")
    caplog.set_level(logging.INFO, logger.name)
    async with pushing() as made:
        app = AccessLog(made.app, "%(s)s %(B)s", logger)
        async with PartExchange(app, PATH, body()) as exchange:
            await begun(made)
            made.pushed.push(*made.steps(), Step(finish="stop"))
            await exchange.head()
            content = await exchange.rest()
            assert exchange.parts
    assert [record.getMessage() for record in caplog.records] == [f"200 {len(content)}"]
