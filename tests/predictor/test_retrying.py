"""Tries again, without a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor import kinds
from hf_transformer.predictor.retry_budget import RetryBudget
from hf_transformer.predictor.retrying import RetryingPredictor
from hf_transformer.types import Tensor
from tests.predictor.scripted import OUTPUTS, SPEC, Scripted
from tests.predictor.shared_calls import until

pytestmark = pytest.mark.asyncio


BATCH = {"logits": 4}
"""Sizes as calls have them that go on at the predictor."""


def down(count: int) -> list[Exception]:
    return [PredictorUnavailable(f"try {number}") for number in range(count)]


class Retried:
    """A RetryingPredictor over a script, with the pauses that it made."""

    def __init__(
        self,
        *errors: Exception | None,
        retries: int,
        seconds: float = 60.0,
        jitter: float = 1.0,
        budget: float = 100.0,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self.inner = Scripted(*errors)
        self.sizes = sizes
        self.pauses: list[float] = []
        self.pausing: asyncio.Event | None = None
        self.metrics = Metrics("m")
        self.predictor = RetryingPredictor(
            self.inner,
            retries,
            seconds,
            RetryBudget(budget, clock=lambda: 0.0),
            metrics=self.metrics,
            sleep=self.pause,
            jitter=lambda: jitter,
        )

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if self.pausing is not None:
            await self.pausing.wait()

    async def infer(self) -> Mapping[str, Tensor]:
        async with self.predictor.infer([], ["logits"], {}, sizes=self.sizes) as outputs:
            self.inner.events.append("body")
            return outputs

    def counted(self, name: str) -> float:
        for line in self.metrics.render().decode().splitlines():
            if line.startswith(f"hf_transformer_predictor_{name}_total "):
                return float(line.split()[1])
        raise AssertionError(name)


async def test_an_answer_is_passed_on() -> None:
    retried = Retried(retries=3, sizes=BATCH)
    async with retried.predictor as predictor:
        assert await retried.infer() is OUTPUTS
        assert retried.inner.sizes == BATCH
        assert await predictor.model_spec() is SPEC
        assert not await predictor.model_ready()
    assert retried.inner.events == ["open", "infer", "body", "given back", "close"]
    assert (retried.counted("retries"), retried.counted("retries_denied")) == (0, 0)


async def test_it_tries_again_with_longer_and_longer_pauses() -> None:
    retried = Retried(*down(8), retries=8)
    assert await retried.infer() is OUTPUTS
    assert retried.pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert retried.counted("retries") == 8


@pytest.mark.parametrize("share", [0.0, 0.5])
async def test_pauses_are_drawn_from_the_whole_range(share: float) -> None:
    retried = Retried(*down(3), retries=3, jitter=share)
    await retried.infer()
    assert retried.pauses == [0.05 * share, 0.1 * share, 0.2 * share]


async def test_it_gives_up_with_the_last_error() -> None:
    retried = Retried(*down(5), retries=2)
    with pytest.raises(PredictorUnavailable, match=r"^try 2$"):
        await retried.infer()
    assert retried.inner.events == ["infer"] * 3
    assert (retried.counted("retries"), retried.counted("retries_denied")) == (2, 0)


@pytest.mark.parametrize("kind", kinds.ALL)
async def test_what_is_tried_again(kind: str) -> None:
    """What certainly was not answered, and nothing else."""
    safe = kind in {"connection", "no_answer", "unavailable"}
    retried = Retried(PredictorUnavailable("no", kind), retries=5)
    if safe:
        assert await retried.infer() is OUTPUTS
    else:
        with pytest.raises(PredictorUnavailable, match="no"):
            await retried.infer()
    assert len(retried.pauses) == safe


@pytest.mark.parametrize(
    "error", [PredictorError("no"), PredictorTimeout("slow"), PredictorTimeout("no route", "connection")], ids=repr
)
async def test_other_errors_are_final(error: Exception) -> None:
    retried = Retried(error, retries=5)
    with pytest.raises(type(error)):
        await retried.infer()
    assert (retried.inner.events, retried.pauses) == (["infer"], [])


@pytest.mark.parametrize("error", [PredictorUnavailable("in the body"), TimeoutError("in the body")], ids=repr)
async def test_the_body_is_never_run_again(error: Exception) -> None:
    retried = Retried(*down(1), retries=5)
    with pytest.raises(type(error), match="in the body"):
        async with retried.predictor.infer([], ["logits"], {}):
            raise error
    assert retried.inner.events == ["infer", "infer", "given back"]


async def test_a_pause_that_would_end_too_late_is_not_begun() -> None:
    retried = Retried(*down(5), retries=5, seconds=0.04)
    with pytest.raises(PredictorUnavailable, match=r"^try 0$"):
        await retried.infer()
    assert retried.pauses == []


@pytest.mark.parametrize("sizes", [None, BATCH], ids=["stops", "goes on"])
async def test_all_tries_together_have_the_timeout(sizes: Mapping[str, int] | None) -> None:
    retried = Retried(*down(1), None, retries=5, seconds=0.5, jitter=0.0, sizes=sizes)
    with pytest.raises(PredictorTimeout, match=r"no answer in 0\.5 s, retries included"):
        await retried.infer()
    assert retried.inner.events == ["infer", "infer", "cancelled"]


async def test_the_timeout_ends_when_the_outputs_are_there() -> None:
    retried = Retried(retries=1, seconds=0.01)
    async with retried.predictor.infer([], ["logits"], {}) as outputs:
        await asyncio.sleep(0.02)  # longer than the timeout, which no longer runs
        assert outputs is OUTPUTS


async def test_a_timeout_of_the_caller_is_not_ours() -> None:
    retried = Retried(None, retries=1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await retried.infer()


@pytest.mark.parametrize("sizes", [None, BATCH], ids=["stops", "goes on"])
async def test_nobody_waits_any_longer_in_a_pause(sizes: Mapping[str, int] | None) -> None:
    retried = Retried(*down(5), retries=5, sizes=sizes)
    retried.pausing = asyncio.Event()
    call = asyncio.create_task(retried.infer())
    await until(lambda: len(retried.pauses) == 1)
    assert retried.predictor.stops_when_cancelled
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert retried.inner.events == ["infer"]


async def test_a_call_that_stops_is_cancelled_at_once() -> None:
    retried = Retried(None, retries=5)
    call = asyncio.create_task(retried.infer())
    await until(lambda: retried.inner.events == ["infer"])
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert retried.inner.events == ["infer", "cancelled"]


@pytest.mark.parametrize("fails", [False, True], ids=["answers", "fails"])
async def test_a_call_that_goes_on_ends_first(fails: bool) -> None:
    """Its place is free when the predictor is, and its buffer is given back."""
    retried = Retried(None, retries=5, sizes=BATCH)
    call = asyncio.create_task(retried.infer())
    await until(lambda: retried.inner.events == ["infer"])
    for _ in range(2):
        call.cancel()
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not call.done() and retried.inner.events == ["infer"]
    if fails:
        retried.inner.failure = PredictorUnavailable("it has ended")
    retried.inner.release.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert retried.inner.events == (["infer"] if fails else ["infer", "given back"])
    assert retried.pauses == []


async def test_a_call_that_goes_on_is_tried_again_like_any_other() -> None:
    retried = Retried(*down(2), retries=5, sizes=BATCH)
    assert await retried.infer() is OUTPUTS
    assert retried.inner.events == ["infer", "infer", "infer", "body", "given back"]


async def test_a_budget_that_is_spent_ends_the_retries() -> None:
    retried = Retried(*down(100), retries=100, budget=0.0)
    with pytest.raises(PredictorUnavailable, match=r"^try 10$"):
        await retried.infer()
    with pytest.raises(PredictorUnavailable, match=r"^try 11$"):
        await retried.infer()
    assert (retried.counted("retries"), retried.counted("retries_denied")) == (10, 2)


async def test_an_outage_is_not_multiplied() -> None:
    retried = Retried(*down(10_000), retries=3, budget=0.1)
    for _ in range(1000):
        with pytest.raises(PredictorUnavailable):
            await retried.infer()
    assert 1000 + 100 <= len(retried.inner.events) <= 1000 + 110


async def test_the_budget_grows_with_calls_and_with_time() -> None:
    now = 0.0
    budget = RetryBudget(0.5, clock=lambda: now)
    assert [budget.withdraw() for _ in range(11)] == [True] * 10 + [False]
    budget.deposit()
    assert not budget.withdraw()
    budget.deposit()
    assert [budget.withdraw(), budget.withdraw()] == [True, False]
    now = 2.0
    assert [budget.withdraw() for _ in range(3)] == [True, True, False]
    now = 10_000.0
    for _ in range(1000):
        budget.deposit()
    assert sum(budget.withdraw() for _ in range(20)) == 10
