"""The pods that KServe makes of InferenceServices and runtimes, merged as its controller does.

The rules are those of KServe 0.20 (components/predictor.go, utils.MergeRuntimeContainers, utils.ReplacePlaceholders):
arguments of the InferenceService come after the runtime's, other fields are a strategic merge, {{.Name}} and
{{.Namespace}} are those of the InferenceService, and KServe appends three arguments to a transformer of its own pod.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.deploy.manifests import DEPLOY, load_all

NAMESPACE = "default"
MERGE_KEYS = {"ports": "containerPort", "env": "name", "volumeMounts": "mountPath", "volumes": "name"}
"""Lists that Kubernetes merges by a key; it replaces others."""


@dataclass(frozen=True)
class Pod:
    """One kind of pod of an InferenceService, with the service's container and Triton's, if it has one."""

    name: str
    isvc: dict[str, Any]
    spec: dict[str, Any]
    service: dict[str, Any] | None
    triton: dict[str, Any] | None


@cache
def every(kind: str) -> dict[str, dict[str, Any]]:
    """The documents of a kind in deploy/kserve, by file and name."""
    documents = {}
    for path in sorted((DEPLOY / "kserve").glob("*.yaml")):
        for document in load_all(f"kserve/{path.name}"):
            if document["kind"] == kind:
                documents[f"{path.stem}/{document['metadata']['name']}"] = document
    return documents


@cache
def runtimes() -> dict[str, dict[str, Any]]:
    """The runtimes of deploy/kserve by name."""
    return {one["metadata"]["name"]: one for one in every("ClusterServingRuntime").values()}


def merged(base: Any, patch: Any, key: str = "") -> Any:
    """A strategic merge: objects by key, the lists of MERGE_KEYS by their items' key, the patch's items first."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return base | {name: merged(base.get(name), value, name) for name, value in patch.items()}
    if isinstance(base, list) and key in MERGE_KEYS:
        by = MERGE_KEYS[key]
        mine = {item[by]: item for item in base}
        items = [merged(mine.pop(item[by], {}), item) for item in patch]
        return items + list(mine.values())
    return copy.deepcopy(patch)


def filled(container: dict[str, Any], name: str) -> dict[str, Any]:
    """The container with KServe's variables filled in; any other variable is an error."""
    text = json.dumps(container).replace("{{.Name}}", name).replace("{{.Namespace}}", NAMESPACE)
    left = re.findall(r"\{\{.*?\}\}", text)
    assert not left, f"variables that KServe does not fill: {left}"
    filled: dict[str, Any] = json.loads(text)
    return filled


def container_of(runtime: dict[str, Any], patch: dict[str, Any], name: str) -> dict[str, Any]:
    """A runtime's container with what the InferenceService says of it."""
    container = merged(runtime, {key: value for key, value in patch.items() if key != "args"})
    return filled(container | {"args": [*runtime.get("args", []), *patch.get("args", [])]}, name)


def predictor_pod(label: str, isvc: dict[str, Any], predictor: dict[str, Any]) -> Pod | None:
    """The pod of a predictor with one of our runtimes; None with one of KServe's."""
    model, name = predictor["model"], isvc["metadata"]["name"]
    if model.get("runtime") not in runtimes():
        return None
    runtime = runtimes()[model["runtime"]]["spec"]
    formats = {entry["name"] for entry in runtime["supportedModelFormats"]}
    assert model["modelFormat"]["name"] in formats, "KServe refuses a format that the runtime does not list"
    assert model.get("protocolVersion", "v2") in runtime["protocolVersions"]
    patches = {entry["name"]: entry for entry in predictor.get("containers", [])} | {"kserve-container": model}
    own = {"modelFormat", "runtime", "runtimeVersion", "storageUri", "protocolVersion"}
    patches["kserve-container"] = {key: value for key, value in model.items() if key not in own}
    containers = {
        entry["name"]: container_of(entry, patches.pop(entry["name"], {}), name) for entry in runtime["containers"]
    }
    assert not patches, "a container of the InferenceService that the runtime does not have"
    first = containers["kserve-container"]
    if "runtimeVersion" in model:
        first["image"] = re.sub(r":[\w.-]*$", f":{model['runtimeVersion']}", first["image"])
    volumes = merged(runtime.get("volumes", []), predictor.get("volumes", []), "volumes")
    service = containers.get("transformer-container", first)
    spec = {"containers": list(containers.values()), "volumes": volumes}
    return Pod(label, isvc, spec, service, first if service is not first else None)


def transformer_pod(label: str, isvc: dict[str, Any]) -> Pod:
    """The pod of spec.transformer, with the arguments that KServe appends unless they are given."""
    transformer, name = isvc["spec"]["transformer"], isvc["metadata"]["name"]
    (container,) = copy.deepcopy(transformer["containers"])
    appended = {"--model_name": name, "--predictor_host": f"{name}-predictor.{NAMESPACE}", "--http_port": "8080"}
    for flag, value in appended.items():
        if not any(argument.split("=")[0] == flag for argument in container["args"]):
            container["args"] += [flag, value]
    return Pod(label, isvc, {**transformer, "containers": [container]}, container, None)


@cache
def pods() -> dict[str, Pod]:
    """Every pod of every InferenceService that runs the service."""
    made: list[Pod | None] = []
    for label, isvc in every("InferenceService").items():
        if "transformer" in isvc["spec"]:
            made.append(transformer_pod(label, isvc))
            continue
        stable = isvc["spec"]["predictor"]
        made.append(predictor_pod(label, isvc, stable))
        for canary in isvc["spec"].get("canary", []):
            made.append(
                predictor_pod(f"{label}/{canary['predictor']['name']}", isvc, merged(stable, canary["predictor"]))
            )
    return {pod.name: pod for pod in made if pod is not None}
