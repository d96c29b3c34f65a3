"""The service as users run it: a subprocess on a free port of 127.0.0.1."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from hf_transformer.commands.child_process import ChildProcess, poll
from hf_transformer.commands.loopback import HOST
from tests.support.described import check_answer
from tests.support.forking import ForkedProcess

LISTENING = re.compile(r"listening on https?://[\d.]+:(\d+)")
GRPC_LISTENING = re.compile(r"listening on grpcs?://[\d.]+:(\d+)")
NOBODY = f"{HOST}:1"
"""An address without a listener. Binds to port 0 never get its port."""
MODEL = re.compile(r'\{model_name="[^"]*"\}|model_name="[^"]*",|,model_name="[^"]*"(?=\})')
"""The label model_name of a sample, with what separates it from other labels."""
START_SECONDS = 30.0
"""Timeout of a start, which takes about a second."""


class Service:
    """A process of ``python -m hf_transformer`` with these flags, ended by its context manager.

    It is forked from a process that has imported the package (tests/support/forking.py), unless it has variables or
    workers of its own, or a test is about the process: ``forked=False``.
    """

    def __init__(
        self,
        *flags: str,
        environ: dict[str, str] | None = None,
        python: str = sys.executable,
        forked: bool = True,
    ) -> None:
        self.flags = flags
        self._named = next((flag.partition("=")[2] for flag in flags if flag.startswith("--model_name=")), None)
        self._port = 0
        self._folder = tempfile.TemporaryDirectory(prefix="hf-transformer-test-")
        variables = {"PATH": os.environ["PATH"], "HOME": self._folder.name, "HF_HUB_OFFLINE": "1", **(environ or {})}
        log, flags = Path(self._folder.name) / "log", (f"--host={HOST}", "--http_port=0", "--grpc_port=0", *flags)
        self.process = (
            ForkedProcess(flags, variables, log)
            if forked and environ is None and python == sys.executable and not re.search(" --workers", " ".join(flags))
            else ChildProcess([python, "-W", "error", "-m", "hf_transformer", *flags], variables, log)
        )
        # No pooling: a test must not reuse a connection that another test broke. No TLS: reading the certificates of
        # authorities takes longer than a request.
        limits = httpx.Limits(max_keepalive_connections=0)
        hooks = {"response": [check_answer]}
        self.client = httpx.Client(timeout=60.0, limits=limits, trust_env=False, verify=False, event_hooks=hooks)

    @property
    def port(self) -> int:
        """The port of HTTP, as the service logs it."""
        if not self._port:
            self._port = self._announced(LISTENING)
            self.client.base_url = httpx.URL(self.url)
        return self._port

    def _announced(self, pattern: re.Pattern[str]) -> int:
        assert poll(lambda: bool(pattern.search(self.log)) or self.process.exit_code is not None, START_SECONDS)
        match = pattern.search(self.log)
        assert match is not None, f"the service ended with {self.process.exit_code}:\n{self.log}"
        return int(match[1])

    @property
    def grpc_address(self) -> str:
        """Host and port of the gRPC server."""
        return f"{HOST}:{self._announced(GRPC_LISTENING)}"

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def wait_until(self, path: str, status: int = 200) -> Self:
        """Waits until the response to a GET of ``path`` has this status."""
        assert self.port
        assert poll(lambda: self._status(path) == status, START_SECONDS), f"{path} is {self._status(path)}:\n{self.log}"
        return self

    def _status(self, path: str) -> int | None:
        if self.process.exit_code is not None:
            raise AssertionError(f"the service ended with {self.process.exit_code}:\n{self.log}")
        try:
            return self.client.get(path).status_code
        except httpx.TransportError:
            return None

    def predict(self, instances: Any, parameters: Any = None, model: str = "") -> Any:
        """The predictions of a successful request."""
        response = self.post({"instances": instances, **({"parameters": parameters} if parameters else {})}, model)
        assert response.status_code == 200, response.text
        return response.json()["predictions"]

    def post(self, body: Any, model: str = "", **options: Any) -> httpx.Response:
        """POSTs to the predict route; ``body`` may be bytes."""
        kind = {"content": body} if isinstance(body, bytes) else {"json": body}
        return self.client.post(f"/v1/models/{model or self.model}:predict", **kind, **options)

    @property
    def model(self) -> str:
        """The name in the flags; without one, the first that the service lists."""
        if self._named is not None:
            return self._named
        names: list[str] = self.client.get("/v1/models").json()["models"]
        return names[0]

    @property
    def log(self) -> str:
        return self.process.output()

    def metric(self, name: str, missing: float | None = None) -> float:
        """The value of one sample of /metrics, named with its labels. ``missing`` is the value if there is none.

        Without the label model_name, it is the sum over all models, and requests that chose none.
        """
        lines = self.client.get("/metrics").text
        if "model_name=" not in name:
            lines = MODEL.sub("", lines)
        found = [line.rpartition(" ")[2] for line in lines.splitlines() if line.startswith(f"{name} ")]
        if not found and missing is None:
            raise AssertionError(f"/metrics has no {name}")
        return sum(map(float, found)) if found else float(missing or 0)

    @property
    def resident_bytes(self) -> int:
        """Memory of the process, without shared memory and mapped files."""
        return self._memory("RssAnon:")

    @property
    def peak_bytes(self) -> int:
        """The largest memory of the process so far, including shared memory and mapped files."""
        return self._memory("VmHWM:")

    def _memory(self, field: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition(field)[2].split()[0]) * 1024

    def begin_stop(self) -> None:
        """SIGTERM; ``stop`` or the context's end waits for what comes of it."""
        if self.process.exit_code is None:
            os.kill(self.process.pid, signal.SIGTERM)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate(30.0)
        code = self.process.exit_code
        assert code is not None
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        self.stop()
        self._folder.cleanup()


def flags_for(model: str, folder: Path, address: str, protocol: str, more: Sequence[str] = ()) -> list[str]:
    """The flags that put the service in front of one model."""
    return [
        f"--model_name={model}",
        f"--model_dir={folder}",
        f"--predictor_host={address}",
        f"--predictor_protocol={protocol}",
        *more,
    ]
