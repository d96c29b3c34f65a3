"""OpenAI's moderations over real sockets, against what V1 answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from hf_transformer.api.openai.moderations import ModerationsResponse
from hf_transformer.tasks.moderation import CATEGORIES
from tests.integration.conftest import Serve
from tests.integration.test_openai import error
from tests.support.service import Service
from tests.support.triton_repository import task_model_folder

TEXTS = ["The hotel was wonderful.", "They cook dinner together.", "I hate you!"]
PARTS = [{"type": "text", "text": text} for text in TEXTS]
ALL = {"output_format": "pipeline", "top_k": None}


@pytest.fixture
def table(tmp_path: Path) -> str:
    """The categories of the model emotions."""
    path = tmp_path / "categories.yaml"
    path.write_text("anger: [harassment, hate]\nfear: {category: self-harm, threshold: 0.0}\njoy:\n")
    return f"--moderation_categories={path}"


def ask(service: Service, **body: Any) -> Any:
    response = service.client.post("/openai/v1/moderations", json={"model": service.model, **body})
    assert response.status_code == 200, response.text
    convert(response.json(), ModerationsResponse)
    return response.json()


def scores(service: Service, text: str) -> dict[str, float]:
    return {one["label"]: one["score"] for one in service.predict([text], ALL)[0]}


@pytest.mark.parametrize("protocol", ["v2", "grpc-v2"])
@pytest.mark.parametrize("model", ["emotions", "toxicity", "sentiment"])
def test_without_a_table_the_labels_are_the_categories(serve: Serve, model: str, protocol: str) -> None:
    service = serve(model, protocol)
    answer = ask(service, input=TEXTS)
    assert answer["id"].startswith("modr-") and answer["model"] == model
    for text, result in zip(TEXTS, answer["results"], strict=True):
        expected = scores(service, text)
        assert result["category_scores"] == pytest.approx(expected, abs=1e-5)
        assert result["categories"] == {label: score >= 0.5 for label, score in result["category_scores"].items()}
        assert result["flagged"] == any(result["categories"].values())
        assert result["category_applied_input_types"] == {label: ["text"] for label in expected}


def test_with_a_table_a_result_has_all_categories_of_openai(serve: Serve, table: str) -> None:
    service = serve("emotions", "v2", table, "--moderation_threshold=0.4")
    for one in (TEXTS[0], [TEXTS[0]], PARTS[:1]):
        assert len(ask(service, input=one)["results"]) == 1
    for text, result in zip(TEXTS, ask(service, input=TEXTS)["results"], strict=True):
        own = scores(service, text)
        assert tuple(result["categories"]) == CATEGORIES
        expected = {"harassment": own["anger"], "hate": own["anger"], "self-harm": own["fear"]}
        assert result["category_scores"] == pytest.approx(dict.fromkeys(CATEGORIES, 0.0) | expected, abs=1e-5)
        assert result["categories"]["self-harm"] and result["flagged"], "its threshold is 0"
        assert result["categories"]["hate"] == (result["category_scores"]["hate"] >= 0.4)
        types = result["category_applied_input_types"]
        assert {name for name, kinds in types.items() if kinds} == set(expected) and types["hate"] == ["text"]


def test_parts_are_one_text(serve: Serve) -> None:
    service = serve("emotions")
    [result] = ask(service, input=PARTS)["results"]
    assert result["category_scores"] == pytest.approx(scores(service, "\n".join(TEXTS)), abs=1e-5)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param({}, "input", id="nothing"),
        pytest.param({"input": []}, "input", id="empty"),
        pytest.param({"input": 3}, "input", id="number"),
        pytest.param({"input": ["a", 3]}, "input[1]", id="number in a list"),
        pytest.param({"input": ["a", PARTS[0]]}, "input[1]", id="part among strings"),
        pytest.param({"input": [PARTS[0], "a"]}, "input[1]", id="string among parts"),
        pytest.param({"input": [{"type": "image_url", "image_url": {"url": "https://a/b.png"}}]}, "input[0].type",
                     id="image"),
        pytest.param({"input": [PARTS[0], {"type": "input_image", "image_url": "x"}]}, "input[1].type", id="image 2"),
        pytest.param({"input": [[1, 2]]}, "input[0]", id="token ids"),
        pytest.param({"input": "a", "top_k": 1}, "top_k", id="unknown"),
    ],
)  # fmt: skip
def test_another_input_is_refused(serve: Serve, body: Any, param: str) -> None:
    response = serve("emotions").client.post("/openai/v1/moderations", json={"model": "emotions", **body})
    assert error(response, 400)["param"] == param


def test_limits_apply(serve: Serve, table: str) -> None:
    service = serve(
        "emotions",
        "v2",
        table,
        "--max_instances=2",
        "--max_sequences=2",
        "--max_answer_values=60",
        "--on_overflow=error",
    )
    post = service.client.post
    many = post("/openai/v1/moderations", json={"input": TEXTS})
    assert "--max_instances" in error(many, 413)["message"]
    parts = post("/openai/v1/moderations", json={"input": PARTS})
    assert parts.status_code == 413 and "--max_instances" in parts.text
    long = error(post("/openai/v1/moderations", json={"input": "a b " * 600}), 400)
    assert (long["param"], long["code"]) == ("input", "context_length_exceeded")
    values = error(post("/openai/v1/moderations", json={"input": TEXTS[:2]}), 413)
    assert "--max_answer_values" in values["message"]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        pytest.param("stars", "a model whose labels have probabilities", id="regression"),
        pytest.param("minibert_mean", "a model for sequence_classification", id="other task"),
    ],
)
def test_another_model_is_refused(serve: Serve, model: str, expected: str) -> None:
    response = serve(model).client.post("/openai/v1/moderations", json={"input": "a"})
    found = error(response, 400)
    assert found["param"] == "model" and expected in found["message"]


def test_a_table_of_other_labels_ends_the_start(tmp_path: Path) -> None:
    from hf_transformer.app.loading import load_model
    from hf_transformer.errors import ConfigError
    from tests.support.configuring import config

    path = tmp_path / "table.json"
    path.write_text(json.dumps({"rage": "hate"}))
    with pytest.raises(ConfigError, match="expected labels of the model, got 'rage'"):
        load_model(config(f"--model_dir={task_model_folder('emotions')}", f"--moderation_categories={path}"))
