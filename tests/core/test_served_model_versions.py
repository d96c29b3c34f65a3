"""Which model a served one is bound to where its predictor shows several."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hf_transformer.core import bound_model
from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from tests.core.test_served_model import OTHER, bench, until
from tests.predictor.scripted import SPEC

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_PAUSE", "LONGEST_PAUSE", "SETTLED_PAUSE"):
        monkeypatch.setattr(bound_model, name, 0.001)


async def test_a_version_that_is_asked_alike_needs_no_other_pipeline() -> None:
    async with bench(check_seconds=0.002) as served:
        served.predictor.spec = replace(SPEC, version="2")
        await until(lambda: served.model._spec == served.predictor.spec)
        assert len(served.lines) == 1 and served.shown_ready()


async def test_another_version_is_told_though_the_pipeline_stays() -> None:
    async with bench(check_seconds=0.002) as served:
        served.model.task = cast(Any, SimpleNamespace(name="t", fields=(), tensor_specs=()))
        vars(served.lines[0])["tokenizer"] = SimpleNamespace(max_length=8)
        about = served.model.describe()
        assert (about.version, about.max_length) == ("1", 8) and served.model.describe() is about
        served.predictor.spec = replace(SPEC, version="2")
        await until(lambda: served.model.describe().version == "2")
        assert len(served.lines) == 1


async def test_two_versions_behind_one_address_take_no_turns() -> None:
    """As during a rolling update; a model that is seen now and then takes nobody's place."""
    async with bench() as served:
        for _ in range(20):
            served.predictor.spec = OTHER
            await served.model.require_ready()
            served.predictor.spec = SPEC
            await served.model.require_ready()
        assert len(served.lines) == 1 and await served.ask() == "1"
        served.predictor.spec = OTHER
        await served.model.require_ready()
        assert len(served.lines) == 1
        await served.model.require_ready()
        assert len(served.lines) == 2 and await served.ask() == "2"


@pytest.mark.parametrize(
    "error", [PredictorError("wrong"), PredictorTimeout("late"), PredictorUnavailable("away")], ids=lambda e: e.status
)
async def test_another_model_is_bound_at_once_while_requests_fail(error: RequestError) -> None:
    async with bench() as served:
        served.predictor.spec = OTHER
        await served.fail(error)
        await served.model.look()
        assert len(served.lines) == 2
