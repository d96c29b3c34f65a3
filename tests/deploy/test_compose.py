"""The Compose file: that its two services fit each other, the image and the model repository beside it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_transformer.config.options import parse_config

DEPLOY = Path(__file__).parents[2] / "deploy"
MIB = 2**20


@pytest.fixture
def services() -> dict[str, Any]:
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert set(document) == {"name", "services", "volumes"}
    services = document["services"]
    assert isinstance(services, dict)
    return services


def flags(service: dict[str, Any]) -> dict[str, str]:
    return dict(argument.split("=", 1) for argument in service["command"] if argument.startswith("--"))


def test_the_services(services: dict[str, Any]) -> None:
    assert set(services) == {"triton", "hf-transformer"}


def test_triton_is_the_real_container_with_a_release_that_can_be_chosen(services: dict[str, Any]) -> None:
    repository, _, tag = services["triton"]["image"].partition(":")
    assert repository == "nvcr.io/nvidia/tritonserver"
    assert tag.startswith("${TRITON_TAG:-")
    assert tag.endswith("-py3}")


def test_release_is_that_of_the_manifests(services: dict[str, Any]) -> None:
    tag = services["triton"]["image"].removesuffix("}").rpartition(":-")[2]
    for path in sorted((DEPLOY / "kserve").glob("inferenceservice*.yaml")):
        assert yaml.safe_load(path.read_text())["spec"]["predictor"]["model"]["runtimeVersion"] == tag


def test_service_is_built_from_this_repository(services: dict[str, Any]) -> None:
    build = services["hf-transformer"]["build"]
    context = (DEPLOY / build["context"]).resolve()
    assert (context / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert services["hf-transformer"]["image"] == "hf-transformer:latest"


def test_both_read_the_same_model_repository(services: dict[str, Any]) -> None:
    for service in services.values():
        (volume,) = (volume for volume in service["volumes"] if isinstance(volume, str))
        source, target, mode = volume.split(":")
        assert (source, target, mode) == ("./model_repository", "/mnt/models", "ro")
    assert flags(services["triton"])["--model-repository"] == "/mnt/models"
    arguments = flags(services["hf-transformer"])
    assert arguments["--model_dir"] == f"/mnt/models/{arguments['--model_name']}"
    assert (DEPLOY / "model_repository" / arguments["--model_name"]).is_dir()


def test_both_have_one_dev_shm_in_memory(services: dict[str, Any]) -> None:
    volumes = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["volumes"]
    for service in services.values():
        (volume,) = (volume for volume in service["volumes"] if not isinstance(volume, str))
        assert volume == {
            "type": "volume",
            "source": "shared-memory",
            "target": "/dev/shm",
            "volume": {"nocopy": True},
        }
    options = volumes["shared-memory"]["driver_opts"]
    assert (options["type"], options["device"]) == ("tmpfs", "tmpfs")
    assert "mode=1777" in options["o"].split(","), "the two containers run as different users"


def test_shared_memory_fits_the_volume_and_the_limit(services: dict[str, Any]) -> None:
    volumes = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["volumes"]
    (size,) = re.findall(r"(?:^|,)size=(\d+)m(?:,|$)", volumes["shared-memory"]["driver_opts"]["o"])
    config, _ = parse_config(services["hf-transformer"]["command"], {})
    assert config.predictor_shared_memory == "auto"
    taken = 2 * config.workers * config.predictor_shared_memory_bytes  # a region may be replaced
    assert taken + 64 * MIB <= int(size) * MIB, "the rest is for Triton's Python backend"
    assert taken < int(services["hf-transformer"]["mem_limit"].removesuffix("m")) * MIB


def test_service_reaches_triton(services: dict[str, Any]) -> None:
    arguments = flags(services["hf-transformer"])
    host, _, port = arguments["--predictor_host"].partition(":")
    assert host in services
    assert port == flags(services[host]).get("--http-port", "8000")
    assert arguments["--predictor_protocol"] == "v2"


def test_ports_are_published_on_this_machine_only(services: dict[str, Any]) -> None:
    assert "ports" not in services["triton"]
    arguments = flags(services["hf-transformer"])
    port = arguments["--http_port"]
    assert services["hf-transformer"]["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_health_checks_ask_for_the_model(services: dict[str, Any]) -> None:
    name = flags(services["hf-transformer"])["--model_name"]
    triton, service = (services[key]["healthcheck"]["test"] for key in ("triton", "hf-transformer"))
    assert triton[-1] == f"http://127.0.0.1:8000/v2/models/{name}/ready"
    assert service[:3] == ["CMD", "python", "-c"]
    constants = {node.value for node in ast.walk(ast.parse(service[3])) if isinstance(node, ast.Constant)}
    assert {"127.0.0.1", 8080, f"/v1/models/{name}", 200} <= constants


def test_service_needs_no_rights(services: dict[str, Any]) -> None:
    service = services["hf-transformer"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["tmpfs"] == ["/tmp"], "where the image's HF_HOME lies"


def test_service_is_given_the_time_that_its_end_takes(services: dict[str, Any]) -> None:
    config, notes = parse_config(services["hf-transformer"]["command"], {})
    assert notes == []
    assert int(services["hf-transformer"]["stop_grace_period"].removesuffix("s")) > config.grace_period_seconds
