"""The gauges of waiting and running texts of generative models."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import settings as running
from hypothesis import strategies as st

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.generation.cache import CacheBudget
from hf_transformer.generation.logits import LogitsGenerator
from hf_transformer.generation.types import Sampling, Step
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tokenizer.tokenizer import Tokenizer
from tests.generation.scripted import ScriptedGenerator, asking, context, pipeline_of
from tests.generation.tiny_model import VARIANTS, generator, write
from tests.observability.measured import work_shown

ENDLESS = Sampling(greedy=True, ignore_eos=True, max_tokens=40)
TOKEN = 2 * 2 * 8 * 4
"""Bytes per token of the tiny model's cache."""

ERRORS = (PredictorUnavailable("down"), PredictorError("bad"), PredictorTimeout("late"))
numbers = st.integers(0, 20)
events = st.one_of(
    st.tuples(st.just("ask"), st.integers(1, 3), st.integers(1, 2), st.booleans()),
    st.tuples(st.just("cancel"), numbers),
    st.tuples(st.just("step"), st.integers(1, 5)),
    st.tuples(st.just("fail"), st.sampled_from(ERRORS)),
)


class Script:
    """Texts of four tokens. Each step waits for ``turn``; the next one raises ``error``."""

    def __init__(self) -> None:
        self.condition = asyncio.Condition()
        self.error: RequestError | None = None
        self.steps = 0

    async def wait(self) -> None:
        async with self.condition:
            await self.condition.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise copy(error)

    async def turn(self) -> None:
        async with self.condition:
            self.condition.notify_all()
        await settle()


async def settle() -> None:
    for _ in range(40):
        await asyncio.sleep(0)


async def run_events(sequence: list[tuple[Any, ...]], tokenizer: Tokenizer, executor: ThreadPoolExecutor) -> None:
    script, metrics = Script(), Metrics()
    made = ScriptedGenerator(
        lambda *_: [Step(ids=(5,)), Step(ids=(6,)), Step(ids=(7,)), Step(finish="stop")], wait=script.wait
    )
    pipeline = pipeline_of(tokenizer, made, executor, metrics=metrics.of("m"))
    requests: list[asyncio.Task[None]] = []
    texts: list[tuple[int, int]] = []

    async def read(prompts: int, choices: int, late: bool) -> None:
        deadline = asyncio.get_running_loop().time() if late else None
        request = asking(*["The capital of france is"] * prompts, n=choices)
        async with await pipeline.start(request, context(deadline=deadline)) as generation:
            async for _ in generation:
                pass

    for event in [*sequence, *[("step", 1)] * 5]:
        match event:
            case "ask", prompts, choices, late:
                requests.append(asyncio.create_task(read(prompts, choices, late)))
                texts.append((prompts * choices, prompts * choices * 8))
            case "cancel", which if requests:
                requests[which % len(requests)].cancel()
            case "step", count:
                for _ in range(count):
                    await script.turn()
            case "fail", error if made.running:
                script.error = error
                await script.turn()
        await settle()
        assert work_shown(metrics, "m") == (0, 0, made.running, 8 * made.running)
        assert made.running <= sum(size for task, (size, _) in zip(requests, texts, strict=True) if not task.done())
    results = await asyncio.gather(*requests, return_exceptions=True)
    assert all(result is None or isinstance(result, RequestError | asyncio.CancelledError) for result in results)
    assert work_shown(metrics, "m") == (0, 0, 0, 0)


@running(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sequence=st.lists(events, max_size=25))
def test_texts_count_from_their_call_to_their_end(
    sequence: list[tuple[Any, ...]], gpt2: Tokenizer, executor: ThreadPoolExecutor
) -> None:
    asyncio.run(run_events(sequence, gpt2, executor))


async def one_text(made: LogitsGenerator, ids: tuple[int, ...], sampling: Sampling = ENDLESS) -> None:
    """Writes a text, and counts it as Generation does."""
    made.texts, made.tokens = made.texts + 1, made.tokens + len(ids)
    try:
        await write(made, ids, sampling)
    finally:
        made.texts, made.tokens = made.texts - 1, made.tokens - len(ids)


async def test_a_text_of_a_logits_model_waits_until_its_first_step_is_sent() -> None:
    metrics = Metrics()
    async with generator(VARIANTS["cache"], cache_budget=CacheBudget(90 * TOKEN)) as (made, predictor):
        metrics.of("m").watch_work(made)
        predictor.held = True
        texts = [asyncio.create_task(one_text(made, ids)) for ids in ((3, 4), (5, 6, 7), (8,))]
        await predictor.turn()
        assert work_shown(metrics, "m") == (1, 1, 2, 5), "the third text waits for memory"
        texts.append(asyncio.create_task(one_text(made, (3, 4, 5, 6), replace(ENDLESS, max_tokens=1))))
        await predictor.release()
        assert work_shown(metrics, "m") == (2, 5, 2, 5), "after their first step, texts are running between steps too"
        texts[2].cancel()
        await predictor.turn()
        assert work_shown(metrics, "m") == (1, 4, 2, 5)
        while not all(task.done() for task in texts):
            await predictor.release()
            waiting, _, sent, _ = work_shown(metrics, "m")
            assert waiting + sent == sum(not task.done() for task in texts)
        assert work_shown(metrics, "m") == (0, 0, 0, 0)


async def test_a_text_waits_in_the_queue_of_a_busy_logits_model() -> None:
    async with generator(VARIANTS["plain"]) as (made, predictor):
        predictor.held = True
        first = asyncio.create_task(one_text(made, (3, 4)))
        await predictor.turn()
        second = asyncio.create_task(one_text(made, (5, 6, 7)))
        await predictor.turn()
        assert made.work == (1, 3, 1, 2)
        await predictor.release()
        assert made.work == (0, 0, 2, 5)
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert made.work == (0, 0, 0, 0)


async def test_a_replaced_model_is_counted_until_its_last_text_ends() -> None:
    metrics = Metrics()
    old, new = ScriptedGenerator(lambda *_: ()), ScriptedGenerator(lambda *_: ())
    for made in (old, new):
        metrics.of("m").watch_work(made)
        made.texts, made.tokens = 1, 7
    assert work_shown(metrics, "m") == (0, 0, 2, 14)
    del old, made
    assert work_shown(metrics, "m") == (0, 0, 1, 7)
