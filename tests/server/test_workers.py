"""The supervisor: signals during the start of workers, hung workers, and workers that die early. The limit of
descriptors."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.server.run import Server
from hf_transformer.server.workers import MAX_PAUSE_SECONDS, STABLE_SECONDS, Worker, is_serving
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

class SignallingWorker(workers.Worker):
    started = 0

    def start(self):
        SignallingWorker.started += 1
        if SignallingWorker.started == WHICH and not AFTER:
            os.kill(os.getpid(), signal.SIGTERM)
        super().start()
        if SignallingWorker.started == WHICH and AFTER:
            os.kill(os.getpid(), signal.SIGTERM)
        print(self.process.pid, flush=True)

if __name__ == "__main__":
    logging.basicConfig()
    workers.Worker = SignallingWorker
    if HANGS:
        workers.HUNG_SECONDS = workers.KILL_SECONDS = 1.0
    limits = ClientLimits(connections=9, header_bytes=9, seconds=9.0, idle_seconds=9.0)
    config = ServerConfig(make_app, limits=limits, grace=1.0, certificate=None, clean_up=bool, workers=WORKERS)
    listening = socket.create_server(("127.0.0.1", 0))
    raise SystemExit(workers.Supervisor(config, [listening], handle_signals).run())
"""
"""Runs a supervisor that gets a signal before or after the WHICH-th start of a worker."""


def run(folder: Path, *, which: int, after: bool, workers: int, hangs: bool = False) -> tuple[list[str], str]:
    """Runs the PROGRAM to its exit code of 0. Returns the workers' process numbers and the log."""
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
def test_a_signal_during_the_start_ends_the_started_workers(tmp_path: Path, which: int, after: bool) -> None:
    pids, _ = run(tmp_path, which=which, after=after, workers=3)
    assert len(pids) == which


def test_a_worker_with_a_blocked_event_loop_is_replaced_and_killed_at_shutdown(tmp_path: Path) -> None:
    pids, log = run(tmp_path, which=2, after=True, workers=1, hangs=True)
    assert len(pids) == 2
    assert f"worker {pids[0]} has died (exit code -9) and is replaced" in log


def test_pauses_grow_between_workers_that_die_early(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    worker = Worker(NOTHING, [], lambda: None)
    assert worker.is_due()
    assert [worker.pause_after(1.0) for _ in range(7)] == [
        0.0,
        0.5,
        1.0,
        2.0,
        4.0,
        MAX_PAUSE_SECONDS,
        MAX_PAUSE_SECONDS,
    ]
    assert not worker.is_due()
    now[0] += MAX_PAUSE_SECONDS
    assert worker.is_due()
    assert [worker.pause_after(lived) for lived in (STABLE_SECONDS, 1.0)] == [0.0, 0.5]


async def test_a_worker_answers_only_after_its_event_loop_turns() -> None:
    server, answers = Server(NOTHING), list[bool]()
    assert not is_serving(server), "before the start there is no event loop"
    server.loop = asyncio.get_running_loop()
    asking = threading.Thread(target=lambda: answers.append(is_serving(server)))
    asking.start()
    asking.join(0.1)
    assert not answers, "the loop has not turned yet"
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
def test_the_limit_of_descriptors_is_raised_up_to_the_hard_limit(wanted: int, limits: str, warns: bool) -> None:
    result = subprocess.run([sys.executable, "-c", LIMITING, str(wanted)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == limits
    assert ("limit of open files is only 1000" in result.stderr) is warns
