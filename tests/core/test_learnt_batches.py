"""What batches cost is learnt from all that are sent, and decides which texts share one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from hf_transformer.core.batch import EncodingForm, Filling, Widths
from hf_transformer.core.batch_costs import GUESS, WORTH, BatchCosts, Timing
from hf_transformer.core.contract import InputSignature, OutputSignature, Signature
from hf_transformer.core.scheduler import Scheduler, SchedulerSettings
from hf_transformer.errors import PredictorUnavailable
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tasks.base import TOKENS, Axis
from hf_transformer.types import Encoding
from tests.core.test_scheduler import run
from tests.scripted_predictor import ScriptedPredictor

IDS, MASK = (InputSignature(name, name, "INT64") for name in ("input_ids", "attention_mask"))
LOGITS = OutputSignature("logits", "logits", "FP32", (TOKENS, Axis(name="labels", minimum=1)), (-1, 1))
MASKED = Signature((IDS, MASK), (LOGITS,), 8, None, True, None, True)
SETTINGS = SchedulerSettings(
    max_batches_in_flight=1, max_batch_tokens=10**6, max_batch_output_bytes=10**9, timeout=600.0
)


class Recorded(BatchCosts):
    """``tokens`` has those of every batch that has ended, 0 for one without an answer."""

    def __init__(self, overhead: float) -> None:
        super().__init__(1)
        self.overhead = overhead
        self.tokens: list[int] = []

    def ended(self, timing: Timing, now: float, tokens: int) -> None:
        self.tokens.append(tokens)
        super().ended(timing, now, tokens)


class Bench:
    """A scheduler of a model with an attention mask, and texts by their lengths."""

    def __init__(self, executor: ThreadPoolExecutor, overhead: float, widths: Widths | None) -> None:
        self.predictor = ScriptedPredictor()
        self.costs = Recorded(overhead)
        self.metrics = Metrics("bert")
        filling = Filling(0, left=False, widths=widths)
        form = EncodingForm(MASKED, filling, max_tokens=10**6, max_output_bytes=10**9, costs=self.costs)
        self.scheduler = Scheduler(self.predictor, form, SETTINGS, executor=executor, metrics=self.metrics)

    async def send(self, *lengths: int) -> asyncio.Task[list[object]]:
        items = [Encoding([1] * length, [0] * length) for length in lengths]
        task = asyncio.create_task(run(self.scheduler, items, lambda number, *rest: number))
        await self.turn()
        return task

    async def turn(self) -> None:
        """Lets everything happen that can."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def answer(self, number: int) -> None:
        self.predictor.answer(number)
        await self.turn()

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [call.ids.shape for call in self.predictor.calls]


@asynccontextmanager
async def bench(overhead: float = GUESS, widths: Widths | None = None) -> AsyncIterator[Bench]:
    with ThreadPoolExecutor(1) as executor:
        yield Bench(executor, overhead, widths)


@pytest.mark.parametrize(
    ("overhead", "shapes"),
    [(GUESS, [(1, 5), (3, 13)]), (12.0, [(1, 5), (3, 13)]), (11.0, [(1, 5), (2, 10), (1, 13)])],
)
async def test_texts_share_a_batch_where_that_saves_more_than_their_padding_costs(
    overhead: float, shapes: list[tuple[int, ...]]
) -> None:
    async with bench(overhead) as b:
        tasks = [await b.send(5), await b.send(10, 10, 13)]
        for number in range(len(shapes)):
            await b.answer(number)
        assert b.shapes == shapes
        assert [await task for task in tasks] == [[0], [0, 1, 2]]


async def test_the_first_batches_of_a_service_have_no_more_padding_than_the_guess_allows() -> None:
    near = 400 - int(WORTH * GUESS)
    assert 3 * (400 - near) < 0.25 * 4 * 400, "the quarter of a batch alone would let all four share one"
    async with bench() as b:
        tasks = [await b.send(5), await b.send(400, near, near, near)]
        for number in range(3):
            await b.answer(number)
        assert b.shapes == [(1, 5), (2, 400), (2, near)]
        await asyncio.gather(*tasks)


async def test_texts_that_are_padded_to_one_width_share_a_batch_whatever_padding_costs() -> None:
    lengths = (9, 12, 16, 10)
    async with bench(4.0, Widths(16, 512)) as b:
        tasks = [await b.send(5), await b.send(*lengths), await b.send(17)]
        for number in range(3):
            await b.answer(number)
        assert b.shapes == [(1, 16), (4, 16), (1, 32)]
        assert [await task for task in tasks] == [[0], [0, 1, 2, 3], [0]]
        shown = b.metrics.render().decode()
        sent, real = 16 + 64 + 32, 5 + sum(lengths) + 17
        assert f'hf_transformer_batch_tokens_total{{kind="real"}} {real:.1f}' in shown
        assert f'hf_transformer_batch_tokens_total{{kind="padding"}} {sent - real:.1f}' in shown
    async with bench(4.0) as b:
        tasks = [await b.send(5), await b.send(*lengths)]
        for number in range(4):
            await b.answer(number)
        assert b.shapes == [(1, 5), (2, 10), (1, 12), (1, 16)]
        await asyncio.gather(*tasks)


async def test_every_batch_is_learnt_from_with_its_padding() -> None:
    async with bench() as b:
        tasks = [await b.send(5), await b.send(10, 10, 13)]
        await b.answer(0)
        await b.answer(1)
        await asyncio.gather(*tasks)
        assert b.costs.tokens == [5, 39]


async def test_a_batch_that_fails_teaches_nothing_but_has_ended() -> None:
    async with bench() as b:
        failing = await b.send(5)
        b.predictor.fail(0, PredictorUnavailable("gone"))
        with pytest.raises(PredictorUnavailable):
            await failing
        assert b.costs.tokens == [0]


@pytest.mark.parametrize(
    "signature",
    [
        replace(MASKED, masked=False),
        replace(MASKED, length=16),
        replace(MASKED, max_rows=1),
        replace(MASKED, exact_rows=8),  # one text costs as much as eight
    ],
)
def test_where_lengths_are_never_mixed_or_rows_cost_nothing_nothing_is_learnt(signature: Signature) -> None:
    form = EncodingForm(signature, Filling(0, left=False), max_tokens=10, max_output_bytes=10**9, costs=BatchCosts(1))
    assert form.costs is None
