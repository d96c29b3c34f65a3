"""The manifests against their schemas, and those of KServe against the rules that a schema cannot state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hf_transformer.config.options import parse_config
from hf_transformer.core.model import QUESTION_TIMEOUT
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
KUBERNETES, KSERVE = "kubernetes/deployment.yaml", "kserve/inferenceservice.yaml"
BROKEN: dict[str, tuple[str, list[str | int], Any]] = {
    "pod": (KUBERNETES, [*POD, "volume"], []),
    "probe": (KUBERNETES, [*POD, "containers", 0, "readinessProbe", "timeoutSecond"], 1),
    "sidecar": (KUBERNETES, [*POD, "initContainers", 0, "restartpolicy"], "Always"),
    "wrong type": (KUBERNETES, [*POD, "terminationGracePeriodSeconds"], "45s"),
    "service": ("kubernetes/service.yaml", ["spec", "selectors"], {}),
    "budget": ("kubernetes/poddisruptionbudget.yaml", ["spec", "maxUnavailables"], 1),
    "autoscaler": (
        "kubernetes/horizontalpodautoscaler.yaml",
        ["spec", "metrics", 0, "pods", "target", "averageUtilisation"],
        1,
    ),
    "policy": ("kubernetes/networkpolicy.yaml", ["spec", "ingress", 0, "ports", 0, "portName"], "http"),
    "monitor": ("kubernetes/servicemonitor.yaml", ["spec", "endpoints", 0, "intervall"], "15s"),
    "no version": ("kubernetes/service.yaml", ["apiVersion"], None),
    "kserve, top level": (KSERVE, ["specs"], {}),
    "kserve, metadata": (KSERVE, ["metadata", "lables"], {"app": "bert"}),
    "kserve, component": (KSERVE, ["spec", "transformers"], {"containers": []}),
    "kserve, pod": (KSERVE, ["spec", "transformer", "volume"], []),
    "kserve, container": (KSERVE, [*CONTAINER, "readynessProbe"], {}),
    "kserve, probe": (KSERVE, [*CONTAINER, "readinessProbe", "httpGet", "url"], "/"),
    "kserve, security context": (KSERVE, [*CONTAINER, "securityContext", "runAsRoot"], False),
    "kserve, model": (KSERVE, ["spec", "predictor", "model", "storageURI"], "gs://bucket/models"),
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


@pytest.fixture(params=FORMS)
def manifest(request: pytest.FixtureRequest) -> dict[str, Any]:
    document: dict[str, Any] = load(f"kserve/{request.param}.yaml")
    return document


def service_pod(manifest: dict[str, Any]) -> dict[str, Any]:
    """The pod that our container runs in: the transformer's, or the predictor's in the collocated form."""
    spec: dict[str, Any] = manifest["spec"]
    pod: dict[str, Any] = spec["transformer"] if "transformer" in spec else spec["predictor"]
    return pod


def service_container(manifest: dict[str, Any]) -> dict[str, Any]:
    (container,) = service_pod(manifest)["containers"]
    assert isinstance(container, dict)
    return container


def test_every_form_is_there() -> None:
    assert {path.stem for path in (DEPLOY / "kserve").glob("inferenceservice*.yaml")} == set(FORMS)


def test_container_is_named_as_kserve_requires_and_small(manifest: dict[str, Any]) -> None:
    container = service_container(manifest)
    collocated = "transformer" not in manifest["spec"]
    assert container["name"] == ("transformer-container" if collocated else "kserve-container")
    assert container["image"] == "hf-transformer:latest"
    assert "command" not in container, "the image's entrypoint takes the arguments"
    assert container["resources"]["requests"] == {"cpu": "100m", "memory": "128Mi"}
    assert container["resources"]["limits"]["memory"] == ("640Mi" if collocated else "512Mi")
    assert container["securityContext"] == RIGHTS


def test_probes_ask_the_port_and_the_model_that_are_served(manifest: dict[str, Any]) -> None:
    container = service_container(manifest)
    arguments = flags(container["args"])
    port = int(arguments.get("--http_port", "8080"))
    assert container["ports"] == [{"containerPort": port, "protocol": "TCP"}]
    live = {"path": "/v2/health/live", "port": port}
    ready = {"path": f"/v2/models/{arguments['--model_name']}/ready", "port": port}
    assert container["startupProbe"]["httpGet"] == container["livenessProbe"]["httpGet"] == live
    assert container["readinessProbe"]["httpGet"] == ready
    assert arguments["--enable_predictor_health_check"] == "true", "or that route says nothing of the predictor"
    assert container["readinessProbe"]["timeoutSeconds"] > QUESTION_TIMEOUT, "the answer comes after the predictor's"


def test_form_works_in_knative_mode_too_and_ends_in_time(manifest: dict[str, Any]) -> None:
    # Knative refuses these; its own grace period, timeoutSeconds, is 300, Kubernetes' default 30.
    assert not {"terminationGracePeriodSeconds", "initContainers", "automountServiceAccountToken"} & set(
        service_pod(manifest)
    )
    assert "lifecycle" not in service_container(manifest)
    config, _ = parse_config([*service_container(manifest)["args"], "--predictor_host=x"], {})
    assert config.grace_period_seconds < 30


def test_cache_lies_on_a_writable_volume(manifest: dict[str, Any]) -> None:
    pod, container = service_pod(manifest), service_container(manifest)
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
    arguments = service_container(grpc)["args"]
    arguments[arguments.index("--predictor_protocol=grpc-v2")] = "--predictor_protocol=v2"
    assert grpc == rest


def test_collocated_containers_share_memory_and_no_port() -> None:
    collocated = load("kserve/inferenceservice-collocated.yaml")
    predictor, container = collocated["spec"]["predictor"], service_container(collocated)
    arguments = flags(container["args"])
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
