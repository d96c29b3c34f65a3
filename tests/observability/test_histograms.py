"""Histograms that look like prometheus_client's own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest

from hf_transformer.observability.histograms import LightHistogram

BOUNDS = (0.001, 0.5, 1, 10.0)
VALUES = (0.0, 0.001, 0.0011, 0.5, 0.7, 1.0, 3.0, 10.0, 11.0)


def test_the_same_exposition_as_the_librarys() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    light = LightHistogram("seconds", "Some text.", BOUNDS, {"model_name": "bert"})
    ours.register(light)
    full = Histogram("seconds", "Some text.", ["model_name"], registry=theirs, buckets=BOUNDS).labels("bert")
    for value in VALUES:
        light.observe(value)
        full.observe(value)
    shown = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert generate_latest(ours).decode().splitlines() == shown


def test_without_labels_and_observations() -> None:
    registry = CollectorRegistry()
    registry.register(LightHistogram("rows", "Rows.", (1, 2)))
    assert 'rows_bucket{le="+Inf"} 0.0' in generate_latest(registry).decode()
