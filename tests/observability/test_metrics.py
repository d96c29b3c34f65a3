"""Light metrics look like prometheus_client's. The metrics of requests, stages and models."""

from __future__ import annotations

import math
import re
from pathlib import Path
from time import perf_counter, time

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from hf_transformer import __version__
from hf_transformer.app.models import apis_of
from hf_transformer.observability.metrics import ENDINGS, SECONDS, Metrics, memory_limit
from hf_transformer.observability.series import Family, LightCounter, LightGauge, LightHistogram, text_of
from tests.observability.measured import measured
from tests.support.configuring import config

BOUNDS = (0.001, 0.5, 1, 10.0)
VALUES = (0.0, 0.001, 0.0011, 0.5, 0.7, 1.0, 3.0, 10.0, 11.0)


def theirs_of(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


def ours_of(*metrics: LightCounter | LightGauge | LightHistogram) -> str:
    return text_of(family for metric in metrics for family in metric.families()).decode()


def without_times(text: str) -> list[str]:
    """The lines without the creation times of counters."""
    return [re.sub(r"(_created(\{.*\})?) .*", r"\1", line) for line in text.splitlines()]


def without_created(text: str) -> list[str]:
    return [line for line in text.splitlines() if "_created" not in line]


def test_a_light_counter_looks_like_prometheus_clients_at_each_scrape() -> None:
    registry = CollectorRegistry()
    light = LightCounter("requests", "Some text.", "api", "status")
    full = Counter("requests", "Some text.", ["api", "status"], registry=registry)
    assert ours_of(light) == theirs_of(registry)
    for additions in ([(1, "v1", 200), (1, "v2", 400), (3, "v1", 200)], [], [(0, "grpc", 500)], [(2, "grpc", 500)]):
        for amount, api, status in additions:
            light.add(amount, api, status)
            full.labels(api, str(status)).inc(amount)
        for _ in range(2):
            assert without_times(ours_of(light)) == without_times(theirs_of(registry))
    [family] = light.families()
    light.add(1, "v1", 200)
    [later] = light.families()
    total, created = family.series["v1", "200"]
    assert later.series["v1", "200"] == [total + 1, created] and 0 < created <= time()
    retries, theirs = LightCounter("retries", "Retries."), CollectorRegistry()
    Counter("retries", "Retries.", registry=theirs)
    assert without_times(ours_of(retries)) == without_times(theirs_of(theirs)), "it is exposed from the start"


@pytest.mark.parametrize("labels", [(), ("model_name",), ("api", "model_name")])
def test_a_light_histogram_looks_like_prometheus_clients(labels: tuple[str, ...]) -> None:
    registry = CollectorRegistry()
    light = LightHistogram("seconds", "Some text.", BOUNDS, *labels)
    full = Histogram("seconds", "Some text.", labels, registry=registry, buckets=BOUNDS)
    assert without_created(ours_of(light)) == without_created(theirs_of(registry))
    for position, value in enumerate(VALUES):
        names = tuple(f"{label}{position % 2}" for label in labels)
        light.observe(value, *names)
        (full.labels(*names) if labels else full).observe(value)
    assert without_created(ours_of(light)) == without_created(theirs_of(registry))


@pytest.mark.parametrize("value", [0.0, 1, -2.5, 1e-7, 123456.0, 1e6, 2.0**63, 1e300, math.inf, -math.inf, math.nan])
def test_a_light_gauge_looks_like_prometheus_clients(value: float) -> None:
    registry = CollectorRegistry()
    text = 'A "text" with \\ in\ntwo lines'
    light, full = LightGauge("g", text), Gauge("g", text, registry=registry)
    assert ours_of(light) == theirs_of(registry)
    light.set(value)
    full.set(value)
    assert ours_of(light) == theirs_of(registry)
    light.set_function(lambda: value)
    assert ours_of(light) == theirs_of(registry)


def test_label_values_are_escaped_as_by_prometheus_client() -> None:
    registry, name = CollectorRegistry(), 'a "b"\\\nc'
    Gauge("g", "", ["model_name"], registry=registry).labels(name).set(1)
    assert text_of([Family("g", "", "gauge", ("model_name",), (), {(name,): [1]})]).decode() == theirs_of(registry)


def test_durations_of_requests_are_counted_by_model_api_and_class_of_status() -> None:
    metrics = Metrics()
    metrics.of("bert")
    metrics.count_request("v1", 200, arrived=perf_counter(), model="bert")
    metrics.count_request("v1", 404, arrived=perf_counter() - 3)
    metrics.count_request("v2", 404, model="x" * 1000)
    metrics.count_request("keys", 401)
    text = metrics.render().decode()
    name = "hf_transformer_request_seconds"
    assert f'{name}_count{{api="v1",model_name="bert",status_class="2xx"}} 1.0' in text
    assert f'{name}_bucket{{api="v1",le="2.0",model_name="",status_class="4xx"}} 0.0' in text
    assert f'{name}_bucket{{api="v1",le="5.0",model_name="",status_class="4xx"}} 1.0' in text
    assert 'api="keys",model_name="",status="401"' in text and f'{name}_count{{api="keys"' not in text
    assert 'requests_total{api="v2",model_name="",status="404"} 1.0' in text, "a client's name is no label"
    build = re.search(r"^hf_transformer_build_info\{(.*)\} 1\.0$", text, re.MULTILINE)
    assert build is not None and f'version="{__version__}"' in build[1] and 'tokenizers="0.' in build[1]
    assert re.search(r"^process_resident_memory_bytes [1-9]", text, re.MULTILINE)


def classes_of(metrics: Metrics, model: str) -> dict[str, dict[str, float]]:
    """The numbers of timed requests by API and class of status."""
    counts: dict[str, dict[str, float]] = {}
    pattern = r'^hf_transformer_request_seconds_count\{api="(\w+)",model_name="(\w*)",status_class="(\w+)"\} (.+)$'
    for api, name, status_class, count in re.findall(pattern, metrics.render().decode(), re.MULTILINE):
        if name == model:
            counts.setdefault(api, {})[status_class] = float(count)
    return counts


def test_the_first_error_of_an_api_is_not_the_first_value_of_its_series() -> None:
    metrics, none = Metrics(), {"2xx": 0.0, "4xx": 0.0, "5xx": 0.0}
    metrics.of("bert").show_apis(["v1", "v2"])
    assert classes_of(metrics, "bert") == {"v1": none, "v2": none} and classes_of(metrics, "") == {}
    metrics.count_request("v1", 502, arrived=perf_counter(), model="bert")
    metrics.count_request("tei", 200, arrived=perf_counter(), model="bert")
    metrics.count_request("v2", 499, arrived=perf_counter())
    assert classes_of(metrics, "bert") == {"v1": none | {"5xx": 1}, "v2": none, "tei": none | {"2xx": 1}}
    assert classes_of(metrics, "") == {"v2": none | {"4xx": 1}}
    metrics.of("bert").show_apis(["v1", "v2"])  # of a replaced model
    assert classes_of(metrics, "bert")["v1"] == none | {"5xx": 1}


@pytest.mark.parametrize(
    ("task", "flags", "apis"),
    [
        ("fill_mask", (), ["v1", "v2", "grpc"]),
        ("text_embedding", ("--enable_grpc=false",), ["v1", "v2", "openai"]),
        ("rerank", (), ["v1", "v2", "grpc", "openai"]),
        ("text_generation", (), ["v1", "v2", "grpc", "openai", "generate"]),
        ("text_generation", ("--predictor_protocol=none",), ["tokenize"]),
    ],
)
def test_a_model_shows_the_apis_of_its_task(task: str, flags: tuple[str, ...], apis: list[str]) -> None:
    assert apis_of(config(*flags), task) == apis


def test_totals_have_the_time_of_failed_requests_and_of_the_last_answer() -> None:
    metrics = Metrics()
    model = metrics.of("gpt2")
    assert metrics.totals("gpt2")["last"] == metrics.totals("gpt2")["failing"] == 0
    began = time()
    model.observe(measured())
    for api, status in (("v1", 200), ("v1", 400), ("generate", 502), ("grpc", 499), ("tokenize", 400)):
        metrics.count_request(api, status, arrived=perf_counter() - 2, model="gpt2")
    metrics.count_request("v2", 429, model="gpt2")
    for ending in ENDINGS:
        model.generation.begin()
        model.generation.end(ending)
    totals = metrics.totals("gpt2")
    assert (totals["failed"], totals["texts"]) == (4, 2)
    assert totals["failing"] == pytest.approx(6, abs=0.5)
    assert began <= totals["last"] <= time()


def fill(metrics: Metrics, name: str, times: int) -> None:
    """Adds to all totals of a model."""
    model = metrics.of(name)
    for _ in range(times):
        model.observe(measured(preprocess=1.0, queue=2.0, predict=4.0, postprocess=8.0))
        model.observe_batch(3, 10, 2)
        model.count_truncated(1)
        model.retries.add(1)
        model.predictor_errors.add(1, "timeout")
        model.generation.begin()
        model.generation.end("stop")
        model.generation.first_token.observe(0.1)
        metrics.count_request("v1", 400, perf_counter(), name)
    model.ready.set(times % 2)
    model.circuit_open.set_function(lambda: times % 2)


def lines_of(metrics: Metrics, model: str) -> list[str]:
    return [line for line in metrics.render().decode().splitlines() if f'model_name="{model}"' in line]


def test_the_series_of_two_models_never_mix() -> None:
    both, alone = Metrics(), Metrics()
    assert both.of("bert") is both.of("bert") is not both.of("gpt2")
    fill(both, "gpt2", 5)
    fill(both, "bert", 2)
    fill(alone, "bert", 2)

    def plain(metrics: Metrics) -> list[str]:
        """Lines without times: of creation, of the last answer and of requests."""
        times = ("_created{", "_timestamp_", "request_seconds_sum")
        return [line for line in lines_of(metrics, "bert") if not any(part in line for part in times)]

    assert plain(both) == plain(alone) and len(plain(both)) > 150
    assert len(lines_of(both, "gpt2")) == len(lines_of(both, "bert"))
    totals = both.totals_of(["bert", "gpt2", "none"])
    assert totals["bert"] == both.totals("bert")
    for name, times in (("bert", 2), ("gpt2", 5), ("none", 0)):
        of_model = totals[name]
        assert [of_model[key] for key in ("answered", "failed", "instances", "batches", "texts")] == [
            times, times, 3 * times, times, times,
        ]  # fmt: skip
        stages = [of_model[key] for key in ("preprocess", "queue", "predict", "postprocess")]
        assert stages == [times, 2 * times, 4 * times, 8 * times]
    every = re.findall(r"^# TYPE (\S+) ", both.render().decode(), re.MULTILINE)
    assert len(set(every)) == len(every), "a metric of two models is one metric"


def test_a_forgotten_model_has_no_series_and_starts_again_at_zero() -> None:
    metrics = Metrics()
    fill(metrics, "bert", 2)
    fill(metrics, "gpt2", 3)
    old = metrics.of("bert")
    before = lines_of(metrics, "gpt2")
    metrics.forget("bert")
    metrics.forget("unknown")
    assert not lines_of(metrics, "bert") and lines_of(metrics, "gpt2") == before
    old.observe(measured())  # of a request that was in flight
    metrics.count_request("v1", 200, model="bert")
    assert not lines_of(metrics, "bert")
    assert 'requests_total{api="v1",model_name="",status="200"} 1.0' in metrics.render().decode()
    assert metrics.of("bert") is not old
    assert metrics.totals("bert")["answered"] == 0 and metrics.totals("gpt2")["answered"] == 3
    assert 'request_predict_seconds_count{model_name="bert"} 0.0' in lines_of(metrics, "bert")


@pytest.mark.parametrize("stage", ["preprocess", "predict", "postprocess", "queue"])
def test_each_stage_has_its_histogram(stage: str) -> None:
    metrics = Metrics()
    for value in (0.0, 0.0005, 0.00051, 70.0):
        metrics.of("bert").observe(measured("r1", **{stage: value}))
    text = metrics.render().decode()
    name = "hf_transformer_queue_seconds" if stage == "queue" else f"request_{stage}_seconds"
    for bound, count in ((SECONDS[0], 2.0), (SECONDS[1], 3.0), (SECONDS[-1], 3.0), ("+Inf", 4.0)):
        assert f'{name}_bucket{{le="{bound}",model_name="bert"}} {count}' in text
    # The sum of the stage that tokenizes has steps: others would read a request's time from it.
    total = "70.001" if stage == "preprocess" else "70.00101"
    assert re.search(rf"^{name}_sum\S* {re.escape(total)}$", text, re.MULTILINE)


@pytest.mark.parametrize(("text", "limit"), [("536870912\n", 536870912), ("max\n", 2**63), (None, 2**63)], ids=str)
def test_the_memory_limit_is_that_of_the_control_group(tmp_path: Path, text: str | None, limit: int) -> None:
    if text is not None:
        (tmp_path / "memory.max").write_text(text)
    assert memory_limit(tmp_path / "memory.max") == limit
