"""When a model can be asked, and when it is bound again, whatever its predictor does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from hf_transformer.core import bound_model
from hf_transformer.core.contract import ContractError
from hf_transformer.core.pipeline import Pipeline
from hf_transformer.core.served_model import ServedModel
from hf_transformer.errors import NotReady, PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import Predictor
from hf_transformer.types import Answers, Context, ModelSpec, Query
from tests.predictor.scripted import SPEC, Scripted

pytestmark = pytest.mark.asyncio

DEAD = PredictorError("Stub process is not healthy")
OTHER = replace(SPEC, version="2", max_batch_size=8)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_PAUSE", "LONGEST_PAUSE", "SETTLED_PAUSE"):
        monkeypatch.setattr(bound_model, name, 0.001)


class Described(Scripted):
    """A predictor that describes its model as a test says; ``asked`` counts how often."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = [True]
        self.spec = SPEC
        self.asked = 0

    async def model_spec(self) -> ModelSpec:
        self.asked += 1
        return self.spec


class Line:
    """What stands for a pipeline: it ends requests and trials as ``Bench.outcome`` says."""

    def __init__(self, bench: Bench, spec: ModelSpec) -> None:
        self.bench = bench
        self.spec = spec
        self.gate: asyncio.Event | None = None

    async def __call__(self, query: Query, context: Context) -> Answers:
        if self.gate is not None:
            await self.gate.wait()
        if self.bench.outcome is not None:
            raise self.bench.outcome
        return Answers([self.spec.version])

    async def canary(self) -> None:
        self.bench.trials += 1
        if self.bench.outcome is not None:
            raise self.bench.outcome


class Bench:
    """A served model over a described one."""

    def __init__(self, *, check_health: bool, check_seconds: float) -> None:
        self.predictor = Described()
        self.outcome: RequestError | None = None
        self.misfit = False
        self.trials = 0
        self.lines: list[Line] = []
        self.metrics = Metrics("m")
        self.model = ServedModel(
            "m",
            cast(Any, None),
            cast(Predictor, self.predictor),
            self.build,
            self.metrics,
            check_health=check_health,
            check_seconds=check_seconds,
        )

    def build(self, spec: ModelSpec) -> Pipeline:
        if self.misfit:
            raise ContractError("m", ["It has no logits."])
        self.lines.append(Line(self, spec))
        return cast(Pipeline, self.lines[-1])

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

    def shown_ready(self) -> bool:
        return b'hf_transformer_model_ready{model_name="m"} 1.0' in self.metrics.render()


@asynccontextmanager
async def bench(*, check_health: bool = True, check_seconds: float = 1000.0) -> AsyncIterator[Bench]:
    made = Bench(check_health=check_health, check_seconds=check_seconds)
    keeping = asyncio.create_task(made.model.keep_bound())
    await until(lambda: bool(made.lines))
    try:
        yield made
        assert not keeping.done()
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        assert len(asyncio.all_tasks()) == 1, "it leaves no task behind"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        for _ in iter(condition, True):
            await asyncio.sleep(0.001)


async def test_ready_asks_the_predictor_with_the_health_check_alone() -> None:
    for check_health in (False, True):
        async with bench(check_health=check_health) as served:
            await served.model.require_ready()
            served.predictor.ready = [False]
            if check_health:
                assert "the predictor does not have 'm'" in await served.unready()
            else:
                await served.model.require_ready()
            assert served.shown_ready() is not check_health
            served.predictor.ready = [True]
            await served.model.require_ready()
            assert served.shown_ready()


async def test_a_dead_model_is_not_ready_until_it_answers() -> None:
    async with bench() as served:
        await served.fail(DEAD, 2)
        await served.model.require_ready()
        assert served.trials == 0
        await served.fail(DEAD)
        reason = await served.unready()
        assert "model 'm' is not ready: the last 3 requests failed, and so does a trial: Stub process is not" in reason
        assert served.trials >= 1 and not served.shown_ready()
        served.outcome = None
        await served.model.require_ready()
        assert served.shown_ready()
        trials = served.trials
        await served.ask()
        await served.model.require_ready()
        assert served.trials == trials


async def test_another_version_is_tried_out_as_well() -> None:
    async with bench() as served:
        await served.fail(DEAD, 3)
        served.predictor.spec = OTHER
        assert "so does a trial" in await served.unready()
        assert served.lines[-1].spec.version == "2"


async def test_without_the_health_check_nothing_is_tried_out() -> None:
    async with bench(check_health=False) as served:
        await served.fail(DEAD, 10)
        await served.model.require_ready()
        assert served.trials == 0 and served.shown_ready()


async def test_a_model_that_is_not_ready_becomes_so_without_being_asked() -> None:
    async with bench() as served:
        await served.fail(DEAD, 3)
        await until(lambda: not served.shown_ready())
        served.outcome = None
        await until(served.shown_ready)


async def test_those_who_ask_at_one_time_share_a_look() -> None:
    async with bench() as served:
        await until(lambda: served.predictor.asked == 1)
        served.predictor.ready = [None]
        questions = served.predictor.questions
        asked = [asyncio.create_task(served.model.require_ready()) for _ in range(20)]
        await until(lambda: served.predictor.questions == questions + 1)
        asked[0].cancel()
        served.predictor.ready = [True]
        served.predictor.release.set()  # and says that it is not ready
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert all(isinstance(result, NotReady) for result in results[1:])


async def test_a_predictor_that_does_not_answer_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound_model, "QUESTION_TIMEOUT", 0.01)
    async with bench() as served:
        served.predictor.ready = [None]
        assert "did not describe its model in 0.01 s" in await served.unready()


@pytest.mark.parametrize("check_health", [False, True])
async def test_another_version_is_bound_in_the_background(check_health: bool) -> None:
    async with bench(check_health=check_health, check_seconds=0.01) as served:
        assert await served.ask() == "1"
        served.lines[0].gate = asyncio.Event()
        under_way = asyncio.create_task(served.ask())
        await asyncio.sleep(0)
        served.predictor.spec = OTHER
        await until(lambda: len(served.lines) == 2)
        assert await served.ask() == "2"
        served.lines[0].gate.set()
        assert await under_way == "1"


async def test_the_same_model_is_not_bound_again() -> None:
    async with bench(check_seconds=0.002) as served:
        await until(lambda: served.predictor.asked > 5)
        assert len(served.lines) == 1


@pytest.mark.parametrize("check_health", [False, True])
@pytest.mark.parametrize("away", [PredictorUnavailable("down"), PredictorTimeout("hung")], ids=["down", "hung"])
async def test_metadata_is_read_again_when_the_predictor_is_back(check_health: bool, away: RequestError) -> None:
    async with bench(check_health=check_health) as served:
        await served.fail(away, 5)
        served.predictor.spec = OTHER
        served.outcome = None
        assert await served.ask() == "1"
        await until(lambda: len(served.lines) == 2)
        assert await served.ask() == "2"


@pytest.mark.parametrize("errors", [1, 3])
async def test_metadata_is_read_again_when_a_model_refuses_what_it_took(errors: int) -> None:
    """One error is enough where the predictor has been away."""
    async with bench(check_health=False) as served:
        if errors == 1:
            await served.fail(PredictorUnavailable("down"))
        served.predictor.spec = OTHER
        await served.fail(PredictorError("unexpected shape"), errors)
        await until(lambda: len(served.lines) == 2)
        served.outcome = None
        assert await served.ask() == "2"


async def test_an_outage_alone_leads_to_no_questions() -> None:
    async with bench(check_health=False) as served:
        await until(lambda: served.predictor.asked == 1)
        await served.fail(PredictorUnavailable("down"), 50)
        await served.fail(PredictorError("bad"), 1)
        await until(lambda: served.predictor.asked == 2)
        await served.fail(PredictorUnavailable("down"), 50)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert served.predictor.asked == 2


async def test_a_model_that_does_not_fit_any_longer_is_not_asked(caplog: pytest.LogCaptureFixture) -> None:
    async with bench(check_health=False, check_seconds=0.002) as served:
        served.misfit = True
        served.predictor.spec = OTHER
        await until(lambda: not served.shown_ready())
        with pytest.raises(NotReady, match="It has no logits"):
            await served.ask()
        assert "It has no logits" in await served.unready()
        served.misfit = False
        await until(served.shown_ready)
        assert await served.ask() == "2"
    assert caplog.text.count("not ready, trying on") == 1


async def test_a_failure_and_its_end_have_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with bench(check_health=False) as served:
        for _ in range(50):
            await served.fail(PredictorError("wrong"), 2)
            served.outcome = None
            await served.ask()
    assert caplog.text.count("requests fail with 502: wrong") == caplog.text.count("answers again") == 1


@pytest.mark.parametrize("trouble", [ValueError("a fault of ours"), asyncio.CancelledError()], ids=repr)
async def test_whatever_a_look_meets_it_is_not_the_last(trouble: BaseException) -> None:
    async with bench(check_seconds=0.002) as served:
        served.predictor.ready = [trouble]
        await until(lambda: not served.shown_ready())
        assert "internal error: ValueError" in (said := await served.unready()) or "broken off" in said
        served.predictor.ready = [True]
        await until(served.shown_ready)


async def test_at_the_end_it_is_not_ready_whatever_the_predictor_says() -> None:
    async with bench(check_seconds=0.002) as served:
        served.model.begin_end()
        asked = served.predictor.asked
        await until(lambda: served.predictor.asked > asked + 2)
        assert not served.shown_ready() and "shutting down" in await served.unready()
        assert await served.ask() == "1"
