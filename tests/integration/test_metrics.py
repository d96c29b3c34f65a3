"""The metrics that a running service shows, against their table in docs/metrics.md and all that is asked of them in
deploy/: a query for a metric or label that is not there shows nothing and warns nobody, for ever."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from hf_transformer.commands.local_triton import poll
from tests.integration.conftest import ROOT, Serve
from tests.integration.grpc_client import request, stub
from tests.support.service import Service

PAGE = ROOT / "docs" / "metrics.md"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboard.json"
RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
ADAPTER = ROOT / "deploy" / "prometheus" / "adapter-values.yaml"

TEXT = "The capital of france is [MASK]."
SCRAPED = {"job", "instance"}
"""Labels that Prometheus adds to whatever it reads."""


@dataclass
class Shown:
    """A metric as /metrics shows it: its type, and the values of its labels."""

    kind: str
    labels: dict[str, set[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Query:
    """A query, where it stands, and how its answers are named in a figure."""

    where: str
    text: str
    legend: str = ""


@pytest.fixture(scope="module")
def shown(serve: Serve) -> dict[str, Shown]:
    """All metrics by the name of the documentation, of a service that has answered and refused a request."""
    service = serve("fault_slow", "v2", "--max_concurrent_requests=1")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(service.post, {"instances": [TEXT]})
        assert poll(lambda: service.metric("hf_transformer_requests_in_flight") == 1, 10.0)
        assert service.post({"instances": [TEXT]}).status_code == 429
        assert first.result().status_code == 200
    metrics: dict[str, Shown] = {}
    for family in text_string_to_metric_families(service.client.get("/metrics").text):
        if family.name.endswith("_created"):  # prometheus_client's own, of each counter
            continue
        metric = metrics[family.name + "_total" * (family.type == "counter")] = Shown(family.type)
        for sample in family.samples:
            for label, value in sample.labels.items():
                metric.labels.setdefault(label, set()).add(value)
    return metrics


@pytest.fixture(scope="module")
def series(shown: dict[str, Shown]) -> dict[str, dict[str, set[str]]]:
    """Labels and their values by the name that a query gives."""
    found: dict[str, dict[str, set[str]]] = {"up": {}}
    for name, metric in shown.items():
        if metric.kind == "histogram":
            plain = {label: values for label, values in metric.labels.items() if label != "le"}
            found |= {f"{name}_bucket": metric.labels, f"{name}_sum": plain, f"{name}_count": plain}
        else:
            found[name] = metric.labels
    # A recorded series has the labels that it was summed by, which the rules' own test below checks.
    found |= {rule["record"]: {} for group in rules() for rule in group["rules"] if "record" in rule}
    return found


def rules() -> Any:
    return yaml.safe_load(RULES.read_text())["groups"]


def queries() -> Iterator[Query]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "5m")
            yield Query(panel["title"], text, target["legendFormat"])
    for group in rules():
        for rule in group["rules"]:
            yield Query(rule.get("alert") or rule["record"], rule["expr"])
    for rule in yaml.safe_load(ADAPTER.read_text())["rules"]["custom"]:
        name = rule["seriesQuery"].partition("{")[0]
        text = rule["metricsQuery"]
        for placeholder, filled in (("Series", name), ("LabelMatchers", 'job="x"'), ("GroupBy", "instance")):
            text = text.replace(f"<<.{placeholder}>>", filled)
        yield Query(f"adapter: {name}", text)


def nodes(text: str) -> list[Any]:
    """Every part of a query. Raises ValueError for what is no PromQL."""
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(text), found.append)
    return found


def selectors(text: str) -> list[promql_parser.VectorSelector]:
    plain = [getattr(node, "vector_selector", node) for node in nodes(text)]
    return [node for node in plain if isinstance(node, promql_parser.VectorSelector)]


def sums(text: str) -> list[set[str]]:
    """The labels that each sum of a query keeps."""
    kept = [node for node in nodes(text) if getattr(node, "modifier", None) and hasattr(node, "param")]
    return [set(node.modifier.labels) for node in kept]


def test_page_lists_the_metrics_that_there_are(shown: dict[str, Shown]) -> None:
    rows = [line.split("|")[1:4] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    listed = {
        name.strip().strip("`"): (
            kind.strip(),
            {label.strip().strip("`") for label in labels.split(",") if label.strip()},
        )
        for name, kind, labels in rows
    }
    assert len(listed) == len(rows), "a metric is listed twice"
    assert listed == {name: (metric.kind, set(metric.labels) - {"le"}) for name, metric in shown.items()}


def test_queries_ask_for_what_is_there(series: dict[str, dict[str, set[str]]]) -> None:
    for query in queries():
        check_query(query, series)


def check_query(query: Query, series: dict[str, dict[str, set[str]]]) -> None:
    asked = selectors(query.text)
    assert asked
    for selector in asked:
        assert selector.name in series, f"{query.where}: no metric {selector.name}"
        labels = series[selector.name]
        for matcher in selector.matchers.matchers:
            assert matcher.name in SCRAPED | set(labels), f"{selector.name} has no label {matcher.name}"
            if matcher.op == promql_parser.MatchOp.Equal and matcher.name in labels:
                assert matcher.value in labels[matcher.name], f"{matcher.name} is never {matcher.value}"
    there = SCRAPED.union(*(series[selector.name or ""] for selector in asked))
    assert all(labels <= there for labels in sums(query.text)), "summed by a label that is not there"
    assert set(re.findall(r"{{(\w+)}}", query.legend)) <= there


def snippets() -> list[Any]:
    """The YAML of the page's section for scalers and routers."""
    section = PAGE.read_text().partition("\n## For scalers and routers\n")[2]
    return [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)]


def test_scalers_and_routers_are_told_metrics_that_there_are(series: dict[str, dict[str, set[str]]]) -> None:
    scaled, adapter, autoscaler, picker = snippets()
    [trigger] = scaled["spec"]["triggers"]
    cluster = {name: labels | {"namespace": {"default"}, "pod": set()} for name, labels in series.items()}
    check_query(Query("KEDA", trigger["metadata"]["query"]), cluster)
    gauges = [f"hf_transformer_{state}_texts" for state in ("waiting", "running")]
    [rule] = adapter["rules"]["custom"]
    [pattern] = re.findall(r'__name__=~"([^"]*)"', rule["seriesQuery"])
    assert [name for name in series if re.fullmatch(pattern, name)] == gauges
    assert {metric["pods"]["metric"]["name"] for metric in autoscaler["metrics"]} == {*gauges}
    parameters = {plugin["type"]: plugin.get("parameters") for plugin in picker["plugins"]}
    [engine] = parameters["core-metrics-extractor"]["engineConfigs"]
    assert [engine["queuedRequestsSpec"], engine["runningRequestsSpec"]] == gauges
    assert engine["name"] == parameters["core-metrics-extractor"]["defaultEngine"]
    [profile] = picker["schedulingProfiles"]
    assert {plugin["pluginRef"] for plugin in profile["plugins"]} <= parameters.keys()
    for name in gauges:  # the picker reads one series without a model's name
        assert len(series[name]["model_name"]) == 1, name


def test_a_wrong_query_is_found(series: dict[str, dict[str, set[str]]]) -> None:
    for text in (
        "rate(hf_transformer_request_total[5m])",
        'hf_transformer_requests_total{code="200"}',
        'hf_transformer_shared_memory_slots{state="lost"}',
        "sum by (route) (hf_transformer_requests_total)",
    ):
        with pytest.raises(AssertionError):
            check_query(Query("", text), series)
    with pytest.raises(ValueError):
        nodes("sum by (job) rate(up[5m])")


def test_recorded_series_are_summed_by_job() -> None:
    recorded = {rule["record"]: rule["expr"] for group in rules() for rule in group["rules"] if "record" in rule}
    for name, text in recorded.items():
        assert name.startswith("job:")
        assert sums(text)
        assert all(labels - {"le"} == {"job"} for labels in sums(text))


def test_variables_of_the_dashboard_are_labels(series: dict[str, dict[str, set[str]]]) -> None:
    listed = json.loads(DASHBOARD.read_text())["templating"]["list"]
    asked = [variable for variable in listed if variable["type"] == "query"]
    assert [variable["name"] for variable in asked] == ["job", "instance"]
    for variable in asked:
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert found
        assert found[2] == variable["name"]
        (selector,) = selectors(found[1])
        assert selector.name in series


def test_dashboard_can_be_imported() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, f"{panel['title']} lies on another panel"
        assert max(x for x, _ in cells) < 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["targets"]
            assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


def test_every_metric_of_ours_is_in_a_figure(shown: dict[str, Shown]) -> None:
    asked = {selector.name for query in queries() for selector in selectors(query.text)}
    for name in shown:
        # KServe's histogram of a request that there is not, and what the process collector adds.
        if name != "request_explain_seconds" and not name.startswith("process_"):
            assert asked & {name, f"{name}_bucket"}, f"nobody looks at {name}"


def test_every_alert_is_explained_and_tried() -> None:
    alerts = {rule["alert"] for group in rules() for rule in group["rules"] if "alert" in rule}
    explained = re.findall(r"^### (HfTransformer\w+)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert sorted(explained) == sorted(alerts)
    (tried,) = yaml.safe_load((RULES.parent / "alerts_test.yaml").read_text())["tests"]
    fired = {
        match
        for case in tried["promql_expr_test"]
        for s in case["exp_samples"]
        for match in re.findall(r'alertname="(\w+)"', s["labels"])
    }
    assert fired == alerts


V1 = 'hf_transformer_requests_total{api="v1",status="200"}'
GRPC = 'hf_transformer_requests_total{api="grpc",status="200"}'
STARTED = re.compile(r"Started server process \[(\d+)\]")


def settles(service: Service, name: str, value: float) -> bool:
    """Whether every worker that answers says this, twenty times in a row."""
    return all(service.metric(name) == value for _ in range(20))


def test_texts_that_wait_or_run_are_those_of_all_workers(serve: Serve) -> None:
    with serve.own("fault_slow", "v2", "--workers=2", "--max_batches_in_flight=1") as service:
        service.wait_until("/v1/models/fault_slow")

        def texts() -> float:
            return sum(service.metric(f"hf_transformer_{state}_texts") for state in ("waiting", "running"))

        done = threading.Event()

        def send() -> None:
            while not done.is_set():
                assert service.post({"instances": [TEXT] * 3}).status_code == 200

        with ThreadPoolExecutor(4) as threads:
            sending = [threads.submit(send) for _ in range(4)]
            try:
                assert poll(lambda: texts() == 12, 30.0), "three of each client"
                assert poll(lambda: service.metric("hf_transformer_waiting_texts") > 0, 30.0)
            finally:
                done.set()
            for one in sending:
                one.result()
        assert poll(lambda: all(texts() == 0 for _ in range(20)), 20.0)


def test_every_request_is_counted_whichever_worker_is_asked(serve: Serve) -> None:
    with serve.own("bert", "grpc-v2", "--workers=2") as service:
        service.wait_until("/v1/models/bert")
        for _ in range(30):
            service.predict([TEXT])
        for _ in range(10):  # each on a connection of its own, for one worker or the other
            with stub(service) as calls:
                calls.ModelInfer(request("bert", {"text": [TEXT]}))
        assert poll(lambda: settles(service, V1, 30), 20.0)
        assert poll(lambda: settles(service, GRPC, 10), 20.0)
        assert service.metric("hf_transformer_queue_seconds_count") == 40
        [stats] = service.client.get("/v2/models/bert/stats").json()["model_stats"]
        assert stats["inference_stats"]["success"]["count"] == stats["inference_count"] == 40
        assert service.metric('hf_transformer_model_ready{model_name="bert"}') == 1
        workers = [int(one) for one in STARTED.findall(service.log)]
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        assert poll(lambda: len(STARTED.findall(service.log)) == 3, 20.0), service.log
        assert poll(lambda: service.log.count("is ready: version") == 3, 20.0), service.log
        assert settles(service, V1, 30) and settles(service, GRPC, 10)
        assert service.stop() == 0
