"""Signals before the server's coroutine runs, and while its event loop is being closed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.server.processes import SECONDS

SIGNALLED = """
import asyncio, os, signal, sys, threading, time
from hf_transformer.server.signals import handle_signals
from hf_transformer.server.asgi import AsgiApplication
from hf_transformer.server.http import ClientLimits
from hf_transformer.server.run import Server, ServerConfig

WHEN, LOOP = sys.argv[1:]

def signalled():
    os.kill(os.getpid(), signal.SIGTERM)

def slow():
    time.sleep(0.5)

async def app(scope, receive, send):
    assert scope["type"] == "lifespan"
    await receive()
    print("started", flush=True)
    await send({"type": "lifespan.startup.complete"})
    if WHEN == "closing":
        signalled()
    await receive()
    print("ended", flush=True)
    if WHEN == "closing":
        # The loop waits for its threads before it is closed: meanwhile the next one comes.
        asyncio.get_running_loop().run_in_executor(None, slow)
        threading.Timer(0.2, signalled).start()
    await send({"type": "lifespan.shutdown.complete"})

class Config(ServerConfig):
    def get_loop_factory(self):
        if WHEN == "before":
            signalled()
        return super().get_loop_factory()

handle_signals()
limits = ClientLimits(connections=9, header_bytes=9, seconds=9.0, idle_seconds=9.0)
host = {"host": "127.0.0.1", "port": 0, "loop": LOOP}
config = Config(lambda: AsgiApplication(None, app), limits=limits, grace=1.0, certificate=None, clean_up=bool, **host)
Server(config, impatient=False).run()
"""


@pytest.mark.parametrize(("when", "loop"), [("before", "asyncio"), ("closing", "uvloop")])
def test_the_server_ends_in_order(when: str, loop: str) -> None:
    program = [sys.executable, "-W", "always", "-c", SIGNALLED, when, loop]
    folder = Path(__file__).parents[3]
    result = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["started", "ended"]
    assert not any(word in result.stderr for word in ("Traceback", "RuntimeWarning", "never awaited")), result.stderr
