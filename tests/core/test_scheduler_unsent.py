"""Batches whose requests are given up before they are on their way."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from hf_transformer.core.scheduler import INLINE_COST
from hf_transformer.types import Context, Encoding
from tests.core.test_scheduler import bench, first_logit
from tests.predictor.scripted import until

pytestmark = pytest.mark.asyncio


async def test_a_batch_that_nobody_waits_for_is_not_sent() -> None:
    """Its request leaves before the batch's task has run for the first time, with and without another behind it."""
    async with bench() as b:
        for behind in (False, True):
            context = Context("id", {})
            runs = [
                asyncio.ensure_future(b.scheduler.run([Encoding([1], [0])], first_logit, context, lambda encoding: 1))
                for _ in range(1 + behind)
            ]
            await asyncio.sleep(0)
            runs[0].cancel()
            await b.turn()
            assert len(b.sent) == behind
            with pytest.raises(asyncio.CancelledError):
                await runs[0]
        await b.answer(0)
        assert await runs[1] == [1]
        after = await b.send(2)
        await b.answer(1)
        assert await after == [2]


async def test_a_batch_that_nobody_waits_for_while_it_is_packed_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench() as b:
        packing, go = threading.Event(), threading.Event()
        form, pack = b.scheduler._form, b.scheduler._form.pack

        def slowly(items: Any) -> Any:
            packing.set()
            go.wait(10)
            return pack(items)

        monkeypatch.setattr(form, "pack", slowly)
        monkeypatch.setattr(form, "pack_cost", lambda items: INLINE_COST + 1)
        left, other = await b.send(1), await b.send(2)
        await asyncio.to_thread(packing.wait, 10)
        left.cancel()
        go.set()
        await until(lambda: bool(b.sent))
        assert b.sent == [[2]]
        await b.answer(0)
        assert await other == [2]
