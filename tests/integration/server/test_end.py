"""The service as a process: signals, its end, and its workers'. tests/server/test_workers.py has the supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hf_transformer.commands.child_process import poll
from tests.integration.server.processes import MODEL_FOLDER, PID, exit_code_of, service_with, signal_to, started
from tests.support.polling import SECONDS
from tests.support.raw_http import all_responses, connected, get, next_response, unfinished
from tests.support.service import Service

NEVER = "--grace_period_seconds=1000"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_draining_service_is_not_ready_at_once_and_answers_until_its_end(number: signal.Signals) -> None:
    with service_with(NEVER) as service, connected(service.wait_until("/")) as client, connected(service) as idle:
        assert next_response(idle, get("/")).status == 200
        asked = get("/v2/health/ready")
        client.sendall(asked[:-2])
        assert poll(lambda: service.metric("process_open_fds") > 0, SECONDS)  # what was sent before has been read
        signal_to(service, number)
        assert all_responses(idle) == []
        client.sendall(asked[-2:])
        [answer] = all_responses(client)
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert b"the service is shutting down" in answer.body
        assert exit_code_of(service) == 0


def test_what_does_not_finish_is_answered_at_the_end_of_the_grace() -> None:
    with service_with("--grace_period_seconds=0.5", "--workers=2") as service:
        with connected(service.wait_until("/")) as client:
            client.sendall(unfinished() + b"1")
            with connected(service) as other:  # once it is answered, the first one is being worked on, or its end was
                assert next_response(other, get("/")).status == 200
            signal_to(service, signal.SIGTERM)
            for answer in all_responses(client):  # or there is none
                assert (answer.status, "the service is shutting down" in answer.error) == (503, True)
        assert exit_code_of(service) == 0


def test_a_second_signal_ends_it_at_once() -> None:
    """Tests of shared memory send a second SIGTERM to a service with workers."""
    with service_with(NEVER) as service, connected(service.wait_until("/")) as client:
        client.sendall(unfinished("Expect: 100-continue"))
        assert client.recv(1024).startswith(b"HTTP/1.1 100")  # so it is being worked on when the first signal comes

        def ended() -> bool:
            signal_to(service, signal.SIGINT)
            return service.process.exit_code is not None

        assert poll(ended, SECONDS)
        assert exit_code_of(service) == 128 + signal.SIGINT


def test_workers_that_die_are_replaced_and_end_with_a_supervisor_that_is_killed() -> None:
    """Workers that die one after the other are replaced after a pause, which is logged once."""
    with service_with("--workers=2") as service:
        for workers in range(2, 5):
            assert started(service, workers)
            os.kill(int(PID.findall(service.log)[-1]), signal.SIGKILL)
        assert started(service, 5)
        assert f"worker {PID.findall(service.log)[1]} has died (exit code -9) and is replaced" in service.log
        assert service.log.count("has died") - service.log.count("and is replaced") == 1
        assert service.log.count("soon after its start, like its predecessor") == 1
        signal_to(service, signal.SIGKILL)
        assert exit_code_of(service) == -signal.SIGKILL
        assert service.log.count("Finished server process") == 2


def test_a_signal_while_workers_start_ends_all_of_them() -> None:
    with service_with("--workers=3") as service:
        assert service.port
        assert poll(lambda: bool(PID.findall(service.log)), SECONDS)
        signal_to(service, signal.SIGTERM)
        assert exit_code_of(service) == 0  # with none of them left


def test_workers_that_can_not_start_end_the_service(tmp_path: Path) -> None:
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")
    predictor = ("--predictor_host=https://localhost:1", f"--predictor_ca_file={broken}")
    with Service(f"--model_dir={MODEL_FOLDER}", *predictor, "--enable_grpc=false", "--workers=2") as service:
        assert exit_code_of(service) == 1
        assert "a worker can't start: no certificate in" in service.log


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
def test_the_server_ends_in_order_at_a_signal_at_a_bad_time(when: str, loop: str) -> None:
    """Before its coroutine runs, or while its event loop is being closed."""
    program = [sys.executable, "-W", "always", "-c", SIGNALLED, when, loop]
    folder = Path(__file__).parents[3]
    result = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["started", "ended"]
    assert not any(word in result.stderr for word in ("Traceback", "RuntimeWarning", "never awaited")), result.stderr
