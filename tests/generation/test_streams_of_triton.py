"""Token and text models of the real Triton (tests/streams/model_repository), over both transports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

import orjson
import pytest

from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.errors import PredictorError
from hf_transformer.generation.build import make_generator
from hf_transformer.generation.types import Generator, Prompt, Sampling, Step
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor import open_predictor
from hf_transformer.predictor.base import Predictor, PredictorSettings
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import Context
from tests.generation.scripted_models import settings, steps
from tests.streams.triton import stream_triton

pytestmark = pytest.mark.slow

EOS = 0
SLOW, FAILS, COUNTS, FAILS_AT_ONCE, SETTINGS = 9001, 9002, 9003, 9004, 9005
"""First ids of prompts; see tests/streams/model_repository/tokens_model.py."""

TRIES = 5

Opened = Callable[[str], AbstractAsyncContextManager[Predictor]]
Made = Callable[[str], AbstractAsyncContextManager[Generator]]


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTriton]:
    with stream_triton(tmp_path_factory.mktemp("streams")) as server:
        yield server


@pytest.fixture(params=["v2", "grpc-v2"], ids=["rest", "grpc"])
def opened(request: pytest.FixtureRequest, triton: LocalTriton) -> Opened:
    """The predictor of a model, as the service opens it."""
    protocol: str = request.param
    host = triton.http_address if protocol == "v2" else triton.grpc_address

    def open_model(name: str) -> AbstractAsyncContextManager[Predictor]:
        where = PredictorSettings(name, host, timeout=60.0)
        return open_predictor(protocol, where, 1, Metrics(name), circuit_failures=5)

    return open_model


@pytest.fixture
def made(opened: Opened, gpt2: Tokenizer, executor: ThreadPoolExecutor) -> Made:
    @asynccontextmanager
    async def make(name: str) -> AsyncIterator[Generator]:
        async with opened(name) as predictor:
            yield make_generator(
                await predictor.model_spec(),
                predictor,
                gpt2,
                settings(eos_ids=frozenset({EOS})),
                executor=executor,
                metrics=Metrics(name),
            )

    return make


def continued(token: int, most: int) -> list[int]:
    """What the models make of a prompt that ends with this token."""
    found: list[int] = []
    while len(found) < most and token != EOS:
        token = (token + 7) % 50
        found.append(token)
    return found


async def written(generator: Generator, *ids: int, most: int = 9, **more: Any) -> tuple[list[int], str | None]:
    found = await steps(generator, Prompt("", ids), Sampling(max_tokens=most, **more))
    return [token for step in found for token in step.ids], found[-1].finish


async def counts(generator: Generator) -> dict[str, int]:
    """How many calls the model has begun, brought to an end, and seen cancelled."""
    if generator.interface == "text":
        [step, *_] = await steps(generator, Prompt("counts", (1,)), Sampling(max_tokens=9))
        found: dict[str, int] = orjson.loads(step.text)
        return found
    values, _ = await written(generator, COUNTS, ignore_eos=True)
    return dict(zip(("started", "finished", "cancelled"), values, strict=True))


async def reaches(generator: Generator, what: str, count: int) -> None:
    """Waits for the model to count so many; a test that waits for ever would not say for what."""
    for _ in range(600):
        if (await counts(generator))[what] >= count:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{what} is {await counts(generator)}, expected {count}")


@pytest.mark.parametrize("model", ["stream_tokens", "unary_tokens"])
async def test_tokens(made: Made, model: str) -> None:
    async with made(model) as generator:
        for last in range(1, 50):
            whole = continued(last, 100)
            assert whole[-1] == EOS
            assert await written(generator, 5, last, most=100) == (whole[:-1], "stop")
            if most := len(whole) - 1:
                assert await written(generator, 5, last, most=most) == (whole[:-1], "length")


async def test_tokens_come_one_by_one(made: Made) -> None:
    async with made("stream_tokens") as generator:
        found = await steps(generator, Prompt("", (3,)), Sampling(max_tokens=2, logprobs=0))
    assert [(list(step.ids), step.finish) for step in found] == [([10], None), ([17], None), ([], "length")]
    assert [score.logprob for step in found for score in step.scores] == [pytest.approx(-1.0), pytest.approx(-1.7)]


async def test_what_a_token_model_gets(made: Made) -> None:
    async with made("stream_tokens") as generator:
        sampling = {"seed": 5, "temperature": 0.5, "top_p": 0.25, "ignore_eos": True}
        values, _ = await written(generator, SETTINGS, most=50, **sampling)
    assert dict(zip(SETTINGS_NAMES, values, strict=True)) == {
        "beam_width": -1,
        "end_id": -1,
        "exclude_input_in_output": 1,
        "frequency_penalty": -1,
        "input_lengths": 1,
        "min_length": -1,
        "pad_id": 0,
        "presence_penalty": -1,
        "random_seed": 5,
        "repetition_penalty": -1,
        "request_output_len": 50,
        "return_log_probs": -1,
        "runtime_top_k": 0,
        "runtime_top_p": 250,
        "stop_words_list": -1,
        "streaming": 1,
        "temperature": 500,
    }


SETTINGS_NAMES = (
    "beam_width end_id exclude_input_in_output frequency_penalty input_lengths min_length pad_id presence_penalty "
    "random_seed repetition_penalty request_output_len return_log_probs runtime_top_k runtime_top_p stop_words_list "
    "streaming temperature"
).split()


async def test_texts(made: Made) -> None:
    async with made("stream_text") as generator:
        found = await steps(generator, Prompt("two words", (1,)), Sampling(max_tokens=3))
        assert [(step.text, step.finish) for step in found] == [
            (" 3", None),
            (" 4", None),
            (" 5", None),
            ("", "length"),
        ]
        found = await steps(generator, Prompt("two words", (1,)), Sampling(max_tokens=30))
        assert ("".join(step.text for step in found), found[-1].finish) == (" 3 4 5 6 7 8 9", "stop")
    async with made("unary_text") as generator:
        [step] = await steps(generator, Prompt("two wörds", (1,)), Sampling(max_tokens=30))
        assert (step.text, step.finish) == (" 3 4 5 6 7 8 9", "stop")


async def test_errors(made: Made) -> None:
    for model in ("stream_tokens", "unary_tokens"):
        async with made(model) as generator:
            with pytest.raises(PredictorError, match="the model has failed"):
                await written(generator, FAILS_AT_ONCE)
            assert await written(generator, 36) == ([43], "stop")
    async with made("stream_text") as generator:
        await fails_after(generator, Prompt("fails", (1,)), "Error generating stream: why", [" 2", " 3"])


async def test_an_error_midway(made: Made) -> None:
    async with made("stream_tokens") as generator:
        read = await fails_after(generator, Prompt("", (FAILS,)), "the model has failed midway", None)
    assert sum(len(step.ids) for step in read) == 2


async def fails_after(generator: Generator, prompt: Prompt, error: str, texts: list[str] | None) -> list[Step]:
    """The steps before the error. Over gRPC Triton may end the call before the last of them is out, if it is busy: then
    what came is right, and of a few tries one gets them all."""
    for _ in range(TRIES):
        found: list[Step] = []
        with pytest.raises(PredictorError, match=error):
            async for step in generator.generate(prompt, Sampling(max_tokens=9), Context("r", {})):
                found.append(step)
        if texts is not None:
            assert [step.text for step in found] == texts[: len(found)]
        if len(found) == 2:
            break
    assert len(found) == 2
    return found


@pytest.mark.parametrize("by", ["closing", "cancelling"])
@pytest.mark.parametrize(
    ("model", "prompt"), [("stream_tokens", Prompt("", (SLOW,))), ("stream_text", Prompt("slow", (1,)))]
)
async def test_leaving_early_ends_the_work(made: Made, model: str, prompt: Prompt, by: str) -> None:
    async with made(model) as generator:
        before = await counts(generator)
        if by == "closing":
            assert len(await steps(generator, prompt, Sampling(max_tokens=10**6, ignore_eos=True), most=2)) == 2
        else:
            task = asyncio.create_task(steps(generator, prompt, Sampling(max_tokens=10**6, ignore_eos=True)))
            await reaches(generator, "started", before["started"] + 4)  # this one, and three that count
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await reaches(generator, "cancelled", before["cancelled"] + 1)
        after = await counts(generator)
        assert after["cancelled"] == before["cancelled"] + 1


async def test_an_end_is_no_cancellation(made: Made) -> None:
    async with made("stream_tokens") as generator:
        before = await counts(generator)
        for last in range(1, 20):
            await written(generator, last)
        after = await counts(generator)
    assert after["cancelled"] == before["cancelled"]
    assert after["finished"] == before["finished"] + 20


async def test_many_at_a_time(made: Made) -> None:
    async def one(generator: Generator, number: int) -> None:
        last = number % 49 + 1
        if number % 3 == 0:  # these go away
            async with aclosing(
                generator.generate(Prompt("", (SLOW,)), Sampling(max_tokens=100, ignore_eos=True), Context("r", {}))
            ) as found:
                await anext(found)
            return
        assert await written(generator, last, most=100) == (continued(last, 100)[:-1], "stop")

    async with made("stream_tokens") as generator:
        before = await counts(generator)
        await asyncio.gather(*[one(generator, number) for number in range(96)])
        await reaches(generator, "cancelled", before["cancelled"] + 32)
