"""One inference beside all batches: what it asks, and which answers are wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hf_transformer.core.signature import Binding, InputBinding
from hf_transformer.errors import PredictorError
from hf_transformer.types import Encoding
from tests.core.test_scheduler import BINDING, LOGITS, bench

pytestmark = pytest.mark.asyncio

TEXT = Encoding([101, 7, 102], [0, 0, 0])


@pytest.mark.parametrize(
    ("binding", "asked"),
    [
        (BINDING, [[101, 7, 102]]),
        (replace(BINDING, length=5), [[101, 7, 102, 0, 0]]),
        (replace(BINDING, exact_rows=2), [[101, 7, 102]] * 2),
    ],
    ids=["free", "fixed length", "exact rows"],
)
async def test_it_is_sent_as_a_batch_would_be(binding: Binding, asked: list[list[int]]) -> None:
    async with bench(binding) as served:
        busy = await served.send(1, 2)
        trial = asyncio.create_task(served.scheduler.canary(TEXT))
        await served.turn()
        assert served.predictor.calls[-1].ids.tolist() == asked, "it waits for no place"
        await served.answer()
        await trial
        await busy


async def test_the_models_own_error() -> None:
    async with bench() as served:
        trial = asyncio.create_task(served.scheduler.canary(TEXT))
        await served.turn()
        served.predictor.fail(0, PredictorError("Stub process is not healthy"))
        with pytest.raises(PredictorError, match="not healthy"):
            await trial


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        (replace(BINDING, outputs=(replace(LOGITS, datatype="FP64"),)), "as FP32, its configuration says FP64"),
        (replace(BINDING, outputs=(replace(LOGITS, axes=LOGITS.axes[:1], sizes=(-1,)),)), "with the shape"),
    ],
    ids=["datatype", "shape"],
)
async def test_an_answer_that_is_not_what_was_promised(binding: Binding, message: str) -> None:
    async with bench(binding) as served:
        trial = asyncio.create_task(served.scheduler.canary(TEXT))
        await served.turn()
        await served.answer()
        with pytest.raises(PredictorError, match=message):
            await trial


async def test_inputs_are_those_that_the_model_takes() -> None:
    mask = InputBinding("attention_mask", "attention_mask", "INT32")
    async with bench(replace(BINDING, inputs=(BINDING.inputs[0], mask), masked=True)) as served:
        trial = asyncio.create_task(served.scheduler.canary(TEXT))
        await served.turn()
        await served.answer()
        await trial
        assert served.predictor.calls[0].ids.shape == (1, 3)


@pytest.mark.parametrize(("column", "wrong"), [(0, True), (2, True), (4, False)], ids=["first", "last", "padding"])
async def test_nan_is_no_answer_but_in_the_padding(column: int, wrong: bool) -> None:
    async with bench(replace(BINDING, length=5)) as served:
        served.predictor.nan_at = column
        trial = asyncio.create_task(served.scheduler.canary(TEXT))
        await served.turn()
        await served.answer()
        if wrong:
            with pytest.raises(PredictorError, match="'logits' with NaN"):
                await trial
        else:
            await trial
