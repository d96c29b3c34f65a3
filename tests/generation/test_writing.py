"""Texts while they are written: their ends, in good and in bad."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hf_transformer.core.limits import Admission, Place
from hf_transformer.errors import CallersDeadline, PredictorError, PredictorTimeout, RequestError
from hf_transformer.generation.types import Prompt, Sampling, Step
from hf_transformer.generation.writing import QUEUED_PIECES
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


async def test_an_error_ends_all_texts_of_its_request(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    def script(prompt: Prompt, sampling: Sampling) -> Any:
        if prompt.text == "bad":
            return [Step(ids=(5,)), PredictorError("it broke")]
        return (Step(ids=(5,)) for _ in iter(int, 1))

    generator = ScriptedGenerator(script)
    pipeline = pipeline_of(gpt2, generator, executor)
    with pytest.raises(PredictorError, match="it broke"):
        await pieces_of(pipeline, asking("good", "bad", "good"))
    assert generator.running == 0


async def test_a_text_without_an_end_is_the_predictors_fault(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    pipeline = pipeline_of(gpt2, ScriptedGenerator(lambda *_: [Step(ids=(5,))]), executor)
    with pytest.raises(PredictorError, match="without saying why"):
        await pieces_of(pipeline, asking())


async def test_a_cancelled_call_is_an_error_and_not_a_hang(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    pipeline = pipeline_of(gpt2, saying(gpt2, " paris", wait=cancelled), executor)
    with pytest.raises(PredictorError, match="cancelled"):
        await pieces_of(pipeline, asking())


async def test_a_bug_is_not_dressed_up_as_an_answer(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    async def bug() -> None:
        raise ZeroDivisionError

    pipeline = pipeline_of(gpt2, saying(gpt2, " paris", wait=bug), executor)
    with pytest.raises(ZeroDivisionError):
        await pieces_of(pipeline, asking())


async def test_leaving_ends_everything_at_once(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    generator = endless()
    pipeline = pipeline_of(gpt2, generator, executor)
    before = asyncio.all_tasks()
    async with await pipeline.start(asking("a", "b", n=4), context()) as generation:
        await anext(generation)
        assert generator.running == 8
    assert generator.running == 0
    assert asyncio.all_tasks() == before
    with pytest.raises(StopAsyncIteration):
        while True:
            await anext(generation)


async def test_a_cancelled_reader_leaves_nothing_behind(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    never = asyncio.Event()
    generator = endless(wait=never.wait)
    reading = asyncio.create_task(pieces_of(pipeline_of(gpt2, generator, executor), asking(n=3)))
    await asyncio.sleep(0.01)
    assert generator.running == 3
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert generator.running == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_slow_reader_slows_the_model_down(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    generator = endless()
    async with await pipeline_of(gpt2, generator, executor).start(asking(n=2), context()) as generation:
        await anext(generation)
        for _ in range(1000):
            await asyncio.sleep(0)
        # What was read, what waits in the queue, and one piece in each text's hand.
        assert generator.given == 1 + QUEUED_PIECES + 2
        for _ in range(10):
            await anext(generation)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert generator.given == 1 + QUEUED_PIECES + 2 + 10


async def test_nothing_runs_before_it_is_entered(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    generator = endless()
    await pipeline_of(gpt2, generator, executor).start(asking(), context())
    await asyncio.sleep(0)
    assert not generator.asked


async def test_one_deadline_for_all(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    never = asyncio.Event()
    generator = endless(wait=never.wait)
    with pytest.raises(PredictorTimeout, match=r"0\.02 s"):
        await pieces_of(pipeline_of(gpt2, generator, executor, timeout=0.02), asking(n=2))
    assert generator.running == 0
    soon = asyncio.get_running_loop().time() + 0.02
    with pytest.raises(CallersDeadline):
        await pieces_of(pipeline_of(gpt2, generator, executor), asking(n=2), deadline=soon)
    assert generator.running == 0


async def test_a_client_that_does_not_read_is_no_fault_of_the_predictor(
    gpt2: Tokenizer, executor: ThreadPoolExecutor
) -> None:
    async with await pipeline_of(gpt2, endless(), executor, timeout=0.02).start(asking(), context()) as generation:
        await asyncio.sleep(0.1)
        with pytest.raises(CallersDeadline, match="not read in"):
            while True:
                await anext(generation)


@pytest.mark.parametrize("own", [False, True], ids=["the service's", "the caller's"])
async def test_the_deadline_of_one_text(gpt2: Tokenizer, executor: ThreadPoolExecutor, own: bool) -> None:
    never = asyncio.Event()
    generator = endless(wait=never.wait)
    soon = asyncio.get_running_loop().time() + 0.02 if own else None
    pipeline = pipeline_of(gpt2, generator, executor, timeout=30.0 if own else 0.02)
    with pytest.raises(CallersDeadline if own else PredictorTimeout):
        await pieces_of(pipeline, asking(), deadline=soon)
    assert generator.running == 0
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()
    await asyncio.sleep(0)  # the reader itself goes on


async def test_a_text_that_nobody_reads_ends_at_its_deadline(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    generator, metrics = endless(), Metrics("m")
    pipeline = pipeline_of(gpt2, generator, executor, timeout=0.05, metrics=metrics)
    async with await pipeline.start(asking(), context()) as generation:
        await anext(generation)
        async with asyncio.timeout(20):
            while generator.running:  # noqa: ASYNC110 - there is nothing that tells of a change
                await asyncio.sleep(0.001)
        for _ in range(2):
            with pytest.raises(CallersDeadline, match="not read in"):
                await anext(generation)
    assert 'hf_transformer_generations_total{finish="abandoned"} 1.0' in metrics.render().decode()


async def test_a_cancellation_at_the_deadline_is_still_one(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    never = asyncio.Event()
    generator = endless(wait=never.wait)
    soon = asyncio.get_running_loop().time() + 0.02
    reading = asyncio.create_task(pieces_of(pipeline_of(gpt2, generator, executor), asking(), deadline=soon))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_at(soon, reading.cancel)
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert generator.running == 0


async def test_who_is_cancelled_while_leaving_leaves_nothing_behind(
    gpt2: Tokenizer, executor: ThreadPoolExecutor
) -> None:
    generator, left = endless(), asyncio.Event()

    async def client() -> None:
        async with await pipeline_of(gpt2, generator, executor).start(asking(), context()) as generation:
            await anext(generation)
            left.set()

    leaving = asyncio.create_task(client())
    await left.wait()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    for _ in range(5):
        await asyncio.sleep(0)
    assert generator.running == 0


async def test_a_token_that_is_none_ends_the_call(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    generator = ScriptedGenerator(lambda *_: (Step(ids=(number,)) for number in (5, -1, 6)))
    with pytest.raises(PredictorError, match="gave -1"):
        await pieces_of(pipeline_of(gpt2, generator, executor), asking())
    assert (generator.given, generator.running) == (2, 0)


async def test_streams_cut_at_random_moments(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    generator = endless()
    metrics = Metrics("m")
    pipeline = pipeline_of(gpt2, generator, executor, metrics=metrics)
    admission = Admission(10_000, 10**9, Metrics("m"))
    chance = random.Random(5)

    async def client() -> None:
        with Place(admission) as place:
            place.enter()
            async with await pipeline.start(asking(n=chance.randint(1, 3)), context(place=place)) as generation:
                for _ in range(chance.randint(0, 40)):
                    await anext(generation)

    clients = [asyncio.create_task(client()) for _ in range(300)]
    while pending := [one for one in clients if not one.done()]:
        if chance.random() < 0.3:
            chance.choice(pending).cancel()
        await asyncio.sleep(0)
    assert {one.cancelled() for one in clients} == {True, False}
    assert not [one for one in clients if not one.cancelled() and one.exception()]
    assert (generator.running, admission.requests, admission.tokens) == (0, 0, 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert "hf_transformer_generations_in_flight 0.0" in metrics.render().decode()


async def test_tokens_are_charged_as_they_come(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    admission = Admission(10, 1000, Metrics("m"))
    with Place(admission) as place:
        place.enter()
        pipeline, asked = pipeline_of(gpt2, endless(), executor), context(place=place)
        async with await pipeline.start(asking(), asked) as generation:
            assert admission.tokens == generation.prompt_tokens
            for _ in range(5):
                await anext(generation)
            assert admission.tokens == generation.prompt_tokens + generation.completion_tokens
            assert generation.completion_tokens >= 5
    assert admission.tokens == 0


async def test_text_of_the_model_is_counted_at_its_end(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    generator = ScriptedGenerator(lambda *_: [Step(text=" par"), Step(text="is."), Step(finish="stop")])
    pipeline = pipeline_of(gpt2, generator, executor)
    async with await pipeline.start(asking(), context()) as generation:
        pieces = [piece async for piece in generation]
    assert generation.completion_tokens == sum(piece.count for piece in pieces) == len(ids_of(gpt2, " paris."))


async def test_text_is_charged_by_its_length_until_its_tokens_are_known(
    gpt2: Tokenizer, executor: ThreadPoolExecutor
) -> None:
    metrics = Metrics("m")
    admission, charged, counted = Admission(10, 1000, metrics), [], []
    generator = ScriptedGenerator(lambda *_: [*[Step(text=" the capital")] * 9, Step(finish="stop")])
    with Place(admission) as place:
        place.enter()
        pipeline = pipeline_of(gpt2, generator, executor, metrics=metrics)
        async with await pipeline.start(asking(), context(place=place)) as generation:
            async for _ in generation:
                charged.append(admission.tokens - generation.prompt_tokens)
                counted.append(metrics.generation.generated_tokens)
        assert charged[:9] == [12 * count // 4 for count in range(1, 10)]
        assert charged[9] == generation.completion_tokens == len(ids_of(gpt2, " the capital" * 9))
        assert counted == [0] * 9 + [generation.completion_tokens], "these only ever add up"


async def test_metrics(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    metrics = Metrics("m")
    pipeline = pipeline_of(gpt2, saying(gpt2, " a b c"), executor, metrics=metrics)
    await pieces_of(pipeline, asking(n=2))
    async with await pipeline_of(gpt2, endless(), executor, metrics=metrics).start(asking(), context()) as generation:
        await anext(generation)
        assert "hf_transformer_generations_in_flight 1.0" in metrics.render().decode()
    with pytest.raises(PredictorError):
        await pieces_of(pipeline_of(gpt2, ScriptedGenerator(lambda *_: []), executor, metrics=metrics), asking())
    shown = metrics.render().decode()
    prompt, new = len(ids_of(gpt2, PROMPT)), 2 * len(ids_of(gpt2, " a b c"))
    assert f"hf_transformer_prompt_tokens_total {3 * prompt}.0" in shown
    assert f"hf_transformer_generated_tokens_total {new + generation.completion_tokens}.0" in shown
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
async def test_the_time_per_token_is_told_of_texts_that_come_as_they_are_written(
    gpt2: Tokenizer, executor: ThreadPoolExecutor, script: list[Step], observed: int
) -> None:
    metrics = Metrics("m")
    await pieces_of(pipeline_of(gpt2, ScriptedGenerator(lambda *_: script), executor, metrics=metrics), asking())
    assert f"hf_transformer_time_per_output_token_seconds_count {observed}.0" in metrics.render().decode()


async def test_what_was_written_before_an_error_is_read_first(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    broken: list[Step | RequestError] = [
        *(Step(ids=(number,)) for number in ids_of(gpt2, " paris")),
        PredictorError("it broke"),
    ]
    pipeline, read = pipeline_of(gpt2, ScriptedGenerator(lambda *_: broken), executor), ""
    async with await pipeline.start(asking(), context()) as generation:
        with pytest.raises(PredictorError, match="it broke"):
            async for piece in generation:
                await asyncio.sleep(0.01)  # the error is there long before it is read
                read += piece.text
    assert read == " paris"
