"""The stages of answered requests, in the buckets that prometheus_client would choose."""

from __future__ import annotations

import pytest
from prometheus_client import Histogram

from hf_transformer.observability.metrics import SECONDS, Metrics
from hf_transformer.types import Context, Timings

VALUES = (0.0, 0.0001, 0.0005, 0.00051, 0.001, 0.3, 70.0)


@pytest.mark.parametrize("stage", ["preprocess", "predict", "postprocess", "queue"])
def test_every_stage_is_in_its_bucket(stage: str) -> None:
    name, labels = (f"request_{stage}_seconds", ["model_name"])
    if stage == "queue":
        name, labels = "hf_transformer_queue_seconds", []
    metrics = Metrics("bert")
    metrics.observe([Context("id", {}, Timings(**{stage: value})) for value in VALUES])
    theirs = Histogram(name, "text", labels, registry=None, buckets=SECONDS)
    for value in VALUES:
        (theirs.labels("bert") if labels else theirs).observe(value)
    [family] = theirs.collect()
    expected = {
        (sample.name, sample.labels.get("le")): sample.value
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    shown = metrics.render().decode()
    for (sample, bound), number in expected.items():
        given = ",".join([f'le="{bound}"'] * (bound is not None) + ['model_name="bert"'] * bool(labels))
        assert f"{sample}{{{given}}} {number}" in shown or (not given and f"{sample} {number}" in shown)
