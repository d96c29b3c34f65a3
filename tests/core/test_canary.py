"""When a model is tried out, and what comes of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from hf_transformer.core.trial import SUSPECT_AFTER, Canary
from hf_transformer.errors import (
    CallersDeadline,
    InvalidInput,
    NotReady,
    PredictorDenied,
    PredictorError,
    PredictorTimeout,
    PredictorUnavailable,
    RequestError,
)

pytestmark = pytest.mark.asyncio


class Model:
    """Infers as a test says, and counts."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.calls = self.cancelled = 0
        self.gate: asyncio.Event | None = None

    async def infer(self) -> None:
        self.calls += 1
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error


def suspicious() -> Canary:
    canary = Canary()
    for _ in range(SUSPECT_AFTER):
        canary.failed(PredictorError("dead"))
    return canary


async def test_a_model_that_answers_is_left_alone() -> None:
    canary, model = Canary(), Model()
    for _ in range(10):
        for _ in range(SUSPECT_AFTER - 1):
            canary.failed(PredictorError("bad"))
        await canary.check(model.infer, 5.0)
        canary.succeeded()
    assert model.calls == 0


@pytest.mark.parametrize(
    "error",
    [PredictorUnavailable("x"), PredictorTimeout("x"), CallersDeadline("x"), InvalidInput("x")],
    ids=lambda error: type(error).__name__,
)
async def test_what_says_nothing_of_the_model(error: RequestError) -> None:
    canary, model = Canary(), Model()
    for _ in range(50):
        canary.failed(error)
    await canary.check(model.infer, 5.0)
    assert model.calls == 0
    canary = suspicious()
    canary.failed(error)
    assert canary.suspects


async def test_a_trial_that_fails_is_the_reason_until_one_succeeds() -> None:
    canary, model = suspicious(), Model(PredictorError("Stub process is not healthy"))
    for times in (1, 2):
        with pytest.raises(NotReady, match="the last 3 requests failed, and so does a trial: Stub process is not he"):
            await canary.check(model.infer, 5.0)
        assert model.calls == times
    model.error = None
    await canary.check(model.infer, 5.0)
    await canary.check(model.infer, 5.0)
    assert model.calls == 3 and not canary.suspects


async def test_a_request_that_is_answered_ends_the_suspicion() -> None:
    canary, model = suspicious(), Model(PredictorError("dead"))
    canary.succeeded()
    await canary.check(model.infer, 5.0)
    assert model.calls == 0


async def test_a_trial_that_takes_too_long_is_cancelled() -> None:
    canary, model = suspicious(), Model()
    model.gate = asyncio.Event()
    with pytest.raises(NotReady, match="no answer in time"):
        await canary.check(model.infer, 0.01)
    await asyncio.sleep(0)
    assert (model.calls, model.cancelled) == (1, 1)
    model.gate.set()
    await canary.check(model.infer, 5.0)
    assert model.calls == 2 and not canary.suspects


async def test_a_trial_that_can_not_be_cancelled_is_the_only_one() -> None:
    canary, calls, end = suspicious(), 0, asyncio.Event()

    async def infer() -> None:
        nonlocal calls
        calls += 1
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                pass

    for _ in range(3):
        with pytest.raises(NotReady, match="no answer in time"):
            await canary.check(infer, 0.01)
    assert calls == 1
    end.set()
    await canary.check(infer, 5.0)
    assert calls == 1 and not canary.suspects


async def test_a_trial_that_is_broken_off() -> None:
    canary, model = suspicious(), Model(asyncio.CancelledError())  # type: ignore[arg-type]
    with pytest.raises(NotReady, match="broken off"):
        await canary.check(model.infer, 5.0)
    assert canary.suspects


async def test_closing_ends_a_trial() -> None:
    canary, model = suspicious(), Model()
    model.gate = asyncio.Event()
    check = asyncio.create_task(canary.check(model.infer, 50.0))
    for _ in iter(lambda: model.calls > 0, True):
        await asyncio.sleep(0)
    check.cancel()
    await asyncio.wait([check])
    await canary.close()
    assert model.cancelled == 1


async def test_closing_does_not_wait_for_a_trial_that_can_not_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The predictor, which is closed next, ends it."""
    monkeypatch.setattr("hf_transformer.core.trial.LAST_SECONDS", 0.0)
    canary, end = suspicious(), asyncio.Event()

    async def infer() -> None:
        while not end.is_set():
            with suppress(asyncio.CancelledError):
                await end.wait()

    with pytest.raises(NotReady, match="no answer in time"):
        await canary.check(infer, 0.0)
    closing = asyncio.create_task(canary.close())
    await asyncio.wait([closing], timeout=1.0)
    closed = closing.done()
    end.set()
    await closing
    assert closed


async def test_who_may_not_ask_says_nothing_of_the_model() -> None:
    canary = Canary()
    for _ in range(SUSPECT_AFTER):
        canary.failed(PredictorDenied("401"))
    assert not canary.suspects
    canary = suspicious()
    await canary.check(Model(PredictorDenied("401")).infer, 5.0)
    assert not canary.suspects
