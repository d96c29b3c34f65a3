"""The service as a child process, and the CPU time and memory of processes."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from benchmarks.pairs import Checkout
from hf_transformer.commands.child_process import ChildProcess, poll, session_members
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.commands.loopback import HOST, is_ready
from hf_transformer.errors import LoadError

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
QUICK_RESULTS: Final = ROOT / "build" / "bench"
"""Where git does not look: one round is for a first impression, and no page shows it."""
READY_SECONDS: Final = 90.0
TICK_SECONDS: Final = 0.01
"""The kernel's resolution of CPU time."""
SETTLE_SECONDS: Final = 20.0
LISTENING: Final = {"HTTP": r"listening on http://[\d.]+:(\d+)", "gRPC": r"listening on grpc://[\d.]+:(\d+)"}


def variables() -> dict[str, str]:
    """Variables of child processes: this checkout's code, and no access to the hub."""
    home = os.environ.get("HOME", "/")
    return {"PATH": os.environ["PATH"], "HOME": home, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}


class ServiceProcess:
    """``python -m hf_transformer`` in front of one model, on ports that the kernel chooses; a context manager.

    Args:
        triton: serves the model under the same name.
        folder: contains ``<model>/`` with tokenizer and config.json; gets the log.
        flags: further flags of the service.
        python: the Python of the service.
        checkout: another version of the service, None for this one.
        own_python: prefer the Python of the checkout's .venv.
    """

    def __init__(
        self,
        triton: LocalTriton,
        folder: Path,
        model: str,
        flags: Sequence[str] = (),
        *,
        python: Path = Path(sys.executable),
        checkout: Checkout | None = None,
        own_python: bool = False,
    ) -> None:
        self.model = model
        over_grpc = "--predictor_protocol=grpc-v2" in flags
        command = [
            *(checkout.command(python, own_python) if checkout else [str(python)]),
            *("-m", "hf_transformer", f"--host={HOST}", "--http_port=0", "--grpc_port=0"),
            *(f"--model_name={model}", f"--model_dir={folder / model}"),
            f"--predictor_host={triton.grpc_address if over_grpc else triton.http_address}",
            *flags,
        ]
        environ = checkout.environ(variables()) if checkout else variables()
        self._deadline = time.monotonic() + READY_SECONDS
        self._ports: dict[str, int] = {}
        self.child = ChildProcess(command, environ, folder / f"{model} {time.monotonic_ns()}.log")

    def wait(self) -> Self:
        """Waits until the model is ready. Raises LoadError with the end of the log after READY_SECONDS."""
        seconds = self._deadline - time.monotonic()
        ready = poll(lambda: self.child.exit_code is not None or self._is_ready(), seconds)
        if not ready or self.child.exit_code is not None:
            raise LoadError(f"the service did not start:\n{self.child.output()[-4000:]}")
        return self

    def _is_ready(self) -> bool:
        match = re.search(LISTENING["HTTP"], self.child.output())
        return match is not None and is_ready(int(match[1]), f"/v1/models/{self.model}")

    @property
    def port(self) -> int:
        """The HTTP port, once the model is ready."""
        return self._port("HTTP")

    @property
    def grpc_port(self) -> int:
        """The gRPC port, once the model is ready."""
        return self._port("gRPC")

    def _port(self, api: str) -> int:
        if api not in self._ports:  # cached, because the log grows
            match = re.search(LISTENING[api], self.child.output())
            if match is None:
                raise LoadError(f"no port of {api} in the log:\n{self.child.output()[-4000:]}")
            self._ports[api] = int(match[1])
        return self._ports[api]

    def stop(self) -> None:
        """Ends the service."""
        self.child.terminate(30.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def cpu_seconds(child: ChildProcess) -> float:
    """User and system time of a child and of its live descendants."""
    total = 0.0
    for process in _processes(child):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def resident_bytes(child: ChildProcess) -> int:
    """Resident memory of a child and its descendants; each counts shared pages."""
    return sum(process.memory_info().rss for process in _processes(child))


def settle(children: Sequence[ChildProcess]) -> None:
    """Waits until the processes use no CPU, so that leftover work does not disturb the next run."""
    deadline = time.monotonic() + SETTLE_SECONDS
    before = [cpu_seconds(child) for child in children]
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = [cpu_seconds(child) for child in children]
        if all(after - earlier <= TICK_SECONDS * 1.5 for earlier, after in zip(before, now, strict=True)):
            return
        before = now


def _processes(child: ChildProcess) -> list[psutil.Process]:
    processes = []
    for pid in session_members(child.pid):
        try:
            processes.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    return processes
