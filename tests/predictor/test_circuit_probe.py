"""How a predictor that counts as dead is found alive; without a clock."""

from __future__ import annotations

import asyncio
import logging

import pytest

from hf_transformer.errors import PredictorError, PredictorUnavailable
from hf_transformer.predictor import circuit as circuit_module
from tests.predictor.circuit_calls import Guarded, down
from tests.predictor.scripted import OUTPUTS
from tests.predictor.shared_calls import until

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(("jitter", "first"), [(1.0, 0.1), (0.0, 0.05)])
async def test_pauses_between_probes_grow_and_vary(jitter: float, first: float) -> None:
    guarded = Guarded(*down(1), failures=1, jitter=jitter)
    async with guarded.predictor:
        await guarded.fail(1)
        for _ in range(6):
            await guarded.probe(False)
        assert guarded.pauses == pytest.approx([first * factor for factor in (1, 2, 4, 8, 16, 20, 20)])
        await guarded.probe(True)
        assert await guarded.infer() is OUTPUTS
        guarded.inner.errors = down(1)
        await guarded.fail(1)
        await until(lambda: len(guarded.pauses) == 8)
        assert guarded.pauses[-1] == pytest.approx(first), "a success begins anew"


async def test_a_predictor_that_only_says_that_it_is_ready_is_asked_less_and_less() -> None:
    guarded = Guarded(*down(2), failures=1)
    async with guarded.predictor:
        await guarded.fail(1)
        await guarded.probe(True)
        await guarded.fail(1)
        await until(lambda: len(guarded.pauses) == 2)
        assert guarded.pauses == pytest.approx([0.1, 0.2])


async def test_there_is_one_probe_for_many_failures_at_once() -> None:
    guarded = Guarded(*[None] * 50)
    guarded.inner.failure = PredictorUnavailable("all together", "lost")
    async with guarded.predictor:
        calls = [asyncio.create_task(guarded.infer()) for _ in range(50)]
        await until(lambda: guarded.inner.events.count("infer") == 50)
        guarded.inner.release.set()
        await asyncio.gather(*calls, return_exceptions=True)
        await guarded.fail(50)
        await guarded.probe(False)
        assert (guarded.inner.questions, len(guarded.pauses)) == (1, 2)


async def test_a_cancelled_probe_is_replaced() -> None:
    guarded = Guarded(*down(3))
    async with guarded.predictor:
        await guarded.fail(3)
        await until(lambda: len(guarded.pauses) == 1)
        probe = guarded.predictor._probe
        assert probe is not None
        probe.cancel()
        await asyncio.wait([probe])
        assert guarded.predictor.is_open
        await guarded.fail(2)
        await until(lambda: len(guarded.pauses) == 2)
        await guarded.probe(True)
        assert not guarded.predictor.is_open


@pytest.mark.parametrize(
    "trouble", [asyncio.CancelledError(), ValueError("a fault of ours"), PredictorError("400")], ids=repr
)
async def test_a_probe_survives_whatever_it_meets(trouble: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    guarded = Guarded(*down(3))
    async with guarded.predictor:
        await guarded.fail(3)
        await guarded.probe(trouble)
        assert guarded.predictor.is_open
        await guarded.probe(True)
        assert not guarded.predictor.is_open
    assert ("Traceback" in caplog.text) is isinstance(trouble, ValueError)


async def test_a_question_that_is_not_answered_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_module, "PROBE_SECONDS", 0.01)
    guarded = Guarded(*down(3))
    async with guarded.predictor:
        await guarded.fail(3)
        await guarded.probe(None)
        assert (await guarded.fail(1))[0].endswith("the predictor did not say in 0.01 s whether it is ready")
        await guarded.probe(True)
        assert not guarded.predictor.is_open


@pytest.mark.parametrize("asking", [False, True], ids=["in a pause", "while it asks"])
async def test_closing_ends_the_probe(asking: bool) -> None:
    guarded = Guarded(*down(3))
    async with guarded.predictor:
        await guarded.fail(3)
        if asking:
            guarded.inner.ready = [None]
            guarded.awake.release()
            await until(lambda: guarded.inner.questions == 1)
        probe = guarded.predictor._probe
        assert probe is not None and not probe.done()
    assert probe.cancelled() and guarded.inner.events[-1] == "close"
    await guarded.fail(1)
    assert guarded.predictor._probe is probe, "none is begun after the end"


async def test_calls_that_fail_at_the_end_begin_no_probe() -> None:
    guarded = Guarded(*[None] * 3)
    guarded.inner.failure = PredictorUnavailable("the client is closed", "lost")
    async with guarded.predictor:
        calls = [asyncio.create_task(guarded.infer()) for _ in range(3)]
        await until(lambda: guarded.inner.events.count("infer") == 3)
    guarded.inner.release.set()
    await asyncio.gather(*calls, return_exceptions=True)
    assert guarded.predictor._probe is None


async def test_the_log_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    guarded = Guarded(*down(3))
    async with guarded.predictor:
        await guarded.fail(30)
        await guarded.probe(False)
        await guarded.probe(True)
    lines = [record.getMessage() for record in caplog.records if "circuit" in record.name]
    assert lines == ["the predictor counts as dead after 3 calls in a row: call 2", "the predictor is ready again"]
