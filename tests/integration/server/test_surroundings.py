"""What surrounds the process: standard streams that are closed, full or not read, and few file descriptors."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.loopback import HOST, reserved_port
from tests.integration.conftest import Serve
from tests.integration.server.processes import MODEL_FOLDER, NOBODY, PID, SECONDS
from tests.support.raw_http import get

LINES, LONG = 8_000, 500
"""Lines of a log, and characters of each: together four times the backlog."""


@contextmanager
def shell(
    words: str, *flags: str, log: Path, stdout: int | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A service that a shell has started with these words before and after; its URL."""
    with reserved_port() as port:
        command = [sys.executable, "-m", "hf_transformer", "--model_name=bert", f"--model_dir={MODEL_FOLDER}"]
        command += [f"--predictor_host={NOBODY}", f"--host={HOST}", f"--http_port={port}", "--grpc_port=0", *flags]
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", words.format(" ".join(command))], stdout=file if stdout is None else stdout, stderr=file
            )
        try:
            yield process, f"http://{HOST}:{port}"
        finally:
            process.kill()
            process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5.0, trust_env=False, verify=False).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    "words",
    ["exec {} <&- >&- 2>&-", "exec {} 2>&-", "exec {} > /dev/full 2>&1"],
    ids=["all closed", "no stderr", "a full disk"],
)
def test_the_service_serves_and_ends_with_closed_or_full_standard_streams(words: str, tmp_path: Path) -> None:
    """The service serves, says nothing of it, and ends with 0."""
    with shell(words, '--access_log_format="%(r)s"', log=tmp_path / "log") as (process, url):
        assert poll(lambda: answers(url), SECONDS)
        if "full" in words:
            lost = re.compile(r"^hf_transformer_lost_log_lines_total [1-9]", re.MULTILINE)
            assert poll(
                lambda: bool(lost.search(httpx.get(f"{url}/metrics", trust_env=False, verify=False).text)), SECONDS
            )
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_command_with_a_full_stdout_says_so_and_exits_1(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hf_transformer", "--help=all"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "hf-transformer: error: can't write the output: No space left on device\n"


def test_a_sleeping_reader_of_the_log_blocks_nothing(tmp_path: Path) -> None:
    """Nothing waits for it. Some lines are lost and counted; the service ends with 0 although it still sleeps."""
    read, write = os.pipe()
    with shell("exec {}", "--access_log_format='%(r)s'", log=tmp_path / "log", stdout=write) as (process, url):
        os.close(write)
        assert poll(lambda: answers(url), SECONDS)
        with connected_to(url) as client:
            sent = get(f"/{'a' * LONG}")
            for _ in range(LINES // 500):
                client.sendall(sent * 500)
                seen = 0
                while seen < 500:
                    seen += client.recv(2**20).count(b"HTTP/1.1 404")
        text = httpx.get(f"{url}/metrics", trust_env=False, verify=False).text
        lost = re.search(r"^hf_transformer_lost_log_lines_total (\S+)", text, re.MULTILINE)
        assert lost is not None and 0 < float(lost[1]) < LINES
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    os.close(read)


@contextmanager
def connected_to(url: str) -> Iterator[socket.socket]:
    with socket.create_connection((HOST, int(url.rpartition(":")[2])), SECONDS) as client:
        yield client


@pytest.mark.parametrize("descriptors", [10, 40])
def test_too_few_descriptors_stop_the_start(descriptors: int, tmp_path: Path) -> None:
    with shell(f"ulimit -n {descriptors}; exec {{}}", log=tmp_path / "log") as (process, _):
        assert process.wait(SECONDS) == 2
    [line] = [one for one in (tmp_path / "log").read_text().splitlines() if "error" in one]
    assert f"expected a limit of at least 64 open files, got {descriptors}; raise it with ulimit -n" in line


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_connections_beyond_the_descriptors_are_logged_once_and_taken_later(loop: str, tmp_path: Path) -> None:
    """The log says once that they can't be taken; they are served when others are closed."""
    words, log = "ulimit -n 100; exec {}", tmp_path / "log"
    with shell(words, f"--event_loop={loop}", "--client_timeout_seconds=2", log=log) as (process, url):
        assert poll(lambda: answers(url), SECONDS)
        with ExitStack() as stack:
            clients = [stack.enter_context(connected_to(url)) for _ in range(120)]
            assert poll(lambda: "no connection can be taken: Too many open files" in log.read_text(), SECONDS)
            clients[-1].sendall(get("/"))
            for each in clients[:-1]:
                each.close()
            assert clients[-1].recv(2**16).startswith(b"HTTP/1.1 200")
        assert poll(lambda: answers(url), SECONDS)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    assert log.read_text().count("no connection can be taken") == 1
    assert "Traceback" not in log.read_text()


def test_a_worker_that_is_replaced_answers_nothing_with_503(serve: Serve) -> None:
    """While the other one is ready, and the predictor takes its time to say what model it has."""
    with serve.own("bert", "v2", "--workers=2") as service:
        service.wait_until("/v1/models/bert")
        assert poll(lambda: service.log.count("startup complete") == 2, SECONDS)
        seen: list[int] = []
        os.kill(int(PID.findall(service.log)[0]), signal.SIGKILL)
        ends = time.monotonic() + SECONDS
        more = 0
        while time.monotonic() < ends and more < 200:
            try:
                seen.append(service.client.get(f"{service.url}/v1/models/bert").status_code)
            except httpx.TransportError:  # it was in the accept queue of the dead one
                continue
            more += service.log.count("startup complete") == 3
        assert more == 200 and set(seen) == {200}
