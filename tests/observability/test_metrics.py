"""Light counters and histograms look like prometheus_client's own."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest

from hf_transformer.observability.metrics import FOLD, SECONDS, LightCounter, LightHistograms, Metrics
from tests.observability.measured import measured

BOUNDS = (0.001, 0.5, 1, 10.0)
VALUES = (0.0, 0.001, 0.0011, 0.5, 0.7, 1.0, 3.0, 10.0, 11.0)


def shown(registry: CollectorRegistry) -> list[str]:
    """The lines, without the times at which the counters were made."""
    return [re.sub(r"(_created\{.*\}) .*", r"\1", line) for line in generate_latest(registry).decode().splitlines()]


def without_created(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_counters_at_every_scrape() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    light = LightCounter(ours, "requests", "Some text.", "api", "status")
    full = Counter("requests", "Some text.", ["api", "status"], registry=theirs)
    assert shown(ours) == shown(theirs)
    for added in ([(1, "v1", 200), (1, "v2", 400), (3, "v1", 200)], [], [(0, "grpc", 500)], [(2, "grpc", 500)]):
        for amount, api, status in added:
            light.add(amount, api, status)
            full.labels(api, str(status)).inc(amount)
        for _ in range(2):
            assert shown(ours) == shown(theirs)


def test_a_counter_without_labels_is_shown_from_the_start() -> None:
    registry = CollectorRegistry()
    LightCounter(registry, "retries", "Retries.")
    assert registry.get_sample_value("retries_total") == 0


def test_a_series_was_created_when_it_was_first_added_to() -> None:
    registry = CollectorRegistry()
    light = LightCounter(registry, "tokens", "Tokens.", "kind")
    light.add(1, "real")
    first = registry.get_sample_value("tokens_created", {"kind": "real"})
    light.add(1, "real")
    assert first is not None and registry.get_sample_value("tokens_created", {"kind": "real"}) == first


def test_histograms() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    labels: tuple[dict[str, str], ...] = ({"model_name": "bert"}, {})
    light = LightHistograms(ours, BOUNDS, {f"seconds{one}": ("Some text.", labels[one]) for one in (0, 1)})
    full = [Histogram(f"seconds{one}", "Some text.", labels[one], registry=theirs, buckets=BOUNDS) for one in (0, 1)]
    for value in VALUES:
        light.observe(value, 2 * value)
        full[0].labels("bert").observe(value)
        full[1].observe(2 * value)
    for _ in range(2):
        assert without_created(ours) == without_created(theirs)


def test_a_histogram_without_observations() -> None:
    registry = CollectorRegistry()
    LightHistograms(registry, (1, 2), {"rows": ("Rows.", {})})
    assert 'rows_bucket{le="+Inf"} 0.0' in generate_latest(registry).decode()


def test_more_observations_than_wait_to_be_sorted() -> None:
    registry = CollectorRegistry()
    light = LightHistograms(registry, (1,), {"rows": ("Rows.", {})})
    for number in range(2 * FOLD + 1):
        light.observe(number % 3)
    assert registry.get_sample_value("rows_bucket", {"le": "1.0"}) == sum(n % 3 < 2 for n in range(2 * FOLD + 1))
    assert registry.get_sample_value("rows_sum") == sum(n % 3 for n in range(2 * FOLD + 1))


@pytest.mark.parametrize("stage", ["preprocess", "predict", "postprocess", "queue"])
def test_every_stage_is_in_its_histogram(stage: str) -> None:
    metrics = Metrics("bert")
    for value in (0.0, 0.0005, 0.00051, 70.0):
        metrics.observe(measured("r1", **{stage: value}))
    text = metrics.render().decode()
    name, label = f"request_{stage}_seconds", ',model_name="bert"'
    if stage == "queue":
        name, label = "hf_transformer_queue_seconds", ""
    for bound, count in ((SECONDS[0], 2.0), (SECONDS[1], 3.0), (SECONDS[-1], 3.0), ("+Inf", 4.0)):
        assert f'{name}_bucket{{le="{bound}"{label}}} {count}' in text
    assert re.search(rf"^{name}_sum\S* 70\.00101$", text, re.MULTILINE)
