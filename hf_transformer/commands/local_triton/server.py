"""A real Triton Inference Server as a child process, on free ports of 127.0.0.1: for the demo and for tests.

    with LocalTriton(Path("deploy/model_repository"), models=["bert"]) as triton:
        ...  # triton.http_address, triton.grpc_address

Linux only, standard library only. docs/architecture.md says which tritonserver is used.
"""

from __future__ import annotations

import http.client
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from hf_transformer.commands.local_triton.child_process import ChildProcess
from hf_transformer.commands.local_triton.installation import TritonInstallation, find_triton
from hf_transformer.errors import LoadError

HOST = "127.0.0.1"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder of shm_open

_BIND_ATTEMPTS = 5
_BIND_FAILED = "already in use"
# Triton waits this long for requests and idle connections when it is told to end.
_EXIT_SECONDS = 2
_GRACE_SECONDS = 10.0
_LINES_SHOWN = 20
_NOT_A_COMPLAINT = re.compile(r"I\d{4} |[|+]")
_HINTS = {
    "error while loading shared libraries: libpython": (
        "Triton's Python stub needs the shared libpython of its environment: install it (libpython3.x on Debian and "
        "Ubuntu), or make the environment with a Python that was built with --enable-shared."
    ),
    "version `GLIBC_": "This tritonserver needs glibc 2.35 or newer (Debian 12, Ubuntu 22.04).",
    "No module named 'onnxruntime'": "Install onnxruntime in the environment that Triton runs in.",
}


class LocalTriton:
    """One tritonserver, from ready to certainly gone.

    A context manager; or call ``start`` and ``stop``. Its ports stay the same over ``restart``. What it leaves in
    /dev/shm begins with ``prefix``, so that ``stop`` can tell its files from those of others.
    """

    def __init__(
        self,
        model_repository: Path,
        *,
        environment: Path | None = None,
        models: Sequence[str] | None = None,
        config_name: str | None = "python",
        strict: bool = True,
        options: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        log: Path | None = None,
        timeout_seconds: float = 60.0,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare; nothing is started yet.

        environment: folder of a virtual environment with nvidia-pytriton; None: see ``find_triton``
        models: load and wait for these only; None: all of the repository
        config_name: configuration to prefer, ``<model>/configs/<config_name>.pbtxt``, where the wheel's Triton runs,
            which has the Python backend only. Models without such a file use their config.pbtxt, as does a Triton
            found on PATH
        strict: a model that fails to load is a LoadError; else Triton runs with those that did load
        options: more options for tritonserver, which come last and so may repeat one of ours
        environ: variables for Triton and its models, PATH included; None: none but what Triton needs
        log: file for Triton's output; None: a temporary one, gone after ``stop``
        interrupted: asked while waiting for readiness; True ends the wait, with an InterruptedError
        """
        self._repository = model_repository
        self._environment = environment
        self._models = models
        self._config_name = config_name
        self._strict = strict
        self._options = options
        self._environ = environ or {}
        self._log = log
        self._timeout = timeout_seconds
        self._interrupted = interrupted
        self._folder: Path | None = None
        self._child: ChildProcess | None = None
        self._command: list[str] = []
        self._variables: dict[str, str] = {}
        self.description = ""
        """Which tritonserver it is, for people to read."""
        self.http_port = self.grpc_port = self.metrics_port = 0
        self.prefix = f"hf_transformer_{os.getpid()}_{secrets.token_hex(4)}_"

    @property
    def http_address(self) -> str:
        """host:port of the REST API."""
        return f"{HOST}:{self.http_port}"

    @property
    def grpc_address(self) -> str:
        """host:port of the gRPC API."""
        return f"{HOST}:{self.grpc_port}"

    @property
    def metrics_address(self) -> str:
        """host:port of the Prometheus metrics."""
        return f"{HOST}:{self.metrics_port}"

    @property
    def child(self) -> ChildProcess:
        """The process. Raises RuntimeError before ``start`` and after ``stop``."""
        if self._child is None:
            raise RuntimeError("Triton was not started")
        return self._child

    def start(self) -> None:
        """Start and wait until the wanted models are ready.

        Raises LoadError, with the tail of Triton's log, when there is no Triton, when it ends early, when a model
        does not load, or when it takes too long. Nothing is left then.
        """
        installation = find_triton(self._environment, self._environ)
        if not self._repository.is_dir():
            raise LoadError(f"the model repository {self._repository} is not a folder")
        self.description = installation.description
        self._variables = installation.variables(self._environ)
        self._folder = Path(tempfile.mkdtemp(prefix="hf-transformer-triton-"))
        try:
            self._command = self._build_command(installation, self._folder)
            self._start_on_free_ports()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """SIGTERM, SIGKILL if it does not help, then clear away all that Triton leaves. Does no harm when repeated."""
        try:
            if self._child is not None:
                self._child.terminate(_GRACE_SECONDS)
                self._child = None
        finally:
            self._clear_shared_memory()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def kill(self) -> None:
        """End Triton as a crash does (SIGKILL); the stubs and files that it orphans are cleared away."""
        self.child.kill()
        self._clear_shared_memory()

    def suspend(self) -> None:
        """Make Triton hang (SIGSTOP): it accepts connections and answers nothing, until ``resume``."""
        self.child.suspend()

    def resume(self) -> None:
        """Let a suspended Triton go on."""
        self.child.resume()

    def restart(self) -> None:
        """Stop (if it still runs) and start again on the same ports, ready when this returns. Raises as ``start``."""
        self.child.terminate(_GRACE_SECONDS)
        self._clear_shared_memory()
        for attempts_left in reversed(range(_BIND_ATTEMPTS)):
            if self._launch(may_retry=attempts_left > 0):
                return

    def output_tail(self, lines: int = 30) -> str:
        """The last lines of Triton's log."""
        return self.child.output_tail(lines)

    def _start_on_free_ports(self) -> None:
        for attempts_left in reversed(range(_BIND_ATTEMPTS)):
            # Between here and Triton's own bind another process may take a port: then we try others.
            self.http_port, self.grpc_port, self.metrics_port = free_ports(3)
            if self._launch(may_retry=attempts_left > 0):
                return

    def _launch(self, *, may_retry: bool) -> bool:
        """Start the process and wait for readiness; False when it failed for a taken port and ``may_retry``."""
        if self._folder is None:
            raise RuntimeError("Triton was not started")
        ports = {"http": self.http_port, "grpc": self.grpc_port, "metrics": self.metrics_port}
        command = [*self._command, *(f"--{name}-port={port}" for name, port in ports.items()), *self._options]
        # The libraries are for Triton alone, not for the Python that launches it: hence `env`.
        variables = dict(self._variables)
        libraries = variables.pop("LD_LIBRARY_PATH", None)
        prefix = ["env", f"LD_LIBRARY_PATH={libraries}"] if libraries else []
        self._child = ChildProcess([*prefix, *command], variables, self._log or self._folder / "triton.log")
        try:
            self._wait_until_ready(self._child)
        except LoadError:
            taken = _BIND_FAILED in self._child.output()
            self._child.terminate(_GRACE_SECONDS)
            self._clear_shared_memory()
            if taken and may_retry:
                return False
            raise
        return True

    def _build_command(self, installation: TritonInstallation, folder: Path) -> list[str]:
        command = [
            str(installation.executable),
            f"--model-repository={self._repository.absolute()}",
            *(f"--{api}-address={HOST}" for api in ("http", "grpc", "metrics")),
            f"--exit-timeout-secs={_EXIT_SECONDS}",
            f"--exit-on-error={str(self._strict).lower()}",
            f"--backend-config=python,shm-region-prefix-name={self.prefix}",
        ]
        if self._models is not None:
            command += ["--model-control-mode=explicit", *(f"--load-model={name}" for name in self._models)]
        if installation.backend is not None:
            command.append(f"--backend-directory={installation.lay_out_backends(folder)}")
            command += [f"--model-config-name={self._config_name}"] if self._config_name else []
        return command

    def _wait_until_ready(self, child: ChildProcess) -> None:
        """Triton opens its ports when all models were tried; with ``strict`` it ends itself when one has failed."""
        deadline = time.monotonic() + self._timeout
        wanted = self._models if self._strict and self._models is not None else ()
        paths = ["/v2/health/live", *(f"/v2/models/{name}/ready" for name in wanted)]
        while not all(self._answers_200(path) for path in paths):
            if self._interrupted():
                raise InterruptedError("interrupted while Triton was starting")
            if child.wait(0.05):
                raise LoadError(self._explain(f"Triton ended with exit code {child.exit_code}", child))
            if time.monotonic() > deadline:
                raise LoadError(self._explain(f"Triton was not ready after {self._timeout:g} s", child))

    def _answers_200(self, path: str) -> bool:
        connection = http.client.HTTPConnection(HOST, self.http_port, timeout=5.0)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _explain(self, message: str, child: ChildProcess) -> str:
        output = child.output()
        hints = [hint for sign, hint in _HINTS.items() if sign in output]
        # Only what Triton complains of: the tables of its settings would push the cause out of the tail.
        lines = [line for line in output.splitlines() if line and not _NOT_A_COMPLAINT.match(line)]
        return "\n".join([" ".join([f"{message}.", *hints, "The end of its log:"]), *lines[-_LINES_SHOWN:]])

    def _clear_shared_memory(self) -> None:
        for path in SHARED_MEMORY.glob(f"{self.prefix}*"):
            path.unlink(missing_ok=True)

    def __enter__(self) -> LocalTriton:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1 that nobody listens on at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
