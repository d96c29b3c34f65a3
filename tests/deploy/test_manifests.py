"""The manifests against their schemas, and against the rules that a schema cannot state."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from hf_transformer.config.options import parse_config
from hf_transformer.core.model import CHECK_TIMEOUT_SECONDS
from tests.deploy.manifests import DEPLOY, damaged, documents, flags, load, messages

FORMS = ("inferenceservice", "inferenceservice-collocated", "inferenceservice-grpc")
RIGHTS = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.mark.parametrize("document", documents(), ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_manifest_fits_its_schema(document: dict[str, Any]) -> None:
    assert messages(document) == []


CONTAINER: list[str | int] = ["spec", "transformer", "containers", 0]
POD: list[str | int] = ["spec", "template", "spec"]
TARGET: list[str | int] = ["spec", "metrics", 0, "pods", "target"]
KUBERNETES, KSERVE = "kubernetes/deployment.yaml", "kserve/inferenceservice.yaml"
BROKEN: dict[str, tuple[str, list[str | int], Any]] = {
    "field of a pod": (KUBERNETES, [*POD, "volume"], []),
    "probe": (KUBERNETES, [*POD, "containers", 0, "readinessProbe", "timeoutSecond"], 1),
    "field of a list's item": (KUBERNETES, [*POD, "initContainers", 0, "restartpolicy"], "Always"),
    "wrong type": (KUBERNETES, [*POD, "terminationGracePeriodSeconds"], "45s"),
    "no version": ("kubernetes/service.yaml", ["apiVersion"], None),
    "service": ("kubernetes/service.yaml", ["spec", "selectors"], {}),
    "budget": ("kubernetes/poddisruptionbudget.yaml", ["spec", "maxUnavailables"], 1),
    "autoscaler": ("kubernetes/horizontalpodautoscaler.yaml", [*TARGET, "averageUtilisation"], 1),
    "policy": ("kubernetes/networkpolicy.yaml", ["spec", "ingress", 0, "ports", 0, "portName"], "http"),
    "monitor": ("kubernetes/servicemonitor.yaml", ["spec", "endpoints", 0, "intervall"], "15s"),
    "kserve, top level": (KSERVE, ["specs"], {}),
    "kserve, metadata": (KSERVE, ["metadata", "lables"], {"app": "bert"}),
    "kserve, component": (KSERVE, ["spec", "transformers"], {"containers": []}),
    "kserve, pod": (KSERVE, ["spec", "transformer", "volume"], []),
    "kserve, container": (KSERVE, [*CONTAINER, "readynessProbe"], {}),
    "kserve, security context": (KSERVE, [*CONTAINER, "securityContext", "runAsRoot"], False),
    "kserve, model": (KSERVE, ["spec", "predictor", "model", "storageURI"], "gs://bucket/models"),
    "kserve, probe": (KSERVE, [*CONTAINER, "readinessProbe", "httpGet", "url"], "/"),
    "kserve, wrong type": (KSERVE, [*CONTAINER, "ports", 0, "containerPort"], "http"),
    "kserve, bad quantity": (KSERVE, [*CONTAINER, "resources", "limits", "memory"], "256 MB"),
    "kserve, wrong kind": (KSERVE, ["kind"], "InferenceServices"),
    "kserve, wrong version": (KSERVE, ["apiVersion"], "serving.kserve.io/v1alpha1"),
    "kserve, no name": (KSERVE, [*CONTAINER, "name"], None),
}


@pytest.mark.parametrize(("file", "path", "value"), BROKEN.values(), ids=BROKEN.keys())
def test_a_mistake_is_found(file: str, path: list[str | int], value: Any) -> None:
    (message,) = messages(damaged(load(file), path, value))
    assert str(path[-1]) in message


def form_of(stem: str) -> Any:
    """An InferenceService: the pod that our container runs in (the predictor's in the collocated form), that container,
    and its flags."""
    spec = load(f"kserve/{stem}.yaml")["spec"]
    pod = spec.get("transformer", spec["predictor"])
    (container,) = pod["containers"]
    arguments = flags(container["args"])
    return SimpleNamespace(
        spec=spec, collocated="transformer" not in spec, pod=pod, container=container, arguments=arguments
    )


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Any:
    return form_of(request.param)


def test_every_form_is_there() -> None:
    assert {path.stem for path in (DEPLOY / "kserve").glob("inferenceservice*.yaml")} == set(FORMS)


def test_container_is_named_as_kserve_requires_and_small(form: Any) -> None:
    container, collocated = form.container, form.collocated
    assert container["name"] == ("transformer-container" if collocated else "kserve-container")
    assert "command" not in container, "the image's entrypoint takes the arguments"
    limit = "640Mi" if collocated else "512Mi"
    assert container["resources"]["requests"] == {"cpu": "100m", "memory": limit}
    assert container["resources"]["limits"]["memory"] == limit
    assert container["securityContext"] == RIGHTS


def test_probes_ask_the_port_and_the_model_that_are_served(form: Any) -> None:
    container, arguments = form.container, form.arguments
    port = int(arguments.get("--http_port", "8080"))
    assert container["ports"] == [{"containerPort": port, "protocol": "TCP"}]
    live = {"path": "/v2/health/live", "port": port}
    ready = {"path": f"/v2/models/{arguments['--model_name']}/ready", "port": port}
    assert container["startupProbe"]["httpGet"] == container["livenessProbe"]["httpGet"] == live
    assert container["readinessProbe"]["httpGet"] == ready
    assert arguments["--enable_predictor_health_check"] == "true", "or that route says nothing of the predictor"
    assert container["readinessProbe"]["timeoutSeconds"] > CHECK_TIMEOUT_SECONDS, (
        "the answer comes after the predictor's"
    )


def test_form_works_in_knative_mode_too_and_ends_in_time(form: Any) -> None:
    # Knative refuses these; its own grace period, timeoutSeconds, is 300, Kubernetes' default 30.
    assert not {"terminationGracePeriodSeconds", "initContainers", "automountServiceAccountToken"} & set(form.pod)
    assert "lifecycle" not in form.container
    config, _ = parse_config([*form.container["args"], "--predictor_host=x"], {})
    assert config.grace_period_seconds < 30


def test_cache_lies_on_a_writable_volume(form: Any) -> None:
    pod, container = form.pod, form.container
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(mounts) == set(volumes), "Knative refuses a volume without a mount, Kubernetes the opposite"
    assert "emptyDir" in volumes["cache"]
    for variable in ("HF_HOME", "TMPDIR"):
        assert Path(environment[variable]).is_relative_to(mounts["cache"])


def test_rest_and_grpc_forms_differ_in_the_protocol_only() -> None:
    rest, grpc = load("kserve/inferenceservice.yaml"), load("kserve/inferenceservice-grpc.yaml")
    # KServe puts port 80 in front of the first port listed; "h2c" makes it speak HTTP/2 there.
    ports = grpc["spec"]["predictor"]["model"].pop("ports")
    assert ports == [{"name": "h2c", "protocol": "TCP", "containerPort": 9000}]
    assert grpc["spec"]["predictor"]["model"]["protocolVersion"] == "grpc-v2"
    grpc["metadata"] = rest["metadata"]
    grpc["spec"]["predictor"]["model"]["protocolVersion"] = "v2"
    arguments = grpc["spec"]["transformer"]["containers"][0]["args"]
    arguments[arguments.index("--predictor_protocol=grpc-v2")] = "--predictor_protocol=v2"
    assert grpc == rest


def test_collocated_containers_share_memory_and_no_port() -> None:
    collocated = form_of("inferenceservice-collocated")
    predictor, container, arguments = collocated.pod, collocated.container, collocated.arguments
    triton = {"v2": 8080, "grpc-v2": 9000}  # where KServe's Triton runtime listens
    assert arguments["--predictor_host"] == f"localhost:{triton[arguments['--predictor_protocol']]}"
    assert int(arguments["--http_port"]) not in {8080, 9000, 8002}
    # Knative takes one port in a pod; KServe refuses a transformer-container that has STORAGE_URI.
    assert "ports" not in predictor["model"]
    assert "STORAGE_URI" not in {variable["name"] for variable in container["env"]}
    assert predictor["model"]["storageUri"]
    assert arguments["--model_dir"] == f"/mnt/models/{arguments['--model_name']}"
    shared = {"name": "shared-memory", "mountPath": "/dev/shm"}
    assert shared in predictor["model"]["volumeMounts"] and shared in container["volumeMounts"]
    (volume,) = (volume for volume in predictor["volumes"] if volume["name"] == shared["name"])
    assert volume["emptyDir"]["medium"] == "Memory"


def test_triton_takes_shared_memory_where_it_is_mounted() -> None:
    """Releases from 26.04 on need the flag, and older ones do not start with it; a new manifest that shares memory is
    found by its volume."""
    sharing = {}
    for path in sorted(DEPLOY.rglob("*.yaml")):
        if "/dev/shm" in path.read_text():
            (release,) = set(re.findall(r"(\d\d\.\d\d)-py3", path.read_text()))
            assert release >= "26.04", path
            sharing[path.name] = [
                argument
                for document in yaml.safe_load_all(path.read_text())
                for container in containers_of(document)
                if "triton" in json.dumps(container.get("image", container.get("modelFormat", "")))
                for argument in [*container.get("args", []), *container.get("command", [])]
            ]
    assert len(sharing) == 3
    assert all("--allow-client-shm=true" in arguments for arguments in sharing.values()), sharing


def containers_of(node: Any) -> Iterator[dict[str, Any]]:
    """Every object of a document that may describe a container: those with an image or a model format."""
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from containers_of(child)
    if isinstance(node, dict) and ("image" in node or "modelFormat" in node):
        yield node


def test_policies_let_the_transformer_alone_to_triton() -> None:
    policies = [one for one in documents() if one["kind"] == "NetworkPolicy"]
    transformer, predictor = (one["spec"] for one in policies if one["metadata"]["name"] != "hf-transformer")
    (rule,) = predictor["ingress"]
    assert rule["from"] == [{"podSelector": transformer["podSelector"]}]
    towards = transformer["egress"][0]
    assert towards["to"] == [{"podSelector": predictor["podSelector"]}]
    assert towards["ports"] == rule["ports"]
    named = set(transformer["podSelector"]["matchExpressions"][0]["values"])
    assert named == {load(f"kserve/{form}.yaml")["metadata"]["name"] for form in FORMS if "collocated" not in form}


# The plain manifests against each other: names, labels and ports that must fit.

LABELS = {"app.kubernetes.io/name": "hf-transformer"}
MIB = 2**20
USUAL = parse_config(["--predictor_host=x"], {})[0]


def spec(stem: str) -> Any:
    return load(f"kubernetes/{stem}.yaml")["spec"]


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
    assert spec("service")["selector"] == load("kubernetes/service.yaml")["metadata"]["labels"] == LABELS
    assert spec("networkpolicy")["podSelector"]["matchLabels"] == LABELS
    assert spec("poddisruptionbudget")["selector"]["matchLabels"] == LABELS
    assert spec("servicemonitor")["selector"]["matchLabels"] == LABELS
    (spread,) = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == LABELS
    name = load("kubernetes/deployment.yaml")["metadata"]["name"]
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    assert spec("horizontalpodautoscaler")["scaleTargetRef"] == target
    assert "replicas" not in deployment, "every deployment of it would undo what the autoscaler did"


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
    live = {"path": "/v2/health/live", "port": "http"}
    ready = {"path": f"/v2/models/{parts.config.model_name}/ready", "port": "http"}
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
