"""Tries again, without a clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import numpy as np
import pytest

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable
from hf_transformer.predictors.base import Predictor
from hf_transformer.predictors.retrying import RetryingPredictor
from hf_transformer.types import ModelSpec, Tensor

pytestmark = pytest.mark.asyncio

OUTPUTS = {"logits": Tensor("logits", "FP32", np.zeros(1, np.float32))}
SPEC = ModelSpec("m", "1", (), (), 0)


class Scripted(Predictor):
    """Fails with each of the errors in turn, and then answers; None hangs."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.events: list[str] = []
        self.sizes: Mapping[str, int] | None = None

    async def __aenter__(self) -> Self:
        self.events.append("open")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.events.append("close")

    async def model_spec(self) -> ModelSpec:
        return SPEC

    async def model_ready(self) -> bool:
        return False

    @asynccontextmanager
    async def infer(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> AsyncIterator[Mapping[str, Tensor]]:
        self.events.append("infer")
        self.sizes = sizes
        if self.errors:
            error = self.errors.pop(0)
            if error is None:
                await asyncio.Event().wait()
            else:
                raise error
        try:
            yield OUTPUTS
        finally:
            self.events.append("given back")


def down(count: int) -> list[Exception]:
    return [PredictorUnavailable(f"try {number}") for number in range(count)]


class Retried:
    """A RetryingPredictor over a script, with the pauses that it made."""

    def __init__(self, *errors: Exception | None, retries: int, seconds: float = 60.0, jitter: float = 1.0) -> None:
        self.inner = Scripted(*errors)
        self.pauses: list[float] = []
        self.predictor = RetryingPredictor(self.inner, retries, seconds, sleep=self.pause, jitter=lambda: jitter)

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def infer(self) -> Mapping[str, Tensor]:
        async with self.predictor.infer([], ["logits"], {}, sizes={"logits": 4}) as outputs:
            self.inner.events.append("body")
            return outputs


async def test_an_answer_is_passed_on() -> None:
    retried = Retried(retries=3)
    async with retried.predictor as predictor:
        assert await retried.infer() is OUTPUTS
        assert retried.inner.sizes == {"logits": 4}
        assert await predictor.model_spec() is SPEC
        assert not await predictor.model_ready()
    assert retried.inner.events == ["open", "infer", "body", "given back", "close"]


async def test_it_tries_again_with_longer_and_longer_pauses() -> None:
    retried = Retried(*down(8), retries=8)
    assert await retried.infer() is OUTPUTS
    assert retried.pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


async def test_pauses_vary() -> None:
    retried = Retried(*down(3), retries=3, jitter=0.0)
    await retried.infer()
    assert retried.pauses == [0.025, 0.05, 0.1]


async def test_it_gives_up_with_the_last_error() -> None:
    retried = Retried(*down(5), retries=2)
    with pytest.raises(PredictorUnavailable, match=r"^try 2$"):
        await retried.infer()
    assert retried.inner.events == ["infer"] * 3


@pytest.mark.parametrize("error", [PredictorError("no"), PredictorTimeout("slow")], ids=repr)
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


async def test_all_tries_together_have_the_timeout() -> None:
    retried = Retried(*down(1), None, retries=5, seconds=0.5, jitter=0.0)
    with pytest.raises(PredictorTimeout, match=r"no answer in 0\.5 s, retries included"):
        await retried.infer()
    assert retried.inner.events == ["infer", "infer"]


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
