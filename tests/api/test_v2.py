"""Parts of the V2 protocol that need no model."""

from __future__ import annotations

from collections import defaultdict

import pytest

from hf_transformer.api.tensors import has_unknown_names
from hf_transformer.api.v2 import statistics
from hf_transformer.protocol.server_codec import InferRequest
from hf_transformer.tasks.token_classification import TokenClassification
from hf_transformer.types.tensors import ModelDescription

BERT = ModelDescription("bert", "1", "fill_mask", (), (), 512)


def test_statistics_count_the_time_in_the_queue_once() -> None:
    totals = defaultdict(float, answered=2.0, preprocess=1.0, queue=2.0, predict=5.0, postprocess=0.5)
    [entry] = statistics([BERT], lambda names: {"bert": totals})["model_stats"]
    stats = entry["inference_stats"]
    stages = ("queue", "compute_input", "compute_infer", "compute_output")
    seconds = {name: stats[name]["ns"] / 1e9 for name in stages}
    assert seconds == {"queue": 2.0, "compute_input": 1.0, "compute_infer": 3.0, "compute_output": 0.5}
    assert sum(seconds.values()) == stats["success"]["ns"] / 1e9
    assert {stats[name]["count"] for name in (*stages, "success")} == {2}


@pytest.mark.parametrize(
    ("outputs", "parameters", "unknown"),
    [
        ((), (), False),
        (("output-0", "offset_mapping"), ("aggregation_strategy",), False),
        (("embeddings",), (), True),
        ((), ("truncate",), True),
    ],
    ids=str,
)
def test_only_unknown_names_may_be_another_server_s_form(
    outputs: tuple[str, ...], parameters: tuple[str, ...], unknown: bool
) -> None:
    request = InferRequest({}, dict.fromkeys(outputs), dict.fromkeys(parameters))
    assert has_unknown_names(TokenClassification, request) is unknown  # type: ignore[arg-type]  # names are the class's
