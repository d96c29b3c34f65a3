"""The supervisor of workers: signals that come at a bad time, workers that hang or die again and again. The process's
own limit of descriptors."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.server.run import Server
from hf_transformer.server.workers import LONGEST_PAUSE, STEADY, Worker, serves
from tests.integration.server.processes import SECONDS

pytestmark = pytest.mark.slow

NOTHING: Any = None
PROGRAM = """
import asyncio, logging, os, signal, socket, time
from hf_transformer.server import workers
from hf_transformer.server.signals import handle_signals
from hf_transformer.server.asgi import AsgiApplication
from hf_transformer.server.http import ClientLimits
from hf_transformer.server.run import ServerConfig

async def app(scope, receive, send):
    assert scope["type"] == "lifespan"
    if HANGS:
        asyncio.get_running_loop().call_later(0.1, time.sleep, 1000)
    for step in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{step}.complete"})

def make_app():
    return AsgiApplication(None, app)

class Told(workers.Worker):
    started = 0

    def start(self):
        Told.started += 1
        if Told.started == WHICH and not AFTER:
            os.kill(os.getpid(), signal.SIGTERM)
        super().start()
        if Told.started == WHICH and AFTER:
            os.kill(os.getpid(), signal.SIGTERM)
        print(self.process.pid, flush=True)

if __name__ == "__main__":
    logging.basicConfig()
    workers.Worker = Told
    if HANGS:
        workers.HUNG = workers.LATE = 1.0
    limits = ClientLimits(connections=9, header_bytes=9, seconds=9.0, idle_seconds=9.0)
    config = ServerConfig(make_app, limits=limits, grace=1.0, certificate=None, clean_up=bool, workers=WORKERS)
    listening = socket.create_server(("127.0.0.1", 0))
    raise SystemExit(workers.Supervisor(config, [listening], handle_signals).run())
"""
"""Workers, and a signal at the WHICH-th start of one."""


def run(folder: Path, *, which: int, after: bool, workers: int, hangs: bool = False) -> tuple[list[str], str]:
    """Runs the PROGRAM to its end with 0. Returns the workers' process numbers and the log."""
    program = folder / "program.py"
    values = {"WHICH": which, "AFTER": after, "WORKERS": workers, "HANGS": hangs}
    program.write_text("\n".join(f"{name} = {value}" for name, value in values.items()) + PROGRAM)
    result = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=SECONDS, cwd=Path(__file__).parents[2]
    )
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    pids = result.stdout.split()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    return pids, result.stderr


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("which", [1, 2])
def test_a_signal_while_workers_are_started_ends_those_that_were(tmp_path: Path, which: int, after: bool) -> None:
    pids, _ = run(tmp_path, which=which, after=after, workers=3)
    assert len(pids) == which


def test_a_worker_whose_event_loop_hangs_is_replaced_and_killed_late_at_the_end(tmp_path: Path) -> None:
    pids, log = run(tmp_path, which=2, after=True, workers=1, hangs=True)
    assert len(pids) == 2
    assert f"worker {pids[0]} has died (exit code -9) and is replaced" in log


def test_pauses_between_workers_that_die_young(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    worker = Worker(NOTHING, [], lambda: None)
    assert worker.is_due()
    assert [worker.pause_after(1.0) for _ in range(7)] == [0.0, 0.5, 1.0, 2.0, 4.0, LONGEST_PAUSE, LONGEST_PAUSE]
    assert not worker.is_due()
    now[0] += LONGEST_PAUSE
    assert worker.is_due()
    assert [worker.pause_after(lived) for lived in (STEADY, 1.0)] == [0.0, 0.5]


async def test_it_is_the_event_loop_that_says_that_a_worker_serves() -> None:
    server, answers = Server(NOTHING), list[bool]()
    assert not serves(server), "before it serves it answers without an event loop"
    server.loop = asyncio.get_running_loop()
    asking = threading.Thread(target=lambda: answers.append(serves(server)))
    asking.start()
    asking.join(0.1)
    assert not answers, "the loop has not turned since"
    await asyncio.to_thread(asking.join)
    assert answers == [True]


LIMITING = """
import logging, resource, sys
from hf_transformer.commands.serve import OTHER_DESCRIPTORS, allow_descriptors
logging.basicConfig(format="%(message)s")
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 1000))
allow_descriptors(int(sys.argv[1]) - OTHER_DESCRIPTORS)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("wanted", "limits", "warns"),
    [(90, "(100, 1000)", False), (900, "(900, 1000)", False), (2000, "(1000, 1000)", True)],
)
def test_the_limit_is_lifted_as_far_as_it_may(wanted: int, limits: str, warns: bool) -> None:
    result = subprocess.run([sys.executable, "-c", LIMITING, str(wanted)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == limits
    assert ("limit of open files is only 1000" in result.stderr) is warns
