"""feature_extraction against transformers (scripts/goldens/generate_feature_extraction.py), with the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.integration.conftest import Serve, cut_or_refused, goldens, refused
from tests.support.service import Service

MODEL = "minibert_mean"
TASK = "--task=feature_extraction"
TOLERANCE = 1e-5
LONG = "The cat sleeps on the sofa. " * 60


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


def check_goldens(service: Service, model: str) -> None:
    """In one request and alone."""
    cases = goldens("feature_extraction")["cases"]
    assert len(cases) >= 40
    together = service.predict([case["text"] for case in cases], {"output_format": "pipeline"})
    for found, case in zip(together, cases, strict=True):
        assert_features(found, case)
        assert_features(service.predict([case["text"]])[0], case)


def test_features_are_those_of_the_transformers_pipeline(serve: Serve) -> None:
    check_goldens(serve(MODEL, "grpc-v2", TASK), MODEL)


def test_the_limit_is_the_tokenizers_own(serve: Serve) -> None:
    """The max_seq_length of sentence-transformers, 64 here, is not for this task: the pipeline does not read it."""
    assert len(serve("minibert_cls", "v2", TASK).predict([LONG])[0][0]) == 128


def test_long_texts_are_cut_or_refused_and_wrong_instances_refused(serve: Serve) -> None:
    service = serve(MODEL, "v2", TASK)
    assert len(cut_or_refused(service, ["a", LONG], "instances[1]")[1][0]) == 128
    refused(service, ["a", 3], {}, "instances[1]")
