"""The Helm chart, rendered by Helm's engine, switch by switch."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from hf_transformer import RELEASE
from hf_transformer.commands.export.command import parse as parse_export
from hf_transformer.config.entries import ModelEntries
from hf_transformer.config.options import parse_config
from tests.deploy.manifests import DEPLOY, messages
from tests.support.chart import CHART, LOADER, Rendered, render, values_of
from tests.support.kubernetes_api import kubernetes_api

ROOT = DEPLOY.parent
SEMANTIC = re.sub(r"\.dev(\d+)$", r"-dev.\1", RELEASE)
"""The version in the form that Helm takes."""
GATEWAY = {"enabled": True, "parentRefs": [{"name": "public", "namespace": "gateways"}]}
ELSEWHERE = {"triton": {"enabled": False}, "predictor": {"host": "triton.models:8001", "protocol": "grpc-v2"}}
MODELS = [{"model_name": "bert", "aliases": ["text"]}, {"model_name": "e5", "model_id": "org/e5", "max_model_len": 256}]
DIGEST = "sha256:" + "0" * 64
EXPORT_IMAGE = {"repository": "registry.example/exporter", "tag": "1"}

SWITCHES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "air-gapped": values_of("values-airgapped.yaml"),
    "other model": {"model": {"name": "my-model.v2", "task": "text_embedding"}},
    "hub": {"model": {"id": "org/bert", "revision": "abc"}, "hubTokenSecret": "hub"},
    "models": {"models": MODELS},
    "elsewhere": ELSEWHERE,
    "elsewhere, from the hub": ELSEWHERE | {"model": {"id": "org/bert"}},
    "elsewhere over TLS": {
        "triton": {"enabled": False},
        "predictor": {
            "host": "triton.models",
            "tls": {"enabled": True, "caSecret": "triton-ca", "clientSecret": "triton-client"},
        },
    },
    "gRPC to Triton": {"predictor": {"protocol": "grpc-v2"}},
    "no shared memory": {"sharedMemory": {"enabled": False}},
    "older Triton": {"triton": {"image": {"tag": "25.12-py3"}}},
    "GPU": {
        "triton": {"resources": {"limits": {"nvidia.com/gpu": 1, "memory": "8Gi"}}},
        "nodeSelector": {"nvidia.com/gpu.present": "true"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "runtimeClassName": "nvidia",
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
    },
    "placement": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
                }
            }
        },
        "topologySpreadConstraints": [],
        "priorityClassName": "serving",
        "imagePullSecrets": [{"name": "registry"}],
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "search"},
        "commonLabels": {"cost": "search"},
    },
    "digests": {"image": {"digest": DIGEST}, "triton": {"image": {"digest": DIGEST}}},
    "no gRPC": {"grpc": {"enabled": False}},
    "TLS": {"tls": {"enabled": True, "existingSecret": "cert"}},
    "API keys": {"apiKeys": {"enabled": True, "existingSecret": "keys", "key": "clients.txt"}},
    "tracing": {"tracing": {"enabled": True, "endpoint": "http://collector:4318", "sampleRatio": 0.25}},
    "ServiceMonitor": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "ServiceMonitor over TLS": {"serviceMonitor": {"enabled": True}, "tls": {"enabled": True, "existingSecret": "c"}},
    "PrometheusRule": {"prometheusRule": {"enabled": True, "runbookUrl": "https://docs.example/operations"}},
    "HPA on CPU": {"autoscaling": {"enabled": True}},
    "HPA on tokens": {
        "autoscaling": {"enabled": True, "podMetric": {"name": "hf_transformer_tokens_in_flight"}},
    },
    "KEDA": {"keda": {"enabled": True}},
    "KEDA to zero": {"keda": {"enabled": True, "minReplicas": 0, "activationQuery": "sum(rate(requests[1m]))"}},
    "no PDB": {"podDisruptionBudget": {"enabled": False}},
    "no NetworkPolicy": {"networkPolicy": {"enabled": False}},
    "NetworkPolicy of namespaces": {
        "networkPolicy": {"clientNamespaces": ["web"], "extraEgress": [{"ports": [{"port": 9000, "protocol": "TCP"}]}]}
    },
    "Ingress": {
        "ingress": {"enabled": True, "className": "nginx", "tls": [{"hosts": ["a.example"], "secretName": "a"}]}
    },
    "HTTPRoute": {"httpRoute": GATEWAY | {"hostnames": ["a.example"], "annotations": {"a": "b"}}},
    "GRPCRoute": {"grpcRoute": GATEWAY},
    "own claim": {"persistence": {"existingClaim": "", "storageClass": "nfs", "annotations": {"a": "b"}}},
    "hub fills": {
        "persistence": {"enabled": False},
        "download": {"hub": {"enabled": True, "id": "org/repository", "revision": "v1", "include": ["bert/*"]}},
    },
    "object store fills": {
        "download": {
            "command": {
                "enabled": True,
                "image": {"repository": "rclone/rclone", "tag": "1.70"},
                "args": ["copy", "s3:models", "/mnt/models"],
                "env": [{"name": "RCLONE_CONFIG_S3_TYPE", "value": "s3"}],
                "envFrom": [{"secretRef": {"name": "s3"}}],
            }
        }
    },
    "export": {
        "persistence": {"existingClaim": ""},
        "export": {"enabled": True, "modelId": "org/bert", "image": EXPORT_IMAGE, "extraArgs": ["--reduce"]},
    },
    "no service account": {"serviceAccount": {"create": False, "name": "shared"}},
    "service": {"service": {"type": "LoadBalancer", "port": 80, "annotations": {"a": "b"}}},
    "further flags": {
        "workers": 2,
        "logFormat": "json",
        "extraArgs": ["--max_queued_tokens=32768", "--enable_docs_url=true"],
        "extraEnv": [{"name": "LOG_LEVEL", "value": "debug"}],
        "extraVolumes": [{"name": "scratch", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        "gracePeriodSeconds": 120,
    },
    "names": {"nameOverride": "text", "fullnameOverride": "text-hf-transformer"},
}


def merged(*parts: dict[str, Any]) -> dict[str, Any]:
    """Values of several switches; later ones win."""
    result: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else value
    return result


def together(*names: str) -> dict[str, Any]:
    return merged(*(SWITCHES[name] for name in names))


COMBINED = {
    "secured": together("TLS", "API keys", "tracing", "ServiceMonitor", "PrometheusRule", "HTTPRoute", "GRPCRoute"),
    "many elsewhere": together("models", "elsewhere over TLS", "HPA on tokens", "Ingress", "no gRPC"),
    "all": merged(
        *(
            values
            for name, values in SWITCHES.items()
            if not name.startswith(("elsewhere", "no ", "HPA", "hub fills", "older", "names"))
        )
    ),
}
FORMS = SWITCHES | COMBINED


@pytest.fixture(scope="module")
def forms() -> dict[str, Rendered]:
    return {name: render(values) for name, values in FORMS.items()}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, forms: dict[str, Rendered]) -> Rendered:
    return forms[request.param]


def test_lint_has_no_complaint() -> None:
    for values in FORMS.values():
        report = helm_python.lint(CHART, values, strict=True)
        assert report["errors"] == []
        assert [message for message in report["messages"] if message["severity"] > 1] == []


def test_package_holds_what_a_release_needs(tmp_path: Path) -> None:
    archive = helm_python.package(CHART, destination=tmp_path)
    assert Path(archive).name == f"hf-transformer-{SEMANTIC}.tgz"
    with tarfile.open(archive) as files:
        names = {name.removeprefix("hf-transformer/") for name in files.getnames()}
    assert {"Chart.yaml", "values.yaml", "values.schema.json", "README.md", "files/alerts.yaml"} <= names
    with helm_python.Chart.load(archive) as chart:
        packaged = chart.render({"prometheusRule": {"enabled": True}}, name="hf-transformer", namespace="default")
    with helm_python.Chart.load(CHART) as chart:
        assert packaged == chart.render({"prometheusRule": {"enabled": True}}, name="hf-transformer")


def test_versions_are_those_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (SEMANTIC, RELEASE)
    assert render({}).service["image"] == f"hf-transformer:{RELEASE}"


def test_every_object_fits_its_schema(form: Rendered) -> None:
    assert [(one["kind"], messages(one)) for one in form.documents if messages(one)] == []
    names = [(one["kind"], one["metadata"]["name"]) for one in form.documents]
    assert len(set(names)) == len(names)


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[str]:
    with kubernetes_api() as address:
        yield address


KUBECTL = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


@KUBECTL
def test_kubectl_takes_every_object(forms: dict[str, Rendered], kubernetes: str, tmp_path: Path) -> None:
    command = ["kubectl", "create", "--dry-run=client", "--validate=false", "--output=name", "--filename=-"]
    command += [f"--server={kubernetes}", f"--cache-dir={tmp_path}", "--namespace=default"]
    documents = [document for form in forms.values() for document in form.documents]
    text = yaml.safe_dump_all(documents)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    created = [re.split("[./]", line)[0] for line in done.stdout.splitlines()]
    assert created == [document["kind"].lower() for document in documents]


def test_arguments_are_a_configuration(form: Rendered, tmp_path: Path) -> None:
    container = form.service
    assert container["args"][0] == "--strict_flags=true", "unknown flags are errors"
    arguments = [argument.replace("=/etc/", f"={tmp_path}/") for argument in container["args"]]
    for file in (Path(argument.partition("=")[2]) for argument in arguments):
        if file.is_relative_to(tmp_path):  # of a Secret or the ConfigMap
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(form.one("ConfigMap")["data"][file.name] if file.name == "models.yaml" else "")
    environ = {entry["name"]: entry.get("value", "secret") for entry in container["env"]}
    configs, notes = ModelEntries(arguments, environ).read()
    _, more = parse_config(arguments, environ)
    assert notes == more == []
    grace = form.pod["terminationGracePeriodSeconds"]
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert grace >= pause + configs[0].grace_period_seconds + 5, "Triton has 5 seconds after the service's end"
    assert configs[0].enable_predictor_health_check
    port = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
    assert port == {"http": configs[0].http_port} | ({"grpc": configs[0].grpc_port} if configs[0].enable_grpc else {})
    path = f"/v2/models/{configs[0].model_name}/ready" if len(configs) == 1 else "/v2/health/ready"
    scheme = "HTTPS" if configs[0].ssl_certfile else "HTTP"
    assert container["readinessProbe"]["httpGet"] == {"path": path, "port": "http", "scheme": scheme}
    assert container["livenessProbe"]["httpGet"]["scheme"] == container["startupProbe"]["httpGet"]["scheme"] == scheme


def test_every_file_of_an_argument_is_mounted(form: Rendered) -> None:
    mounts = {mount["mountPath"]: mount for mount in form.service["volumeMounts"]}
    paths = [path for argument in form.service["args"] for path in re.findall(r"=(/.*)", argument)]
    for path in paths:
        (mount,) = [one for place, one in mounts.items() if path.startswith(f"{place}/")]
        assert mount["readOnly"], path
    volumes = {volume["name"] for volume in form.pod["volumes"]}
    containers = [*form.pod["containers"], *form.pod.get("initContainers", [])]
    used = {mount["name"] for container in containers for mount in container["volumeMounts"]}
    assert used == volumes


def test_running_containers_only_read_the_models(form: Rendered) -> None:
    running = [one for one in (form.service, form.triton) if one]
    for container in running:
        for mount in container["volumeMounts"]:
            assert mount.get("readOnly") or mount["name"] in {"shared-memory", "tmp", "scratch"}
    for container in [*form.pod["containers"], *form.pod.get("initContainers", [])]:
        rights = container["securityContext"]
        assert rights["runAsNonRoot"] and not rights["allowPrivilegeEscalation"]
        assert rights["capabilities"] == {"drop": ["ALL"]} and rights["seccompProfile"]["type"] == "RuntimeDefault"
        assert rights.get("readOnlyRootFilesystem") or container["name"] == "triton"
        assert container["imagePullPolicy"] == "IfNotPresent"
        assert container["resources"]["limits"]["memory"]
    assert form.pod["automountServiceAccountToken"] is False


def test_selectors_find_the_pods_and_nothing_else(form: Rendered) -> None:
    deployment = form.one("Deployment")["spec"]
    labels, selector = deployment["template"]["metadata"]["labels"], deployment["selector"]["matchLabels"]
    assert selector.items() <= labels.items()
    assert form.one("Service")["spec"]["selector"] == selector
    for document in form.of("NetworkPolicy"):
        assert document["spec"]["podSelector"]["matchLabels"] == selector
    for document in [*form.of("PodDisruptionBudget"), *form.of("ServiceMonitor")]:
        assert document["spec"]["selector"]["matchLabels"] == selector
    for document in form.of("Job"):
        assert not selector.items() <= document["spec"]["template"]["metadata"]["labels"].items()
    name = form.one("Deployment")["metadata"]["name"]
    for document in [*form.of("HorizontalPodAutoscaler"), *form.of("ScaledObject")]:
        assert document["spec"]["scaleTargetRef"]["name"] == name
    assert ("replicas" in deployment) != bool([*form.of("HorizontalPodAutoscaler"), *form.of("ScaledObject")])


def test_ports_of_rules_and_routes_exist(form: Rendered) -> None:
    service = form.one("Service")
    containers = [*form.pod["containers"], *form.pod.get("initContainers", [])]
    targets = {port["name"] for container in containers for port in container.get("ports", [])}
    ports = {port["name"]: port for port in service["spec"]["ports"]}
    assert {port["targetPort"] for port in ports.values()} == targets
    for policy in form.of("NetworkPolicy"):
        assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == targets
    for monitor in form.of("ServiceMonitor"):
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} == targets - {"grpc"}
    for kind, port in (("HTTPRoute", "http"), ("GRPCRoute", "grpc")):
        for route in form.of(kind):
            (rule,) = route["spec"]["rules"]
            assert rule["backendRefs"] == [{"name": service["metadata"]["name"], "port": ports[port]["port"]}]
    for ingress in form.of("Ingress"):
        backend = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
        assert backend == {"name": service["metadata"]["name"], "port": {"name": "http"}}


# Single switches


def test_defaults_need_no_addon(forms: dict[str, Rendered]) -> None:
    for name in ("defaults", "air-gapped", "own claim", "TLS", "API keys", "hub fills", "export", "models"):
        versions = {document["apiVersion"] for document in forms[name].documents}
        assert versions <= {"v1", "apps/v1", "batch/v1", "networking.k8s.io/v1", "policy/v1"}, name
        assert not forms[name].of("HorizontalPodAutoscaler"), "it needs a server of metrics"


def test_triton_gets_the_flag_of_shared_memory_from_26_04_on() -> None:
    def options(**triton: Any) -> list[str]:
        container = render({"triton": triton}).triton
        assert container is not None
        return list(container["args"])

    flag = "--allow-client-shm=true"
    for tag in ("26.04-py3", "26.09-py3", "26.10-vllm-python-py3", "27.01-py3", "latest"):
        assert flag in options(image={"tag": tag}), tag
    for tag in ("26.03-py3", "25.12-py3", "24.10-py3"):
        assert flag not in options(image={"tag": tag}), tag
    assert flag in options(image={"tag": "25.12-mine"}, allowClientSharedMemory=True)
    assert flag not in options(allowClientSharedMemory=False)
    without = render({"sharedMemory": {"enabled": False}})
    assert without.triton is not None and flag not in without.triton["args"]
    assert "--predictor_shared_memory=off" in without.service["args"]


def test_digest_goes_before_the_tag(forms: dict[str, Rendered]) -> None:
    form = forms["digests"]
    assert form.service["image"] == f"hf-transformer@{DIGEST}"
    assert form.triton_container["image"] == f"nvcr.io/nvidia/tritonserver@{DIGEST}"
    assert "--allow-client-shm=true" in form.triton_container["args"], "the tag tells the release"


def egress_ports(form: Rendered) -> list[int]:
    return sorted(port["port"] for rule in form.one("NetworkPolicy")["spec"]["egress"] for port in rule["ports"])


@pytest.mark.parametrize(
    ("name", "ports"),
    [
        ("defaults", []),
        ("air-gapped", []),
        ("models", [53, 53, 443]),
        ("elsewhere", [53, 53, 8001]),
        ("elsewhere over TLS", [53, 53, 443]),
        ("tracing", [53, 53, 4318]),
        ("hub fills", [53, 53, 443]),
        ("NetworkPolicy of namespaces", [9000]),
    ],
)
def test_policy_lets_out_what_the_values_need(forms: dict[str, Rendered], name: str, ports: list[int]) -> None:
    assert egress_ports(forms[name]) == ports


def test_policy_lets_in_who_is_named(forms: dict[str, Rendered]) -> None:
    def sources(name: str) -> list[Any]:
        return list(forms[name].one("NetworkPolicy")["spec"]["ingress"][0]["from"])

    labelled = {"podSelector": {"matchLabels": {"hf-transformer/client": "true"}}}
    assert sources("defaults") == [labelled]
    assert sources("Ingress") == sources("HTTPRoute") == [labelled, {"namespaceSelector": {}}]
    web = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "web"}}}
    assert sources("NetworkPolicy of namespaces") == [labelled, web]


def test_air_gapped_pods_reach_only_the_own_registry(forms: dict[str, Rendered]) -> None:
    form = forms["air-gapped"]
    for container in (form.service, form.triton):
        assert container is not None and container["image"].startswith("registry.example.internal/")
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in form.service["env"]
    assert form.pod["imagePullSecrets"] == [{"name": "registry"}]


def test_containers_that_fill_the_volume_come_before_triton(forms: dict[str, Rendered]) -> None:
    orders = {name: [one["name"] for one in forms[name].pod["initContainers"]] for name in ("hub fills", "export")}
    assert orders == {"hub fills": ["download", "triton"], "export": ["wait-for-export", "triton"]}
    download = forms["hub fills"].pod["initContainers"][0]
    assert "restartPolicy" not in download, "it ends before Triton starts"
    assert download["args"] == ["org/repository", "--local-dir=/mnt/models", "--revision=v1", "--include=bert/*"]
    (models,) = (mount for mount in download["volumeMounts"] if mount["name"] == "models")
    assert "readOnly" not in models


def test_download_is_a_command_of_the_hub(forms: dict[str, Rendered]) -> None:
    """The image's environment has the same program; a server that is not there is asked for nothing else."""
    download = forms["hub fills"].pod["initContainers"][0]
    program = Path(sys.executable).with_name(download["command"][0])
    done = subprocess.run([program, *download["command"][1:], "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for argument in download["args"][1:]:
        assert argument.partition("=")[0] in done.stdout


def test_export_writes_the_model_that_is_served(forms: dict[str, Rendered]) -> None:
    (container,) = forms["export"].one("Job")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["hf-transformer", "export"]
    arguments = parse_export(container["args"], {})
    assert (arguments.model_id, arguments.model_name, str(arguments.output)) == ("org/bert", "bert", "/mnt/models")
    wait = forms["export"].pod["initContainers"][0]
    assert f"{arguments.output}/{arguments.model_name}/config.pbtxt" in wait["args"][0]
    claims = [forms["export"].one("Job")["spec"]["template"]["spec"], forms["export"].pod]
    for pod in claims:
        (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "models")
        claim = forms["export"].one("PersistentVolumeClaim")["metadata"]["name"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim


def test_another_model_is_another_job() -> None:
    def name(**export: Any) -> Any:
        values = SWITCHES["export"] | {"export": SWITCHES["export"]["export"] | export}
        return render(values, name="r" * 53).one("Job")["metadata"]["name"]

    assert name() == name() != name(modelId="org/other")
    assert len(name()) <= 63


def test_changed_models_restart_pods_unless_the_service_takes_them() -> None:
    def checksum(**values: Any) -> Any:
        pod = render(values).one("Deployment")["spec"]["template"]["metadata"]
        return pod.get("annotations", {}).get("checksum/models")

    assert checksum() is None
    assert checksum(models=MODELS) == checksum(models=MODELS) != checksum(models=MODELS[:1])
    assert checksum(models=MODELS, restartOnModelChange=False) is None


def test_rules_are_those_of_deploy_prometheus_with_links(forms: dict[str, Rendered]) -> None:
    rules = (DEPLOY / "prometheus" / "alerts.yaml").read_text()
    assert (CHART / "files" / "alerts.yaml").read_text() == rules
    assert render({"prometheusRule": {"enabled": True}}).one("PrometheusRule")["spec"] == yaml.safe_load(rules)
    anchors = set(re.findall(r"^### (\w+)$", (ROOT / "docs" / "operations.md").read_text(), re.M))
    alerts = [
        rule
        for group in forms["PrometheusRule"].one("PrometheusRule")["spec"]["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert {alert["alert"] for alert in alerts} <= anchors
    for alert in alerts:
        assert alert["annotations"]["runbook_url"] == f"https://docs.example/operations#{alert['alert'].lower()}"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"triton": {"enabled": False}}, "predictor.host is required"),
        ({"persistence": {"enabled": False}}, "nothing fills the volume"),
        ({"tls": {"enabled": True}}, "tls.existingSecret is required"),
        ({"apiKeys": {"enabled": True}}, "apiKeys.existingSecret is required"),
        ({"tracing": {"enabled": True}}, "tracing.endpoint is required"),
        ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs is required"),
        ({"grpcRoute": GATEWAY, "grpc": {"enabled": False}}, "needs grpc.enabled"),
        ({"keda": {"enabled": True, "minReplicas": 0}}, "needs keda.activationQuery"),
        ({"keda": {"enabled": True}, "autoscaling": {"enabled": True}}, "exclude each other"),
        ({"download": {"hub": {"enabled": True}}}, "download.hub.id is required"),
        ({"download": {"command": {"enabled": True}}}, "download.command.image.repository is required"),
        ({"export": {"enabled": True, "image": EXPORT_IMAGE}}, "export.modelId is required"),
        ({"export": {"enabled": True, "modelId": "a/b"}}, "export.image.repository is required"),
    ],
)
def test_values_that_lack_something_are_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=re.escape(says)):
        render(values)


def objects_of(schema: dict[str, Any], values: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any], Any]]:
    yield path, schema, values
    for name, child in schema.get("properties", {}).items():
        yield from objects_of(child, values.get(name) if isinstance(values, dict) else None, f"{path}.{name}")


def test_schema_knows_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    compared = set()
    for path, node, values in objects_of(schema, values_of("values.yaml")):
        if "properties" in node and isinstance(values, dict):
            assert node["additionalProperties"] is False, path
            assert set(node["properties"]) - {"global", "enabled"} == set(values) - {"enabled"}, path
            compared.add(path)
    assert {"", ".triton"} <= compared


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"replicas": 2}, "replicas"),
        ({"image": {"tga": "1"}}, "tga"),
        ({"model": {"dirr": "x"}}, "dirr"),
        ({"networkPolicy": {"enable": True}}, "enable"),
        ({"predictor": {"protocol": "v1"}}, "protocol"),
        ({"replicaCount": "2"}, "replicaCount"),
        ({"resources": {"limits": {"memory": "1 GB"}}}, "memory"),
        ({"extraArgs": ["max_queued_tokens=1"]}, "extraArgs"),
        ({"models": [{"name": "bert"}]}, "model_name"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
    ],
)
def test_schema_refuses_mistakes(values: dict[str, Any], names: str) -> None:
    with pytest.raises(helm_python.HelmValuesError, match=names):
        render(values)


@pytest.mark.parametrize("release", ["hf-transformer", "prod", "prod-hf-transformer-2"])
def test_names_follow_the_release(release: str) -> None:
    name = release if "hf-transformer" in release else f"{release}-hf-transformer"
    form = render({}, name=release, namespace="models")
    assert {one["metadata"]["name"] for one in form.documents} == {name}
    assert f"--namespace models port-forward service/{name} 8080:8080" in form.notes


def test_readme_names_every_group_of_values() -> None:
    text = (CHART / "README.md").read_text()
    groups = set(values_of("values.yaml"))
    assert groups and {name for name in groups if not re.search(rf"`{name}[.`:]", text)} == set()


# deploy/kubernetes: written from the chart.


def test_rendered_files_are_current() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "chart", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def kustomized(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return sorted(yaml.load_all(done.stdout, LOADER), key=identity)


def identity(document: dict[str, Any]) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def without_helm(form: Rendered) -> list[dict[str, Any]]:
    for document in form.documents:
        for label in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
            del document["metadata"]["labels"][label]
    return sorted(form.documents, key=identity)


@KUBECTL
def test_kustomize_gives_what_the_chart_gives() -> None:
    assert kustomized(DEPLOY / "kubernetes") == without_helm(render({}))


@KUBECTL
def test_components_together_give_what_their_values_give(tmp_path: Path) -> None:
    source = (ROOT / "scripts" / "chart").read_text()
    script: dict[str, Any] = {"__name__": "chart", "__file__": str(ROOT / "scripts" / "chart")}
    exec(compile(source, "scripts/chart", "exec"), script)
    components = [name for name in script["COMPONENTS"] if name != "autoscaling"]  # KEDA excludes it
    shutil.copytree(DEPLOY / "kubernetes", tmp_path / "kubernetes")
    overlay = {
        "resources": ["../kubernetes"],
        "components": [f"../kubernetes/components/{item}" for item in components],
    }
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    values = merged(*(script["COMPONENTS"][name][1] for name in components))
    wanted, got = without_helm(render(values)), kustomized(tmp_path / "overlay")
    assert [identity(item) for item in got] == [identity(item) for item in wanted]
    for mine, theirs in zip(got, wanted, strict=True):
        # A component of its own can't know of TLS in the ServiceMonitor, nor do two add the same rule once.
        if mine["kind"] not in {"NetworkPolicy", "ServiceMonitor"}:
            assert mine == theirs
