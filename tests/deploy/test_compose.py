"""The Compose file: its schema, its two services against each other, and the profile that watches them."""

from __future__ import annotations

import ast
import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from hf_transformer import RELEASE
from hf_transformer.config.options import parse_config
from tests.deploy.kserve import runtimes
from tests.deploy.manifests import DEPLOY, HERE, damaged, flags, load

MIB = 2**20
SCHEMA = Draft7Validator(json.loads(gzip.decompress((HERE / "compose-spec.json.gz").read_bytes())))
"""The Compose specification's own schema, of June 2026, without descriptions."""


@pytest.fixture
def compose() -> Any:
    document = load("compose.yaml")
    return document


@pytest.fixture
def triton(compose: Any) -> Any:
    return compose["services"]["triton"]


@pytest.fixture
def service(compose: Any) -> Any:
    return compose["services"]["hf-transformer"]


def test_images(triton: Any, service: Any) -> None:
    repository, _, tag = triton["image"].partition(":")
    assert repository == "nvcr.io/nvidia/tritonserver"
    assert tag.startswith("${TRITON_TAG:-") and tag.endswith("-py3}"), "a release that can be chosen"
    in_cluster, _ = runtimes()["hf-transformer-triton"]["spec"]["containers"]
    assert in_cluster["image"] == f"{repository}:{tag.removeprefix('${TRITON_TAG:-')[:-1]}"
    context = (DEPLOY / service["build"]["context"]).resolve()
    assert (context / service["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert service["image"] == f"hf-transformer:{RELEASE}"


def test_both_read_the_same_model_repository(triton: Any, service: Any) -> None:
    for one in (triton, service):
        assert [volume for volume in one["volumes"] if isinstance(volume, str)] == ["./model_repository:/mnt/models:ro"]
    assert "--model-repository=/mnt/models" in triton["command"]
    arguments = flags(service["command"])
    assert arguments["--model_dir"] == f"/mnt/models/{arguments['--model_name']}"
    assert (DEPLOY / "model_repository" / arguments["--model_name"]).is_dir()


def test_both_have_one_dev_shm_in_memory(compose: Any, triton: Any, service: Any) -> None:
    shared = {"type": "volume", "source": "shared-memory", "target": "/dev/shm", "volume": {"nocopy": True}}
    for one in (triton, service):
        assert [volume for volume in one["volumes"] if not isinstance(volume, str)] == [shared]
    options = compose["volumes"]["shared-memory"]["driver_opts"]
    assert (options["type"], options["device"]) == ("tmpfs", "tmpfs")
    assert "mode=1777" in options["o"].split(","), "the two containers run as different users"
    (size,) = re.findall(r"(?:^|,)size=(\d+)m(?:,|$)", options["o"])
    config, notes = parse_config(service["command"], {})
    assert notes == [] and config.predictor_shared_memory == "auto"
    taken = 2 * config.workers * config.predictor_shared_memory_bytes  # a region may be replaced
    assert taken + 64 * MIB <= int(size) * MIB, "the rest is for Triton's Python backend"
    assert taken < int(service["mem_limit"].removesuffix("m")) * MIB
    assert int(service["stop_grace_period"].removesuffix("s")) > config.grace_period_seconds


def test_ports(triton: Any, service: Any) -> None:
    arguments = flags(service["command"])
    options = dict(argument.split("=", 1) for argument in triton["command"] if "=" in argument)
    assert arguments["--predictor_host"] == f"triton:{options.get('--http-port', '8000')}"
    assert arguments["--predictor_protocol"] == "v2"
    port = arguments["--http_port"]
    assert "ports" not in triton
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"], "on this machine only"


def test_health_checks_ask_for_the_model(triton: Any, service: Any) -> None:
    name = flags(service["command"])["--model_name"]
    assert triton["healthcheck"]["test"][-1] == f"http://127.0.0.1:8000/v2/models/{name}/ready"
    asked = service["healthcheck"]["test"]
    assert asked[:3] == ["CMD", "python", "-c"]
    constants = {node.value for node in ast.walk(ast.parse(asked[3])) if isinstance(node, ast.Constant)}
    assert {"127.0.0.1", 8080, f"/v1/models/{name}", 200} <= constants


def test_service_needs_no_rights(service: Any) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["tmpfs"] == ["/tmp"], "where the image's HF_HOME lies"


def test_file_fits_the_specification(compose: Any) -> None:
    assert [error.message for error in SCHEMA.iter_errors(compose)] == []
    assert set(compose["services"]) == {"triton", "hf-transformer", "prometheus", "grafana"}
    named = {volume.partition(":")[0] for one in compose["services"].values() for volume in plain_volumes(one)}
    assert {name for name in named if not name.startswith(".")} | {"shared-memory"} == set(compose["volumes"])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["services", "triton", "volume"], []),
        (["services", "grafana", "profile"], "watch"),
        (["services", "hf-transformer", "healthcheck", "interval"], 5),
        (["volume"], {}),
    ],
    ids=lambda one: str(one),
)
def test_a_mistake_is_found(compose: Any, path: list[str | int], value: Any) -> None:
    assert list(SCHEMA.iter_errors(damaged(compose, path, value))) != []


# The profile "watch": Prometheus and Grafana, with rules and dashboard loaded.


def plain_volumes(service: Any) -> list[str]:
    return [volume for volume in service.get("volumes", []) if isinstance(volume, str)]


def mounted(service: Any) -> dict[str, Path]:
    """The files of deploy/ that a service sees, by their path in the container."""
    sources = {}
    for volume in plain_volumes(service):
        source, target, *_ = volume.split(":")
        if source.startswith("./"):
            sources[target] = DEPLOY / source
    return sources


def test_watching_is_a_choice_and_reached_from_this_machine_only(compose: Any) -> None:
    for name, port in (("prometheus", "9090"), ("grafana", "3000")):
        service = compose["services"][name]
        assert service["profiles"] == ["watch"]
        assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
        assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", service["image"]), "a version, not latest"
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
        for volume in plain_volumes(service):
            assert volume.endswith(":ro") or volume == "prometheus:/prometheus"
        assert all(path.is_file() for path in mounted(service).values()), "Docker would make a folder of it"
    assert all("profiles" not in compose["services"][name] for name in ("triton", "hf-transformer"))


def test_prometheus_reads_both_services_and_the_rules(compose: Any, triton: Any, service: Any) -> None:
    files = mounted(compose["services"]["prometheus"])
    command = compose["services"]["prometheus"]["command"]
    config = yaml.safe_load(files["/etc/prometheus/prometheus.yml"].read_text())
    assert "--config.file=/etc/prometheus/prometheus.yml" in command
    assert [f"/etc/prometheus/{name}" for name in config["rule_files"]] == ["/etc/prometheus/alerts.yaml"]
    (job,) = config["scrape_configs"]
    port = flags(service["command"])["--http_port"]
    assert job["static_configs"] == [{"targets": [f"hf-transformer:{port}", "triton:8002"]}]
    assert not any(argument.startswith(("--metrics", "--allow-metrics")) for argument in triton["command"])
    selected = set(re.findall(r'job=~"([^"]*)"', files["/etc/prometheus/alerts.yaml"].read_text()))
    assert selected and all(re.fullmatch(pattern, job["job_name"]) for pattern in selected)


def test_promtool_takes_the_configuration(compose: Any, tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (of Prometheus) is not installed")
    for target, source in mounted(compose["services"]["prometheus"]).items():
        shutil.copy(source, tmp_path / Path(target).name)
    done = subprocess.run(
        [promtool, "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rule files found" in done.stdout


def test_grafana_finds_prometheus_and_the_dashboard(compose: Any) -> None:
    grafana = compose["services"]["grafana"]
    files = mounted(grafana)
    (source,) = yaml.safe_load(files["/etc/grafana/provisioning/datasources/hf-transformer.yaml"].read_text())[
        "datasources"
    ]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    (provider,) = yaml.safe_load(files["/etc/grafana/provisioning/dashboards/hf-transformer.yaml"].read_text())[
        "providers"
    ]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert str(Path(home).parent) == provider["options"]["path"]
    dashboard = json.loads(files[home].read_text())
    # Its data source is a variable, which Grafana sets to the default one.
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
