"""The end of the service: at once not ready, what is in flight finishes, and what does not is broken off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from hf_transformer.commands.local_triton import poll
from tests.integration.server.processes import (
    MODEL_FOLDER,
    SECONDS,
    all_of,
    answer_of,
    connected,
    exit_code_of,
    get,
    service_with,
    signal_to,
    status_of,
    unfinished,
)

NEVER = "--grace_period_seconds=1000"
SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])


@SIGNALS
def test_not_ready_at_once_and_answering_until_the_end(number: signal.Signals) -> None:
    with service_with(NEVER) as service, connected(service.wait_until("/")) as client, connected(service) as idle:
        idle.sendall(get("/"))
        assert answer_of(idle)[0] == 200
        asked = get("/v2/health/ready")
        client.sendall(asked[:-2])
        assert poll(lambda: service.metric("process_open_fds") > 0, SECONDS)  # what was sent before has been read
        signal_to(service, number)
        assert all_of(idle) == b""
        client.sendall(asked[-2:])
        answer = all_of(client)
        assert status_of(answer) == 503
        assert b"the service is shutting down" in answer and b"connection: close" in answer
        assert exit_code_of(service) == 0
        assert "Traceback" not in service.log


def test_health_over_grpc_ends_as_not_serving() -> None:
    with service_with(grpc=True) as service:
        with grpc.insecure_channel(service.grpc_address) as channel:
            watch: Any = channel.unary_stream(
                "/grpc.health.v1.Health/Watch",
                health_pb2.HealthCheckRequest.SerializeToString,
                health_pb2.HealthCheckResponse.FromString,
            )(health_pb2.HealthCheckRequest(), wait_for_ready=True)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING  # there is no predictor
            signal_to(service, signal.SIGTERM)
            assert list(watch) == []  # it ends cleanly: an error would be raised
        assert exit_code_of(service) == 0


def test_what_does_not_finish_is_answered_at_the_end_of_the_grace() -> None:
    with (
        service_with("--grace_period_seconds=0.5", "--workers=2") as service,
        connected(service.wait_until("/")) as client,
    ):
        client.sendall(unfinished())
        client.sendall(b"1")
        with connected(service) as other:  # once it is answered, the first one is being worked on, or its end was
            other.sendall(get("/"))
            assert answer_of(other)[0] == 200
        signal_to(service, signal.SIGTERM)
        answer = all_of(client)
        assert answer == b"" or (status_of(answer) == 503 and b"the service is shutting down" in answer)
        assert exit_code_of(service) == 0
        assert "Traceback" not in service.log


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, 2), (signal.SIGINT, 1)])
def test_a_second_signal_ends_it_at_once(number: signal.Signals, workers: int) -> None:
    with service_with(NEVER, f"--workers={workers}") as service, connected(service.wait_until("/")) as client:
        client.sendall(unfinished("/v1/models/bert:predict", "Expect: 100-continue"))
        assert client.recv(1024).startswith(b"HTTP/1.1 100")  # so it is being worked on when the first signal comes

        def ended() -> bool:
            signal_to(service, number)
            return service.process.exit_code is not None

        assert poll(ended, SECONDS)
        assert exit_code_of(service) == 128 + number


def test_workers_end_with_a_supervisor_that_is_killed() -> None:
    with service_with("--workers=2") as service:
        assert poll(lambda: service.log.count("startup complete") == 2, SECONDS)
        signal_to(service, signal.SIGKILL)
        assert exit_code_of(service) == -signal.SIGKILL
        assert service.log.count("Finished server process") == 2


def test_workers_that_can_not_start_end_the_service(tmp_path: Path) -> None:
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")
    command = [sys.executable, "-W", "error", "-m", "hf_transformer", "--host=127.0.0.1", "--http_port=0"]
    flags = [f"--model_dir={MODEL_FOLDER}", "--predictor_host=https://localhost:1", f"--predictor_ca_file={broken}"]
    more = ["--enable_grpc=false", "--workers=2"]
    environ = {"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1"}
    result = subprocess.run([*command, *flags, *more], capture_output=True, text=True, timeout=SECONDS, env=environ)
    assert result.returncode == 1
    assert "a worker can't start: no certificate in" in result.stderr
    assert "Traceback" not in result.stderr
