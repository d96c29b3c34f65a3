"""Start and end of the service in front of the real Triton: signals, and starts that fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.commands.local_triton import LocalTriton, poll
from tests.integration.conftest import MODEL_FOLDER
from tests.service import Service, flags_for


@pytest.fixture(autouse=True)
def _loaded(load: Callable[[str], None]) -> None:
    load("bert")
    load("fault_slow")


TEXT = "The capital of france is [MASK]."


def test_sigterm_finishes_what_is_in_flight(triton: LocalTriton) -> None:
    with Service(*flags_for("fault_slow", MODEL_FOLDER, triton.http_address, "v2")) as service:
        service.wait_until("/v1/models/fault_slow")
        with ThreadPoolExecutor(1) as others:
            waiting = others.submit(service.predict, [TEXT], None, "fault_slow")
            assert poll(lambda: service.metric("hf_transformer_requests_in_flight") == 1, 10.0)
            assert service.stop() == 0
            assert waiting.result(60) == ["paris"]


def test_sigint_ends_an_idle_service_with_0(triton: LocalTriton) -> None:
    """As SIGTERM does, which ends the services of nearly all other tests."""
    with Service(*flags_for("bert", MODEL_FOLDER, triton.http_address, "v2")) as service:
        service.wait_until("/v1/models/bert")
        os.kill(service.process.pid, signal.SIGINT)
        assert service.process.wait(20.0)
        assert service.process.exit_code == 0
        assert "Traceback" not in service.log


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        pytest.param(["--http_port=abc"], 2, "--http_port", id="bad value"),
        pytest.param(["--predictor_host=x", "--model_dir=/no/such/folder"], 1, "/no/such/folder", id="no folder"),
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
