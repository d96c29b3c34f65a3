"""A program that we start, watch and certainly end: Triton and the service in the demo and in the tests.

Linux only, standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# Runs first in the new process. PR_SET_PDEATHSIG (1) asks the kernel to send SIGTERM when the thread that started
# us is gone, even by SIGKILL; it survives the exec. A preexec_fn would do the same, but isn't safe in a parent that
# has threads. The second line closes the gap between fork and prctl.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]): sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""

POLL_SECONDS = 0.02


class ChildProcess:
    """One child in a session of its own, its output in a log file.

    A session of its own means that Ctrl-C in the terminal reaches us and not the child, so we choose the order in
    which things end; and that every process the child starts can be found again, even when the child was killed.
    Should we be killed ourselves, the child gets SIGTERM from the kernel. For that, start it from a thread that lives
    as long as the child shall, best the main thread.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        """Start ``command`` with exactly the variables of ``environ``; append stdout and stderr to ``log``."""
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        self._log = log
        with log.open("ab") as output:
            self._start_of_log = output.tell()
            self._process = subprocess.Popen(
                [*launcher, *command],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id, which is also the id of the child's session."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative is the number of the signal that ended it."""
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        """Wait for its end, at most ``seconds``; True when it has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def terminate(self, grace_seconds: float) -> None:
        """SIGTERM, SIGKILL after ``grace_seconds``, then the end of everything that is left of its session."""
        try:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)  # a suspended child takes its SIGTERM only then
            self.wait(grace_seconds)
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL the child and everything that is left of its session; returns when all of them are gone."""
        self._process.kill()
        self._process.wait()
        poll(lambda: not self._kill_session(), seconds=10.0)

    def suspend(self) -> None:
        """SIGSTOP; returns when every thread stands still. The processes that the child started go on."""
        self._process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")
        poll(lambda: all(_state(task / "stat") == "T" for task in tasks.iterdir()), seconds=10.0)

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def output(self) -> str:
        """All that the child has written since it was started."""
        with self._log.open("rb") as log:
            log.seek(self._start_of_log)
            return log.read().decode("utf-8", "replace")

    def output_tail(self, lines: int = 30) -> str:
        """The last lines that the child has written."""
        return "\n".join(self.output().splitlines()[-lines:])

    def _kill_session(self) -> list[int]:
        members = session_members(self.pid)
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it ended meanwhile
                continue
        return members


def session_members(session: int) -> list[int]:
    """The ids of the processes of a session that still run; zombies, which only wait to be reaped, are left out."""
    members = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            fields = _stat_fields(folder / "stat")
            if fields and fields[0] not in "ZX" and int(fields[3]) == session:
                members.append(int(folder.name))
    return members


def poll(condition: Callable[[], bool], seconds: float) -> bool:
    """Ask until ``condition`` holds or ``seconds`` are over; returns its last answer."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return answer


def _state(stat: Path) -> str | None:
    fields = _stat_fields(stat)
    return fields[0] if fields else None


def _stat_fields(stat: Path) -> list[str]:
    """Fields of a /proc stat file from the third on (state, parent, group, session); empty when it is gone."""
    try:
        text = stat.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The second field, the program's name in brackets, may itself hold spaces and brackets.
    return text.rpartition(")")[2].split()
