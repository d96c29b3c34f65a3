"""Readiness, trial inferences and replacement of the served model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hf_transformer.core.contract import ContractError
from hf_transformer.core.model import FAILURE_LOG_SECONDS, CheckSettings, FailureLog, State
from hf_transformer.errors import (
    InvalidInput,
    NotReady,
    PredictorDenied,
    PredictorError,
    PredictorTimeout,
    PredictorUnavailable,
    RequestError,
)
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types.request import Answers, Context, Query
from hf_transformer.types.tensors import ModelSpec
from tests.support.polling import until
from tests.support.scripted_predictor import SPEC, ScriptedPredictor

OTHER = replace(SPEC, version="2", max_batch_size=8)
DEAD = PredictorError("Stub process is not healthy")


class ScriptedPipeline:
    """A pipeline whose requests and trials end as ``ModelHarness.outcome`` says; ``gate`` delays them."""

    def __init__(self, harness: ModelHarness, spec: ModelSpec) -> None:
        self.harness = harness
        self.spec = spec
        self.tokenizer = SimpleNamespace(max_length=8)
        self.gate: asyncio.Event | None = None

    async def __call__(self, query: Query, context: Context) -> Answers:
        return Answers([await self._end()])

    async def trial(self) -> None:
        self.harness.trials += 1
        await self._end()

    async def start(self, request: Any, context: Context) -> Any:
        if request is None:
            raise InvalidInput("prompt", "a prompt", "none")
        return SimpleNamespace(set_callbacks=lambda *callbacks: setattr(self.harness, "callbacks", callbacks))

    async def _end(self) -> str:
        if self.gate is not None:
            await self.gate.wait()
        if self.harness.outcome is not None:
            raise self.harness.outcome
        return self.spec.version


class ModelHarness:
    """A served model over a predictor that describes its model."""

    def __init__(self, *, check_health: bool, interval: float, timeout: float, max_retry: float = 0.001) -> None:
        self.predictor = ScriptedPredictor()
        self.outcome: BaseException | None = None
        self.misfit = False
        self.trials = 0
        self.pipelines: list[ScriptedPipeline] = []
        self.callbacks: tuple[Any, ...] = ()
        self.metrics = Metrics()
        self.model = GenerativeModel(
            "m",
            cast(Any, SimpleNamespace(name="t", fields=(), tensor_specs=())),
            self.predictor,
            self.build,
            self.metrics.of("m"),
            checks=CheckSettings(check_health, interval, 0.001, 0.001, max_retry, timeout),
        )

    def build(self, spec: ModelSpec) -> Any:
        if self.misfit:
            raise ContractError("m", ["It has no logits."])
        self.pipelines.append(ScriptedPipeline(self, spec))
        return self.pipelines[-1]

    async def ask(self) -> Any:
        answers = await self.model.predict(Query(["x"], {}), Context("1", {}))
        return answers.predictions[0]

    async def fail(self, error: RequestError, times: int = 1) -> None:
        self.outcome = error
        for _ in range(times):
            with pytest.raises(type(error)):
                await self.ask()

    async def unready(self) -> str:
        with pytest.raises(NotReady) as caught:
            await self.model.require_ready()
        return str(caught.value)

    def state(self) -> State:
        return self.model.state

    def shown_ready(self) -> bool:
        return b'hf_transformer_model_ready{model_name="m"} 1.0' in self.metrics.render()


@asynccontextmanager
async def running_model(
    *, check_health: bool = True, interval: float = 1000.0, limit: float = 5.0
) -> AsyncIterator[ModelHarness]:
    served = ModelHarness(check_health=check_health, interval=interval, timeout=limit)
    assert served.model.state is State.SEARCHING
    with pytest.raises(NotReady, match="the predictor has not been reached yet"):
        await served.ask()
    running = asyncio.create_task(served.model.run())
    await until(lambda: served.model.state is State.READY)
    try:
        yield served
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.wait([running])
        assert len(asyncio.all_tasks()) == 1, "no task is left"


# Readiness


async def test_ready_asks_the_predictor_with_the_health_check_alone() -> None:
    for check_health in (False, True):
        async with running_model(check_health=check_health) as served:
            await served.model.require_ready()
            served.predictor.ready = False
            if check_health:
                assert "the predictor does not have 'm'" in await served.unready() and served.model.lost == ""
            else:
                await served.model.require_ready()
                await served.model.check_predictor()
                assert "the predictor does not have 'm'" in served.model.lost
            assert served.shown_ready() is not check_health
            served.predictor.ready = True
            await served.model.require_ready()
            await served.model.check_predictor()
            assert served.shown_ready() and served.model.lost == ""


async def test_concurrent_checks_share_one() -> None:
    async with running_model() as served:
        await until(lambda: served.predictor.descriptions >= 1)
        served.predictor.ready = None
        questions = served.predictor.questions
        asked = [asyncio.create_task(served.model.require_ready()) for _ in range(20)]
        await until(lambda: served.predictor.questions == questions + 1)
        asked[0].cancel()
        served.predictor.ready = True
        served.predictor.go_on.set()  # the running check gets False
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert all(isinstance(result, NotReady) for result in results[1:])


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (ValueError("a fault of ours"), "internal error: ValueError"),
        (asyncio.CancelledError(), "broken off"),
        (None, "did not describe its model in 0.01 s"),
    ],
    ids=["a fault of ours", "broken off", "hangs"],
)
async def test_checks_go_on_after_any_failure(failure: BaseException | None, reason: str) -> None:
    async with running_model(interval=0.002, limit=0.01) as served:
        served.predictor.ready = failure
        await until(lambda: not served.shown_ready())
        assert reason in await served.unready()
        served.predictor.ready = True
        await until(served.shown_ready)
        await served.fail(DEAD, 3)
        served.pipelines[0].gate = asyncio.Event()
        assert "so does a trial: no answer in time" in await served.unready()
        served.outcome = None
        served.pipelines[0].gate.set()
        await served.model.require_ready()


async def test_the_interval_of_retries_doubles_up_to_its_maximum(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "hf_transformer.core.model")
    served = ModelHarness(check_health=False, interval=1000.0, timeout=5.0, max_retry=0.004)
    served.predictor.ready = False
    running = asyncio.create_task(served.model.run())
    await until(lambda: served.predictor.questions > 5)
    running.cancel()
    await asyncio.wait([running])
    intervals = [cast(Any, record.args)[1] for record in caplog.records if "trying again" in record.msg]
    assert intervals[:5] == [0.001, 0.002, 0.004, 0.004, 0.004]


async def test_a_shutdown_makes_the_model_not_ready_for_good() -> None:
    async with running_model(interval=0.002) as served:
        served.model.start_shutdown()
        asked = served.predictor.descriptions
        await until(lambda: served.predictor.descriptions > asked + 2)
        assert not served.shown_ready() and "shutting down" in await served.unready()
        assert await served.ask() == "1"


async def test_a_replacement_that_does_not_fit_gets_no_requests(caplog: pytest.LogCaptureFixture) -> None:
    async with running_model(check_health=False, interval=0.002) as served:
        served.misfit = True
        served.predictor.spec = OTHER
        await until(lambda: not served.shown_ready())
        with pytest.raises(NotReady, match="It has no logits"):
            await served.ask()
        assert "It has no logits" in await served.unready()
        served.misfit = False
        await until(served.shown_ready)
        assert await served.ask() == "2"
    assert caplog.text.count("not ready, retrying") == 1


# Trial inference


async def test_a_dead_model_is_not_ready_until_it_answers() -> None:
    async with running_model() as served:
        await served.fail(DEAD, 2)
        await served.model.require_ready()
        assert served.trials == 0 and served.state() is State.READY
        await served.fail(DEAD)
        assert served.state() is State.SUSPECT
        reason = await served.unready()
        assert "model 'm' is not ready: the last 3 requests failed, and so does a trial: Stub process is not" in reason
        assert served.trials >= 1 and not served.shown_ready()
        served.predictor.spec = OTHER  # a new model is tried out too
        assert "so does a trial" in await served.unready() and served.pipelines[-1].spec.version == "2"
        served.outcome = None
        await served.model.require_ready()
        assert served.shown_ready() and served.state() is State.READY
        trials = served.trials
        await served.ask()
        await served.model.require_ready()
        assert served.trials == trials


async def test_an_answer_ends_a_suspicion_without_a_probe(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with running_model(check_health=False) as served:
        await served.fail(DEAD, 10)
        assert served.state() is State.SUSPECT
        served.outcome = None
        await served.ask()
        assert served.state() is State.READY and served.trials == 0 and served.shown_ready()
        for _ in range(50):
            await served.fail(PredictorError("wrong"), 2)
            served.outcome = None
            await served.ask()
    assert caplog.text.count("requests to model 'm' fail with 502") == caplog.text.count("answers again") == 1
    caplog.clear()
    async with running_model() as served:
        await served.fail(DEAD, 3)
        await until(lambda: not served.shown_ready())
        served.outcome = None
        await until(served.shown_ready)
    lines = [line for line in caplog.messages if "any more" in line or "again" in line]
    assert [line[:27] for line in lines] == ["model 'm' is not ready any ", "model 'm' is ready again"]


@pytest.mark.parametrize("during", ["requests", "trial"])
async def test_a_denial_does_not_make_the_model_suspect(during: str) -> None:
    async with running_model() as served:
        if during == "requests":
            await served.fail(PredictorDenied("401"), 10)
            assert served.state() is State.READY
        else:
            await served.fail(DEAD, 3)
            served.outcome = PredictorDenied("401")
            await served.model.require_ready()
        assert served.trials == (during == "trial")


# Model change detection


@pytest.mark.parametrize("check_health", [False, True])
async def test_a_replaced_model_still_answers_its_running_requests(check_health: bool) -> None:
    async with running_model(check_health=check_health, interval=0.01) as served:
        assert await served.ask() == "1" and served.model.describe().version == "1"
        first = served.pipelines[0]
        first.gate = asyncio.Event()
        running = asyncio.create_task(served.ask())
        await asyncio.sleep(0)
        served.predictor.spec = OTHER
        await until(lambda: len(served.pipelines) == 2)
        assert await served.ask() == "2" and served.model.describe().version == "2"
        first.gate.set()
        assert await running == "1"
        served.predictor.spec = replace(OTHER, version="3")  # differs in nothing else
        await until(lambda: served.model.describe().version == "3")
        assert len(served.pipelines) == 2 and served.shown_ready() and served.model.describe().max_length == 8


async def test_two_versions_behind_one_address_do_not_alternate() -> None:
    """A rolling update: a version that is found only now and then does not replace the served one."""
    async with running_model() as served:
        for _ in range(20):
            served.predictor.spec = OTHER
            await served.model.require_ready()
            served.predictor.spec = SPEC
            await served.model.require_ready()
        assert len(served.pipelines) == 1 and await served.ask() == "1"
        served.predictor.spec = OTHER
        await served.model.require_ready()
        assert len(served.pipelines) == 1
        await served.model.require_ready()
        assert len(served.pipelines) == 2 and await served.ask() == "2"
        for number, error in enumerate(
            (PredictorError("wrong"), PredictorTimeout("late"), PredictorUnavailable("away"))
        ):
            served.predictor.spec = replace(SPEC, max_batch_size=number + 9)
            await served.fail(error)
            await served.model.check_predictor()
            assert len(served.pipelines) == number + 3, "replaced at once while requests fail"
            served.outcome = None
            await served.ask()


@pytest.mark.parametrize("check_health", [False, True])
@pytest.mark.parametrize("away", [PredictorUnavailable("down"), PredictorTimeout("hung")], ids=["down", "hung"])
async def test_a_check_follows_when_the_predictor_is_back(check_health: bool, away: RequestError) -> None:
    async with running_model(check_health=check_health) as served:
        await served.fail(away, 5)
        served.predictor.spec = OTHER
        served.outcome = None
        assert await served.ask() == "1"
        await until(lambda: len(served.pipelines) == 2)
        assert await served.ask() == "2"


@pytest.mark.parametrize("errors", [1, 3])
async def test_a_check_follows_when_the_model_refuses_requests(errors: int) -> None:
    """One error is enough if the predictor was unreachable."""
    async with running_model(check_health=False) as served:
        if errors == 1:
            await served.fail(PredictorUnavailable("down"))
        served.predictor.spec = OTHER
        await served.fail(PredictorError("unexpected shape"), errors)
        await until(lambda: len(served.pipelines) == 2)
        served.outcome = None
        assert await served.ask() == "2"


async def test_an_outage_alone_causes_no_checks() -> None:
    async with running_model(check_health=False) as served:
        await until(lambda: served.predictor.descriptions == 1)
        await served.fail(PredictorUnavailable("down"), 50)
        await served.fail(PredictorError("bad"), 1)
        await until(lambda: served.predictor.descriptions == 2)
        await served.fail(PredictorUnavailable("down"), 50)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert served.predictor.descriptions == 2


# Generation


async def test_a_generation_reports_its_end_to_the_model() -> None:
    async with running_model(check_health=False) as served:
        with pytest.raises(InvalidInput, match="expected a prompt"):
            await served.model.generate(cast(Any, None), Context("1", {}))
        await served.model.generate(cast(Any, "a prompt"), Context("1", {}))
        succeeded, failed = served.callbacks
        for _ in range(3):
            failed(PredictorError("broken"))
        assert served.state() is State.SUSPECT
        succeeded(Context("1", {}))
        assert served.state() is State.READY


# The log of failures

FAIL, END = "requests to model 'm' fail with 502: wrong", "the predictor answers again for model 'm'"
MORE = " (%d more have failed since the last such line)"


def test_failures_are_logged_once_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now = 100.0
    log = FailureLog("m", clock=lambda: now)
    for _ in range(30):  # alternating, three seconds apart
        log.failed(PredictorError("wrong"))
        assert log.is_failing
        log.answered()
        assert not log.is_failing
        now += FAILURE_LOG_SECONDS * 0.3
    assert caplog.messages == [FAIL, END, *[FAIL + MORE % 3, END] * 7]
    caplog.clear()
    now += FAILURE_LOG_SECONDS
    for _ in range(1000):  # consecutive failures have one line
        log.failed(PredictorTimeout("late"))
        now += FAILURE_LOG_SECONDS
    log.answered()
    log.answered()
    log.failed(PredictorError("wrong"))
    first = "requests to model 'm' fail with 504: late" + MORE % 1
    assert caplog.messages == [first, END, FAIL + MORE % 999]
