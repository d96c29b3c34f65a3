"""How the checks follow each other, and what they find in states that a test's Triton is not brought into."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import pytest

from hf_transformer.app.wiring import predictor_settings
from hf_transformer.commands.doctor import model
from hf_transformer.commands.doctor.command import CHECKS
from hf_transformer.commands.doctor.examination import Check, Finding, Subject, examine
from hf_transformer.commands.doctor.inference import with_labels
from hf_transformer.config.options import parse_config
from hf_transformer.errors import PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.predictor.rest import RestPredictor
from hf_transformer.types import Json, ModelSpec, RepositoryEntry


class Index(RestPredictor):
    """A predictor with these models, of which none is ready. An error is raised."""

    index: Sequence[RepositoryEntry] | RequestError | None = None

    async def server_ready(self) -> bool:
        return False

    async def model_ready(self) -> bool:
        return False

    async def repository_index(self) -> Sequence[RepositoryEntry] | None:
        if isinstance(self.index, RequestError):
            raise self.index
        return self.index

    async def model_spec(self) -> ModelSpec:
        return ModelSpec("m", "1", (), (), max_batch_size=None)


@pytest.fixture
def subject() -> Subject:
    config, notes = parse_config(["--model_name=bert", "--predictor_host=triton:8000"], {})
    subject = Subject(config, notes)
    subject.admin = Index(predictor_settings(config))
    return subject


def giving(*findings: Finding) -> Callable[[Subject], Awaitable[Sequence[Finding]]]:
    async def run(subject: Subject) -> Sequence[Finding]:
        return findings

    return run


def raising(error: Exception) -> Callable[[Subject], Awaitable[Sequence[Finding]]]:
    async def run(subject: Subject) -> Sequence[Finding]:
        raise error

    return run


FINE = giving(Finding("ok", "fine"))
BUG = raising(ZeroDivisionError())


async def test_a_failed_check_blocks_what_needs_it(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    checks = [
        Check("a", giving(Finding("failed", "broken", "mend it"), Finding("failed", "broken twice", "mend it again"))),
        Check("b", BUG, ("a",)),
        Check("c", BUG, ("b",)),
        Check("d", giving(Finding("warning", "doubtful", "change it"))),
        Check("e", FINE, ("d",)),
        Check("f", raising(PredictorTimeout("too slow")), hint="wait"),
    ]
    results = [(one.name, one.status, one.found, one.change, one.blocked) async for one in examine(subject, checks)]
    assert results == [
        ("a", "failed", "broken", "mend it", False),
        ("a", "failed", "broken twice", "mend it again", False),
        ("b", "skipped", "not made: a comes first", "", True),
        ("c", "skipped", "not made: b comes first", "", True),
        ("d", "warning", "doubtful", "change it", False),
        ("e", "ok", "fine", "", False),
        ("f", "failed", "too slow", "wait", False),
    ]
    assert caplog.records == []


async def test_a_bug_in_a_check_keeps_no_other_from_being_made(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        results = [one async for one in examine(subject, [Check("a", BUG), Check("b", FINE)])]
    assert [one.status for one in results] == ["failed", "ok"]
    assert results[0].found == "the check itself failed: ZeroDivisionError"
    assert caplog.records[0].exc_info is not None


def test_a_check_comes_after_those_that_it_needs() -> None:
    seen: set[str] = set()
    for check in CHECKS:
        assert check.name not in seen
        assert seen.issuperset(check.needs)
        seen.add(check.name)


def entry(state: str, reason: str = "", name: str = "bert") -> RepositoryEntry:
    return RepositoryEntry(name, "1", state, reason)


MANY = [entry("READY", name=f"model_{number:02}") for number in range(14)]


@pytest.mark.parametrize(
    ("index", "found", "change"),
    [
        pytest.param(
            [entry("UNAVAILABLE", "no model.onnx")], "is UNAVAILABLE: no model.onnx", "config.pbtxt", id="bad"
        ),
        pytest.param([entry("LOADING")], "is being loaded", "wait", id="loading"),
        pytest.param([entry("UNAVAILABLE", "unloaded")], "but UNAVAILABLE", "--load-model=bert", id="unloaded"),
        pytest.param(MANY, "it has model_00, model_01,", "--model_name", id="others"),
        pytest.param(None, "has no model 'bert'", "--model_name", id="no index"),
        pytest.param(PredictorUnavailable("gone"), "has no model 'bert'", "--model_name", id="gone"),
    ],
)
async def test_a_model_that_is_not_ready(
    subject: Subject, index: Sequence[RepositoryEntry] | RequestError | None, found: str, change: str
) -> None:
    assert isinstance(subject.admin, Index)
    subject.admin.index = index
    [finding] = await model.model(subject)
    assert finding.status == "failed"
    assert found in finding.found
    assert change in finding.change
    assert "model_13" not in finding.found


async def test_other_models_that_are_not_ready(subject: Subject) -> None:
    [finding] = await model.server_ready(subject)
    assert finding.status == "warning"
    assert "--strict-readiness=false" in finding.change


async def test_a_predictor_without_a_configuration_endpoint(subject: Subject) -> None:
    [finding] = await model.description(subject)
    assert finding.status == "ok"
    assert "nothing -> nothing (metadata alone" in finding.found


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (1, "good"),
        ({"0": 0.2, "1": 0.8}, {"bad": 0.2, "good": 0.8}),
        ([0, 1], ["bad", "good"]),
        ("paris", "paris"),
        ({"answer": "here", "score": 1.0}, {"answer": "here", "score": 1.0}),
    ],
    ids=["index", "probabilities", "tokens", "word", "other"],
)
def test_labels_of_an_answer(answer: Json, expected: Json) -> None:
    assert with_labels(answer, ("bad", "good")) == expected
