"""Triton as a child process, for the demo, bench, the benchmarks and the tests."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Self

from hf_transformer.commands.child_process import START_SECONDS, ChildProcess
from hf_transformer.commands.loopback import HOST, is_ready, reserved_ports
from hf_transformer.commands.triton_installation import find_triton
from hf_transformer.errors import LoadError

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the directory of shm_open


@dataclass(eq=False)
class LocalTriton:
    """A tritonserver on free ports of 127.0.0.1. Use the context manager, or call ``start`` and ``stop``.

    The names of Triton's files in /dev/shm start with ``prefix``, so that ``stop`` removes only these files.
    """

    model_repository: Path
    _: KW_ONLY
    environment: Path | None = None
    """Folder of a Triton, or of a virtual environment with nvidia-pytriton: see ``find_triton``."""
    models: Sequence[str] | None = None
    """Models to load and wait for. The default is the whole repository."""
    config_name: str | None = "python"
    """Use ``<model>/configs/<config_name>.pbtxt`` if it exists and Triton has only the Python backend."""
    options: Sequence[str] = ()
    """Additional options of tritonserver, which override the default options."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables of Triton and its models, including PATH."""
    log: Path | None = None
    """File for Triton's output. The default is a temporary file, which ``stop`` removes."""
    timeout_seconds: float = START_SECONDS
    any_numpy: bool = False
    """Accept numpy 2 in the environment, for models that exchange tensors as DLPack."""
    interrupted: Callable[[], bool] = lambda: False
    """Callback during the start. A result of True raises InterruptedError."""

    description: str = field(default="", init=False)
    """The program or environment of the tritonserver, for messages."""
    http_port: int = field(default=0, init=False)
    grpc_port: int = field(default=0, init=False)
    metrics_port: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.prefix = f"hf_transformer_{os.getpid()}_{secrets.token_hex(4)}_"
        self._folder: Path | None = None
        self._reservation = ExitStack()
        self._child: ChildProcess | None = None

    @property
    def http_address(self) -> str:
        return f"{HOST}:{self.http_port}"

    @property
    def grpc_address(self) -> str:
        return f"{HOST}:{self.grpc_port}"

    @property
    def metrics_address(self) -> str:
        return f"{HOST}:{self.metrics_port}"

    @property
    def child(self) -> ChildProcess:
        """The running process. Raises RuntimeError before ``start`` and after ``stop``."""
        if self._child is None:
            raise RuntimeError("Triton was not started")
        return self._child

    def start(self) -> None:
        """Start Triton and wait until the models are ready.

        Raises InterruptedError when ``interrupted`` returns True, LoadError if Triton does not start or load a model.
        The message includes the end of Triton's log. After an error, no process or file remains.
        """
        installation = find_triton(self.environment, self.environ, any_numpy=self.any_numpy)
        if not self.model_repository.is_dir():
            raise LoadError(f"the model repository {self.model_repository} is not a folder")
        self.description = installation.description
        self._folder = folder = Path(tempfile.mkdtemp(prefix="hf-transformer-triton-"))
        self._log = self.log or folder / "triton.log"
        self._variables = installation.variables
        try:
            self._command = [*installation.program, *self._flags(installation.stub, folder)]
            self.http_port, self.grpc_port, self.metrics_port = self._reservation.enter_context(reserved_ports(3))
            self._launch()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL, and remove Triton's files. Idempotent."""
        try:
            if self._child is not None:
                self._child.terminate()
                self._child = None
        finally:
            self._clear_shared_memory()
            self._reservation.close()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def restart(self) -> None:
        """Stop Triton if running, and start Triton on the same ports. Raises the errors of ``start``."""
        self.child.terminate()
        self._clear_shared_memory()
        self._launch()

    def kill(self) -> None:
        """Simulate a crash: send SIGKILL to Triton and its stubs, and remove Triton's files."""
        self.child.kill()
        self._clear_shared_memory()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _launch(self) -> None:
        def ready() -> bool:
            paths = ["/v2/health/live", *(f"/v2/models/{name}/ready" for name in self.models or ())]
            return all(is_ready(self.http_port, path) for path in paths)

        ports = {"http": self.http_port, "grpc": self.grpc_port, "metrics": self.metrics_port}
        flags = [f"--{api}-port={port}" for api, port in ports.items()]
        self._child = ChildProcess([*self._command, *flags, *self.options], self._variables, self._log)
        # Triton opens its ports after loading all models, and exits if a model fails.
        self._child.wait_until(ready, "Triton", self.timeout_seconds, self.interrupted)

    def _flags(self, stub: Path | None, folder: Path) -> list[str]:
        """Create all options except ports. For a stub, assemble the Python backend in ``folder``."""
        flags = [
            f"--model-repository={self.model_repository.absolute()}",
            *(f"--{api}-address={HOST}" for api in ("http", "grpc", "metrics")),
            "--exit-timeout-secs=2",  # with 0 Triton sometimes aborts while unloading models
            f"--backend-config=python,shm-region-prefix-name={self.prefix}",
        ]
        if self.models is not None:
            flags += ["--model-control-mode=explicit", *(f"--load-model={name}" for name in self.models)]
        if stub is not None:
            # Triton searches the backend's folder, but the wheel has the stubs (one per Python version) elsewhere.
            target = folder / "backends" / "python"
            backend = stub.parents[2] / "backends" / "python"
            shutil.copytree(backend, target, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(stub, target / stub.name)
            flags.append(f"--backend-directory={target.parent}")
            if self.config_name:
                flags.append(f"--model-config-name={self.config_name}")
        return flags

    def _clear_shared_memory(self) -> None:
        for path in SHARED_MEMORY.glob(f"{self.prefix}*"):
            path.unlink(missing_ok=True)
