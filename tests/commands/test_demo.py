"""The demo as a user runs it: a subprocess that starts a real Triton and the service, answers, and clears away."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hf_transformer.commands.demo import ENVIRONMENT_VARIABLE, EXAMPLES, default_model_repository, free_port, parse
from hf_transformer.commands.local_triton import HOST, SHARED_MEMORY, poll, session_members
from hf_transformer.errors import LoadError
from hf_transformer.generation.task import ALL_TASKS
from tests.triton_environment import ROOT, triton_environment

ANSWER = '{"predictions":["paris"]}'
ANSWERS = {
    "fill_mask": ANSWER,
    "sequence_classification": '"label":"POSITIVE","score":0.97',
    "zero_shot_classification": '"labels":["sport",',
    "rerank": '[{"index":1,"score":0.85',
    "token_classification": '{"entity_group":"PER","score":0.969',
    "question_answering": '"answer":"Anna Smith"',
    "text_embedding": '{"predictions":[[0.0',
    "feature_extraction": '{"predictions":[[[[0.15',
    "text_generation": '"The capital of france is paris."',
    "text2text_generation": '[{"generated_text":"paris"}]',
}
"""A part of what each task's demo answers."""


class Demo:
    """A running demo; its temporary files are kept to one folder, so that what it leaves can be seen."""

    def __init__(self, folder: Path, *flags: str, cwd: Path = ROOT) -> None:
        self.folder = folder
        environment = triton_environment()
        variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)}
        if environment is not None:
            variables[ENVIRONMENT_VARIABLE] = str(environment)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "hf_transformer", "demo", *flags],
            env=variables,
            cwd=cwd,  # where Python finds the package
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.output = ""

    def read_until(self, text: str) -> None:
        """Read its output up to a line that holds ``text``."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.output += line
            if text in line:
                return
        raise AssertionError(f"no {text!r} in:\n{self.output}")

    def end(self) -> int:
        """Read the rest of its output; its exit code."""
        self.output += self.process.communicate(timeout=60)[0]
        return self.process.returncode

    @property
    def children(self) -> list[int]:
        """Triton and the service, each the leader of a session."""
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    def left_behind(self) -> list[Path]:
        """Files in its temporary folder and in /dev/shm."""
        return [*self.folder.iterdir(), *SHARED_MEMORY.glob(f"hf_transformer_{self.process.pid}_*")]


@contextmanager
def demo(folder: Path, *flags: str, cwd: Path = ROOT) -> Iterator[Demo]:
    running = Demo(folder, "--http_port=0", *flags, cwd=cwd)
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as pip installs it."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder)
    return folder


@pytest.mark.parametrize("task", ANSWERS)
def test_every_task_answers_from_an_installed_package(tmp_path: Path, installed: Path, task: str) -> None:
    """It leaves nothing. Every second one asks Triton over gRPC, fill_mask over REST."""
    protocol = ("v2", "grpc-v2")[list(ANSWERS).index(task) % 2]
    with demo(tmp_path, f"--task={task}", "--once", f"--predictor-protocol={protocol}", cwd=installed) as running:
        running.read_until("The service is ready")
        sessions = running.children
        assert len(sessions) == 2
        assert running.end() == 0, running.output
        lines = running.output.splitlines()
        answer = lines[lines.index("Answer:") + 1]
        assert answer == ANSWER if task == "fill_mask" else ANSWERS[task] in answer
        assert [member for session in sessions for member in session_members(session)] == []
        assert running.left_behind() == []


def test_every_task_has_an_example() -> None:
    assert EXAMPLES.keys() == ANSWERS.keys() == {task.name for task, _ in ALL_TASKS}


def test_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    """Out of the checkout, over gRPC to Triton."""
    with demo(tmp_path, "--predictor-protocol=grpc-v2") as running:
        running.read_until("Serving until Ctrl-C")
        # The curl line works as printed.
        url, body = re.findall(r"^curl (\S+) -d '(.+)'$", running.output, re.MULTILINE)[0]
        with urllib.request.urlopen(url, body.encode(), timeout=30) as answer:
            assert answer.read().decode() == ANSWER
        page = re.findall(r"in a browser, (http://\S+/),", running.output)[0]
        browser_s = urllib.request.Request(page, headers={"Accept": "text/html"})
        with urllib.request.urlopen(browser_s, timeout=30) as answer:
            assert answer.url == f"{page}playground"
        with urllib.request.urlopen(f"{page}docs", timeout=30) as answer:
            assert answer.status == 200
        sessions = running.children
        running.process.send_signal(signal.SIGINT)
        running.read_until("Stopping")
        running.process.send_signal(signal.SIGTERM)  # an impatient second signal
        assert running.end() == 0, running.output
        assert [member for session in sessions for member in session_members(session)] == []
        assert running.left_behind() == []


def test_ended_before_the_answer_is_no_success(tmp_path: Path) -> None:
    with demo(tmp_path, "--once") as running:
        running.read_until("Starting Triton")
        running.process.send_signal(signal.SIGINT)
        assert running.end() == 130, running.output
        assert "Stopped before there was an answer" in running.output
        assert running.left_behind() == []


@pytest.mark.parametrize(
    ("program", "name"),
    [("--model-repository=", "Triton"), ("--model_name=", "the service")],
    ids=["triton", "service"],
)
def test_says_which_process_died(tmp_path: Path, program: str, name: str) -> None:
    with demo(tmp_path) as running:
        running.read_until("Serving until Ctrl-C")
        sessions = running.children
        (victim,) = (pid for pid in sessions if program in Path(f"/proc/{pid}/cmdline").read_text())
        os.kill(victim, signal.SIGKILL)
        assert running.end() == 1, running.output
        assert f"The demo failed: {name} ended with exit code -9. The end of its log:" in running.output
        assert poll(lambda: not any(session_members(session) for session in sessions), seconds=30)
        assert running.left_behind() == []


def test_the_next_port_where_one_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert port < free_port(port) < port + 100
    assert free_port(port) == port
    with socket.socket() as taken:
        taken.bind((HOST, 65535))
        taken.listen()
        with pytest.raises(LoadError, match="the ports from 65535 on are all taken"):
            free_port(65535)


def test_flags() -> None:
    environ = {ENVIRONMENT_VARIABLE: "/triton"}
    settings = parse(["--http-port", "0", "--predictor_protocol=grpc-v2", "--once"], environ)
    assert (settings.http_port, settings.predictor_protocol, settings.once) == (0, "grpc-v2", True)
    assert settings.triton_environment == Path("/triton")
    assert parse(["--triton_environment=/other"], environ).triton_environment == Path("/other")
    assert parse([], {}).http_port == 8080
    assert [parse(flags, {}).task for flags in ([], ["--task=ner"])] == ["fill_mask", "token_classification"]
    for example in EXAMPLES.values():
        assert (default_model_repository() / example.model / "config.pbtxt").is_file()


@pytest.mark.parametrize(
    "flag", ["--http_port=x", "--http_port=65536", "--predictor_protocol=v1", "--task=x", "--other"]
)
def test_bad_flags(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([flag], {})
    assert ended.value.code == 2
    assert "hf-transformer demo: error: " in capsys.readouterr().err
