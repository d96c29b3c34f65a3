"""The manifests against their schemas, and against the rules that a schema cannot state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from hf_transformer.config.options import parse_config
from hf_transformer.core.model import CHECK_TIMEOUT_SECONDS
from tests.deploy.manifests import DEPLOY, RIGHTS, damaged, documents, load, messages


@pytest.mark.parametrize("document", documents(), ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_manifest_fits_its_schema(document: dict[str, Any]) -> None:
    assert messages(document) == []


POD: list[str | int] = ["spec", "template", "spec"]
TARGET: list[str | int] = ["spec", "metrics", 0, "pods", "target"]
KUBERNETES = "kubernetes/deployment.yaml"
COMPONENTS = "kubernetes/components"
RULES = f"{COMPONENTS}/prometheus-rule/prometheusrule.yaml"
SCALED, ROUTE = f"{COMPONENTS}/keda/scaledobject.yaml", f"{COMPONENTS}/http-route/httproute.yaml"
BROKEN: dict[str, tuple[str, list[str | int], Any]] = {
    "field of a pod": (KUBERNETES, [*POD, "volume"], []),
    "probe": (KUBERNETES, [*POD, "containers", 0, "readinessProbe", "timeoutSecond"], 1),
    "field of a list's item": (KUBERNETES, [*POD, "initContainers", 0, "restartpolicy"], "Always"),
    "wrong type": (KUBERNETES, [*POD, "terminationGracePeriodSeconds"], "45s"),
    "no version": ("kubernetes/service.yaml", ["apiVersion"], None),
    "service": ("kubernetes/service.yaml", ["spec", "selectors"], {}),
    "budget": ("kubernetes/poddisruptionbudget.yaml", ["spec", "maxUnavailables"], 1),
    "autoscaler": (f"{COMPONENTS}/autoscaling/horizontalpodautoscaler.yaml", [*TARGET, "averageUtilisation"], 1),
    "policy": ("kubernetes/networkpolicy.yaml", ["spec", "ingress", 0, "ports", 0, "portName"], "http"),
    "monitor": (f"{COMPONENTS}/service-monitor/servicemonitor.yaml", ["spec", "endpoints", 0, "intervall"], "15s"),
    "rule": (RULES, ["spec", "groups", 1, "rules", 0, "severity"], "critical"),
    "scaled object": (SCALED, ["spec", "triggers", 0, "metadata", "activationTreshold"], "1"),
    "route": (ROUTE, ["spec", "rules", 0, "backendRefs", 0, "portName"], "http"),
    "ingress": (f"{COMPONENTS}/ingress/ingress.yaml", ["spec", "rules", 0, "hosts"], "a"),
}


@pytest.mark.parametrize(("file", "path", "value"), BROKEN.values(), ids=BROKEN.keys())
def test_a_mistake_is_found(file: str, path: list[str | int], value: Any) -> None:
    (message,) = messages(damaged(load(file), path, value))
    assert str(path[-1]) in message


def containers(node: Any) -> Iterator[dict[str, Any]]:
    """The containers of the service's image at any depth, without those that run another command of it."""
    if isinstance(node, dict) and str(node.get("image")).startswith("hf-transformer:"):
        entrypoint = "build" in node or "command" not in node  # Compose's command is the arguments
        yield from [node] if entrypoint else ()
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from containers(child)


def shipped() -> dict[str, list[dict[str, Any]]]:
    """The service's containers by file: in manifests, and in YAML of pages but the one about KServe's own flags."""
    root, by_file = DEPLOY.parent, {}
    for path in sorted([*DEPLOY.rglob("*.yaml"), *(root / "examples").rglob("*.yaml"), *(root / "docs").rglob("*.md")]):
        if path.name == "coming_from_kserve.md" or DEPLOY / "chart" in path.parents:  # test_chart.py has the chart
            continue
        text = path.read_text()
        blocks = (
            [text] if path.suffix == ".yaml" else re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        )
        documents = [document for block in blocks for document in yaml.safe_load_all(block)]
        if services := [*containers(documents)]:
            by_file[str(path.relative_to(root))] = services
    return by_file


def test_an_unknown_flag_ends_the_start_in_all_manifests() -> None:
    """InferenceServices with a runtime have its arguments: test_kserve.py has their pods."""
    found = shipped()
    assert {"deploy/compose.yaml", "deploy/kubernetes/deployment.yaml", "docs/tokenizer_plane.md"} <= found.keys()
    assert sum("kserve" in path for path in found) == 4
    for path, services in found.items():
        for service in services:
            flags = service["command" if "build" in service else "args"]
            assert "--strict_flags=true" in flags, path


# The plain manifests against each other: names, labels and ports that must fit.

LABELS = {"app.kubernetes.io/name": "hf-transformer", "app.kubernetes.io/instance": "hf-transformer"}
MIB = 2**20
USUAL = parse_config(["--predictor_host=x"], {})[0]


def spec(stem: str) -> Any:
    (path,) = (DEPLOY / "kubernetes").rglob(f"{stem}.yaml")
    return yaml.safe_load(path.read_text())["spec"]


@pytest.fixture
def parts() -> Any:
    """The pod, its two containers, the service's arguments as a configuration, and Triton's options."""
    pod = spec("deployment")["template"]["spec"]
    (container,), (triton,) = pod["containers"], pod["initContainers"]
    config, notes = parse_config(container["args"], {})
    assert notes == []
    options = dict(argument.removeprefix("--").split("=") for argument in triton["args"][1:])
    return SimpleNamespace(pod=pod, container=container, triton=triton, config=config, options=options)


def test_kustomization_names_every_manifest_once() -> None:
    kustomization = load("kubernetes/kustomization.yaml")
    assert (kustomization["apiVersion"], kustomization["kind"]) == ("kustomize.config.k8s.io/v1beta1", "Kustomization")
    assert set(kustomization) == {"apiVersion", "kind", "resources", "images"}
    paths = sorted(path.name for path in (DEPLOY / "kubernetes").glob("*.yaml") if path.stem != "kustomization")
    assert sorted(kustomization["resources"]) == paths
    (image,) = kustomization["images"]
    (container,) = spec("deployment")["template"]["spec"]["containers"]
    assert container["image"] == f"{image['name']}:{image['newTag']}"


def test_all_select_the_same_pods() -> None:
    deployment = spec("deployment")
    assert deployment["template"]["metadata"]["labels"] == deployment["selector"]["matchLabels"] == LABELS
    assert spec("service")["selector"] == LABELS
    assert LABELS.items() <= load("kubernetes/service.yaml")["metadata"]["labels"].items(), "for the ServiceMonitor"
    assert spec("networkpolicy")["podSelector"]["matchLabels"] == LABELS
    assert spec("poddisruptionbudget")["selector"]["matchLabels"] == LABELS
    assert spec("servicemonitor")["selector"]["matchLabels"] == LABELS
    (spread,) = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == LABELS
    name = load("kubernetes/deployment.yaml")["metadata"]["name"]
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    assert spec("horizontalpodautoscaler")["scaleTargetRef"] == target
    for name in ("autoscaling", "keda"):
        (patch,) = load(f"{COMPONENTS}/{name}/kustomization.yaml")["patches"]
        removed = {"op": "remove", "path": "/spec/replicas"}
        assert yaml.safe_load(patch["patch"]) == [removed], "every deployment would undo what the autoscaler did"


def test_ports_are_those_that_the_service_listens_on(parts: Any) -> None:
    ports = {port["name"]: port["containerPort"] for port in parts.container["ports"]}
    assert ports == {"http": USUAL.http_port, "grpc": USUAL.grpc_port}
    [metrics] = parts.triton["ports"]
    assert str(metrics["containerPort"]) == parts.options["metrics-port"]
    ports[metrics["name"]] = metrics["containerPort"]
    assert {port["targetPort"]: port["port"] for port in spec("service")["ports"]} == ports
    rules = spec("networkpolicy")["ingress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} == set(ports)
    assert [endpoint["port"] for endpoint in spec("servicemonitor")["endpoints"]] == ["http", "triton-metrics"]


def test_arguments_are_a_configuration(parts: Any) -> None:
    config, options = parts.config, parts.options
    assert config.model_dir == f"/mnt/models/{config.model_name}"
    assert config.enable_predictor_health_check
    assert config.predictor_host == f"{options['http-address']}:{options['http-port']}"
    assert options["http-address"] == "127.0.0.1", "other machines can't reach it"
    assert options["model-repository"] == "/mnt/models"


def test_probes(parts: Any) -> None:
    container, triton = parts.container, parts.triton
    live = {"path": "/v2/health/live", "port": "http", "scheme": "HTTP"}
    ready = {"path": f"/v2/models/{parts.config.model_name}/ready", "port": "http", "scheme": "HTTP"}
    assert container["livenessProbe"]["httpGet"] == container["startupProbe"]["httpGet"] == live
    assert container["readinessProbe"]["httpGet"] == ready
    assert container["readinessProbe"]["timeoutSeconds"] > CHECK_TIMEOUT_SECONDS, (
        "the answer comes after the predictor's"
    )
    for probe in ("startupProbe", "livenessProbe"):
        # From inside: the kubelet can't reach the pod's loopback interface.
        assert triton[probe]["exec"]["command"][-1] == "http://127.0.0.1:8000/v2/health/live"
    assert triton["restartPolicy"] == "Always", "what makes an init container a sidecar"


def test_release_of_triton_is_that_of_the_other_manifests(parts: Any) -> None:
    compose = load("compose.yaml")["services"]["triton"]["image"]
    assert parts.triton["image"] == re.sub(r"\$\{\w+:-(.*)\}", r"\1", compose)


def test_containers_run_with_no_more_rights_than_they_need(parts: Any) -> None:
    assert parts.container["securityContext"] == {**parts.triton["securityContext"], "readOnlyRootFilesystem": True}
    assert parts.container["securityContext"] == RIGHTS
    assert parts.pod["automountServiceAccountToken"] is False
    assert parts.pod["enableServiceLinks"] is False, "a Service named hf-transformer gives variables HF_TRANSFORMER_..."
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & set(parts.pod)


def test_nothing_but_shared_memory_can_be_written(parts: Any) -> None:
    mounts = {mount["mountPath"]: mount for mount in parts.container["volumeMounts"]}
    assert {path for path, mount in mounts.items() if not mount.get("readOnly")} == {"/dev/shm"}
    volumes = {volume["name"]: volume for volume in parts.pod["volumes"]}
    assert volumes["shared-memory"]["emptyDir"]["medium"] == "Memory"
    assert volumes["models"]["persistentVolumeClaim"]["readOnly"] is True
    assert {mount["mountPath"] for mount in parts.triton["volumeMounts"]} <= set(mounts)


def test_pod_is_given_the_time_that_its_end_takes(parts: Any) -> None:
    pause = int(parts.container["lifecycle"]["preStop"]["exec"]["command"][1])
    triton = int(parts.options["exit-timeout-secs"])
    assert parts.pod["terminationGracePeriodSeconds"] >= pause + parts.config.grace_period_seconds + triton


def test_shared_memory_fits_the_volume_and_the_limit(parts: Any) -> None:
    (volume,) = (one["emptyDir"]["sizeLimit"] for one in parts.pod["volumes"] if one["name"] == "shared-memory")
    taken = 2 * parts.config.workers * parts.config.predictor_shared_memory_bytes  # a region may be replaced
    assert taken <= int(volume.removesuffix("Mi")) * MIB
    limit = int(parts.container["resources"]["limits"]["memory"].removesuffix("Mi")) * MIB
    assert taken + 100 * MIB <= limit, "the service itself holds less than 100 MiB"


def test_autoscaler_asks_for_the_metric_that_the_adapter_makes() -> None:
    (metric,) = spec("horizontalpodautoscaler")["metrics"]
    rules = load("prometheus/adapter-values.yaml")["rules"]["custom"]
    assert metric["pods"]["metric"]["name"] in {rule["seriesQuery"].partition("{")[0] for rule in rules}
    assert int(metric["pods"]["target"]["averageValue"]) < USUAL.max_queued_tokens, "else it refuses and never scales"


def test_pods_talk_to_nobody() -> None:
    policy = spec("networkpolicy")
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == []
    assert all(rule["from"] for rule in policy["ingress"]), "no rule that lets everybody in"
