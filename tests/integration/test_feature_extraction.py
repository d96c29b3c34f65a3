"""feature_extraction against transformers (tests/goldens/generate_feature_extraction.py), with the same weights."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hf_transformer.commands.local_triton import poll
from tests.integration.conftest import ROOT, Serve
from tests.service import Service
from tests.triton_repository import task_model_folder

MODEL = "minibert_mean"
TOLERANCE = 1e-5
LONG = "The cat sleeps on the sofa. " * 60


@pytest.fixture(scope="module")
def cases() -> Any:
    return json.loads((ROOT / "tests" / "goldens" / "feature_extraction.json").read_text())["cases"]


def start(serve: Serve, protocol: str = "v2") -> Service:
    return serve(MODEL, protocol, f"--model_dir={task_model_folder(MODEL)}", "--task=feature-extraction")


@pytest.fixture
def service(serve: Serve) -> Service:
    return start(serve)


def assert_features(found: Any, case: Any) -> None:
    """The golden's vectors, or of a long text what is stored of them."""
    vectors = np.array(found)
    assert vectors.ndim == 3 and vectors.shape[0] == 1
    rows = vectors[0]
    if "features" in case:
        expected = np.array(case["features"])
        assert rows.shape == expected.shape
        assert np.abs(rows - expected).max() <= TOLERANCE
        return
    assert rows.shape == (case["tokens"], 48)
    for name, row in (("first", rows[0]), ("last", rows[-1]), ("mean", rows.mean(axis=0))):
        assert np.abs(row - np.array(case[name])).max() <= TOLERANCE, name


def test_alone(service: Service, cases: Any) -> None:
    for case in cases:
        assert_features(service.predict([case["text"]])[0], case)


def test_in_one_mixed_request(serve: Serve, protocol: str, cases: Any) -> None:
    assert len(cases) >= 40
    found = start(serve, protocol).predict([case["text"] for case in cases], {"output_format": "pipeline"})
    for one, case in zip(found, cases, strict=True):
        assert_features(one, case)


def test_truncation(service: Service) -> None:
    assert len(service.predict([LONG], {"truncation": True})[0][0]) == 128
    response = service.post({"instances": ["a", LONG], "parameters": {"truncation": False}})
    assert response.status_code == 413 and "instances[1]" in response.json()["error"]


def test_the_limit_is_the_tokenizers_own(serve: Serve) -> None:
    """The max_seq_length of sentence-transformers, 64 here, is not for this task: the pipeline does not read it."""
    folder = task_model_folder("minibert_cls")
    service = serve("minibert_cls", "v2", f"--model_dir={folder}", "--task=feature_extraction")
    assert len(service.predict([LONG])[0][0]) == 128


def test_wrong_requests(service: Service) -> None:
    for parameters, words in (
        ({"truncation": 1}, ["parameters.truncation", "a number"]),
        ({"output_format": "json"}, ["parameters.output_format", "kserve, pipeline"]),
        ({"normalize": True}, ["parameters.normalize", "truncation"]),
    ):
        response = service.post({"instances": ["a"], "parameters": parameters})
        assert response.status_code == 400
        assert all(word in response.json()["error"] for word in words), response.text
    response = service.post({"instances": ["a", 3]})
    assert response.status_code == 400 and "instances[1]" in response.json()["error"]


def test_pooled_vectors_are_not_taken_for_tokens(serve: Serve) -> None:
    folder = task_model_folder("minibert_pooled")
    flags = (f"--model_dir={folder}", "--task=feature_extraction")
    service = serve("minibert_pooled", "v2", *flags, ready=False)
    assert poll(lambda: "reads [tokens, hidden]" in service.post({"instances": ["a"]}).text, 20.0)
