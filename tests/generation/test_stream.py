"""A request's sequences while they are generated: order, back-pressure, deadlines, errors and clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from copy import copy
from typing import Any

import pytest

from hf_transformer.core.limits import Admission, Place
from hf_transformer.errors import CallersDeadline, InvalidInput, PredictorError, PredictorTimeout, RequestError
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.stream import QUEUED_PIECES, Generation
from hf_transformer.generation.types import Prompt, Sampling, Step
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tokenizer.tokenizer import Tokenizer
from tests.generation.scripted import (
    PROMPT,
    ScriptedGenerator,
    asking,
    context,
    endless,
    ids_of,
    pieces_of,
    pipeline_of,
    saying,
)

CHOICES = pytest.mark.parametrize("choices", [1, 2], ids=["one text", "two texts"])


class Bench:
    """Pipelines of a scripted generator, and what their callbacks were called with."""

    def __init__(self, tokenizer: Tokenizer, executor: ThreadPoolExecutor) -> None:
        self.tokenizer = tokenizer
        self.executor = executor
        self.called: list[object] = []

    def pipeline(self, generator: ScriptedGenerator, **options: Any) -> GenerationPipeline:
        return pipeline_of(self.tokenizer, generator, self.executor, **options)

    @asynccontextmanager
    async def streaming(
        self, generator: ScriptedGenerator, choices: int = 1, deadline: float | None = None, **options: Any
    ) -> AsyncGenerator[Generation, None]:
        running = await self.pipeline(generator, **options).start(asking(n=choices), context(deadline=deadline))
        running.tell(
            lambda context: self.called.append(context.request_id),
            lambda error: self.called.append(type(error)),
            lambda: self.called.append("left"),
        )
        async with running:
            yield running


@pytest.fixture
def bench(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> Bench:
    return Bench(gpt2, executor)


def failing(error: RequestError) -> ScriptedGenerator:
    # A copy: what is raised keeps all that its traceback leads to.
    return ScriptedGenerator(lambda *_: [Step(ids=(5,)), copy(error)])


def soon() -> float:
    return asyncio.get_running_loop().time() + 0.02


@CHOICES
async def test_texts_that_are_read_whole(bench: Bench, choices: int) -> None:
    async with bench.streaming(saying(bench.tokenizer, " paris."), choices) as running:
        found = [piece async for piece in running]
        assert bench.called == ["r"]
        with pytest.raises(StopAsyncIteration):
            await anext(running)
    assert sum(piece.finish is not None for piece in found) == choices
    for choice in range(choices):
        assert "".join(piece.text for piece in found if piece.choice == choice) == " paris."
    assert running.completion_tokens == choices * len(ids_of(bench.tokenizer, " paris."))
    assert bench.called == ["r", "left"]


@CHOICES
async def test_leaving_early_ends_everything_at_once(bench: Bench, choices: int) -> None:
    generator, before = endless(), asyncio.all_tasks()
    async with bench.streaming(generator, choices) as running:
        await anext(running)
        assert generator.running == choices
    assert generator.running == 0 and asyncio.all_tasks() == before
    with pytest.raises(StopAsyncIteration):
        await anext(running)
    assert bench.called == ["left"], "it was not given whole"


@CHOICES
@pytest.mark.parametrize(
    ("error", "called"),
    [(PredictorError("it broke"), [PredictorError, "left"]), (InvalidInput("no such prompt"), ["left"])],
    ids=["the predictor's", "the client's"],
)
async def test_an_error_comes_after_the_pieces_before_it(
    bench: Bench, choices: int, error: RequestError, called: list[object]
) -> None:
    generator, read = failing(error), 0
    async with bench.streaming(generator, choices) as running:
        with pytest.raises(type(error), match=str(error)):
            async for _ in running:
                await asyncio.sleep(0.01)  # the error is there long before it is read
                read += 1
        assert generator.running == 0
    assert read == choices and bench.called == called


async def test_an_error_of_one_prompt_ends_the_others(bench: Bench) -> None:
    def script(prompt: Prompt, sampling: Sampling) -> Any:
        if prompt.text == "bad":
            return [Step(ids=(5,)), PredictorError("it broke")]
        return (Step(ids=(5,)) for _ in iter(int, 1))

    generator = ScriptedGenerator(script)
    with pytest.raises(PredictorError, match="it broke"):
        await pieces_of(bench.pipeline(generator), asking("good", "bad", "good"))
    assert generator.running == 0


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [(asyncio.CancelledError, PredictorError, "was cancelled"), (ZeroDivisionError, ZeroDivisionError, None)],
    ids=["a cancelled call", "a bug"],
)
async def test_other_exceptions_of_a_generator(bench: Bench, raised: Any, expected: Any, message: str | None) -> None:
    async def fails() -> None:
        raise raised

    with pytest.raises(expected, match=message):
        await pieces_of(bench.pipeline(saying(bench.tokenizer, " paris", wait=fails)), asking())


async def test_a_text_without_an_end_is_an_error(bench: Bench) -> None:
    with pytest.raises(PredictorError, match="without saying why"):
        await pieces_of(bench.pipeline(ScriptedGenerator(lambda *_: [Step(ids=(5,))])), asking())


async def test_an_invalid_token_ends_the_call(bench: Bench) -> None:
    generator = ScriptedGenerator(lambda *_: (Step(ids=(number,)) for number in (5, -1, 6)))
    with pytest.raises(PredictorError, match="gave -1"):
        await pieces_of(bench.pipeline(generator), asking())
    assert (generator.given, generator.running) == (2, 0)


@CHOICES
async def test_a_slow_reader_slows_the_model_down(bench: Bench, choices: int) -> None:
    generator = endless()
    async with bench.streaming(generator, choices) as running:
        for read in (1, 11):
            for _ in range(1 if read == 1 else 10):
                await anext(running)
            for _ in range(1000):
                await asyncio.sleep(0)
            # Pieces that were read, those in the queue, and one in each sequence's hand.
            assert generator.given == read + QUEUED_PIECES + choices


async def test_nothing_runs_before_it_is_entered(bench: Bench) -> None:
    generator = endless()
    await bench.pipeline(generator).start(asking(), context())
    await asyncio.sleep(0)
    assert not generator.asked


@CHOICES
@pytest.mark.parametrize("own", [False, True], ids=["the service's", "the caller's"])
async def test_a_deadline_while_the_model_works(bench: Bench, choices: int, own: bool) -> None:
    generator, expected = endless(wait=asyncio.Event().wait), CallersDeadline if own else PredictorTimeout
    options: dict[str, Any] = {"deadline": soon()} if own else {"timeout": 0.02}
    async with bench.streaming(generator, choices, **options) as running:
        with pytest.raises(expected, match="caller's deadline" if own else r"0\.02 s"):
            await anext(running)
    assert generator.running == 0 and bench.called == (["left"] if own else [PredictorTimeout, "left"])
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()


@CHOICES
async def test_a_deadline_while_the_client_does_not_read(bench: Bench, choices: int) -> None:
    generator, metrics = endless(), Metrics("m")
    async with bench.streaming(generator, choices, timeout=0.05, metrics=metrics) as running:
        await anext(running)
        async with asyncio.timeout(20):
            while generator.running:  # noqa: ASYNC110 - nothing tells of a change
                await asyncio.sleep(0.001)
        for _ in range(2):
            with pytest.raises(CallersDeadline, match="not read in"):
                await anext(running)
    assert f'hf_transformer_generations_total{{finish="abandoned"}} {choices}.0' in metrics.render().decode()
    assert bench.called == ["left"], "it is no fault of the predictor's"


async def test_a_cancellation_at_the_deadline_is_still_one(bench: Bench) -> None:
    generator, when = endless(wait=asyncio.Event().wait), soon()
    reading = asyncio.create_task(pieces_of(bench.pipeline(generator), asking(), deadline=when))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_at(when, reading.cancel)
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert generator.running == 0


async def test_tokens_are_charged_as_they_come(bench: Bench) -> None:
    admission = Admission(10, 1000, Metrics("m"))
    with Place(admission) as place:
        place.enter()
        async with await bench.pipeline(endless()).start(asking(), context(place=place)) as generation:
            assert admission.tokens == generation.prompt_tokens
            for _ in range(5):
                await anext(generation)
            assert admission.tokens == generation.prompt_tokens + generation.completion_tokens
            assert generation.completion_tokens >= 5
    assert admission.tokens == 0


async def test_text_is_charged_by_its_length_until_its_tokens_are_known(bench: Bench) -> None:
    metrics, gate = Metrics("m"), asyncio.Semaphore(0)
    admission, charged = Admission(10, 1000, metrics), list[int]()
    generator = ScriptedGenerator(lambda *_: [*[Step(text=" the capital")] * 9, Step(finish="stop")], wait=gate.acquire)
    with Place(admission) as place:
        place.enter()
        pipeline = bench.pipeline(generator, metrics=metrics)
        async with await pipeline.start(asking(), context(place=place)) as generation:
            while not charged or generation.completion_tokens == 0:
                assert metrics.generation.generated_tokens == 0, "this one only ever adds up"
                gate.release()
                await anext(generation)
                charged.append(admission.tokens - generation.prompt_tokens)
        assert charged[:9] == [12 * count // 4 for count in range(1, 10)]
        expected = len(ids_of(bench.tokenizer, " the capital" * 9))
        assert charged[9] == generation.completion_tokens == metrics.generation.generated_tokens == expected


async def test_metrics(bench: Bench) -> None:
    metrics = Metrics("m")
    await pieces_of(bench.pipeline(saying(bench.tokenizer, " a b c"), metrics=metrics), asking(n=2))
    async with bench.streaming(endless(), metrics=metrics) as running:
        await anext(running)
        assert "hf_transformer_generations_in_flight 1.0" in metrics.render().decode()
    with pytest.raises(PredictorError):
        await pieces_of(bench.pipeline(ScriptedGenerator(lambda *_: []), metrics=metrics), asking())
    shown = metrics.render().decode()
    prompt, new = len(ids_of(bench.tokenizer, PROMPT)), 2 * len(ids_of(bench.tokenizer, " a b c"))
    assert f"hf_transformer_prompt_tokens_total {3 * prompt}.0" in shown
    assert f"hf_transformer_generated_tokens_total {new + running.completion_tokens}.0" in shown
    assert "hf_transformer_generations_in_flight 0.0" in shown
    for finish, count in (("stop", 2), ("length", 0), ("abandoned", 1), ("error", 1)):
        assert f'hf_transformer_generations_total{{finish="{finish}"}} {count}.0' in shown
    assert "hf_transformer_time_to_first_token_seconds_count 2.0" in shown
    assert "hf_transformer_time_per_output_token_seconds_count 2.0" in shown


@pytest.mark.parametrize(
    ("script", "observed"),
    [
        ([Step(text=" par"), Step(text="is."), Step(finish="stop")], 1),
        ([Step(text=" paris.", finish="stop")], 0),
        ([Step(ids=(5, 6, 7), finish="stop")], 0),
        ([Step(ids=(5,)), Step(ids=(6,), finish="stop")], 1),
    ],
    ids=["text that comes", "text at once", "ids at once", "ids that come"],
)
async def test_the_time_per_token_is_observed_for_texts_that_come_in_steps(
    bench: Bench, script: list[Step], observed: int
) -> None:
    metrics = Metrics("m")
    await pieces_of(bench.pipeline(ScriptedGenerator(lambda *_: script), metrics=metrics), asking())
    assert f"hf_transformer_time_per_output_token_seconds_count {observed}.0" in metrics.render().decode()
