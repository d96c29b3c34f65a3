"""The KServe manifests against KServe's own schema, and against the rules that a schema cannot state.

Kubernetes drops a field that it does not know without a word. So the schema is made strict here: where it
lists the properties of an object, no others are allowed, and a misspelt field fails the test.
The CRD is KServe's InferenceService, apiextensions.k8s.io/v1, without its descriptions.
"""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hf_transformer.config.options import parse_config
from hf_transformer.core.model import QUESTION_TIMEOUT

HERE = Path(__file__).parent
MANIFESTS = sorted((HERE.parents[1] / "deploy" / "kserve").glob("inferenceservice*.yaml"))
CRD = HERE / "kserve-inferenceservice-crd.json.gz"

# A CRD leaves the metadata to Kubernetes; these are the fields of it that a manifest has use for.
METADATA = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"},
        "namespace": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


def strict(node: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a structural schema of Kubernetes, with unknown fields refused at every depth."""
    schema = {key: value for key, value in node.items() if not key.startswith("x-kubernetes-")}
    if node.get("x-kubernetes-int-or-string"):
        schema["type"] = ["integer", "string"]
    if "properties" in node:
        schema["properties"] = {name: strict(child) for name, child in node["properties"].items()}
    if isinstance(node.get("items"), dict):
        schema["items"] = strict(node["items"])
    if isinstance(node.get("additionalProperties"), dict):
        schema["additionalProperties"] = strict(node["additionalProperties"])
    elif node.get("type") == "object" and not node.get("x-kubernetes-preserve-unknown-fields"):
        schema["additionalProperties"] = False
    return schema


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    crd = json.loads(gzip.decompress(CRD.read_bytes()))
    (version,) = (v for v in crd["spec"]["versions"] if v["name"] == "v1beta1")
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    schema["properties"]["apiVersion"]["const"] = "serving.kserve.io/v1beta1"
    schema["properties"]["kind"]["const"] = "InferenceService"
    schema["properties"]["metadata"] = METADATA
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture(params=MANIFESTS, ids=lambda path: path.stem)
def manifest(request: pytest.FixtureRequest) -> dict[str, Any]:
    (document,) = yaml.safe_load_all(request.param.read_text())
    assert isinstance(document, dict)
    return document


def load(stem: str) -> dict[str, Any]:
    (path,) = (path for path in MANIFESTS if path.stem == stem)
    document = yaml.safe_load(path.read_text())
    assert isinstance(document, dict)
    return document


def service_pod(manifest: dict[str, Any]) -> dict[str, Any]:
    """The pod that our container runs in: the transformer's, or the predictor's in the collocated form."""
    spec = manifest["spec"]
    pod = spec["transformer"] if "transformer" in spec else spec["predictor"]
    assert isinstance(pod, dict)
    return pod


def service_container(manifest: dict[str, Any]) -> dict[str, Any]:
    (container,) = service_pod(manifest)["containers"]
    assert isinstance(container, dict)
    return container


def flags(container: dict[str, Any]) -> dict[str, str]:
    pairs = [argument.split("=", 1) for argument in container["args"]]
    assert all(len(pair) == 2 and pair[0].startswith("--") for pair in pairs), container["args"]
    assert len({name for name, _ in pairs}) == len(pairs), "a flag is given twice"
    return {name: value for name, value in pairs}


def messages(validator: jsonschema.Draft202012Validator, document: dict[str, Any]) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def test_every_form_is_there() -> None:
    assert {path.stem for path in MANIFESTS} == {
        "inferenceservice",
        "inferenceservice-collocated",
        "inferenceservice-grpc",
    }


def test_manifest_fits_the_crd(validator: jsonschema.Draft202012Validator, manifest: dict[str, Any]) -> None:
    assert messages(validator, manifest) == []


BROKEN: dict[str, tuple[list[str | int], Any]] = {
    "top level": (["specs"], {}),
    "metadata": (["metadata", "lables"], {"app": "bert"}),
    "component": (["spec", "transformers"], {"containers": []}),
    "pod": (["spec", "transformer", "volume"], []),
    "container": (["spec", "transformer", "containers", 0, "readynessProbe"], {}),
    "probe": (["spec", "transformer", "containers", 0, "readinessProbe", "httpGet", "url"], "/"),
    "security context": (["spec", "transformer", "containers", 0, "securityContext", "runAsRoot"], False),
    "model": (["spec", "predictor", "model", "storageURI"], "gs://bucket/models"),
    "wrong type": (["spec", "transformer", "containers", 0, "ports", 0, "containerPort"], "http"),
    "bad quantity": (["spec", "transformer", "containers", 0, "resources", "limits", "memory"], "256 MB"),
    "wrong kind": (["kind"], "InferenceServices"),
}


@pytest.mark.parametrize(("path", "value"), BROKEN.values(), ids=BROKEN.keys())
def test_a_mistake_is_found(validator: jsonschema.Draft202012Validator, path: list[str | int], value: Any) -> None:
    document = copy.deepcopy(load("inferenceservice"))
    parent: Any = document
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = value
    (message,) = messages(validator, document)
    assert str(path[-1]) in message


def test_a_missing_required_field_is_found(validator: jsonschema.Draft202012Validator) -> None:
    document = load("inferenceservice")
    del document["spec"]["transformer"]["containers"][0]["name"]
    (message,) = messages(validator, document)
    assert "'name' is a required property" in message


def test_container_is_named_as_kserve_requires(manifest: dict[str, Any]) -> None:
    collocated = "transformer" not in manifest["spec"]
    container = service_container(manifest)
    assert container["name"] == ("transformer-container" if collocated else "kserve-container")
    assert container["image"] == "hf-transformer:latest"
    assert "command" not in container, "the image's entrypoint takes the arguments"


def test_probes_ask_the_port_and_the_model_that_are_served(manifest: dict[str, Any]) -> None:
    container = service_container(manifest)
    arguments = flags(container)
    port = int(arguments.get("--http_port", "8080"))
    assert container["ports"] == [{"containerPort": port, "protocol": "TCP"}]
    live = {"path": "/v2/health/live", "port": port}
    assert container["startupProbe"]["httpGet"] == container["livenessProbe"]["httpGet"] == live
    assert container["readinessProbe"]["httpGet"] == {
        "path": f"/v2/models/{arguments['--model_name']}/ready",
        "port": port,
    }
    assert arguments["--enable_predictor_health_check"] == "true", "or that route says nothing of the predictor"
    assert container["readinessProbe"]["timeoutSeconds"] > QUESTION_TIMEOUT, "the answer comes after the predictor's"


def test_end_fits_the_time_that_kubernetes_gives(manifest: dict[str, Any]) -> None:
    config, _ = parse_config([*service_container(manifest)["args"], "--predictor_host=x"], {})
    assert config.grace_period_seconds < 30, "the default of terminationGracePeriodSeconds"


def test_form_works_in_knative_mode_too(manifest: dict[str, Any]) -> None:
    # Knative refuses these; its own grace period, timeoutSeconds, is 300, Kubernetes' default 30.
    assert not {"terminationGracePeriodSeconds", "initContainers", "automountServiceAccountToken"} & set(
        service_pod(manifest)
    )
    assert "lifecycle" not in service_container(manifest)


def test_container_runs_with_no_more_rights_than_it_needs(manifest: dict[str, Any]) -> None:
    assert service_container(manifest)["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_cache_lies_on_a_writable_volume(manifest: dict[str, Any]) -> None:
    pod, container = service_pod(manifest), service_container(manifest)
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(mounts) == set(volumes), "Knative refuses a volume without a mount, Kubernetes the opposite"
    assert "emptyDir" in volumes["cache"]
    for variable in ("HF_HOME", "TMPDIR"):
        assert Path(environment[variable]).is_relative_to(mounts["cache"])


def test_service_stays_small(manifest: dict[str, Any]) -> None:
    resources = service_container(manifest)["resources"]
    assert resources["requests"] == {"cpu": "100m", "memory": "128Mi"}
    assert resources["limits"]["memory"] == "256Mi"


def test_rest_and_grpc_forms_differ_in_the_protocol_only() -> None:
    rest, grpc = load("inferenceservice"), load("inferenceservice-grpc")
    assert flags(service_container(rest))["--predictor_protocol"] == "v2"
    assert flags(service_container(grpc))["--predictor_protocol"] == "grpc-v2"
    # KServe puts port 80 in front of the first port listed; "h2c" makes it speak HTTP/2 there.
    ports = grpc["spec"]["predictor"]["model"].pop("ports")
    assert ports == [{"name": "h2c", "protocol": "TCP", "containerPort": 9000}]
    assert grpc["spec"]["predictor"]["model"]["protocolVersion"] == "grpc-v2"
    grpc["metadata"] = rest["metadata"]
    grpc["spec"]["predictor"]["model"]["protocolVersion"] = "v2"
    arguments = service_container(grpc)["args"]
    arguments[arguments.index("--predictor_protocol=grpc-v2")] = "--predictor_protocol=v2"
    assert grpc == rest


def test_collocated_containers_do_not_meet_on_a_port() -> None:
    container = service_container(load("inferenceservice-collocated"))
    arguments = flags(container)
    triton = {"v2": 8080, "grpc-v2": 9000}  # where KServe's Triton runtime listens
    assert arguments["--predictor_host"] == f"localhost:{triton[arguments['--predictor_protocol']]}"
    assert int(arguments["--http_port"]) not in {8080, 9000, 8002}


def test_collocated_form_leaves_ports_and_storage_to_the_right_container() -> None:
    predictor = load("inferenceservice-collocated")["spec"]["predictor"]
    container = service_container(load("inferenceservice-collocated"))
    # Knative takes one port in a pod; KServe refuses a transformer-container that has STORAGE_URI.
    assert "ports" not in predictor["model"]
    assert "STORAGE_URI" not in {variable["name"] for variable in container["env"]}
    assert predictor["model"]["storageUri"]
    assert flags(container)["--model_dir"] == f"/mnt/models/{flags(container)['--model_name']}"


def test_collocated_containers_share_memory() -> None:
    predictor = load("inferenceservice-collocated")["spec"]["predictor"]
    shared = {"name": "shared-memory", "mountPath": "/dev/shm"}
    assert shared in predictor["model"]["volumeMounts"]
    assert shared in service_container(load("inferenceservice-collocated"))["volumeMounts"]
    (volume,) = (volume for volume in predictor["volumes"] if volume["name"] == shared["name"])
    assert volume["emptyDir"]["medium"] == "Memory"
