"""The manifests, and the schemas that validate them.

Kubernetes drops unknown fields silently, so all schemas here are strict: an unlisted property, such as a misspelt
field, fails. This folder has KServe's CRD InferenceService, other CRDs (*-crds.json.gz, with where they are from), and
Kubernetes 1.34's schemas of the kinds in use, without descriptions. This module has the fields in use of the Prometheus
Operator's, KEDA's and the Gateway API's kinds.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from tests.support.chart import LOADER

HERE = Path(__file__).parent
DEPLOY = HERE.parents[1] / "deploy"
STRING, OBJECT = {"type": "string"}, {"type": "object"}
STRINGS = {"type": "object", "additionalProperties": STRING}

RIGHTS = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What a container of the service may do."""


def closed(required: str, **properties: Any) -> dict[str, Any]:
    """An object with these properties and no others."""
    return {"type": "object", "required": required.split(), "additionalProperties": False, "properties": properties}


NAME = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}
METADATA = closed("name", name=NAME, namespace=STRING, labels=STRINGS, annotations=STRINGS)
"""Fields of metadata in the manifests; a CRD's schema leaves them to Kubernetes."""
DURATION = {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"}
ENDPOINT = closed(
    "port path",
    port=STRING,
    path={"type": "string", "pattern": "^/"},
    interval=DURATION,
    scrapeTimeout=DURATION,
    scheme={"enum": ["http", "https"]},
    tlsConfig=closed("", insecureSkipVerify={"type": "boolean"}),
)
RULE = closed(
    "expr", alert=STRING, record=STRING, expr=STRING, labels=STRINGS, annotations=STRINGS, **{"for": DURATION}
) | {"oneOf": [{"required": ["alert"]}, {"required": ["record"]}]}
TRIGGER = closed(
    "type metadata",
    type={"const": "prometheus"},
    metricType={"enum": ["AverageValue", "Value"]},
    metadata=closed(
        "serverAddress query threshold",
        serverAddress=STRING,
        query=STRING,
        threshold=STRING,
        activationThreshold=STRING,
    ),
)
COUNT = {"type": "integer", "minimum": 0}
BACKEND = closed("name port", name=NAME, port={"type": "integer", "minimum": 1, "maximum": 65535})
PARENT = closed("name", name=NAME, namespace=NAME, sectionName=STRING, port=COUNT)
ROUTE = closed(
    "parentRefs rules",
    parentRefs={"type": "array", "items": PARENT, "minItems": 1},
    hostnames={"type": "array", "items": STRING},
    rules={
        "type": "array",
        "items": closed("backendRefs", backendRefs={"type": "array", "items": BACKEND, "minItems": 1}),
    },
)


def custom(version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    """The schema of a custom resource."""
    required = "apiVersion kind metadata spec"
    return closed(required, apiVersion={"const": version}, kind={"const": kind}, metadata=METADATA, spec=spec)


CUSTOM = {
    "ServiceMonitor": custom(
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        closed(
            "selector endpoints",
            selector=closed("matchLabels", matchLabels=STRINGS),
            endpoints={"type": "array", "items": ENDPOINT},
        ),
    ),
    "PodMonitor": custom(
        "monitoring.coreos.com/v1",
        "PodMonitor",
        closed(
            "selector podMetricsEndpoints",
            selector=closed("matchExpressions", matchExpressions={"type": "array", "items": OBJECT}),
            podMetricsEndpoints={"type": "array", "items": ENDPOINT},
        ),
    ),
    "PrometheusRule": custom(
        "monitoring.coreos.com/v1",
        "PrometheusRule",
        closed(
            "groups",
            groups={
                "type": "array",
                "items": closed("name rules", name=STRING, interval=DURATION, rules={"type": "array", "items": RULE}),
            },
        ),
    ),
    "ScaledObject": custom(
        "keda.sh/v1alpha1",
        "ScaledObject",
        closed(
            "scaleTargetRef triggers",
            scaleTargetRef=closed("name", name=NAME),
            minReplicaCount=COUNT,
            maxReplicaCount=COUNT,
            pollingInterval=COUNT,
            cooldownPeriod=COUNT,
            triggers={"type": "array", "items": TRIGGER, "minItems": 1},
        ),
    ),
    "GRPCRoute": custom("gateway.networking.k8s.io/v1", "GRPCRoute", ROUTE),
}
"""The fields in use of custom resources."""


def strict(node: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema from a structural schema of Kubernetes that refuses unknown fields at every depth."""
    schema = {key: value for key, value in node.items() if not key.startswith("x-kubernetes-")}
    if node.get("x-kubernetes-int-or-string"):
        schema["type"] = ["integer", "string"]
    if "properties" in node:
        schema["properties"] = {name: strict(child) for name, child in node["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            schema[key] = strict(node[key])
    if node.get("type") == "object" and not node.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    return schema


@cache
def validators() -> dict[str, Draft202012Validator]:
    """The validator of each kind."""
    document = json.loads(gzip.decompress((HERE / "kubernetes-schemas.json.gz").read_bytes()))
    required = ["apiVersion", "kind", "metadata", "spec"]
    schemas = {
        kind: {"$ref": f"#/$defs/{name}", "$defs": document["$defs"], "required": required[: None if has_spec else 3]}
        for kind, name in document["kinds"].items()
        for has_spec in ["spec" in document["$defs"][name]["properties"]]
    }
    crd = json.loads(gzip.decompress((HERE / "kserve-inferenceservice-crd.json.gz").read_bytes()))
    (version,) = (entry for entry in crd["spec"]["versions"] if entry["name"] == "v1beta1")
    service = strict(version["schema"]["openAPIV3Schema"]) | {"required": required}
    service["properties"]["apiVersion"]["const"] = "serving.kserve.io/v1beta1"
    service["properties"]["metadata"] = METADATA
    schemas |= CUSTOM | {"InferenceService": service}
    for path in HERE.glob("*-crds.json.gz"):
        for kind, crd in json.loads(gzip.decompress(path.read_bytes()))["kinds"].items():
            schemas[kind] = strict(crd["schema"]) | {"required": required}
            schemas[kind]["properties"]["apiVersion"]["const"] = crd["apiVersion"]
            schemas[kind]["properties"]["metadata"] = METADATA
    return {kind: Draft202012Validator(schema) for kind, schema in schemas.items()}


def messages(document: dict[str, Any]) -> list[str]:
    """The validation errors of a manifest."""
    validator = validators().get(document["kind"])
    if validator is None:
        return [f"$.kind: {document['kind']} is not known"]
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def load(path: str) -> Any:
    """The document in a file under deploy/."""
    return yaml.load((DEPLOY / path).read_text(), LOADER)


def load_all(path: str) -> list[Any]:
    """The documents in a file under deploy/."""
    return list(yaml.load_all((DEPLOY / path).read_text(), LOADER))


def documents() -> list[dict[str, Any]]:
    """All manifests."""
    paths = [*(DEPLOY / "kserve").glob("*.yaml"), *(DEPLOY / "kubernetes").rglob("*.yaml")]
    paths = [path for path in paths if path.stem != "kustomization"]
    return [document for path in sorted(paths) for document in yaml.load_all(path.read_text(), LOADER)]


def damaged(document: Any, path: Sequence[str | int], value: Any) -> Any:
    """A copy with another value at ``path``; None removes the entry."""
    parent = document = copy.deepcopy(document)
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = value
    if value is None:
        del parent[path[-1]]
    return document


def flags(arguments: Sequence[str]) -> dict[str, str]:
    pairs = [argument.split("=", 1) for argument in arguments]
    assert all(len(pair) == 2 and pair[0].startswith("--") for pair in pairs), arguments
    assert len({name for name, _ in pairs}) == len(pairs), "a flag is given twice"
    return {name: value for name, value in pairs}
