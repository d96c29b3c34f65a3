"""The plain manifests against Kubernetes' own schema, and against each other: names, labels and ports that must fit.

The schema is that of Kubernetes 1.34 for the kinds used here, without its descriptions; it knows no other fields than
there are, so a misspelt one fails. What the Prometheus Operator and kustomize take is written down here.
"""

from __future__ import annotations

import copy
import gzip
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hf_transformer.config.options import parse_config
from hf_transformer.core.model import QUESTION_TIMEOUT

HERE = Path(__file__).parent
DEPLOY = HERE.parents[1] / "deploy"
FOLDER = DEPLOY / "kubernetes"
NAME = "hf-transformer"
LABELS = {"app.kubernetes.io/name": NAME}

SERVICE_MONITOR = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "kind": {"const": "ServiceMonitor"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "required": ["selector", "endpoints"],
            "additionalProperties": False,
            "properties": {
                "selector": {
                    "type": "object",
                    "required": ["matchLabels"],
                    "additionalProperties": False,
                    "properties": {"matchLabels": {"type": "object"}},
                },
                "endpoints": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["port", "path"],
                        "additionalProperties": False,
                        "properties": {
                            "port": {"type": "string"},
                            "path": {"type": "string", "pattern": "^/"},
                            "interval": {"type": "string", "pattern": "^[0-9]+s$"},
                            "scrapeTimeout": {"type": "string", "pattern": "^[0-9]+s$"},
                        },
                    },
                },
            },
        },
    },
}


@pytest.fixture(scope="module")
def validators() -> dict[str, jsonschema.Draft202012Validator]:
    """One for each kind."""
    document = json.loads(gzip.decompress((HERE / "kubernetes-schemas.json.gz").read_bytes()))
    schemas = {
        kind: {
            "$ref": f"#/$defs/{name}",
            "$defs": document["$defs"],
            "required": ["apiVersion", "kind", "metadata", "spec"],
        }
        for kind, name in document["kinds"].items()
    }
    return {
        kind: jsonschema.Draft202012Validator(schema)
        for kind, schema in {**schemas, "ServiceMonitor": SERVICE_MONITOR}.items()
    }


def load(stem: str, folder: Path = FOLDER) -> dict[str, Any]:
    document = yaml.safe_load((folder / f"{stem}.yaml").read_text())
    assert isinstance(document, dict)
    return document


def documents() -> list[dict[str, Any]]:
    return [
        *(load(path.stem) for path in sorted(FOLDER.glob("*.yaml")) if path.stem != "kustomization"),
        *yaml.safe_load_all((DEPLOY / "kserve" / "networkpolicy.yaml").read_text()),
    ]


def messages(validators: dict[str, jsonschema.Draft202012Validator], document: dict[str, Any]) -> list[str]:
    return [f"{e.json_path}: {e.message}" for e in validators[document["kind"]].iter_errors(document)]


@pytest.fixture
def pod() -> dict[str, Any]:
    pod = load("deployment")["spec"]["template"]["spec"]
    assert isinstance(pod, dict)
    return pod


@pytest.fixture
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["containers"]
    assert isinstance(container, dict)
    return container


@pytest.fixture
def triton(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["initContainers"]
    assert isinstance(container, dict)
    return container


@pytest.mark.parametrize(
    "document", documents(), ids=lambda document: f"{document['kind']}-{document['metadata']['name']}"
)
def test_manifest_fits_the_schema(
    validators: dict[str, jsonschema.Draft202012Validator], document: dict[str, Any]
) -> None:
    assert messages(validators, document) == []


BROKEN: dict[str, tuple[str, list[str | int], Any]] = {
    "pod": ("deployment", ["spec", "template", "spec", "volume"], []),
    "probe": ("deployment", ["spec", "template", "spec", "containers", 0, "readinessProbe", "timeoutSecond"], 1),
    "sidecar": ("deployment", ["spec", "template", "spec", "initContainers", 0, "restartpolicy"], "Always"),
    "wrong type": ("deployment", ["spec", "template", "spec", "terminationGracePeriodSeconds"], "45s"),
    "service": ("service", ["spec", "selectors"], {}),
    "budget": ("poddisruptionbudget", ["spec", "maxUnavailables"], 1),
    "autoscaler": ("horizontalpodautoscaler", ["spec", "metrics", 0, "pods", "target", "averageUtilisation"], 1),
    "policy": ("networkpolicy", ["spec", "ingress", 0, "ports", 0, "portName"], "http"),
    "monitor": ("servicemonitor", ["spec", "endpoints", 0, "intervall"], "15s"),
}


@pytest.mark.parametrize(("stem", "path", "value"), BROKEN.values(), ids=BROKEN.keys())
def test_a_mistake_is_found(
    validators: dict[str, jsonschema.Draft202012Validator], stem: str, path: list[str | int], value: Any
) -> None:
    document = copy.deepcopy(load(stem))
    parent: Any = document
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = value
    (message,) = messages(validators, document)
    assert str(path[-1]) in message


def test_kustomization_names_every_manifest_once() -> None:
    kustomization = load("kustomization")
    assert (kustomization["apiVersion"], kustomization["kind"]) == ("kustomize.config.k8s.io/v1beta1", "Kustomization")
    assert set(kustomization) == {"apiVersion", "kind", "resources", "images"}
    assert sorted(kustomization["resources"]) == sorted(
        path.name for path in FOLDER.glob("*.yaml") if path.stem != "kustomization"
    )
    (image,) = kustomization["images"]
    assert (
        f"{image['name']}:{image['newTag']}" == load("deployment")["spec"]["template"]["spec"]["containers"][0]["image"]
    )


def test_all_select_the_same_pods() -> None:
    deployment = load("deployment")["spec"]
    assert deployment["template"]["metadata"]["labels"] == deployment["selector"]["matchLabels"] == LABELS
    assert load("service")["spec"]["selector"] == load("service")["metadata"]["labels"] == LABELS
    assert load("networkpolicy")["spec"]["podSelector"]["matchLabels"] == LABELS
    assert load("poddisruptionbudget")["spec"]["selector"]["matchLabels"] == LABELS
    assert load("servicemonitor")["spec"]["selector"]["matchLabels"] == LABELS
    (spread,) = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == LABELS
    target = load("horizontalpodautoscaler")["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": load("deployment")["metadata"]["name"]}
    assert "replicas" not in deployment, "every deployment of it would undo what the autoscaler did"


def test_ports_are_those_that_the_service_listens_on(container: dict[str, Any]) -> None:
    config, _ = parse_config(["--predictor_host=x"], {})
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": config.http_port, "grpc": config.grpc_port}
    assert {port["targetPort"]: port["port"] for port in load("service")["spec"]["ports"]} == ports
    rules = load("networkpolicy")["spec"]["ingress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} == set(ports)
    assert [e["port"] for e in load("servicemonitor")["spec"]["endpoints"]] == ["http"]


def test_arguments_are_a_configuration(container: dict[str, Any], triton: dict[str, Any]) -> None:
    config, notes = parse_config(container["args"], {})
    assert notes == []
    assert config.model_dir == f"/mnt/models/{config.model_name}"
    assert config.enable_predictor_health_check
    options = dict(argument.removeprefix("--").split("=") for argument in triton["args"][1:])
    assert config.predictor_host == f"{options['http-address']}:{options['http-port']}"
    assert options["http-address"] == "127.0.0.1", "nobody else can reach it"
    assert options["model-repository"] == "/mnt/models"


def test_probes(container: dict[str, Any], triton: dict[str, Any]) -> None:
    config, _ = parse_config(container["args"], {})
    live = {"path": "/v2/health/live", "port": "http"}
    assert container["livenessProbe"]["httpGet"] == container["startupProbe"]["httpGet"] == live
    assert container["readinessProbe"]["httpGet"] == {"path": f"/v2/models/{config.model_name}/ready", "port": "http"}
    assert container["readinessProbe"]["timeoutSeconds"] > QUESTION_TIMEOUT, "the answer comes after the predictor's"
    for probe in ("startupProbe", "livenessProbe"):
        # From inside: the kubelet can't reach the pod's loopback interface.
        assert triton[probe]["exec"]["command"][-1] == "http://127.0.0.1:8000/v2/health/live"


def test_triton_begins_before_the_service_and_ends_after_it(triton: dict[str, Any]) -> None:
    assert triton["restartPolicy"] == "Always", "what makes an init container a sidecar"
    assert "startupProbe" in triton, "the service is started when this has succeeded"


def test_release_of_triton_is_that_of_the_other_manifests(triton: dict[str, Any]) -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["triton"]["image"]
    assert triton["image"] == re.sub(r"\$\{\w+:-(.*)\}", r"\1", compose)


def test_containers_run_with_no_more_rights_than_they_need(
    pod: dict[str, Any], container: dict[str, Any], triton: dict[str, Any]
) -> None:
    needed = {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {**needed, "readOnlyRootFilesystem": True}
    assert triton["securityContext"] == needed
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False, "a Service named hf-transformer gives variables HF_TRANSFORMER_..."
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & set(pod)


def test_nothing_but_shared_memory_can_be_written(pod: dict[str, Any], container: dict[str, Any]) -> None:
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {path for path, mount in mounts.items() if not mount.get("readOnly")} == {"/dev/shm"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["shared-memory"]["emptyDir"]["medium"] == "Memory"
    assert volumes["models"]["persistentVolumeClaim"]["readOnly"] is True
    assert {m["mountPath"] for c in (*pod["containers"], *pod["initContainers"]) for m in c["volumeMounts"]} == set(
        mounts
    )


def test_pod_is_given_the_time_that_its_end_takes(pod: dict[str, Any], container: dict[str, Any]) -> None:
    config, _ = parse_config(container["args"], {})
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    (triton,) = (int(a.split("=")[1]) for a in pod["initContainers"][0]["args"] if a.startswith("--exit-timeout-secs"))
    assert pod["terminationGracePeriodSeconds"] >= pause + config.grace_period_seconds + triton


def test_shared_memory_fits_the_volume_and_the_limit(pod: dict[str, Any], container: dict[str, Any]) -> None:
    config, _ = parse_config(container["args"], {})
    (volume,) = (v["emptyDir"]["sizeLimit"] for v in pod["volumes"] if v["name"] == "shared-memory")
    taken = 2 * config.workers * config.predictor_shared_memory_bytes  # a region may be replaced
    mebibyte = 2**20
    assert taken <= int(volume.removesuffix("Mi")) * mebibyte
    limit = int(container["resources"]["limits"]["memory"].removesuffix("Mi")) * mebibyte
    assert taken + 100 * mebibyte <= limit, "the service itself holds less than 100 MiB"


def test_autoscaler_asks_for_the_metric_that_the_adapter_makes() -> None:
    (metric,) = load("horizontalpodautoscaler")["spec"]["metrics"]
    rules = load("adapter-values", DEPLOY / "prometheus")["rules"]["custom"]
    assert metric["pods"]["metric"]["name"] in {rule["seriesQuery"].partition("{")[0] for rule in rules}
    config, _ = parse_config(["--predictor_host=x"], {})
    assert int(metric["pods"]["target"]["averageValue"]) < config.max_queued_tokens, "else it refuses and never scales"


def test_pods_talk_to_nobody() -> None:
    policy = load("networkpolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == []
    assert all(rule["from"] for rule in policy["ingress"]), "no rule that lets everybody in"


def test_kserve_policies_let_the_transformer_alone_to_triton() -> None:
    transformer, predictor = yaml.safe_load_all((DEPLOY / "kserve" / "networkpolicy.yaml").read_text())
    (rule,) = predictor["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": transformer["spec"]["podSelector"]}]
    towards = transformer["spec"]["egress"][0]
    assert towards["to"] == [{"podSelector": predictor["spec"]["podSelector"]}]
    assert towards["ports"] == rule["ports"]
    named = set(transformer["spec"]["podSelector"]["matchExpressions"][0]["values"])
    assert named == {
        load(stem, DEPLOY / "kserve")["metadata"]["name"] for stem in ("inferenceservice", "inferenceservice-grpc")
    }
