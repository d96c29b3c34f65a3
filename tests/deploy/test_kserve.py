"""deploy/kserve: the pods that KServe makes of the runtimes and InferenceServices, and the rules of its webhooks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from hf_transformer import RELEASE
from hf_transformer.config.entries import ModelEntries
from hf_transformer.config.options import Config, parse_config
from hf_transformer.core.model import CHECK_TIMEOUT_SECONDS
from tests.deploy.kserve import Pod, every, merged, pods, runtimes
from tests.deploy.manifests import DEPLOY, RIGHTS, damaged, documents, load, load_all, messages

MIB = 2**20
STANDARD = "serving.kserve.io/deploymentMode"
SERVICES = every("InferenceService")
MODELS = "/mnt/models"
SHARED = {"name": "shared-memory", "mountPath": "/dev/shm"}

KSERVE, RUNTIME = "kserve/inferenceservice.yaml", "kserve/clusterservingruntime-triton.yaml"
CONTAINER: list[str | int] = ["spec", "transformer", "containers", 0]
BROKEN: dict[str, tuple[str, list[str | int], Any]] = {
    "top level": (KSERVE, ["specs"], {}),
    "metadata": (KSERVE, ["metadata", "lables"], {"app": "bert"}),
    "component": (KSERVE, ["spec", "transformers"], {"containers": []}),
    "a transformer's runtime": (KSERVE, ["spec", "transformer", "runtime"], "hf-transformer"),
    "pod": (KSERVE, ["spec", "transformer", "volume"], []),
    "container": (KSERVE, [*CONTAINER, "readynessProbe"], {}),
    "security context": (KSERVE, [*CONTAINER, "securityContext", "runAsRoot"], False),
    "model": (KSERVE, ["spec", "predictor", "model", "storageURI"], "gs://bucket/models"),
    "probe": (KSERVE, [*CONTAINER, "readinessProbe", "httpGet", "url"], "/"),
    "wrong type": (KSERVE, [*CONTAINER, "ports", 0, "containerPort"], "http"),
    "bad quantity": (KSERVE, [*CONTAINER, "resources", "limits", "memory"], "256 MB"),
    "wrong kind": (KSERVE, ["kind"], "InferenceServices"),
    "wrong version": (KSERVE, ["apiVersion"], "serving.kserve.io/v1alpha1"),
    "no name": (KSERVE, [*CONTAINER, "name"], None),
    "canary": ("kserve/inferenceservice-canary.yaml", ["spec", "canary", 0, "canaryTrafficPercent"], 10),
    "metric": ("kserve/inferenceservice-keda.yaml", ["spec", "predictor", "autoScaling", "metric"], []),
    "runtime's version": (RUNTIME, ["apiVersion"], "serving.kserve.io/v1beta1"),
    "runtime's format": (RUNTIME, ["spec", "supportedModelFormats", 0, "autoselect"], True),
    "runtime's protocol": (RUNTIME, ["spec", "protocolVersion"], "v2"),
    "runtime's container": (RUNTIME, ["spec", "containers", 1, "arg"], []),
    "pod monitor": ("kserve/podmonitor.yaml", ["spec", "podMetricsEndpoints", 0, "targetPorts"], 8080),
}


@pytest.mark.parametrize(("file", "path", "value"), list(BROKEN.values()), ids=list(BROKEN))
def test_a_mistake_is_found(file: str, path: list[str | int], value: Any) -> None:
    (message,) = messages(damaged(load(file), path, value))
    assert str(path[-1]) in message


@pytest.mark.parametrize("name", list(runtimes()))
def test_runtime_of_a_namespace_differs_in_the_kind_only(name: str) -> None:
    assert messages(runtimes()[name] | {"kind": "ServingRuntime"}) == []


@pytest.fixture(params=list(pods().values()), ids=list(pods()))
def pod(request: pytest.FixtureRequest) -> Pod:
    found: Pod = request.param
    assert found.service is not None
    return found


def service_of(pod: Pod) -> dict[str, Any]:
    assert pod.service is not None
    return pod.service


def environment_of(pod: Pod) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in service_of(pod)["env"]}


def config_of(pod: Pod) -> Config:
    config, notes = parse_config(service_of(pod)["args"], environment_of(pod))
    assert notes == []
    return config


def mode(pod: Pod) -> str:
    annotations: dict[str, str] = pod.isvc["metadata"].get("annotations", {})
    return annotations.get(STANDARD, "any")


def test_each_file_is_there_for_something() -> None:
    assert len(pods()) == 12
    assert {label.partition("/")[0] for label in pods()} == {label.partition("/")[0] for label in SERVICES}


def test_image_is_that_of_this_version(pod: Pod) -> None:
    service = service_of(pod)
    assert (service["image"], service["imagePullPolicy"]) == (f"hf-transformer:{RELEASE}", "IfNotPresent")
    assert "command" not in service, "the image's entrypoint takes the arguments"
    assert service["securityContext"] == RIGHTS


def test_pages_and_manifests_name_this_version() -> None:
    texts = [path.read_text() for path in (DEPLOY / "kserve").glob("*.yaml")]
    texts += [(DEPLOY / "compose.yaml").read_text(), (DEPLOY.parent / "docs" / "coming_from_kserve.md").read_text()]
    tags = [tag for text in texts for tag in re.findall(r"image: hf-transformer:(\S+)", text)]
    assert len(tags) >= 6 and set(tags) == {RELEASE}


def test_arguments_are_strict(pod: Pod) -> None:
    config = config_of(pod)
    assert config.strict_flags, "a mistyped flag ends the start"
    assert config.enable_predictor_health_check, "or readiness says nothing of the predictor"
    assert config.grace_period_seconds < 30, "Kubernetes' default; Knative refuses another one"
    assert (config.max_request_bytes, config.max_bytes_in_flight, config.max_connections) == (4 * MIB, 64 * MIB, 256)


def test_memory_is_reserved(pod: Pod) -> None:
    resources = service_of(pod)["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    least = 1024 if config_of(pod).enable_grpc else 640 if pod.triton else 512  # SECURITY.md has the sums
    assert mebibytes(resources["limits"]["memory"]) >= least


def mebibytes(quantity: str) -> int:
    return int(quantity[:-2]) * {"Mi": 1, "Gi": 1024}[quantity[-2:]]


def test_probes_ask_the_port_and_the_model_that_are_served(pod: Pod) -> None:
    service, config = service_of(pod), config_of(pod)
    model_ready = f"/v2/models/{config.model_name}/ready"
    by_name = "transformer" in pod.isvc["spec"]
    live = {"path": "/v2/health/live", "port": config.http_port}
    assert service["startupProbe"]["httpGet"] == service["livenessProbe"]["httpGet"] == live
    ready = {"path": model_ready if by_name else "/v2/health/ready", "port": config.http_port}
    assert service["readinessProbe"]["httpGet"] == ready
    assert service["readinessProbe"]["timeoutSeconds"] > CHECK_TIMEOUT_SECONDS, "the answer comes after the predictor's"


def test_first_port_is_that_of_http(pod: Pod) -> None:
    service, config = service_of(pod), config_of(pod)
    first, *others = service["ports"]
    assert first["containerPort"] == config.http_port == 8080
    assert [port["containerPort"] for port in others] == [config.grpc_port] * config.enable_grpc
    listed = [port for container in pod.spec["containers"] for port in container.get("ports", [])]
    if mode(pod) != "Standard":
        assert len(listed) == 1, "Knative takes one port in a pod"
    assert {port.get("name", "http1") for port in listed} <= {"http1", "h2c"}, "Knative takes no other name"


def test_pod_works_in_knative_mode_too(pod: Pod) -> None:
    assert not {"terminationGracePeriodSeconds", "initContainers", "automountServiceAccountToken"} & set(pod.spec)
    assert all("lifecycle" not in container for container in pod.spec["containers"])
    if pod.triton:  # Knative refuses probes of a second container unless its feature multi-container-probing is on
        assert not {"startupProbe", "livenessProbe", "readinessProbe"} & set(pod.triton)


def test_cache_lies_on_a_writable_volume(pod: Pod) -> None:
    service = service_of(pod)
    environment = environment_of(pod)
    mounts = {mount["name"]: mount["mountPath"] for mount in service["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
    assert set(mounts) == set(volumes), "Knative refuses a volume without a mount, Kubernetes the opposite"
    assert "emptyDir" in volumes["cache"]
    for variable in ("HF_HOME", "TMPDIR"):
        assert Path(environment[variable]).is_relative_to(mounts["cache"])
    assert "STORAGE_URI" not in environment, "KServe refuses it in a transformer-container"
    name = pod.isvc["metadata"]["name"]
    assert environment.get("OTEL_SERVICE_NAME", name) == name


@pytest.mark.parametrize("pod", [item for item in pods().values() if item.triton], ids=lambda item: item.name)
def test_triton_serves_this_pod_alone_and_shares_its_memory(pod: Pod) -> None:
    service, triton, config = service_of(pod), pod.triton, config_of(pod)
    assert triton is not None and triton["args"][0] == "tritonserver"
    options = dict(argument.removeprefix("--").split("=", 1) for argument in triton["args"][1:])
    protocol = {"v2": "http", "grpc-v2": "grpc"}[config.predictor_protocol]
    assert options[f"{protocol}-address"] == "127.0.0.1", "other machines can't reach it"
    assert config.predictor_host == f"127.0.0.1:{options[f'{protocol}-port']}"
    taken = {int(value) for name, value in options.items() if name.endswith("-port")}
    assert not taken & {config.http_port, config.grpc_port}
    # Both read the repository that KServe mounts at the same place.
    assert options["model-repository"] == MODELS
    assert (config.model_repository, config.models) in {(MODELS, None), (None, "/config/models.yaml")}
    assert SHARED in triton["volumeMounts"] and SHARED in service["volumeMounts"]
    (memory,) = (item["emptyDir"] for item in pod.spec["volumes"] if item["name"] == SHARED["name"])
    assert memory["medium"] == "Memory"
    room = mebibytes(memory["sizeLimit"]) * MIB
    limit = mebibytes(service["resources"]["limits"]["memory"]) * MIB
    used = 2 * config.workers * config.predictor_shared_memory_bytes  # a region may be replaced
    assert used + 64 * MIB <= room, "the rest is for Triton's Python backend"
    assert used + 100 * MIB <= limit, "the service itself holds less than 100 MiB"
    assert options["allow-client-shm"] == "true"


def test_triton_is_allowed_shared_memory_where_it_is_mounted_and_its_release_is_the_same_everywhere() -> None:
    """Releases from 26.04 on need the flag, and older ones do not start with it; a new manifest that shares memory is
    found by its volume. An InferenceService gets both from its runtime; test_chart.py has the chart."""
    releases, sharing = {}, {}
    for path in sorted(set(DEPLOY.rglob("*.yaml")) - set((DEPLOY / "chart").rglob("*.yaml"))):
        text = path.read_text()
        releases[path.name] = set(re.findall(r"(\d\d\.\d\d)-(?:vllm-python-)?py3", text))
        if "mountPath: /dev/shm" in text or "target: /dev/shm" in text:
            sharing[path.name] = [
                argument
                for document in yaml.safe_load_all(text)
                for container in containers_of(document)
                if "triton" in json.dumps(container["image"])
                for argument in [*container.get("args", []), *container.get("command", [])]
            ]
    assert set().union(*releases.values()) == {"26.09"}
    assert len(sharing) >= 3
    assert all("--allow-client-shm=true" in arguments for arguments in sharing.values()), sharing


def containers_of(node: Any) -> Iterator[dict[str, Any]]:
    """Every object of a document that may describe a container: those with an image."""
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from containers_of(child)
    if isinstance(node, dict) and isinstance(node.get("image"), str):
        yield node


def test_models_of_one_pod_lie_side_by_side_in_the_repository(tmp_path: Path) -> None:
    service = SERVICES["inferenceservice-many-models/texts"]["spec"]["predictor"]
    (config_map,) = every("ConfigMap").values()
    (volume,) = service["volumes"]
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]
    (name,) = config_map["data"]
    (container,) = service["containers"]
    assert container["args"] == [f"--models={container['volumeMounts'][0]['mountPath']}/{name}"]
    (tmp_path / name).write_text(config_map["data"][name])
    models, notes = ModelEntries([f"--models={tmp_path / name}", "--predictor_host=x"], {}).read()
    assert notes == []
    assert {model.model_dir for model in models} == {one["mountPath"] for one in service["storageUris"]}
    assert all(model.model_dir == f"{MODELS}/{model.model_name}" for model in models), "Triton's name is the folder's"
    paths = [Path(one["mountPath"]) for one in service["storageUris"]]
    assert len(set(paths)) == len(paths) > 1
    assert {str(path.parent) for path in paths} == {MODELS}, "KServe shares the volume at their common parent"
    assert "storageUri" not in service["model"], "KServe refuses both"


def test_service_of_its_own_calls_the_other_inference_service() -> None:
    triton, service = load_all("kserve/inferenceservice-runtime.yaml")
    (pod,) = (one for one in pods().values() if one.name.startswith("inferenceservice-runtime"))
    config = config_of(pod)
    assert config.predictor_host == f"{triton['metadata']['name']}-predictor.default:80"
    assert config.model_dir == MODELS and config.model_name == service["metadata"]["name"]
    repository = triton["spec"]["predictor"]["model"]["storageUri"]
    assert service["spec"]["predictor"]["model"]["storageUri"] == f"{repository}/{config.model_name}"


def test_runtimes_are_chosen_by_name_only() -> None:
    for name, runtime in runtimes().items():
        assert not any(entry.get("autoSelect") for entry in runtime["spec"]["supportedModelFormats"]), name
        annotations = runtime["spec"]["annotations"]
        assert annotations == {"prometheus.kserve.io/port": "8080", "prometheus.kserve.io/path": "/metrics"}
    (alone,) = runtimes()["hf-transformer"]["spec"]["containers"]
    triton, ours = runtimes()["hf-transformer-triton"]["spec"]["containers"]
    assert (alone["name"], triton["name"], ours["name"]) == ("kserve-container",) * 2 + ("transformer-container",)
    assert [entry for entry in ours["env"] if entry["name"] != "HF_TRANSFORMER_MODEL_REPOSITORY"] == alone["env"]
    for field in ("image", "imagePullPolicy", "ports", "startupProbe", "livenessProbe", "readinessProbe"):
        assert ours[field] == alone[field], field


def test_rest_and_grpc_transformers_differ_in_the_protocol_only() -> None:
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


# Values that KServe's webhook refuses and the schema allows.


@pytest.mark.parametrize("isvc", list(SERVICES.values()), ids=list(SERVICES))
def test_webhook_takes_the_replicas_and_metrics(isvc: dict[str, Any]) -> None:
    annotations = isvc["metadata"].get("annotations", {})
    predictor = isvc["spec"]["predictor"]
    least = predictor.get("minReplicas", 1)
    assert 0 <= least <= predictor.get("maxReplicas", least)
    keda = annotations.get("serving.kserve.io/autoscalerClass") == "keda"
    assert keda == ("autoScaling" in predictor)
    if keda:
        assert annotations[STANDARD] == "Standard" and "scaleMetric" not in predictor
    if "scaleMetric" in predictor:
        assert annotations[STANDARD] == "Knative" and predictor["scaleMetric"] in {"concurrency", "rps"}
    if least == 0:
        assert keda or annotations[STANDARD] == "Knative", "an HPA never scales to zero"


def test_webhook_takes_the_canary() -> None:
    isvc = SERVICES["inferenceservice-canary/bert"]
    assert isvc["metadata"]["annotations"][STANDARD] == "Standard"
    stable, canaries = isvc["spec"]["predictor"], isvc["spec"]["canary"]
    names = [canary["predictor"]["name"] for canary in canaries]
    assert len({*names, stable.get("name")}) == len(names) + 1
    assert sum(canary["trafficPercent"] for canary in canaries) <= 100
    for canary in canaries:
        predictor = canary["predictor"]
        assert set(predictor) <= {"name", "minReplicas", "model"}, "its pods are of a fixed number"
        assert predictor.get("minReplicas", 1) <= stable["minReplicas"]
        changed = merged(stable["model"], predictor["model"])
        assert changed.pop("name") == "kserve-container", "the CRD requires it in a canary"
        assert changed["storageUri"] != stable["model"]["storageUri"]
        assert changed | {"storageUri": ""} == stable["model"] | {"storageUri": ""}
    assert "transformer" not in isvc["spec"], "the route's weights lead past it"


def external_metrics() -> Iterator[tuple[str, dict[str, Any]]]:
    for label, isvc in SERVICES.items():
        for metric in isvc["spec"]["predictor"].get("autoScaling", {}).get("metrics", []):
            assert metric["type"] == "External"
            yield label, metric["external"]


@pytest.mark.parametrize(("label", "external"), list(external_metrics()))
def test_query_of_an_autoscaler_finds_these_pods(label: str, external: dict[str, Any]) -> None:
    target, metric = external["target"], external["metric"]
    assert target["type"] == "Value" and set(target) == {"type", "value"}, "all that KServe passes on"
    assert metric["backend"] == "prometheus" and metric["serverAddress"].startswith("http://")
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(metric["query"]), found.append)
    (selector,) = (node for node in found if isinstance(node, promql_parser.VectorSelector))
    matchers = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
    name = f"{label.partition('/')[2]}-predictor"
    assert selector.name is not None
    if selector.name.startswith("istio"):
        assert matchers["destination_service_name"] == name
        return
    assert re.match(matchers["pod"], f"{name}-75d9-x2x")
    shown = (DEPLOY.parent / "docs" / "metrics.md").read_text()
    assert f"`{selector.name}`" in shown, "that page lists what the service shows, which another test compares"


def test_wakes_from_zero_by_a_metric_that_needs_no_pod() -> None:
    queries = [one["metric"]["query"] for label, one in external_metrics() if "to-zero" in label]
    assert len(queries) == 2
    assert any("hf_transformer_" not in query for query in queries)


def test_pods_are_scraped_by_their_port() -> None:
    monitor = load("kserve/podmonitor.yaml")
    ports = {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]}
    named = {port["name"] for runtime in runtimes().values() for port in runtime["spec"]["containers"][-1]["ports"]}
    assert ports == named == {"http1"}
    assert monitor["metadata"]["name"] == "hf-transformer", "which becomes the job of the alerts"


def test_policies_let_the_transformer_alone_to_triton() -> None:
    policies = {item["metadata"]["name"]: item["spec"] for item in documents() if item["kind"] == "NetworkPolicy"}
    transformer, predictor = policies["huggingface-triton-transformer"], policies["huggingface-triton-predictor"]
    (rule,) = predictor["ingress"]
    assert rule["from"] == [{"podSelector": transformer["podSelector"]}]
    towards = transformer["egress"][0]
    assert towards["to"] == [{"podSelector": predictor["podSelector"]}]
    assert towards["ports"] == rule["ports"]
    named = set(transformer["podSelector"]["matchExpressions"][0]["values"])
    assert named == {item["metadata"]["name"] for item in SERVICES.values() if "transformer" in item["spec"]}
