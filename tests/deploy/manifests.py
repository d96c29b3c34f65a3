"""The manifests, and the schemas that validate them.

Kubernetes drops unknown fields silently, so all schemas here are strict: an unlisted property, such as a misspelt
field, fails. This folder has KServe's CRD InferenceService, other CRDs (*-crds.json.gz, with where they are from), and
Kubernetes 1.34's schemas of the kinds in use, without descriptions. This module has the schemas of the Prometheus
Operator.
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

HERE = Path(__file__).parent
DEPLOY = HERE.parents[1] / "deploy"
STRING, OBJECT = {"type": "string"}, {"type": "object"}
STRINGS = {"type": "object", "additionalProperties": STRING}
SECONDS = {"type": "string", "pattern": "^[0-9]+s$"}

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
ENDPOINT = closed(
    "port path", port=STRING, path={"type": "string", "pattern": "^/"}, interval=SECONDS, scrapeTimeout=SECONDS
)
SERVICE_MONITOR = closed(
    "apiVersion kind metadata spec",
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "ServiceMonitor"},
    metadata=OBJECT,
    spec=closed(
        "selector endpoints",
        selector=closed("matchLabels", matchLabels=OBJECT),
        endpoints={"type": "array", "items": ENDPOINT},
    ),
)
CONFIG_MAP = closed(
    "apiVersion kind metadata data",
    apiVersion={"const": "v1"},
    kind={"const": "ConfigMap"},
    metadata=METADATA,
    data=STRINGS,
)
POD_MONITOR = closed(
    "apiVersion kind metadata spec",
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PodMonitor"},
    metadata=METADATA,
    spec=closed(
        "selector podMetricsEndpoints",
        selector=closed("matchExpressions", matchExpressions={"type": "array", "items": OBJECT}),
        podMetricsEndpoints={"type": "array", "items": ENDPOINT},
    ),
)


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
        kind: {"$ref": f"#/$defs/{name}", "$defs": document["$defs"], "required": required}
        for kind, name in document["kinds"].items()
    }
    crd = json.loads(gzip.decompress((HERE / "kserve-inferenceservice-crd.json.gz").read_bytes()))
    (version,) = (entry for entry in crd["spec"]["versions"] if entry["name"] == "v1beta1")
    service = strict(version["schema"]["openAPIV3Schema"]) | {"required": required}
    service["properties"]["apiVersion"]["const"] = "serving.kserve.io/v1beta1"
    service["properties"]["metadata"] = METADATA
    schemas |= {"ServiceMonitor": SERVICE_MONITOR, "PodMonitor": POD_MONITOR, "InferenceService": service}
    schemas.setdefault("ConfigMap", CONFIG_MAP)
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
    return yaml.safe_load((DEPLOY / path).read_text())


def load_all(path: str) -> list[Any]:
    """The documents in a file under deploy/."""
    return list(yaml.safe_load_all((DEPLOY / path).read_text()))


def documents() -> list[dict[str, Any]]:
    """All manifests."""
    paths = [*(DEPLOY / "kserve").glob("*.yaml"), *(DEPLOY / "kubernetes").glob("*.yaml")]
    paths = [path for path in paths if path.stem != "kustomization"]
    return [document for path in sorted(paths) for document in yaml.safe_load_all(path.read_text())]


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
