"""The supervisor of workers: signals that come at a bad time, workers that hang or die again and again."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hf_transformer.server.server import Server
from hf_transformer.server.settings import ClientLimits, ServerConfig

from hf_transformer.commands.local_triton import HOST
from hf_transformer.server.supervisor import LONGEST_PAUSE, STEADY, Place, answer_once
from tests.integration.server.processes import SECONDS

SIGNALLED_WHILE_STARTING = """
import os, signal, socket
from hf_transformer.server.signals import handle_signals
from hf_transformer.server.settings import ClientLimits, ServerConfig
from hf_transformer.server.supervisor import Supervisor

async def app(scope, receive, send):
    assert scope["type"] == "lifespan"
    for step in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{step}.complete"})

def make_app():
    return app

class Told(Supervisor):
    started = 0

    def _start(self):
        self.started += 1
        if self.started == WHICH and not AFTER:
            os.kill(os.getpid(), signal.SIGTERM)
        worker = super()._start()
        if self.started == WHICH and AFTER:
            os.kill(os.getpid(), signal.SIGTERM)
        print(worker.process.pid, flush=True)
        return worker

if __name__ == "__main__":
    limits = ClientLimits(connections=9, header_bytes=9, body_bytes=9, seconds=9.0, idle_seconds=9.0)
    config = ServerConfig(make_app, limits=limits, grace=1.0, certificate=None, clean_up=bool, workers=3)
    listening = socket.create_server(("127.0.0.1", 0))
    raise SystemExit(Told(config, [listening], handle_signals).run())
"""


@pytest.mark.parametrize(("which", "after", "workers"), [(1, True, 1), (2, True, 2)])
def test_a_signal_while_workers_are_started_ends_those_that_were(
    tmp_path: Path, which: int, after: bool, workers: int
) -> None:
    program = tmp_path / "program.py"
    program.write_text(SIGNALLED_WHILE_STARTING.replace("WHICH", str(which)).replace("AFTER", str(after)))
    result = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=SECONDS, cwd=Path(__file__).parents[2]
    )
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    pids = result.stdout.split()
    assert len(pids) == workers
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def server() -> Server:
    limits = ClientLimits(connections=9, header_bytes=9, body_bytes=9, seconds=9.0, idle_seconds=9.0)
    return Server(ServerConfig(object, limits=limits, grace=1.0, certificate=None, clean_up=bool, host=HOST))


async def test_it_is_the_event_loop_that_says_that_a_worker_lives() -> None:
    ours, theirs = multiprocessing.Pipe()
    asked = server()
    asked.loop = asyncio.get_running_loop()
    ours.send(True)
    answering = threading.Thread(target=answer_once, args=(asked, theirs))
    answering.start()
    answering.join(SECONDS)
    assert not answering.is_alive()
    assert not ours.poll(0)  # the loop has not turned since, and nobody speaks for it
    await asyncio.sleep(0)
    assert ours.poll(SECONDS) and ours.recv() is True


def test_before_it_serves_a_worker_lives_as_long_as_its_process() -> None:
    ours, theirs = multiprocessing.Pipe()
    ours.send(True)
    answer_once(server(), theirs)
    assert ours.poll(SECONDS) and ours.recv() is False


def test_a_worker_whose_loop_is_closed_says_nothing() -> None:
    ours, theirs = multiprocessing.Pipe()
    asked = server()
    asked.loop = asyncio.new_event_loop()
    asked.loop.close()
    ours.send(True)
    answer_once(asked, theirs)
    assert not ours.poll(0)


def test_pauses_between_workers_that_die_young(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    place = Place()
    assert [place.leave(1.0) for _ in range(7)] == [0.0, 0.5, 1.0, 2.0, 4.0, LONGEST_PAUSE, LONGEST_PAUSE]
    assert not place.is_due()
    now[0] += LONGEST_PAUSE
    assert place.is_due()
    assert [place.leave(lived) for lived in (STEADY, 1.0)] == [0.0, 0.5]
