"""What a predictor says of its models, in the states that a test's Triton is not brought into."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hf_transformer.commands.doctor import server
from hf_transformer.errors import PredictorUnavailable, RequestError
from hf_transformer.types import RepositoryEntry
from tests.doctor.askable import Askable, subject_with

BROKEN = RepositoryEntry("bert", "1", "UNAVAILABLE", "Internal: failed to load model.onnx")
MANY = [RepositoryEntry(f"model_{number:02}", "1", "READY", "") for number in range(14)]


@pytest.mark.parametrize(
    ("index", "found", "change"),
    [
        pytest.param([BROKEN], "is UNAVAILABLE: Internal: failed to load model.onnx", "config.pbtxt", id="broken"),
        pytest.param([RepositoryEntry("bert", "1", "LOADING", "")], "is being loaded", "wait", id="loading"),
        pytest.param(
            [RepositoryEntry("bert", "1", "UNAVAILABLE", "unloaded")],
            "but UNAVAILABLE",
            "--load-model=bert",
            id="unloaded",
        ),
        pytest.param(MANY, "it has model_00, model_01,", "--model_name", id="others"),
        pytest.param(None, "has no model 'bert'", "--model_name", id="no index"),
        pytest.param(PredictorUnavailable("gone"), "has no model 'bert'", "--model_name", id="gone"),
    ],
)
async def test_a_model_that_is_not_ready(
    index: Sequence[RepositoryEntry] | RequestError | None, found: str, change: str
) -> None:
    [finding] = await server.model(subject_with(Askable(index=index)))
    assert finding.status == "failed"
    assert found in finding.found
    assert change in finding.change
    assert "model_13" not in finding.found


async def test_other_models_that_are_not_ready() -> None:
    [finding] = await server.server_ready(subject_with(Askable()))
    assert finding.status == "warning"
    assert "--strict-readiness=false" in finding.change


async def test_a_predictor_without_a_configuration_endpoint() -> None:
    [finding] = await server.description(subject_with(Askable()))
    assert finding.status == "ok"
    assert "nothing -> nothing (metadata alone" in finding.found
