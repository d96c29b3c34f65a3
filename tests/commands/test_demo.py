"""The demo with a real tritonserver: both start, explain failures, and leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hf_transformer.commands.child_process import poll, session_members
from hf_transformer.commands.demo import (
    ENVIRONMENT_VARIABLE,
    default_model_repository,
    demos,
    next_free_port,
    own_entry,
    parse,
    run,
)
from hf_transformer.commands.local_triton import SHARED_MEMORY, LocalTriton
from hf_transformer.commands.loopback import HOST, exchange, reserved_port, reserved_ports
from hf_transformer.commands.triton_installation import find_triton
from hf_transformer.errors import LoadError
from hf_transformer.generation.task import ALL_TASKS
from tests.support.triton_environment import ROOT, triton_environment
from tests.support.triton_repository import lay_out, task_model_folder

ENVIRONMENT = triton_environment()

CONFIG = """
backend: "python"
input [{ name: "x" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [-1] }]
"""
DOUBLE = """
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb.InferenceResponse([pb.Tensor("y", 2 * x)]) for x in inputs]
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a model that doubles and a model that fails to load."""
    for name, code in {"double": DOUBLE, "broken": "raise RuntimeError('no weights here')"}.items():
        folder = tmp_path / "models" / name
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(CONFIG)
        (folder / "1" / "model.py").write_text(code)
    return tmp_path / "models"


def double(triton: LocalTriton) -> object:
    """The model's output for 1 and 2."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}
    status, body = exchange(triton.http_port, "/v2/models/double/infer", json.dumps({"inputs": [tensor]}), seconds=30)
    assert status == 200, body
    return json.loads(body)["outputs"][0]["data"]


def backend_folder(session: int) -> Path:
    """The temporary folder, which holds the stub's program."""
    programs = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode() for pid in session_members(session)]
    return next(Path(name).parents[2] for name in programs if name.endswith("stub"))


def test_triton_restarts_and_leaves_nothing(repository: Path) -> None:
    """It serves, hangs, resumes, is killed, restarts on its ports, and stops while it hangs."""
    with LocalTriton(repository, environment=ENVIRONMENT, models=["double"]) as triton:
        assert double(triton) == [2.0, 4.0]
        assert exchange(triton.http_port, "/v2/models/broken/ready")[0] == 400, "Triton loads the wanted model only"
        assert "nv_inference_count" in exchange(triton.metrics_port, "/metrics")[1]
        session, ports = triton.child.pid, (triton.http_port, triton.grpc_port, triton.metrics_port)
        assert len(session_members(session)) == 2, "Triton and the model's stub"
        assert list(SHARED_MEMORY.glob(f"{triton.prefix}*"))

        triton.child.suspend()
        with pytest.raises(TimeoutError):
            exchange(triton.http_port, "/v2/health/live", seconds=0.2)
        triton.child.resume()
        assert double(triton) == [2.0, 4.0]

        triton.kill()
        assert triton.child.exit_code == -signal.SIGKILL
        assert session_members(session) == []
        assert list(SHARED_MEMORY.glob(f"{triton.prefix}*")) == []
        with pytest.raises(ConnectionRefusedError):
            exchange(triton.http_port, "/v2/health/live")

        triton.restart()
        assert (triton.http_port, triton.grpc_port, triton.metrics_port) == ports
        assert triton.child.pid != session
        assert double(triton) == [2.0, 4.0]
        triton.child.suspend()
        session, folder = triton.child.pid, backend_folder(triton.child.pid)
    assert [*session_members(session), *SHARED_MEMORY.glob(f"{triton.prefix}*")] == []
    assert not folder.exists()


def test_a_failed_load_quotes_the_log(repository: Path) -> None:
    triton = LocalTriton(repository, environment=ENVIRONMENT, models=["double", "broken"])
    with pytest.raises(LoadError, match=r"(?s)exit code 1.*RuntimeError: no weights here"):
        triton.start()
    assert not list(SHARED_MEMORY.glob(f"{triton.prefix}*"))


def bind(port: int, *options: int) -> None:
    with socket.socket() as server:
        for option in options:
            server.setsockopt(socket.SOL_SOCKET, option, 1)
        server.bind((HOST, port))
        server.listen()


def test_a_reserved_port_is_bound_only_by_number() -> None:
    """A server can bind a reserved port by its number; a bind to port 0 never gets it."""
    with reserved_ports(3) as ports:
        assert len(set(ports)) == 3
        for port in ports:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((HOST, port))
            with pytest.raises(OSError, match="already in use"):
                bind(port)
            for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                bind(port, option)
            with reserved_port(port) as again:
                assert again == port


def test_ports_of_a_stopped_triton_stay_reserved(repository: Path) -> None:
    with LocalTriton(repository, environment=ENVIRONMENT, models=[]) as triton:
        ports = (triton.http_port, triton.grpc_port, triton.metrics_port)
        triton.kill()
        for port in ports:
            with pytest.raises(OSError, match="already in use"):
                bind(port)
        triton.restart()
        assert exchange(triton.http_port, "/v2/health/live")[0] == 200


def test_triton_ends_when_its_parent_is_killed(repository: Path) -> None:
    code = (
        "import sys, pathlib, signal; from hf_transformer.commands.local_triton import LocalTriton\n"
        "triton = LocalTriton(pathlib.Path(sys.argv[1]), models=['double'],\n"
        "    environment=pathlib.Path(sys.argv[2]) if sys.argv[2] else None)\n"
        "triton.start(); print(triton.child.pid, triton.prefix, flush=True); signal.pause()"
    )
    command = [sys.executable, "-c", code, str(repository), str(ENVIRONMENT or "")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout
        session, prefix = parent.stdout.readline().split()
        folder = backend_folder(int(session))
        parent.kill()
    assert poll(lambda: not session_members(int(session)), seconds=30), "Triton outlives its parent"
    assert not list(SHARED_MEMORY.glob(f"{prefix}*"))
    for path in sorted(folder.rglob("*"), reverse=True):  # the killed parent could not
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def test_a_program_on_path_runs_as_it_is(tmp_path: Path) -> None:
    program = tmp_path / "tritonserver"
    with pytest.raises(LoadError, match=r"found no tritonserver.*pip install .*\[demo\]'"):
        find_triton(None, {"PATH": str(tmp_path)})
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    triton = find_triton(None, {"PATH": str(tmp_path), "PYTHONPATH": "/x"})
    assert triton.program == [str(program)] and triton.stub is None
    assert triton.variables["PATH"] == str(tmp_path) and "PYTHONPATH" not in triton.variables


def whole_triton(folder: Path) -> Path:
    """A folder with a bin/tritonserver that needs nothing else, as in Triton's image: here a script that starts the one
    of the wheel."""
    found = find_triton(ENVIRONMENT, {"PATH": os.environ["PATH"]})
    assert found.stub is not None
    backend = folder / "backends" / "python"
    shutil.copytree(found.stub.parents[2] / "backends" / "python", backend)
    shutil.copy(found.stub, backend)
    program = folder / "bin" / "tritonserver"
    program.parent.mkdir()
    options = [f"--backend-directory={backend.parent}", "--model-config-name=python"]
    path = f"PATH={shlex.quote(found.variables['PATH'])}"
    program.write_text(f'#!/bin/sh\n{path} exec {shlex.join([*found.program, *options])} "$@"\n')
    program.chmod(0o755)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("part", ["", "bin/tritonserver"], ids=["folder", "program"])
def test_a_whole_triton_is_named_by_its_folder_or_program(part: str, repository: Path, tmp_path: Path) -> None:
    where = whole_triton(tmp_path / "opt") / part
    with LocalTriton(repository, environment=where, models=["double"], environ=dict(os.environ)) as triton:
        assert triton.description.endswith("/opt/bin/tritonserver")
        assert double(triton) == [2, 4]


def test_the_python_of_an_environment_comes_first() -> None:
    triton = find_triton(ENVIRONMENT, {"PATH": "/bin", "LD_LIBRARY_PATH": "/lib"})
    assert re.fullmatch("/.+/bin:/bin", triton.variables["PATH"])
    assert triton.program[1].startswith("LD_LIBRARY_PATH=") and triton.program[1].endswith(":/lib")


def test_an_unfit_environment_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"^--triton_environment: .*nor a virtual environment.*pip install"):
        find_triton(tmp_path / "missing", {})
    made = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    with pytest.raises(LoadError, match=r"^--triton_environment: nvidia-pytriton is not installed in.*pip install"):
        find_triton(made, {})
    # With numpy 2 Triton's Python models return empty tensors and status 200.
    packages = next((made / "lib").glob("python*/site-packages"))
    for folder, file, text in (
        ("pytriton", "__init__.py", ""),
        ("numpy-2.4.0.dist-info", "METADATA", "Metadata-Version: 2.1\nName: numpy\nVersion: 2.4.0\n"),
    ):
        (packages / folder).mkdir()
        (packages / folder / file).write_text(text)
    with pytest.raises(LoadError, match=r"numpy 2\.4\.0.*/venv/bin/pip install 'numpy<2', or .* --triton_environment$"):
        find_triton(made, {})


@pytest.mark.parametrize("is_here", [False, True], ids=["elsewhere", "in a checkout"])
def test_without_a_triton_the_flag_and_its_value_are_named(
    is_here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if is_here:
        (tmp_path / ".venv-triton" / "bin").mkdir(parents=True)
        (tmp_path / ".venv-triton" / "bin" / "python").touch()
    with pytest.raises(LoadError, match=r"found no tritonserver.*numpy below 2 by --triton_environment=PATH") as caught:
        find_triton(None, {"PATH": str(tmp_path)})
    assert ("such as .venv-triton, which is here" in str(caught.value)) is is_here


def test_a_repository_without_the_demo_model_is_refused_before_triton_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([f"--model_repository={tmp_path}", "--task=rerank", "--once"], {}) == 1
    output = capsys.readouterr()
    assert "Starting" not in output.out
    assert f"--model_repository={tmp_path}: expected Triton's model repository with cross" in output.err
    assert "--model_dir=PATH" in output.err


# The demo as a subprocess, as users run it.

ANSWER = '{"predictions":["paris"]}'
ANSWERS = {
    "fill_mask": ANSWER,
    "sequence_classification": '"label":"POSITIVE","score":0.97',
    "zero_shot_classification": '"labels":["sport",',
    "zero_shot_token_classification": '"text":"Anna Smith","label":"person"',
    "rerank": '[{"index":1,"score":0.85',
    "token_classification": '{"entity_group":"PER","score":0.969',
    "question_answering": '"answer":"Anna Smith"',
    "text_embedding": '{"predictions":[[0.0',
    "feature_extraction": '{"predictions":[[[[0.15',
    "text_generation": '"The capital of france is paris."',
    "text2text_generation": '[{"generated_text":"paris"}]',
}
"""A part of each demo's answer."""


class Demo:
    """A running demo with its temporary files in one folder, so that tests see leftovers."""

    def __init__(self, folder: Path, *flags: str, cwd: Path = ROOT) -> None:
        self.folder = folder
        variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)}
        if ENVIRONMENT is not None:
            variables[ENVIRONMENT_VARIABLE] = str(ENVIRONMENT)
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
        """Read its output up to a line with ``text``."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.output += line
            if text in line:
                return
        raise AssertionError(f"no {text!r} in:\n{self.output}")

    def end(self) -> int:
        """Read the rest of its output; return its exit code."""
        assert self.process.stdout
        self.output += self.process.stdout.read()  # communicate() would miss buffered lines
        return self.process.wait(60)

    @property
    def children(self) -> list[int]:
        """The process ids of Triton and the service, which are session leaders."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in listed.split()]

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


ONCE = [("all", "grpc-v2", True), ("rerank", "v2", True), ("fill_mask", "v2", False)]
"""A task, a protocol, and whether the demo runs from an installed package or the checkout."""


@pytest.mark.parametrize(("task", "protocol", "packed"), ONCE)
def test_once_prints_the_answer_and_leaves_nothing(
    tmp_path: Path, installed: Path, task: str, protocol: str, packed: bool
) -> None:
    folder = installed if packed else ROOT
    with demo(tmp_path, f"--task={task}", "--once", f"--predictor-protocol={protocol}", cwd=folder) as running:
        running.read_until("The service is ready")
        sessions = running.children
        assert len(sessions) == 2
        assert running.end() == 0, running.output
        lines = running.output.splitlines()
        answers = [lines[number + 1] for number, line in enumerate(lines) if line == "Answer:"]
        wanted = [ANSWERS[each] for each in demos() if task in (each, "all")]
        assert all(part in answer for part, answer in zip(wanted, answers, strict=True)), answers
        assert answers[0] == ANSWER or task == "rerank"
        assert [member for session in sessions for member in session_members(session)] == []
        assert running.left_behind() == []


@pytest.fixture
def own_model(tmp_path: Path) -> Path:
    """A folder as hf-transformer export writes it, outside of any repository with other models."""
    folder = tmp_path / "own" / "mine"
    shutil.copytree(default_model_repository() / "nli", folder)
    (folder / "config.pbtxt").write_text((folder / "configs" / "python.pbtxt").read_text().replace("nli", "mine"))
    shutil.rmtree(folder / "configs")
    config = json.loads((folder / "config.json").read_text())
    del config["playground"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("flags", "request_body", "answer"),
    [
        ([], '{"instances": ["The hotel was wonderful."]}', '{"predictions":['),
        (["--task=zero-shot-classification"], '{"instances": ["The team won the match."], "parameters":', '["sport",'),
    ],
    ids=["task of config.json", "another task"],
)
def test_an_own_model_is_shown(
    tmp_path: Path, own_model: Path, flags: list[str], request_body: str, answer: str
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with demo(temporary, f"--model_dir={own_model}", "--once", *flags) as running:
        assert running.end() == 0, running.output
        lines = running.output.splitlines()
        asked = lines.index("Request: POST /v1/models/mine:predict")
        assert lines[asked + 1].startswith(request_body)
        assert lines[asked + 2] == "Answer:" and answer in lines[asked + 3]
        assert running.left_behind() == []


@pytest.fixture
def own_bi_encoder(tmp_path: Path) -> Path:
    """Both folders of a bi-encoder as hf-transformer export writes them."""
    names = ["gliner_bi", "gliner_bi_labels"]
    lay_out(tmp_path / "own", names)
    shutil.copytree(task_model_folder(names[0]), tmp_path / "own" / names[0], dirs_exist_ok=True)
    return tmp_path / "own" / names[0]


def test_an_own_bi_encoder_is_shown_with_its_model_of_labels(tmp_path: Path, own_bi_encoder: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with demo(temporary, f"--model_dir={own_bi_encoder}", "--once") as running:
        assert running.end() == 0, running.output
        lines = running.output.splitlines()
        assert lines[lines.index("Answer:") + 1].startswith('{"predictions":[[{"start":')


def test_a_bi_encoder_without_its_model_of_labels_is_refused(own_bi_encoder: Path) -> None:
    assert own_entry(own_bi_encoder, None)["labels_model"] == "gliner_bi_labels"
    shutil.rmtree(own_bi_encoder.with_name("gliner_bi_labels"))
    with pytest.raises(LoadError, match="expected its model of labels beside it, gliner_bi_labels"):
        own_entry(own_bi_encoder, None)


def test_the_command_of_an_own_model_is_for_a_shell(tmp_path: Path, own_model: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    config = json.loads((own_model / "config.json").read_text())
    example = {"instances": ["The hotel wasn't good."]}
    (own_model / "config.json").write_text(json.dumps(config | {"playground": {"examples": [example]}}))
    with demo(temporary, f"--model_dir={own_model}") as running:
        running.read_until("Serving until Ctrl-C")
        command = shlex.split(next(line for line in running.output.splitlines() if line.startswith("curl ")))
        assert json.loads(command[-1]) == example
        running.process.send_signal(signal.SIGINT)
        assert running.end() == 0, running.output


def test_an_unfit_folder_is_refused_with_a_remedy(tmp_path: Path, own_model: Path) -> None:
    assert own_entry(own_model, "ner") == {"model_name": "mine", "model_dir": str(own_model), "task": "ner"}
    with pytest.raises(LoadError, match=r"there is no such folder"):
        own_entry(tmp_path / "missing", None)
    with pytest.raises(LoadError, match=r"has no config\.pbtxt: name one of its models, mine$"):
        own_entry(own_model.parent, None)
    (own_model / "tokenizer.json").unlink()
    with pytest.raises(LoadError, match=r"no tokenizer files in .*mine"):
        own_entry(own_model, None)
    shutil.rmtree(own_model / "1")
    with pytest.raises(LoadError, match=r"has no version of the model, such as 1/model\.onnx"):
        own_entry(own_model, None)
    (own_model / "config.pbtxt").unlink()
    with pytest.raises(LoadError, match=r"has no config\.pbtxt: hf-transformer export --model_id=.*/mine --output"):
        own_entry(own_model, None)


@pytest.mark.parametrize("flag", ["--task=all", "--model_repository=other"])
def test_an_own_model_is_the_only_one(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--model_dir=mine", flag], {})
    assert ended.value.code == 2
    assert f"--model_dir shows one model, so it contradicts {flag.removesuffix('=other')}" in capsys.readouterr().err


def test_every_task_has_an_example() -> None:
    assert demos().keys() == ANSWERS.keys() == {task.name for task, _ in ALL_TASKS}


def test_serves_until_a_signal(tmp_path: Path) -> None:
    """Runs from the checkout, with gRPC to Triton."""
    with demo(tmp_path, "--predictor-protocol=grpc-v2") as running:
        running.read_until("Serving until Ctrl-C")
        # The curl line works as printed.
        url, body = re.findall(r"^curl (\S+) -d '(.+)'$", running.output, re.MULTILINE)[0]
        with urllib.request.urlopen(url, body.encode(), timeout=30) as answer:
            assert answer.read().decode() == ANSWER
        page = re.findall(r"in a browser at (http://\S+/),", running.output)[0]
        browser_request = urllib.request.Request(page, headers={"Accept": "text/html"})
        with urllib.request.urlopen(browser_request, timeout=30) as answer:
            assert answer.url == f"{page}playground"
        with urllib.request.urlopen(f"{page}docs", timeout=30) as answer:
            assert answer.status == 200
        rebound = urllib.request.Request(f"{page}docs", headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(rebound, timeout=30)
        sessions = running.children
        running.process.send_signal(signal.SIGINT)
        running.read_until("Stopping")
        running.process.send_signal(signal.SIGTERM)  # an impatient second signal
        assert running.end() == 0, running.output
        assert [member for session in sessions for member in session_members(session)] == []
        assert running.left_behind() == []


def test_an_interruption_before_the_answer_exits_with_130(tmp_path: Path) -> None:
    with demo(tmp_path, "--once") as running:
        running.read_until("Starting Triton")
        running.process.send_signal(signal.SIGINT)
        assert running.end() == 130, running.output
        assert "Stopped before the answer" in running.output
        assert running.left_behind() == []


@pytest.mark.parametrize(
    ("program", "name"),
    [("--model-repository=", "Triton"), ("--model_name=", "the service")],
    ids=["triton", "service"],
)
def test_a_dead_process_is_named(tmp_path: Path, program: str, name: str) -> None:
    with demo(tmp_path) as running:
        running.read_until("Serving until Ctrl-C")
        sessions = running.children
        (victim,) = (pid for pid in sessions if program in Path(f"/proc/{pid}/cmdline").read_text())
        os.kill(victim, signal.SIGKILL)
        assert running.end() == 1, running.output
        assert f"The demo failed: {name} ended with exit code -9. The end of its log:" in running.output
        assert poll(lambda: not any(session_members(session) for session in sessions), seconds=30)
        assert running.left_behind() == []


def test_a_taken_port_gives_the_next() -> None:
    with reserved_port() as free, next_free_port(free) as first:
        assert first == free
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with next_free_port(port) as following:
            assert port < following < port + 100
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # the port is fixed: another suite may have it too
        taken.bind((HOST, 65535))
        taken.listen()
        with pytest.raises(LoadError, match="all ports from 65535 to 65535 are taken"), next_free_port(65535):
            pass


def test_flags_and_variables_are_read() -> None:
    environ = {ENVIRONMENT_VARIABLE: "/triton"}
    settings = parse(["--http-port", "0", "--predictor_protocol=grpc-v2", "--once"], environ)
    assert (settings.http_port, settings.predictor_protocol, settings.once) == (0, "grpc-v2", True)
    assert settings.triton_environment == Path("/triton")
    assert parse(["--triton_environment=/other"], environ).triton_environment == Path("/other")
    assert parse([], {}).http_port == 8080
    assert [parse(flags, {}).task for flags in ([], ["--task=ner"])] == ["fill_mask", "token_classification"]
    for example in demos().values():
        assert (default_model_repository() / example.model / "config.pbtxt").is_file()


def test_flags_are_read_without_any_library() -> None:
    """scripts/demo checks them before it installs anything."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from hf_transformer.commands.demo import parse; "
    code += "print(parse(sys.argv[2:], {}).task)"
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT)]
    answer = subprocess.run([*command, "--task=ner"], capture_output=True, text=True, check=True)
    assert answer.stdout == "token_classification\n"
    refusal = subprocess.run([*command, "--task=nre"], capture_output=True, text=True)
    assert refusal.returncode == 2 and "did you mean ner?" in refusal.stderr


@pytest.mark.parametrize(
    ("newer", "code", "says"),
    [
        pytest.param(True, 1, "Triton's environment needs Python 3.11 or 3.12", id="no Python for Triton"),
        pytest.param(False, 2, "did you mean fill_mask?", id="a bad flag"),
    ],
)
def test_the_script_checks_before_it_installs(tmp_path: Path, newer: bool, code: int, says: str) -> None:
    for name in ("bash", "dirname", "paste", "uniq"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    python = tmp_path / "python3"
    python.write_text(
        "#!/bin/sh\ncase $* in\n--version) echo Python 3.13.0 ;;\n"
        f'*version_info*"(3, 12)"*) exit {int(newer)} ;;\n*) exec {sys.executable} "$@" ;;\nesac\n'
    )
    python.chmod(0o755)
    command, variables = [str(ROOT / "scripts/demo"), "--task=fil_mask"], {"PATH": str(tmp_path)}
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (code, ""), "nothing is installed"
    assert says in ended.stderr and (not newer or "found Python 3.13.0" in ended.stderr)


@pytest.mark.parametrize("flag", "--http_port=x --http_port=65536 --predictor_protocol=v1 --task=x --other".split())
def test_a_bad_flag_exits_with_2(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([flag], {})
    assert ended.value.code == 2
    assert "hf-transformer demo: error: " in capsys.readouterr().err
