"""The dashboard, the rules and the alerts, against the metrics of a running service and in a real Prometheus.

A query for a metric or label that is not there shows nothing and warns nobody."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import promql_parser
import pytest
import yaml

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.local_triton import LocalTriton
from tests.deploy.manifests import DEPLOY, documents, load
from tests.integration.conftest import ROOT, Serve
from tests.support.prometheus import Prometheus, absent
from tests.support.shown_metrics import answer_and_refuse, shown_by

DASHBOARD = DEPLOY / "grafana" / "dashboard.json"
RULES = DEPLOY / "prometheus" / "alerts.yaml"
ALERTS_TEST = DEPLOY / "prometheus" / "alerts_test.yaml"
OPERATIONS = ROOT / "docs" / "operations.md"

TEXT = "The capital of france is [MASK]."
TARGET = {"job", "instance", "namespace", "pod"}
"""Labels that Prometheus adds to all series in Kubernetes."""
ROWS = ["SLO: whole requests", "Traffic", "Time", "Queue", "Batches", "Predictor", "Triton", "GPU", "Text generation"]
ROWS += ["Shared memory", "Process"]
GPU_LABELS = {"gpu_uuid": {""}}
DCGM_LABELS = {"exported_namespace": {""}, "exported_pod": {""}, "gpu": {""}}
ELSEWHERE: dict[str, dict[str, set[str]]] = {
    "up": {},
    # Triton's own where there is a GPU (src/metrics.cc of its core), and those of NVIDIA's dcgm-exporter
    # (etc/default-counters.csv) with the labels that Prometheus renames.
    **dict.fromkeys(("nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes"), GPU_LABELS),
    **dict.fromkeys(("nv_gpu_power_usage", "nv_gpu_power_limit"), GPU_LABELS),
    **dict.fromkeys(("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE"), DCGM_LABELS),
}
"""Series that are absent in these tests, with their labels."""
MAY_BE_EMPTY = re.compile(r"nv_gpu_|DCGM_|hf_transformer_memory_limit_bytes")
"""Queries that may have no series: on a machine without a GPU or a memory limit."""

BY_TIME = re.compile("Latency|Slow$|Down$")
"""Alerts that may fire for a moment on an overloaded machine."""

needs_promtool = pytest.mark.skipif(bool(absent("promtool")), reason=absent("promtool"))
needs_prometheus = pytest.mark.skipif(bool(absent("prometheus")), reason=absent("prometheus"))


@dataclass(frozen=True)
class Query:
    """A query, where it stands, and how its answers are named in a figure."""

    where: str
    text: str
    legend: str = ""


def groups() -> Any:
    return yaml.safe_load(RULES.read_text())["groups"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in groups() for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text())


def figures() -> list[dict[str, Any]]:
    found = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    assert len(found) > len(ROWS)
    return found


def filled(text: str) -> str:
    """A query of the dashboard as Grafana asks it: all of each label, and the fixed variables' first value."""
    values = {"__rate_interval": "1h", "__range": "1h"}
    for variable in dashboard()["templating"]["list"]:
        values[variable["name"]] = variable.get("allValue") or variable["current"].get("value", "")
    return re.sub(r"\$(\w+)", lambda match: values[match[1]], text)


def shown_queries() -> Iterator[Query]:
    for panel in figures():
        for target in panel["targets"]:
            yield Query(panel["title"], filled(target["expr"]), target["legendFormat"])


def queries() -> Iterator[Query]:
    yield from shown_queries()
    for rule in rules():
        yield Query(rule.get("alert") or rule["record"], rule["expr"])
    for rule in load("prometheus/adapter-values.yaml")["rules"]["custom"]:
        series = rule["seriesQuery"]
        for name in re.findall(
            r"hf_transformer\w+", series.replace("(waiting|running)_(texts|tokens)", "waiting_texts")
        ):
            text = rule["metricsQuery"]
            for placeholder, value in (("Series", name), ("LabelMatchers", 'job="x"'), ("GroupBy", "pod")):
                text = text.replace(f"<<.{placeholder}>>", value)
            yield Query(f"adapter: {name}", text)


def nodes(text: str) -> list[Any]:
    """Returns all nodes of a PromQL query. Raises ValueError for invalid PromQL."""
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


# Without processes


def test_dashboard_is_what_its_script_writes() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "dashboard"), "--check"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 0, answer.stderr


def test_dashboard_can_be_imported() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == ROWS
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, f"{panel['title']} lies on another panel"
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_every_figure_says_what_it_is() -> None:
    assert len({panel["title"] for panel in figures()}) == len(figures())
    for panel in figures():
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"]
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


def test_recorded_series_are_summed_by_what_their_names_say() -> None:
    recorded = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}
    assert recorded
    levels = {"job": {"namespace", "job"}, "job_model": {"namespace", "job", "model_name"}}
    for name, text in recorded.items():
        assert sums(text)
        assert all(labels - {"le"} == levels[name.partition(":")[0]] for labels in sums(text)), name


@pytest.mark.parametrize("name", alerts())
def test_alert_says_what_to_do(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith(".")
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert anchor == name.lower()


def test_every_alert_is_explained_and_tried() -> None:
    explained = re.findall(r"^### (HfTransformer\w+)$", OPERATIONS.read_text(), re.MULTILINE)
    assert sorted(explained) == sorted(alerts())
    tried = yaml.safe_load(ALERTS_TEST.read_text())["tests"]
    fired = {
        match
        for test in tried
        for case in test.get("promql_expr_test", ())
        for sample in case["exp_samples"]
        for match in re.findall(r'alertname="(\w+)"', sample["labels"])
    }
    assert fired == set(alerts())


def test_memory_is_requested_as_it_is_limited_and_the_alert_names_the_limits() -> None:
    limits = set()
    for document in documents():
        for container in containers_of(document):
            if "hf-transformer" in container["image"] and "resources" in container:
                limit = container["resources"]["limits"]["memory"]
                assert container["resources"]["requests"]["memory"] == limit
                limits.add(int(limit.removesuffix("Mi")))
    section = OPERATIONS.read_text().partition("### HfTransformerMemory\n")[2].partition("\n###")[0]
    named = {int(number.replace(",", "")) for number in re.findall(r"([\d,]+) MiB\s+(?:in|with)", section)}
    assert limits and named == limits


def containers_of(node: Any) -> Iterator[dict[str, Any]]:
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from containers_of(child)
    if isinstance(node, dict) and isinstance(node.get("image"), str):
        yield node


@pytest.mark.slow
@needs_promtool
def test_rules_are_valid_and_each_alert_fires_when_it_should() -> None:
    promtool("check", "rules", str(RULES))
    promtool("test", "rules", str(ALERTS_TEST))


@pytest.mark.slow
@needs_promtool
def test_a_rule_that_never_fires_is_found(tmp_path: Path) -> None:
    blunt = RULES.read_text().replace("> 14.4 * 0.001", "> 1440 * 0.001")
    (tmp_path / RULES.name).write_text(blunt)
    (tmp_path / ALERTS_TEST.name).write_text(ALERTS_TEST.read_text())
    with pytest.raises(AssertionError, match="HfTransformerErrorBudgetFast"):
        promtool("test", "rules", str(tmp_path / ALERTS_TEST.name))


def promtool(*arguments: str, text: str = "") -> None:
    """Runs promtool, which must have nothing to say against its input."""
    command = ["promtool", *arguments]
    answer = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=300)
    assert answer.returncode == 0, answer.stdout + answer.stderr


# A service and Triton at work.


@dataclass(frozen=True)
class AtWork:
    """A service that fills masks and one that generates, both of one Triton; the text of their /metrics by address."""

    serve: Serve
    triton: LocalTriton

    @property
    def targets(self) -> dict[str, dict[str, str]]:
        """The labels that Kubernetes gives these: each service in a pod, and Triton in that of the first."""
        first, second = self.services
        labels = {"job": "hf-transformer", "namespace": "default"}
        return {
            first: {**labels, "pod": "hf-transformer-a"},
            self.triton.metrics_address: {**labels, "pod": "hf-transformer-a"},
            second: {**labels, "pod": "hf-transformer-b"},
        }

    @property
    def services(self) -> tuple[str, str]:
        one, other = self.serve("bert"), self.serve("gpt2_tokens", "grpc-v2")
        return one.url.removeprefix("http://"), other.url.removeprefix("http://")

    def work(self) -> None:
        """A request for each service, answered."""
        assert self.serve("bert").predict([TEXT, TEXT])
        assert self.serve("gpt2_tokens", "grpc-v2").predict(["hello"], {"max_new_tokens": 4})

    def metrics(self, address: str) -> str:
        return httpx.get(f"http://{address}/metrics", trust_env=False, verify=False).raise_for_status().text


@pytest.fixture(scope="module")
def at_work(serve: Serve, triton: LocalTriton) -> AtWork:
    both = AtWork(serve, triton)
    both.work()
    return both


@pytest.fixture(scope="module")
def series(at_work: AtWork, serve: Serve, repository: Path) -> dict[str, dict[str, set[str]]]:
    """Labels and their values by the name that a query gives, with answered, refused and failed requests."""
    failing = serve("fault_raises")
    assert failing.post({"instances": [TEXT]}).status_code == 502
    busy = serve("fault_slow", "v2", "--max_concurrent_requests=1")
    answer_and_refuse(busy, {"instances": [TEXT]}, repository)
    by_name = dict(ELSEWHERE)
    others = [service.url.removeprefix("http://") for service in (busy, failing)]
    for address in [*at_work.targets, *others]:
        for name, metric in shown_by(at_work.metrics(address)).items():
            if metric.kind == "histogram":
                plain = {label: values for label, values in metric.labels.items() if label != "le"}
                new = {f"{name}_bucket": metric.labels, f"{name}_sum": plain, f"{name}_count": plain}
            else:
                new = {name: metric.labels}
            for each, labels in new.items():
                before = by_name.get(each, {})
                by_name[each] = {label: before.get(label, set()) | values for label, values in labels.items()} or before
    # A recorded series has the labels that it was summed by, which the rules' own test checks.
    return by_name | {rule["record"]: {"model_name": {""}} for rule in rules() if "record" in rule}


def check_query(query: Query, series: dict[str, dict[str, set[str]]]) -> None:
    asked = selectors(query.text)
    assert asked
    for selector in asked:
        assert selector.name in series, f"{query.where}: no metric {selector.name}"
        labels = series[selector.name]
        for matcher in selector.matchers.matchers:
            assert matcher.name in TARGET | set(labels), f"{selector.name} has no label {matcher.name}"
            if matcher.op == promql_parser.MatchOp.Equal and matcher.name in labels:
                assert matcher.value in labels[matcher.name], f"{matcher.name} is never {matcher.value}"
    there = TARGET.union(*(series[selector.name or ""] for selector in asked))
    assert all(labels <= there for labels in sums(query.text)), "summed by a label that is not there"
    assert set(re.findall(r"{{(\w+)}}", query.legend)) <= there


@pytest.mark.slow
def test_queries_ask_for_what_is_there(series: dict[str, dict[str, set[str]]]) -> None:
    for query in queries():
        check_query(query, series)


@pytest.mark.slow
def test_a_wrong_query_is_found(series: dict[str, dict[str, set[str]]]) -> None:
    for text in (
        "rate(hf_transformer_request_total[5m])",
        'hf_transformer_requests_total{code="200"}',
        'hf_transformer_shared_memory_slots{state="lost"}',
        'hf_transformer_request_seconds_bucket{le="0.75"}',
        "sum by (route) (hf_transformer_requests_total)",
    ):
        with pytest.raises(AssertionError):
            check_query(Query("", text), series)
    with pytest.raises(ValueError):
        nodes("sum by (job) rate(up[5m])")


def snippets() -> list[Any]:
    """The YAML of docs/metrics.md's section for scalers and routers."""
    section = (ROOT / "docs/metrics.md").read_text().partition("\n## For scalers and routers\n")[2]
    return [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)]


@pytest.mark.slow
def test_scalers_and_routers_are_told_metrics_that_there_are(series: dict[str, dict[str, set[str]]]) -> None:
    scaled, adapter, autoscaler, picker = snippets()
    [trigger] = scaled["spec"]["triggers"]
    cluster = {name: labels | {"namespace": {"default"}, "pod": set()} for name, labels in series.items()}
    check_query(Query("KEDA", trigger["metadata"]["query"]), cluster)
    gauges = [f"hf_transformer_{state}_texts" for state in ("waiting", "running")]
    [rule] = adapter["rules"]["custom"]
    [pattern] = re.findall(r'__name__=~"([^"]*)"', rule["seriesQuery"])
    assert {name for name in series if re.fullmatch(pattern, name)} == {*gauges}
    assert {metric["pods"]["metric"]["name"] for metric in autoscaler["metrics"]} == {*gauges}
    parameters = {plugin["type"]: plugin.get("parameters") for plugin in picker["plugins"]}
    [engine] = parameters["core-metrics-extractor"]["engineConfigs"]
    assert [engine["queuedRequestsSpec"], engine["runningRequestsSpec"]] == gauges
    assert engine["name"] == parameters["core-metrics-extractor"]["defaultEngine"]
    [profile] = picker["schedulingProfiles"]
    assert {plugin["pluginRef"] for plugin in profile["plugins"]} <= parameters.keys()


@pytest.mark.slow
def test_variables_are_labels_and_bounds(series: dict[str, dict[str, set[str]]]) -> None:
    listed = dashboard()["templating"]["list"]
    asked = {variable["name"]: variable["query"]["query"] for variable in listed if variable["type"] == "query"}
    assert list(asked) == ["namespace", "job", "model", "pod"]
    for name, query in asked.items():
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert found
        assert found[2].removesuffix("_name") == name
        (selector,) = selectors(found[1])
        assert selector.name in series
    fixed = {
        variable["name"]: {option["value"] for option in variable["options"]}
        for variable in listed
        if variable["type"] == "custom"
    }
    assert fixed.pop("threshold") <= series["hf_transformer_request_seconds_bucket"]["le"]
    assert set(fixed) == {"objective", "latency_objective"}
    assert all(0 < float(value) < 1 for values in fixed.values() for value in values)


@pytest.mark.slow
def test_every_metric_of_ours_is_in_a_figure(series: dict[str, dict[str, set[str]]]) -> None:
    asked = {selector.name for query in shown_queries() for selector in selectors(query.text)}
    # But for KServe's histogram of a request that there is not, and other forms of the same.
    ours = {name for name in series if re.match("(hf_transformer|request)_", name)}
    ours = {name for name in ours if not re.search("_(sum|count)$|^request_explain", name)}
    assert {"hf_transformer_requests_total", "request_predict_seconds_bucket"} <= ours
    assert ours - asked == set(), "nobody looks at them"


@pytest.mark.slow
@needs_promtool
def test_prometheus_linter_has_nothing_against_the_metrics(at_work: AtWork) -> None:
    for address in at_work.services:
        promtool("check", "metrics", text=at_work.metrics(address))


@pytest.fixture(scope="module")
def prometheus(at_work: AtWork, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """It has scraped all, before and after requests, and has evaluated all rules since."""
    folder = tmp_path_factory.mktemp("prometheus")
    often = folder / RULES.name
    often.write_text(RULES.read_text().replace("interval: 30s", "interval: 1s"))
    with Prometheus(folder, at_work.targets, often) as running:
        assert poll(lambda: running.values("up") == [1, 1, 1], 60.0), running.log
        at_work.work()
        # The queue's histogram is the slowest to show: the service counts the stages of requests together.
        recorded = (
            "count(job_model:hf_transformer_slow_requests:rate5m) and sum(job:hf_transformer_requests:rate5m) > 0"
        )
        assert poll(lambda: running.values(recorded) != [], 60.0), running.log
        yield running


@pytest.mark.slow
@needs_prometheus
def test_prometheus_evaluates_every_rule(prometheus: Prometheus, at_work: AtWork) -> None:
    def evaluated() -> list[Any]:
        return [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]

    assert poll(lambda: all(rule["health"] != "unknown" for rule in evaluated()), 60.0)
    assert [rule for rule in evaluated() if rule["health"] != "ok"] == []
    assert {rule["name"] for rule in evaluated()} == {rule.get("alert") or rule["record"] for rule in rules()}
    at_work.work()
    recorded = [rule["record"] for rule in rules() if "record" in rule]
    assert recorded
    for name in recorded:
        assert poll(lambda name=name: prometheus.values(name) != [], 60.0), name  # type: ignore[misc]
    raised = {alert["labels"]["alertname"] for alert in prometheus.api("alerts")["alerts"]}
    assert {name for name in raised if not BY_TIME.search(name)} == set()


@pytest.mark.slow
@needs_prometheus
def test_every_figure_has_data(prometheus: Prometheus) -> None:
    empty = []
    for query in shown_queries():
        values = prometheus.values(query.text)
        if not values or all(map(math.isnan, values)):
            empty.append(query)
    wrong = [query for query in empty if not MAY_BE_EMPTY.match(selectors(query.text)[0].name or "")]
    assert wrong == []


@pytest.mark.slow
@needs_prometheus
def test_the_slo_of_a_run_without_failures_is_met(prometheus: Prometheus) -> None:
    by_title = {query.where: query.text for query in shown_queries()}
    assert prometheus.values(by_title["Availability"]) == prometheus.values(by_title["Error budget left"]) == [1]
    assert prometheus.values(by_title["Refused"]) == [0]
    # gpt2 generates, so that its time has no objective.
    query = next(query for query in shown_queries() if query.where == "Answered in time by model")
    assert len(prometheus.values(query.text)) == 1


@pytest.mark.slow
@needs_prometheus
def test_variables_have_the_values_of_the_run(prometheus: Prometheus) -> None:
    for name, wanted in {"namespace": ["default"], "pod": ["hf-transformer-a", "hf-transformer-b"]}.items():
        assert prometheus.api(f"label/{name}/values", **{"match[]": "hf_transformer_model_ready"}) == wanted
