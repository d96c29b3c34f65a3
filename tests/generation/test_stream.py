"""Requests from prompts to texts: calls, order, back-pressure, deadlines, errors, and cancellation."""

from __future__ import annotations

import asyncio
import gc
import re
import weakref
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.core.limits import Admission, AdmissionTicket
from hf_transformer.errors import (
    CallersDeadline,
    InvalidInput,
    PredictorError,
    PredictorTimeout,
    RequestError,
    TooLarge,
)
from hf_transformer.generation.stream import MAX_QUEUED_PIECES
from hf_transformer.generation.types import GenerationRequest, Prompt, Sampling, Step
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.tokenization import TokenIds
from tests.generation.scripted import PROMPT, PipelineHarness, ScriptedGenerator, asking, context, endless, text_of
from tests.generation.tokenizers import load, without_unknown

CHOICES = pytest.mark.parametrize("choices", [1, 2], ids=["one text", "two texts"])


def failing(error: RequestError) -> ScriptedGenerator:
    # A copy, since a raised error refers to its traceback.
    return ScriptedGenerator(lambda *_: [Step(ids=(5,)), copy(error)])


def soon() -> float:
    return asyncio.get_running_loop().time() + 0.02


# Prompts


async def test_prompt_and_completion_tokens_are_counted(harness: PipelineHarness) -> None:
    generator, asked = harness.saying(" paris."), context()
    async with await harness.pipeline(generator).start(asking(), asked) as generation:
        pieces = [piece async for piece in generation]
    assert generation.prompt_tokens == asked.tokens == len(harness.ids(PROMPT))
    assert generation.completion_tokens == sum(piece.count for piece in pieces) == len(harness.ids(" paris."))
    assert asked.predict > 0 and asked.preprocess > 0
    [(prompt, sampling)] = generator.asked
    assert prompt == Prompt(PROMPT, harness.ids(PROMPT), True)
    assert sampling.max_tokens == 64 - len(prompt.ids)


async def test_all_texts_are_generated_concurrently(harness: PipelineHarness) -> None:
    generator = harness.saying(" paris", wait=asyncio.Barrier(6).wait)
    pieces = await harness.read(generator, asking("a", "b", n=3, seed=7))
    for key in product(range(2), range(3)):
        assert text_of(piece for piece in pieces if (piece.prompt, piece.choice) == key) == " paris"
    assert sum(piece.finish is not None for piece in pieces) == 6
    assert [(prompt.text, sampling.seed, sampling.n) for prompt, sampling in generator.asked] == [
        (text, seed, 1) for text in "ab" for seed in (7, 8, 9)
    ]


async def test_a_prompt_of_token_ids_keeps_special_tokens(harness: PipelineHarness) -> None:
    generator, end = harness.saying(" paris"), harness.tokenizer.token_to_id("<|endoftext|>")
    assert end is not None
    await harness.read(generator, asking(TokenIds((end, *harness.ids("x y")))))
    assert generator.asked[0][0].text == "<|endoftext|>x y"


async def test_max_tokens_0_makes_no_call(harness: PipelineHarness) -> None:
    generator = harness.saying(" paris")
    [piece] = await harness.read(generator, asking(max_tokens=0, echo=True))
    assert (piece.text, piece.finish, piece.count) == (PROMPT, "length", 0)
    assert not generator.asked


async def test_special_tokens_are_added_on_request(t5: Tokenizer, executor: ThreadPoolExecutor) -> None:
    harness = PipelineHarness(t5, executor)
    generator = harness.saying(" paris")
    for special in (True, False):
        await harness.read(generator, asking("paris", special_tokens=special))
    (first, _), (second, _) = generator.asked
    assert first.ids == (*second.ids, t5.token_to_id("</s>"))
    assert (first.special_tokens, second.special_tokens) == (True, False)


@pytest.mark.parametrize(
    ("options", "starts", "left"),
    [
        ({}, (), 50),
        ({"max_tokens": 7}, (), 7),
        ({"max_tokens": 70}, (), 50),
        ({"max_tokens": 7, "max_length": 20}, (), 7),
        ({"max_length": 20}, (), 6),
        ({"max_length": 200}, (), 50),
        ({}, (0,), 63),
        ({"max_length": 20}, (0,), 19),
        ({"max_tokens": 70}, (0,), 63),
    ],
    ids=str,
)
async def test_the_limit_of_new_tokens(
    harness: PipelineHarness, options: dict[str, int], starts: tuple[int, ...], left: int
) -> None:
    generator = harness.saying(" paris")
    await harness.read(generator, asking(TokenIds((5,) * 14), **options), decoder_start_ids=starts)
    assert generator.asked[0][1].max_tokens == left


LONG = TokenIds((5,) * 64)


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (asking("x", LONG), TooLarge, r"^instances\[1\]: expected a prompt of at most 63 tokens, got 64"),
        (
            asking(LONG, name="prompt", single=True),
            TooLarge,
            r"^prompt: expected a prompt of at most 63 tokens, got 64",
        ),
        (asking(""), InvalidInput, r"^instances\[0\]: expected a prompt of at least one token"),
        (asking(TokenIds((5, 100_000))), InvalidInput, "expected token ids from 0 to 499, got 100000"),
        (asking(TokenIds((-1, 5))), InvalidInput, "expected token ids from 0 to 499, got -1"),
        (GenerationRequest(prompts=(), sampling=Sampling()), InvalidInput, "instances: expected at least one"),
        (asking("x" * 10_001, name="prompt", single=True), TooLarge, "^prompt: expected at most 10000 characters"),
        (asking("x" * 9999, "y" * 9999, "z" * 9999), TooLarge, "--max_total_length"),
        (
            asking("a", "b", n=7, names={"n": "best"}),
            TooLarge,
            r"expected at most 12 texts .*, got 14 \(2 with best=7\)",
        ),
        (
            asking(max_length=5, names={"max_length": "max_length"}),
            InvalidInput,
            "^parameters.max_length: expected more than the 8 tokens .*, got 5",
        ),
    ],
    ids=lambda value: None if isinstance(value, GenerationRequest) else str(value)[:30],
)
async def test_invalid_requests_are_refused_before_any_call(
    harness: PipelineHarness, request_: GenerationRequest, error: type[Exception], message: str
) -> None:
    generator = harness.saying(" paris", supported_fields={"min_tokens"})
    with pytest.raises(error, match=message):
        await harness.pipeline(generator).start(request_, context())
    assert not generator.asked


async def test_an_encoder_decoder_takes_a_prompt_of_max_length(harness: PipelineHarness) -> None:
    generator = harness.saying(" paris")
    assert (await harness.read(generator, asking(LONG), decoder_start_ids=(0,)))[-1].finish == "stop"
    with pytest.raises(TooLarge, match=r"expected a prompt of at most 64 tokens, got 65$"):
        await harness.read(generator, asking(TokenIds((5,) * 65)), decoder_start_ids=(0,))


@pytest.mark.parametrize("drops", [False, True], ids=["refuses it", "finds no token in it"])
async def test_the_trial_uses_the_first_token_of_another_alphabet(
    tmp_path: Path, executor: ThreadPoolExecutor, drops: bool
) -> None:
    harness = PipelineHarness(load(without_unknown(tmp_path, "CGT", drops=drops)), executor)
    generator = harness.saying("C")
    await harness.pipeline(generator).trial()
    assert [prompt for prompt, _ in generator.asked] == [Prompt("<s>", (0,))]


async def test_an_encoder_decoders_text_begins_without_a_space(t5: Tokenizer, executor: ThreadPoolExecutor) -> None:
    harness = PipelineHarness(t5, executor)
    for starts, text in (((0,), "the capital"), ((), " the capital")):
        generator = harness.saying("the capital")
        assert text_of(await harness.read(generator, asking("It is"), decoder_start_ids=starts)) == text


# Streams


@CHOICES
async def test_success_is_reported_after_the_last_piece(harness: PipelineHarness, choices: int) -> None:
    async with harness.streaming(harness.saying(" paris."), choices) as running:
        pieces = [piece async for piece in running]
        assert harness.called == ["r"]
        with pytest.raises(StopAsyncIteration):
            await anext(running)
    assert [piece.finish for piece in pieces if piece.finish] == ["stop"] * choices
    for choice in range(choices):
        assert text_of(piece for piece in pieces if piece.choice == choice) == " paris."
    assert running.completion_tokens == choices * len(harness.ids(" paris."))
    assert harness.called == ["r"]


@CHOICES
async def test_leaving_a_stream_ends_all_its_tasks(harness: PipelineHarness, choices: int) -> None:
    generator, before = endless(), asyncio.all_tasks()
    async with harness.streaming(generator, choices) as running:
        await anext(running)
        assert generator.running == choices
    assert generator.running == 0 and asyncio.all_tasks() == before
    with pytest.raises(StopAsyncIteration):
        await anext(running)
    assert harness.called == [], "neither success nor failure"


@CHOICES
@pytest.mark.parametrize(
    ("error", "called"),
    [(PredictorError("it broke"), [PredictorError]), (InvalidInput("prompt", "another prompt"), [])],
    ids=["the predictor's", "the client's"],
)
async def test_an_error_is_raised_after_the_pieces_before_it(
    harness: PipelineHarness, choices: int, error: RequestError, called: list[object]
) -> None:
    generator, read = failing(error), 0
    async with harness.streaming(generator, choices) as running:
        with pytest.raises(type(error), match=str(error)):
            async for _ in running:
                await asyncio.sleep(0.01)  # the error occurs long before it is read
                read += 1
        assert generator.running == 0
    assert read == choices and harness.called == called


async def test_the_error_of_one_prompt_ends_all(harness: PipelineHarness) -> None:
    def script(prompt: Prompt, sampling: Sampling) -> Any:
        if prompt.text == "bad":
            return [Step(ids=(5,)), PredictorError("it broke")]
        return (Step(ids=(5,)) for _ in iter(int, 1))

    generator = ScriptedGenerator(script)
    with pytest.raises(PredictorError, match="it broke"):
        await harness.read(generator, asking("good", "bad", "good"))
    assert generator.running == 0


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [(asyncio.CancelledError, PredictorError, "was cancelled"), (ZeroDivisionError, ZeroDivisionError, None)],
    ids=["a cancelled call", "a bug"],
)
async def test_cancelled_calls_and_bugs_end_the_stream(
    harness: PipelineHarness, raised: Any, expected: Any, message: str | None
) -> None:
    async def fails() -> None:
        raise raised

    with pytest.raises(expected, match=message):
        await harness.read(harness.saying(" paris", wait=fails), asking())


async def test_a_text_without_a_finish_reason_is_an_error(harness: PipelineHarness) -> None:
    with pytest.raises(PredictorError, match="without a finish reason"):
        await harness.read(ScriptedGenerator(lambda *_: [Step(ids=(5,))]), asking())


@CHOICES
async def test_a_full_queue_pauses_the_model(harness: PipelineHarness, choices: int) -> None:
    generator = endless()
    async with harness.streaming(generator, choices) as running:
        for read in (1, 11):
            for _ in range(1 if read == 1 else 10):
                await anext(running)
            for _ in range(1000):
                await asyncio.sleep(0)
            # Read pieces, queued pieces, and one waiting piece per sequence.
            assert generator.given == read + MAX_QUEUED_PIECES + choices


@CHOICES
@pytest.mark.parametrize("is_callers", [False, True], ids=["the service's", "the caller's"])
async def test_the_earlier_deadline_ends_a_waiting_stream(
    harness: PipelineHarness, choices: int, is_callers: bool
) -> None:
    generator, expected = endless(wait=asyncio.Event().wait), CallersDeadline if is_callers else PredictorTimeout
    options: dict[str, Any] = {"deadline": soon()} if is_callers else {"timeout": 0.02}
    async with harness.streaming(generator, choices, **options) as running:
        with pytest.raises(expected, match="caller's deadline" if is_callers else r"0\.02 s"):
            await anext(running)
    assert generator.running == 0 and harness.called == ([] if is_callers else [PredictorTimeout])
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()


@CHOICES
async def test_the_deadline_ends_an_unread_stream(harness: PipelineHarness, choices: int) -> None:
    generator, metrics = endless(), Metrics()
    async with harness.streaming(generator, choices, timeout=0.05, metrics=metrics.of("m")) as running:
        await anext(running)
        async with asyncio.timeout(20):
            while generator.running:  # noqa: ASYNC110 - nothing tells of a change
                await asyncio.sleep(0.001)
        for _ in range(2):
            with pytest.raises(CallersDeadline, match="did not read the text in"):
                await anext(running)
    line = f'hf_transformer_generations_total{{finish="abandoned",model_name="m"}} {choices}.0'
    assert line in metrics.render().decode()
    assert harness.called == [], "the predictor did not fail"


@CHOICES
async def test_an_abandoned_stream_is_freed_without_the_garbage_collector(
    harness: PipelineHarness, choices: int
) -> None:
    gc.disable()
    try:
        async with harness.streaming(endless(), choices) as running:
            await anext(running)
        left = weakref.ref(running)
        del running
        await asyncio.sleep(0)
        assert left() is None
    finally:
        gc.enable()


async def test_a_cancellation_at_the_deadline_is_kept(harness: PipelineHarness) -> None:
    generator, when = endless(wait=asyncio.Event().wait), soon()
    reading = asyncio.create_task(harness.read(generator, asking(), deadline=when))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_at(when, reading.cancel)
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert generator.running == 0


async def test_new_tokens_are_charged_to_admission(harness: PipelineHarness) -> None:
    admission = Admission(10, 1000, Metrics())
    with AdmissionTicket(admission) as ticket:
        ticket.enter()
        async with await harness.pipeline(endless()).start(asking(), context(ticket=ticket)) as generation:
            assert admission.tokens == generation.prompt_tokens
            for _ in range(5):
                await anext(generation)
            assert admission.tokens == generation.prompt_tokens + generation.completion_tokens
            assert generation.completion_tokens >= 5
    assert admission.tokens == 0


async def test_text_is_charged_by_its_length_until_it_is_tokenized(harness: PipelineHarness) -> None:
    metrics, gate = Metrics(), asyncio.Semaphore(0)
    admission, charged = Admission(10, 1000, metrics), list[int]()
    generator = ScriptedGenerator(lambda *_: [*[Step(text=" the capital")] * 9, Step(finish="stop")], wait=gate.acquire)
    with AdmissionTicket(admission) as ticket:
        ticket.enter()
        counts = metrics.of("m")
        pipeline = harness.pipeline(generator, metrics=counts)
        async with await pipeline.start(asking(), context(ticket=ticket)) as generation:
            while not charged or generation.completion_tokens == 0:
                assert counts.generation.generated_tokens == 0, "a counter must not decrease"
                gate.release()
                await anext(generation)
                charged.append(admission.tokens - generation.prompt_tokens)
        assert charged[:9] == [12 * count // 4 for count in range(1, 10)]
        expected = len(harness.ids(" the capital" * 9))
        assert charged[9] == generation.completion_tokens == counts.generation.generated_tokens == expected


async def test_metrics_count_tokens_and_finish_reasons(harness: PipelineHarness) -> None:
    metrics = Metrics()
    await harness.read(harness.saying(" a b c"), asking(n=2), metrics=metrics.of("m"))
    async with harness.streaming(endless(), metrics=metrics.of("m")) as running:
        await anext(running)
        assert 'hf_transformer_generations_in_flight{model_name="m"} 1.0' in metrics.render().decode()
    with pytest.raises(PredictorError):
        await harness.read(ScriptedGenerator(lambda *_: []), asking(), metrics=metrics.of("m"))
    text = metrics.render().decode()
    prompt, new = len(harness.ids(PROMPT)), 2 * len(harness.ids(" a b c"))
    assert f'hf_transformer_prompt_tokens_total{{model_name="m"}} {3 * prompt}.0' in text
    assert f'hf_transformer_generated_tokens_total{{model_name="m"}} {new + running.completion_tokens}.0' in text
    assert 'hf_transformer_generations_in_flight{model_name="m"} 0.0' in text
    for finish, count in (("stop", 2), ("length", 0), ("abandoned", 1), ("error", 1)):
        assert f'hf_transformer_generations_total{{finish="{finish}",model_name="m"}} {count}.0' in text
    assert 'hf_transformer_time_to_first_token_seconds_count{model_name="m"} 2.0' in text
    assert 'hf_transformer_time_per_output_token_seconds_count{model_name="m"} 2.0' in text


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
async def test_time_per_token_needs_several_steps(harness: PipelineHarness, script: list[Step], observed: int) -> None:
    metrics = Metrics()
    await harness.read(ScriptedGenerator(lambda *_: script), asking(), metrics=metrics.of("m"))
    line = f'hf_transformer_time_per_output_token_seconds_count{{model_name="m"}} {observed}.0'
    assert line in metrics.render().decode()


async def test_times_between_tokens_add_up_to_the_time_after_the_first(harness: PipelineHarness) -> None:
    metrics = Metrics()
    script = [*[Step(ids=(token,)) for token in (5, 6, 7)], Step(ids=(8,), finish="stop")]
    await harness.read(ScriptedGenerator(lambda *_: script), asking(), metrics=metrics.of("m"))
    page = metrics.render().decode()

    def seconds(name: str) -> float:
        [value] = re.findall(rf'^hf_transformer_{name}_seconds_sum{{model_name="m"}} (.*)$', page, re.MULTILINE)
        return float(value)

    assert 'hf_transformer_inter_token_seconds_count{model_name="m"} 3.0' in page
    assert 0 < seconds("inter_token") == pytest.approx(3 * seconds("time_per_output_token"))
