"""Start and end of the service in front of the real Triton: SIGTERM with requests in flight, and starts that fail."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hf_transformer.commands.local_triton import poll
from tests.integration.conftest import Serve
from tests.integration.grpc_client import request, stub, values

TEXT = "The capital of france is [MASK]."


def test_sigterm_finishes_what_is_in_flight(serve: Serve) -> None:
    """A request over HTTP and one over gRPC; the last answers of all are in the log, too."""
    with serve.own("fault_slow", "grpc-v2") as service:
        service.wait_until("/v1/models/fault_slow")
        with stub(service) as calls, ThreadPoolExecutor(1) as others:
            headers = {"x-request-id": "the-last"}
            waiting = others.submit(service.post, {"instances": [TEXT]}, "fault_slow", headers=headers)
            call = calls.ModelInfer.future(request("fault_slow", {"text": [TEXT]}))
            assert poll(lambda: service.metric("hf_transformer_requests_in_flight") == 2, 10.0)
            assert service.stop() == 0
            assert waiting.result(60).json() == {"predictions": ["paris"]}
            assert values(call.result(timeout=60)) == ["paris"]
        assert "requestId: the-last, preprocess_ms: " in service.log
        assert "Traceback" not in service.log


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        pytest.param(["--predictor_host=x", "--model_dir=/no/such/folder"], 1, "/no/such/folder", id="no folder"),
        pytest.param(["--ssl_certfile={}", "--ssl_keyfile={}", "--predictor_host=x"], 2, "--ssl_certfile", id="no PEM"),
    ],
)
def test_a_start_that_fails_says_why_in_one_line(flags: list[str], code: int, says: str, tmp_path: Path) -> None:
    (tmp_path / "no PEM").write_text("no PEM")
    flags = [flag.format(tmp_path / "no PEM") for flag in flags]
    command = [sys.executable, "-W", "error", "-m", "hf_transformer", *flags]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == code
    assert says in result.stderr and result.stderr.count("\n") == 1
