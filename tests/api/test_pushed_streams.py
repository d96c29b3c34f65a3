"""Streams whose steps come when a test says so: what is sent when, how they end, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from hf_transformer.api.access_log import AccessLog
from hf_transformer.api.sending import Sender
from hf_transformer.api.watching import Watch
from hf_transformer.errors import PredictorError
from hf_transformer.generation.assembly import Assembler
from hf_transformer.generation.base import GeneratorSettings
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.types import Step
from hf_transformer.generation.writing import Generation
from hf_transformer.types import ModelSpec
from tests.api.generating import ALL, PROMPT, Bench, Exchange, events
from tests.api.short_exchange import ShortExchange
from tests.generation.pushed import PushedGenerator
from tests.generation.scripted import LIMITS, SCHEDULING

pytestmark = pytest.mark.asyncio

AnyExchange = Exchange | ShortExchange
WAYS = pytest.mark.parametrize("way", [Exchange, ShortExchange], ids=["ASGI", "the short way"])
PATH = "/openai/v1/completions"
TEXT = " paris is the capital of france. 😀 Ünïcode"
FIELDS = {"model": "gpt2", "prompt": PROMPT, "stream": True, "max_tokens": 200}


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
        assert made.in_flight == 0 and made.pushed.running == 0
        assert made.metric("hf_transformer_generations_in_flight") == 0
    finally:
        made.executor.shutdown()


@asynccontextmanager
async def begun(
    made: PushedBench, way: type[Exchange] | type[ShortExchange] = Exchange, app: Any = None, **headers: Any
) -> AsyncIterator[tuple[AnyExchange, bytes]]:
    """A stream whose first piece, of the first step of TEXT, was sent."""
    async with way(app or made.app, PATH, FIELDS, **headers) as exchange:
        made.pushed.push(made.steps()[0])
        assert (await exchange.head())[0] == 200
        piece = await exchange.piece()
        assert piece is not None
        yield exchange, piece


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - there is nothing that tells of a change
            await asyncio.sleep(0.001)


def text_of(content: bytes) -> str:
    """What the chunks of a stream have of the text, whatever it ended with."""
    return "".join(one["choices"][0]["text"] for one in events(content) if one != "[DONE]" and "choices" in one)


@WAYS
async def test_each_piece_is_sent_when_its_step_comes(way: type[Exchange] | type[ShortExchange]) -> None:
    async with pushing() as made, begun(made, way) as (exchange, content):
        for step in made.steps(TEXT[: TEXT.index("😀")].rstrip())[1:]:
            made.pushed.push(step)
            piece = await exchange.piece()
            assert piece is not None and text_of(piece) == made.tokenizer.decode(step.ids)
            content += piece
        made.pushed.push(Step(finish="stop"))
        assert text_of(content + await exchange.rest()) == " paris is the capital of france."


async def test_half_a_character_is_held_back() -> None:
    async with pushing() as made, begun(made) as (exchange, _):
        made.pushed.push(*made.steps("😀"))
        piece = await exchange.piece()
        assert piece is not None and text_of(piece) == "😀"
        made.pushed.push(Step(finish="stop"))
        await exchange.rest()


@WAYS
async def test_a_client_that_does_not_read_holds_up_the_model_and_gets_everything_later(
    way: type[Exchange] | type[ShortExchange],
) -> None:
    async with pushing() as made, begun(made, way) as (exchange, content):
        exchange.taken.clear()
        made.pushed.push(*made.steps()[1:], Step(finish="stop"))
        await asyncio.sleep(0.01)
        assert made.pushed.given == 2, "the one that was sent, and the one that is on its way"
        exchange.taken.set()
        assert text_of(content + await exchange.rest()) == TEXT


@WAYS
async def test_a_client_that_leaves_ends_the_generation_at_once(way: type[Exchange] | type[ShortExchange]) -> None:
    async with pushing() as made:
        async with begun(made, way) as (exchange, _):
            exchange.leave()
            await exchange.task
            assert made.pushed.running == 0
        assert made.requests("openai", 499) == 1
        assert made.metric('hf_transformer_generations_total{finish="abandoned"}') == 1


async def test_the_end_of_the_service_ends_a_stream_with_an_error() -> None:
    async with pushing() as made:
        async with begun(made) as (exchange, _):
            made.service.streams.end_within(0.05)
            *_, last = events(await exchange.rest())
            assert last["error"]["message"] == "the service is shutting down"
        assert made.requests("openai", 503) == 1


async def test_the_deadline_ends_a_stream_with_an_error() -> None:
    async with pushing(timeout=0.2) as made:
        async with begun(made) as (exchange, _):
            *_, last = events(await exchange.rest())
            assert "was not finished in 0.2 s" in last["error"]["message"]
        assert made.requests("openai", 504) == 1


async def test_the_deadline_ends_the_generation_of_a_client_that_does_not_read() -> None:
    async with pushing(timeout=0.1) as made:
        async with begun(made) as (exchange, _):
            exchange.taken.clear()
            made.pushed.push(*made.steps()[1:])
            await until(lambda: made.pushed.running == 0)
            exchange.taken.set()
            *_, last = events(await exchange.rest())
            assert "was written, and not read in 0.1 s" in last["error"]["message"]
        assert made.requests("openai", 504) == 1


async def test_an_error_of_the_predictor_comes_behind_what_came_before() -> None:
    async with pushing() as made:
        async with begun(made) as (exchange, content):
            made.pushed.push(*made.steps()[1:], PredictorError("it broke"))
            content += await exchange.rest()
            assert text_of(content) == TEXT
            assert events(content)[-1]["error"]["message"] == "it broke"
        assert made.metric('hf_transformer_generations_total{finish="error"}') == 1


async def test_an_impossible_token_is_an_error() -> None:
    async with pushing() as made:
        async with begun(made) as (exchange, _):
            made.pushed.push(Step(ids=(-1,)))
            *_, last = events(await exchange.rest())
            assert last["error"]["message"] == "the predictor gave -1 as a token's id"
        assert made.metric('hf_transformer_generations_total{finish="error"}') == 1


async def test_a_fault_of_the_service_is_logged_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with pushing() as made:
        async with begun(made, x_request_id="17") as (exchange, _):

            def broken(*args: Any) -> Any:
                raise ZeroDivisionError("a prompt")

            monkeypatch.setattr("hf_transformer.api.openai.completions.CompletionForm.chunks", broken)
            made.pushed.push(made.steps()[1])
            *_, last = events(await exchange.rest())
            assert last["error"]["message"] == "internal error; the log has it under 17"
        assert made.requests("openai", 500) == 1
        assert "request 17 failed by a fault of the service" in caplog.text


async def test_the_access_log_counts_all_bytes(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("tests.access")
    caplog.set_level(logging.INFO, logger.name)
    async with pushing() as made:
        async with begun(made, app=AccessLog(made.app, "%(s)s %(B)s", logger)) as (exchange, content):
            made.pushed.push(*made.steps()[1:], Step(finish="stop"))
            content += await exchange.rest()
    assert [record.getMessage() for record in caplog.records] == [f"200 {len(content)}"]


@contextmanager
def nothing_left() -> Iterator[None]:
    """Without the garbage collector, which would hide cycles, and without the log: pytest keeps what it is told, and
    with it errors and the frames that they refer to."""
    gc.collect()
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        yield
        left = {type(one) for one in gc.get_objects()}
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()
    assert not left & {Assembler, Generation, Sender, Watch}


@WAYS
@pytest.mark.parametrize("end", ["whole", "late", "late in the middle", "no token", "left"])
async def test_a_stream_leaves_nothing_to_the_garbage_collector(
    end: str, way: type[Exchange] | type[ShortExchange]
) -> None:
    async with pushing(timeout=0.05 if "late" in end else 30.0) as made:
        with nothing_left():
            async with way(made.app, PATH, FIELDS) as exchange:
                if end != "late":
                    made.pushed.push(made.steps()[0])
                await exchange.head()
                if end == "left":
                    exchange.leave()
                else:
                    made.pushed.push(*{"no token": [Step(ids=(-1,))], "whole": [Step(finish="stop")]}.get(end, []))
                    assert (b'"error"' in await exchange.rest()) == (end != "whole")
                await exchange.task
            await asyncio.sleep(0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_two_texts_that_fail_leave_nothing_to_the_garbage_collector(stream: bool) -> None:
    error = PredictorError("broken")
    made = Bench(fails=error, after=1)
    await made.model.look()
    with nothing_left():
        asked = json.dumps({"model": "gpt2", "prompt": "The capital", "n": 2, "stream": stream}).encode()
        async with Exchange(made.app, PATH, asked) as exchange:
            await exchange.head()
            assert b"broken" in await exchange.rest()
            await exchange.task
        await asyncio.sleep(0.01)
        error.with_traceback(None)  # the one that the script itself keeps
    made.executor.shutdown()
