"""The openai package's moderations, with a table of categories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_transformer.tasks.moderation import CATEGORIES
from tests.clients.conftest import Run
from tests.integration.conftest import Serve

TEXTS = ["The hotel was wonderful.", "They cook dinner together.", "I hate you!"]


def test_moderations(serve: Serve, client: Run, tmp_path: Path) -> None:
    table = tmp_path / "categories.json"
    table.write_text(json.dumps({"anger": {"category": "harassment", "threshold": 0.03}, "joy": None}))
    service = serve("emotions", "grpc-v2", f"--moderation_categories={table}")
    predictions = service.predict(TEXTS, {"output_format": "pipeline", "top_k": None})
    scores = [next(prediction["score"] for prediction in row if prediction["label"] == "anger") for row in predictions]
    results = client("openai_package", "moderations", service=service, texts=TEXTS)
    assert results["harassment"] == pytest.approx(scores, abs=1e-5) and "harassment" in CATEGORIES
    assert results["flagged"] == [score >= 0.03 for score in scores] and {*results["flagged"]} == {True, False}
    assert results["violence"] == [[False, 0.0]] * 3 and results["types"] == [["text"]] * 3
    assert results["single"] == pytest.approx(scores[0], abs=1e-5)
    assert results["parts"] == 1 and results["id"] == ["modr-", "emotions"]
    wrong = [["BadRequestError", 400, name] for name in ("input[0].type", "input")]
    assert [one[:3] for one in results["errors"]] == [["NotFoundError", 404, "model"], *wrong]
