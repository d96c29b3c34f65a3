"""Start and end: predictors that come late, restart or hang, workers, and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.commands.local_triton import LocalTriton, poll
from tests.integration.conftest import MODEL_FOLDER, OPTIONS, Serve
from tests.service import Service, flags_for
from tests.triton_environment import triton_environment

TEXT = "The capital of france is [MASK]."
BODY = {"instances": [TEXT]}


@pytest.fixture
def own_triton(repository: Path) -> Iterator[LocalTriton]:
    """A Triton that a test may end, with one model."""
    with LocalTriton(
        repository, environment=triton_environment(), models=["bert"], config_name=None, options=OPTIONS
    ) as server:
        yield server


@pytest.fixture(autouse=True)
def _loaded(load: Callable[[str], None]) -> None:
    load("bert")
    load("fault_slow")


def start(server: LocalTriton, protocol: str, *flags: str) -> Service:
    address = server.http_address if protocol == "v2" else server.grpc_address
    return Service(*flags_for("bert", MODEL_FOLDER, address, protocol, flags))


def test_a_predictor_that_comes_late_goes_and_comes_back(own_triton: LocalTriton, protocol: str) -> None:
    own_triton.kill()
    flags = ("--enable_predictor_health_check=true", "--predictor_request_timeout_seconds=5")
    with start(own_triton, protocol, *flags) as service:
        service.wait_until("/").wait_until("/v1/models/bert", 503)
        assert service.post(BODY).status_code == 503
        own_triton.restart()
        service.wait_until("/v1/models/bert")
        assert service.predict([TEXT]) == ["paris"]

        own_triton.kill()
        assert service.post(BODY).status_code == 503
        service.wait_until("/v1/models/bert", 503)
        assert service.client.get("/").status_code == 200

        own_triton.restart()
        service.wait_until("/v1/models/bert")
        assert service.predict([TEXT]) == ["paris"]
        assert service.log.count("not ready, retrying") == 1
        assert "Traceback" not in service.log
        assert service.stop() == 0


def test_a_hung_predictor_is_a_timeout_and_answers_again(own_triton: LocalTriton, protocol: str) -> None:
    with start(own_triton, protocol, "--predictor_request_timeout_seconds=1") as service:
        service.wait_until("/v1/models/bert")
        own_triton.suspend()
        assert service.post(BODY).status_code == 504
        own_triton.resume()
        assert poll(lambda: service.post(BODY).status_code == 200, 20.0)
        assert service.predict([TEXT]) == ["paris"]


def test_retries_bridge_a_restart(own_triton: LocalTriton, protocol: str) -> None:
    with start(own_triton, protocol, "--predictor_request_retries=100") as service:
        service.wait_until("/v1/models/bert")
        own_triton.kill()
        with subprocess.Popen(
            [sys.executable, "-c", CURL, f"{service.url}/v1/models/bert:predict"], stdout=subprocess.PIPE, text=True
        ) as client:
            assert poll(lambda: service.metric("hf_transformer_requests_in_flight") == 1, 10.0)
            own_triton.restart()
            output, _ = client.communicate(timeout=60)
        assert output.strip() == '{"predictions":["paris"]}'


CURL = """
import sys, httpx
print(httpx.post(sys.argv[1], json={"instances": ["The capital of france is [MASK]."]}, timeout=60).text)
"""


def test_sigterm_finishes_what_is_in_flight(serve: Serve, triton: LocalTriton, protocol: str) -> None:
    address = triton.http_address if protocol == "v2" else triton.grpc_address
    with Service(*flags_for("fault_slow", MODEL_FOLDER, address, protocol)) as service:
        service.wait_until("/v1/models/fault_slow")
        url = f"{service.url}/v1/models/fault_slow:predict"
        with subprocess.Popen([sys.executable, "-c", CURL, url], stdout=subprocess.PIPE, text=True) as client:
            assert poll(lambda: service.metric("hf_transformer_requests_in_flight") == 1, 10.0)
            assert service.stop() == 0
            output, _ = client.communicate(timeout=60)
        assert output.strip() == '{"predictions":["paris"]}'


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_an_idle_service_with_0(number: signal.Signals, triton: LocalTriton) -> None:
    with Service(*flags_for("bert", MODEL_FOLDER, triton.http_address, "v2")) as service:
        service.wait_until("/v1/models/bert")
        os.kill(service.process.pid, number)
        assert service.process.wait(20.0)
        assert service.process.exit_code == 0
        assert "Traceback" not in service.log


def test_workers_share_the_port_and_the_predictor(triton: LocalTriton, protocol: str) -> None:
    with start(triton, protocol, "--workers=2") as service:
        service.wait_until("/v1/models/bert")
        assert poll(lambda: service.log.count("is ready: version") == 2, 20.0), service.log
        assert [service.predict([TEXT]) for _ in range(20)] == [["paris"]] * 20
        assert service.stop() == 0


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        pytest.param(["--http_port=abc"], 2, "--http_port", id="bad value"),
        pytest.param([], 2, "--predictor_host", id="no predictor"),
        pytest.param(["--predictor_host=x", "--predictor_protocol=v1"], 2, "grpc-v2", id="v1"),
        pytest.param(["--predictor_host=x", "--model_dir=/no/such/folder"], 1, "/no/such/folder", id="no folder"),
        pytest.param(
            ["--predictor_host=x", f"--model_dir={MODEL_FOLDER}", "--task=poetry"], 2, "fill_mask", id="unknown task"
        ),
    ],
)
def test_a_start_that_fails_says_why_in_one_line(flags: list[str], code: int, says: str) -> None:
    command = [sys.executable, "-W", "error", "-m", "hf_transformer", *flags]
    result: Any = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == code
    line = result.stderr.strip()
    assert says in line
    assert "\n" not in line


def test_a_certificate_that_is_none_is_said_in_one_line(tmp_path: Path) -> None:
    for name in ("cert", "key"):
        (tmp_path / name).write_text("no PEM")
    tls = [f"--ssl_certfile={tmp_path / 'cert'}", f"--ssl_keyfile={tmp_path / 'key'}"]
    command = [sys.executable, "-W", "error", "-m", "hf_transformer", "--predictor_host=x", *tls]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "--ssl_certfile" in result.stderr and result.stderr.count("\n") == 1
