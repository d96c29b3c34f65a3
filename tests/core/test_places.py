"""Places at one predictor, shared by schedulers: after a model was bound anew, requests still queue for the old one."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from hf_transformer.core.pipeline import Pipeline
from hf_transformer.core.places import Places
from hf_transformer.core.scheduler import Scheduler
from hf_transformer.errors import PredictorError
from hf_transformer.model_parts import load_parts
from hf_transformer.model_wiring import pipeline_builder
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types import ModelSpec, TensorSpec
from tests.configuring import config
from tests.core.test_scheduler import BINDING, SETTINGS, Bench
from tests.integration.server.processes import MODEL_FOLDER


class Pair:
    """Two schedulers of one predictor: that which the model was bound to, and that which it is bound to now."""

    def __init__(self, executor: ThreadPoolExecutor, count: int) -> None:
        self.places = Places(count)
        self.old = self._bench(executor)
        self.new = self._bench(executor)
        self.new.predictor = self.old.predictor
        self.new.scheduler._predictor = self.old.predictor

    def _bench(self, executor: ThreadPoolExecutor) -> Bench:
        bench = Bench(executor, SETTINGS, BINDING)
        bench.scheduler = Scheduler(
            bench.predictor,
            bench.scheduler._form,
            replace(SETTINGS, max_batches_in_flight=100),
            executor=executor,
            metrics=bench.metrics,
            places=self.places,
        )
        return bench

    @property
    def in_flight(self) -> int:
        return sum(not call.end.done() for call in self.old.predictor.calls)


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [1, 2])
async def test_two_schedulers_of_one_predictor_share_its_places(count: int) -> None:
    with ThreadPoolExecutor(1) as executor:
        pair = Pair(executor, count)
        tasks = [await pair.old.send(*range(10 * batch, 10 * batch + 4)) for batch in range(4)]
        tasks += [await pair.new.send(*range(100 + 10 * batch, 104 + 10 * batch)) for batch in range(4)]
        for number in range(8):
            assert pair.in_flight == min(count, 8 - number)
            await pair.old.answer(number)
        found = await asyncio.gather(*tasks)
        assert [one for answers in found for one in answers] == [
            first + row for first in (0, 10, 20, 30, 100, 110, 120, 130) for row in range(4)
        ]


@pytest.mark.asyncio
async def test_those_who_wait_longest_are_first_and_nobody_for_ever() -> None:
    with ThreadPoolExecutor(1) as executor:
        pair = Pair(executor, 1)
        tasks = [await pair.old.send(*range(12)), await pair.new.send(*range(100, 112))]
        for number in range(6):
            await pair.old.answer(number)
        assert [first for first, *_ in pair.old.sent] == [0, 4, 100, 8, 104, 108]
        await asyncio.gather(*tasks)


@pytest.mark.asyncio
async def test_requests_of_a_refused_batch_leave_though_nobody_else_waits() -> None:
    with ThreadPoolExecutor(1) as executor:
        pair = Pair(executor, 1)
        blocker = await pair.new.send(0)
        one, two = await pair.old.send(1), await pair.old.send(2)
        await pair.old.answer(0)
        pair.old.predictor.fail(1, PredictorError("bad"))
        for number in (2, 3):
            await pair.old.turn()
            await pair.old.answer(number)
        assert [await blocker, await one, await two] == [[0], [1], [2]]


def test_fewer_places_than_are_taken() -> None:
    places = Places(2)
    woken: list[str] = []

    def wake(name: str) -> None:
        woken.append(name)
        places.take()

    places.take()
    places.take()
    places.count = 1
    places.await_free(partial(wake, "first"))
    places.await_free(partial(wake, "second"))
    places.give_back()
    assert not places.free and woken == []
    places.give_back()
    assert woken == ["first"]
    places.give_back()
    assert woken == ["first", "second"]


@pytest.mark.asyncio
async def test_the_wiring_gives_all_pipelines_of_a_model_the_same_places() -> None:
    options = config(f"--model_dir={MODEL_FOLDER}", "--model_name=bert")
    parts = load_parts(options)
    ids = TensorSpec("input_ids", "INT64", (-1,))
    logits = TensorSpec("logits", "FP32", (-1, parts.tokenizer.vocab_size))
    with ThreadPoolExecutor(1) as executor:
        build = pipeline_builder(
            options, parts, Bench(executor, SETTINGS, BINDING).predictor, Metrics("bert"), executor
        )
        pipelines = [
            build(ModelSpec("bert", "1", (ids,), (logits,), rows, instances=instances))
            for rows, instances in ((8, 1), (16, 3))
        ]
    old, new = (pipeline._scheduler._places for pipeline in pipelines if isinstance(pipeline, Pipeline))
    assert old is new and new.count == 4, "one more than the model has instances now"
