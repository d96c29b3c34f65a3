"""The Compose file: that its two services fit each other, the image and the model repository beside it."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from hf_transformer.config.options import parse_config
from tests.deploy.manifests import DEPLOY, flags, load

MIB = 2**20


@pytest.fixture
def compose() -> Any:
    document = load("compose.yaml")
    assert set(document) == {"name", "services", "volumes"}
    assert set(document["services"]) == {"triton", "hf-transformer"}
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
    for path in sorted((DEPLOY / "kserve").glob("inferenceservice*.yaml")):
        model = load(f"kserve/{path.name}")["spec"]["predictor"]["model"]
        assert tag == f"${{TRITON_TAG:-{model['runtimeVersion']}}}"
    context = (DEPLOY / service["build"]["context"]).resolve()
    assert (context / service["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert service["image"] == "hf-transformer:latest"


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
