"""Services forked from a process that has imported the package: importing takes most of the time of a start.

Tests of the process itself (signals, streams, workers, memory limits) start ``python -m hf_transformer``.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import orjson

from hf_transformer.commands.child_process import ChildProcess
from hf_transformer.commands.cli import main

ROOT = Path(__file__).parents[2]
IMPORTED = ("commands.serve", "app.application", "api.grpc.server", "server.run")
"""Modules that import all that a service imports while it starts."""
MAX_MESSAGE = 1 << 20


class Template:
    """The process that forks services. It ends with this one, and its services with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # With one thread, which fork copies alone.
        variables = {"PATH": os.environ["PATH"], "OPENBLAS_NUM_THREADS": "1", "GRPC_VERBOSITY": "NONE"}
        command = [sys.executable, "-W", "error", "-m", "tests.support.forking"]
        with theirs:
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), cwd=ROOT, env=variables)
        atexit.register(self.close)

    def ask(self, message: Any, *files: int) -> Any:
        with self._lock:
            socket.send_fds(self._socket, [orjson.dumps(message)], files)
            return orjson.loads(self._socket.recv(MAX_MESSAGE))

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


template = cache(Template)


class Forked:
    """A forked process, with the methods of ``subprocess.Popen`` that ``ChildProcess`` calls."""

    def __init__(self, flags: Sequence[str], environ: Mapping[str, str], log: int) -> None:
        self.pid: int = template().ask({"flags": flags, "environ": environ, "cwd": os.getcwd()}, log)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = template().ask(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None:
            ended = os.pidfd_open(self.pid)
            try:
                if not select.select([ended], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired("a forked service", timeout or 0.0)
            finally:
                os.close(ended)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedProcess(ChildProcess):
    """A service with these flags, like the ``ChildProcess`` of its command."""

    def __init__(self, flags: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self._start_of_log = output.tell()
            self._process = cast("subprocess.Popen[bytes]", Forked(flags, environ, output.fileno()))


def serve_forks(control: socket.socket) -> int:
    """Forks a process for each message with flags, and answers each process id with the exit code. Returns the code of
    ``main`` in a fork, 0 when the control socket closes."""
    parent = os.getpid()
    while True:
        data, files, _, _ = socket.recv_fds(control, MAX_MESSAGE, 1)
        if not data:
            return 0
        message = orjson.loads(data)
        if isinstance(message, int):
            ended, status = os.waitpid(message, os.WNOHANG)
            control.send(orjson.dumps(os.waitstatus_to_exitcode(status) if ended else None))
            continue
        child = os.fork()
        if child:
            os.close(files[0])
            control.send(orjson.dumps(child))
            continue
        control.close()
        os.setsid()
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            return 1
        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), files[0], files[0])):
            os.dup2(file, number)
        os.close(files[0])
        os.chdir(message["cwd"])
        os.environ.clear()
        os.environ.update(message["environ"])
        sys.argv = ["hf_transformer", *message["flags"]]
        return main()


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(f"hf_transformer.{name}")
    with socket.socket(fileno=os.dup(0)) as connection:
        sys.exit(serve_forks(connection))
