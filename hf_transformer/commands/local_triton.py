"""Triton and the service as child processes, for the demo, bench, the benchmarks and the tests.

The module requires Linux and no third-party library.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Self

from hf_transformer.errors import LoadError
from hf_transformer.extras import install_command

HOST = "127.0.0.1"
ENVIRONMENT_FLAG = "--triton_environment"
"""The flag of demo and bench for ``LocalTriton.environment``."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the directory of shm_open

START_SECONDS = 60.0
"""Timeout for Triton and the service to become ready."""
UNIMPORTANT = re.compile(r"I\d{4} |[|+]")
"""The start of unimportant lines in Triton's log: information and tables of settings."""
HINTS = {
    "error while loading shared libraries: libpython": (
        "Triton's Python stub needs the shared libpython of its environment: install libpython3.x (Debian, Ubuntu), or "
        "make the environment with a Python that was built with --enable-shared."
    ),
    "version `GLIBC_": "This tritonserver needs glibc 2.35 or newer (Debian 12, Ubuntu 22.04).",
    "unable to find backend library": (
        "This tritonserver does not have the model's backend. For the Python backend: hf-transformer export "
        "--backend=python."
    ),
    "No module named 'onnxruntime'": (
        "Install onnxruntime in the environment that Triton runs in (--triton_environment)."
    ),
}
"""Remedies by text in Triton's log."""

# Script for the Python of an environment. find_spec does not import pytriton.
PROBE = """
import importlib.metadata as m, importlib.util, json, sys, sysconfig
spec = importlib.util.find_spec("pytriton")
try: numpy = m.version("numpy")
except m.PackageNotFoundError: numpy = None
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "pytriton": spec and list(spec.submodule_search_locations)[0],
    "numpy": numpy,
    "libdir": sysconfig.get_config_var("LIBDIR"),
}))
"""

# Script that starts a child. PR_SET_PDEATHSIG (1) makes the kernel send SIGTERM when the parent thread ends, even by
# SIGKILL, and survives exec. A preexec_fn would be unsafe in a multithreaded parent. The check of the parent's id
# detects a parent that ended before prctl.
LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]): sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(eq=False)
class LocalTriton:
    """A tritonserver on free ports of 127.0.0.1. Use the context manager, or call ``start`` and ``stop``.

    The names of Triton's files in /dev/shm start with ``prefix``, so that ``stop`` removes only these files.
    """

    model_repository: Path
    _: KW_ONLY
    environment: Path | None = None
    """Folder of a virtual environment with nvidia-pytriton. ``find_triton`` describes the default."""
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


@dataclass(frozen=True, slots=True)
class TritonInstallation:
    """A tritonserver on this machine, with its command and variables."""

    description: str
    program: Sequence[str]
    variables: Mapping[str, str] = field(repr=False)
    stub: Path | None = None
    """The stub program for the environment's Python in pytriton's wheel. A complete Triton needs no separate stub."""


def find_triton(environment: Path | None, environ: Mapping[str, str], *, any_numpy: bool = False) -> TritonInstallation:
    """Find a tritonserver in ``environment``. By default, search the running environment, then PATH.

    ``environment`` is a virtual environment with nvidia-pytriton and, unless ``any_numpy`` is True, numpy below 2.
    Triton receives the variables in ``environ`` except PYTHON*. Raises LoadError with installation advice without a
    usable tritonserver.
    """
    # By default, onnxruntime 1.29 and newer send telemetry to Microsoft and write an identifier to HOME.
    variables = {"ORT_DISABLE_TELEMETRY": "1", "PATH": os.defpath}
    variables |= {name: value for name, value in environ.items() if not name.startswith("PYTHON")}
    if environment is not None:
        python = environment / "bin" / "python"
        if not python.exists():
            problem = f"{environment} is not a virtual environment: there is no {python}"
            raise LoadError(f"{ENVIRONMENT_FLAG}: {problem}. {_advice()}")
        return _in_environment(python, variables, any_numpy=any_numpy)
    if importlib.util.find_spec("pytriton") is not None:
        return _in_environment(Path(sys.executable), variables, any_numpy=any_numpy)
    program = shutil.which("tritonserver", path=variables["PATH"])
    if program is None:
        raise LoadError(
            f"found no tritonserver: nvidia-pytriton is not installed in {sys.prefix}, and the program is not on PATH. "
            f"{_advice()}"
        )
    return TritonInstallation(program, [program], variables)


def _advice() -> str:
    beside = Path(".venv-triton")
    known = f", such as {beside}, which is here" if (beside / "bin" / "python").exists() else ""
    return (
        f"Name a virtual environment with nvidia-pytriton and numpy below 2 by {ENVIRONMENT_FLAG}=PATH{known}. In a "
        "checkout make install makes one, .venv-triton; elsewhere: python3 -m venv triton && triton/bin/pip install "
        "--no-deps nvidia-pytriton && triton/bin/pip install 'numpy<2' onnxruntime. Or install both here: "
        f"{install_command('demo')}"
    )


def _in_environment(python: Path, variables: Mapping[str, str], *, any_numpy: bool) -> TritonInstallation:
    try:
        command = [str(python), "-I", "-c", PROBE]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as exc:
        raise LoadError(f"{python} does not run: {exc}") from exc
    facts = json.loads(answer.stdout)
    folder = python.parent.parent
    if facts["pytriton"] is None:
        raise LoadError(f"{ENVIRONMENT_FLAG}: nvidia-pytriton is not installed in {folder}. {_advice()}")
    if not any_numpy and (facts["numpy"] is None or int(facts["numpy"].partition(".")[0]) >= 2):
        raise LoadError(
            f"{folder} has numpy {facts['numpy']}, but Triton's Python models return empty tensors without numpy 1. "
            f"Install it there: {folder}/bin/pip install 'numpy<2', or name another environment by {ENVIRONMENT_FLAG}"
        )
    server = Path(facts["pytriton"]) / "tritonserver"
    stub = server / "python_backend_stubs" / facts["version"] / "triton_python_backend_stub"
    if not stub.exists():
        known = ", ".join(sorted(path.name for path in stub.parents[1].glob("*")))
        raise LoadError(
            f"the nvidia-pytriton in {folder} supports Python {known}, not {facts['version']}: make a virtual "
            f"environment with one of these, and name it by {ENVIRONMENT_FLAG}"
        )
    # The stub embeds Python, and the loader does not search libpython's folder by itself.
    libraries = [str(server.parents[1] / "nvidia_pytriton.libs"), facts["libdir"], variables.get("LD_LIBRARY_PATH")]
    return TritonInstallation(
        f"nvidia-pytriton in {folder}",
        # env sets LD_LIBRARY_PATH, because the launcher's Python must not load these libraries.
        ["env", f"LD_LIBRARY_PATH={os.pathsep.join(filter(None, libraries))}", str(server / "bin" / "tritonserver")],
        {**variables, "PATH": f"{python.parent}{os.pathsep}{variables['PATH']}"},
        stub,
    )


class ChildProcess:
    """A program in a separate session, with its output in a log file.

    Ctrl-C does not reach the session, so the parent controls the order of shutdown. The session also identifies the
    descendants of a dead child. Start the child in the main thread: the kernel sends SIGTERM when the starting thread
    ends.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        """Start ``command`` with only the variables in ``environ``. Append stdout and stderr to ``log``."""
        self._log = log
        with log.open("ab") as output:
            self._start_of_log = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), *command],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id, which is also the session id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code: None for a running process, -n after signal n."""
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the exit; return True if the process has exited."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def wait_until(
        self, ready: Callable[[], bool], name: str, seconds: float, interrupted: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until ``ready`` returns True. Messages refer to the child as ``name``.

        Raises InterruptedError when ``interrupted`` returns True, LoadError if the child exits or is not ready in time.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            if interrupted():
                raise InterruptedError(f"interrupted while {name} was starting")
            self.require_running(name)
            if time.monotonic() > deadline:
                raise self.failure(f"{name} was not ready after {seconds:g} s")
            self.wait(0.05)

    def require_running(self, name: str) -> None:
        """Raise LoadError with the end of the log if the child has exited."""
        if self.exit_code is not None:
            raise self.failure(f"{name} ended with exit code {self.exit_code}")

    def failure(self, message: str) -> LoadError:
        """An error with the message, hints, and the last 20 important lines of the log."""
        log = self.output()
        hints = [hint for sign, hint in HINTS.items() if sign in log]
        warnings = [line for line in log.splitlines() if line and not UNIMPORTANT.match(line)]
        return LoadError("\n".join([" ".join([f"{message}.", *hints, "The end of its log:"]), *warnings[-20:]]))

    def terminate(self, grace_seconds: float = 15.0) -> None:
        """Send SIGTERM, wait at most ``grace_seconds``, and send SIGKILL to the whole session."""
        try:
            self._process.terminate()
            self.resume()  # a suspended child does not handle SIGTERM
            self.wait(grace_seconds)
        finally:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL to the child and its session; wait for the exit of all processes."""
        self._process.kill()
        self._process.wait()
        poll(self._kill_session, seconds=10.0)

    def _kill_session(self) -> bool:
        """Send SIGKILL to all processes of the session; return True if the session was empty."""
        members = session_members(self.pid)
        for pid in members:
            with suppress(ProcessLookupError):  # the process has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        return not members

    def suspend(self) -> None:
        """Send SIGSTOP to the child alone; wait until all its threads have stopped."""
        self._process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")
        poll(lambda: all(_stat_fields(task)[:1] == ["T"] for task in tasks.iterdir()), seconds=10.0)

    def resume(self) -> None:
        """Send SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def output(self) -> str:
        """The child's output since its start."""
        with self._log.open("rb") as log:
            log.seek(self._start_of_log)
            return log.read().decode("utf-8", "replace")


@contextmanager
def service_running(
    flags: Sequence[str],
    environ: Mapping[str, str],
    log: Path,
    *,
    http_port: int,
    grpc_port: int,
    interrupted: Callable[[], bool] = lambda: False,
) -> Iterator[ChildProcess]:
    """Runs ``hf-transformer serve`` on these ports of HOST. Yields the child when the service is ready.

    Raises LoadError if the service exits, rejects its model or is not ready in time, InterruptedError when
    ``interrupted`` returns True.
    """
    address = [f"--host={HOST}", f"--http_port={http_port}", f"--grpc_port={grpc_port}"]
    command = [sys.executable, "-m", "hf_transformer", "serve", *flags, *address]
    child = ChildProcess(command, {"LOG_LEVEL": "WARNING", **environ}, log)

    def ready() -> bool:
        if "does not fit the service" in child.output():  # a mismatch is permanent
            raise child.failure("the service is not ready")
        return is_ready(http_port, "/v2/health/ready")

    try:
        child.wait_until(ready, "the service", START_SECONDS, interrupted)
        yield child
    finally:
        child.terminate()


def session_members(session: int) -> list[int]:
    """The ids of a session's processes, except zombies."""
    members = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            fields = _stat_fields(folder)
            if fields and fields[0] not in "ZX" and int(fields[3]) == session:
                members.append(int(folder.name))
    return members


def _stat_fields(folder: Path) -> list[str]:
    """The fields of /proc/<pid>/stat from the third field, the state. Empty for a process that does not exist."""
    try:
        text = (folder / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The second field, the program's name in parentheses, may contain spaces and parentheses.
    return text.rpartition(")")[2].split()


def poll(condition: Callable[[], bool], seconds: float) -> bool:
    """Call ``condition`` until it returns True or ``seconds`` have passed; return the last result."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return answer


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Reserves free ports of HOST for children of this process. Yields their numbers."""
    with ExitStack() as stack:
        yield [stack.enter_context(reserved_port()) for _ in range(count)]


@contextmanager
def reserved_port(port: int = 0) -> Iterator[int]:
    """Reserves ``port`` of HOST, or a free one for 0, for a child of this process. Yields its number.

    Until the end, other processes that ask for any port get others. A program that sets SO_REUSEADDR or SO_REUSEPORT,
    as servers do, can still bind it. The reserving socket never listens, so it receives no connections. Raises OSError
    for an unavailable port.
    """
    with socket.socket() as reserving:
        if port:  # connections in TIME_WAIT do not make it unavailable
            reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserving.bind((HOST, port))
        # After the bind, because two reservations with these options could get the same port.
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            reserving.setsockopt(socket.SOL_SOCKET, option, 1)
        yield int(reserving.getsockname()[1])


def exchange(port: int, path: str, body: str | None = None, *, seconds: float = 5.0) -> tuple[int, str]:
    """Send a POST with ``body``, otherwise a GET; return the response's status and body.

    Raises OSError without a connection or response within ``seconds``, HTTPException for an invalid response.
    """
    with closing(http.client.HTTPConnection(HOST, port, timeout=seconds)) as connection:
        connection.request("GET" if body is None else "POST", path, body)
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace")


def is_ready(port: int, path: str) -> bool:
    """Whether a GET of ``path`` returns status 200."""
    try:
        return exchange(port, path)[0] == 200
    except (OSError, http.client.HTTPException):
        return False
