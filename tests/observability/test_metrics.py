"""Light counters and histograms look like prometheus_client's. The metrics of requests and stages."""

from __future__ import annotations

import re
from pathlib import Path
from time import perf_counter, time

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest

from hf_transformer import __version__
from hf_transformer.observability.metrics import ENDINGS, SECONDS, LightCounter, LightHistogram, Metrics, memory_limit
from tests.observability.measured import measured

BOUNDS = (0.001, 0.5, 1, 10.0)
VALUES = (0.0, 0.001, 0.0011, 0.5, 0.7, 1.0, 3.0, 10.0, 11.0)


def without_times(registry: CollectorRegistry) -> list[str]:
    """The lines without the creation times of counters."""
    return [re.sub(r"(_created\{.*\}) .*", r"\1", line) for line in generate_latest(registry).decode().splitlines()]


def without_created(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_a_light_counter_looks_like_prometheus_clients_at_each_scrape() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    light = LightCounter(ours, "requests", "Some text.", "api", "status")
    full = Counter("requests", "Some text.", ["api", "status"], registry=theirs)
    assert without_times(ours) == without_times(theirs)
    for additions in ([(1, "v1", 200), (1, "v2", 400), (3, "v1", 200)], [], [(0, "grpc", 500)], [(2, "grpc", 500)]):
        for amount, api, status in additions:
            light.add(amount, api, status)
            full.labels(api, str(status)).inc(amount)
        for _ in range(2):
            assert without_times(ours) == without_times(theirs)
    first = ours.get_sample_value("requests_created", {"api": "v1", "status": "200"})
    light.add(1, "v1", 200)
    assert first and ours.get_sample_value("requests_created", {"api": "v1", "status": "200"}) == first
    LightCounter(ours, "retries", "Retries.")
    assert ours.get_sample_value("retries_total") == 0, "without labels it is exposed from the start"


@pytest.mark.parametrize("labels", [(), ("model_name",)])
def test_a_light_histogram_looks_like_prometheus_clients(labels: tuple[str, ...]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    light = LightHistogram(ours, "seconds", "Some text.", BOUNDS, *labels)
    full = Histogram("seconds", "Some text.", labels, registry=theirs, buckets=BOUNDS)
    assert without_created(ours) == without_created(theirs)
    for number, value in enumerate(VALUES):
        names = (str(number % 2),) if labels else ()
        light.observe(value, *names)
        (full.labels(*names) if labels else full).observe(value)
    assert without_created(ours) == without_created(theirs)


def test_durations_of_requests_are_counted_by_api_and_class_of_status() -> None:
    metrics = Metrics("bert")
    metrics.count_request("v1", 200, arrived=perf_counter())
    metrics.count_request("v1", 404, arrived=perf_counter() - 3)
    metrics.count_request("keys", 401)
    text = metrics.render().decode()
    name = "hf_transformer_request_seconds"
    assert f'{name}_count{{api="v1",status_class="2xx"}} 1.0' in text
    assert f'{name}_bucket{{api="v1",le="2.0",status_class="4xx"}} 0.0' in text
    assert f'{name}_bucket{{api="v1",le="5.0",status_class="4xx"}} 1.0' in text
    assert 'api="keys",status="401"' in text and f'{name}_count{{api="keys"' not in text
    build = re.search(r"^hf_transformer_build_info\{(.*)\} 1\.0$", text, re.MULTILINE)
    assert build is not None and f'version="{__version__}"' in build[1] and 'tokenizers="0.' in build[1]


def test_totals_have_the_time_of_failed_requests_and_of_the_last_answer() -> None:
    metrics = Metrics("gpt2")
    assert metrics.totals()["last"] == metrics.totals()["failing"] == 0
    began = time()
    metrics.observe(measured())
    for api, status in (("v1", 200), ("v1", 400), ("generate", 502), ("grpc", 499), ("tokenize", 400)):
        metrics.count_request(api, status, arrived=perf_counter() - 2)
    metrics.count_request("v2", 429)
    for ending in ENDINGS:
        metrics.generation.begin()
        metrics.generation.end(ending)
    totals = metrics.totals()
    assert (totals["failed"], totals["texts"]) == (4, 2)
    assert totals["failing"] == pytest.approx(6, abs=0.5)
    assert began <= totals["last"] <= time()


@pytest.mark.parametrize("stage", ["preprocess", "predict", "postprocess", "queue"])
def test_each_stage_has_its_histogram(stage: str) -> None:
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


@pytest.mark.parametrize(("text", "limit"), [("536870912\n", 536870912), ("max\n", 2**63), (None, 2**63)], ids=str)
def test_the_memory_limit_is_that_of_the_control_group(tmp_path: Path, text: str | None, limit: int) -> None:
    if text is not None:
        (tmp_path / "memory.max").write_text(text)
    assert memory_limit(tmp_path / "memory.max") == limit
