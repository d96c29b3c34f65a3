"""Programs as child processes that end with their parent: their start, log and end.

The module requires Linux and no third-party library.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hf_transformer.errors import LoadError

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

# Script that starts a child. PR_SET_PDEATHSIG (1) makes the kernel send SIGTERM when the parent thread ends, even by
# SIGKILL, and survives exec. A preexec_fn would be unsafe in a multithreaded parent. The check of the parent's id
# detects a parent that ended before prctl.
LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]): sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


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
