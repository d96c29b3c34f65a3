"""A real tritonserver as a child: it gets ready, it fails with its reason, and it leaves nothing behind."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hf_transformer.commands.local_triton import (
    HOST,
    SHARED_MEMORY,
    LocalTriton,
    find_triton,
    free_ports,
    poll,
    session_members,
)
from hf_transformer.errors import LoadError
from tests.triton_environment import ROOT, triton_environment

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
    """A model that doubles, and one that can't be loaded."""
    for name, code in {"double": DOUBLE, "broken": "raise RuntimeError('no weights here')"}.items():
        folder = tmp_path / "models" / name
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(CONFIG)
        (folder / "1" / "model.py").write_text(code)
    return tmp_path / "models"


def get(address: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("POST" if body else "GET", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def double(triton: LocalTriton) -> object:
    """What the model makes of 1 and 2."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}
    status, body = get(triton.http_address, "/v2/models/double/infer", json.dumps({"inputs": [tensor]}))
    assert status == 200, body
    return json.loads(body)["outputs"][0]["data"]


def left_behind(triton: LocalTriton, session: int, folder: Path) -> list[object]:
    """Processes of the session, files in /dev/shm and the temporary folder that are still there."""
    return [
        *session_members(session),
        *SHARED_MEMORY.glob(f"{triton.prefix}*"),
        *(path for path in [folder] if path.exists()),
    ]


def backend_folder(session: int) -> Path:
    """The temporary folder, found as the stub's program lies in it."""
    programs = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode() for pid in session_members(session)]
    return next(Path(name).parents[2] for name in programs if name.endswith("stub"))


def test_a_life_that_leaves_nothing(repository: Path) -> None:
    """Serves the wanted model, hangs and goes on, is killed, restarts on its ports, and is ended while it hangs."""
    with LocalTriton(repository, environment=ENVIRONMENT, models=["double"]) as triton:
        assert double(triton) == [2.0, 4.0]
        assert get(triton.http_address, "/v2/models/broken/ready")[0] == 400, "only the wanted model is loaded"
        assert b"nv_inference_count" in get(triton.metrics_address, "/metrics")[1]
        session, ports = triton.child.pid, (triton.http_port, triton.grpc_port, triton.metrics_port)
        assert len(session_members(session)) == 2, "Triton and the model's stub"
        assert list(SHARED_MEMORY.glob(f"{triton.prefix}*"))

        triton.suspend()
        connection = http.client.HTTPConnection(triton.http_address, timeout=0.2)
        connection.request("GET", "/v2/health/live")
        with pytest.raises(TimeoutError):
            connection.getresponse()
        connection.close()
        triton.resume()
        assert double(triton) == [2.0, 4.0]

        triton.kill()
        assert triton.child.exit_code == -signal.SIGKILL
        assert session_members(session) == []
        assert list(SHARED_MEMORY.glob(f"{triton.prefix}*")) == []
        with pytest.raises(ConnectionRefusedError):
            get(triton.http_address, "/v2/health/live")

        triton.restart()
        assert (triton.http_port, triton.grpc_port, triton.metrics_port) == ports
        assert triton.child.pid != session
        assert double(triton) == [2.0, 4.0]
        triton.suspend()
        session, folder = triton.child.pid, backend_folder(triton.child.pid)
    assert left_behind(triton, session, folder) == []


def test_a_model_that_fails_to_load(repository: Path) -> None:
    triton = LocalTriton(repository, environment=ENVIRONMENT, models=["double", "broken"])
    with pytest.raises(LoadError, match=r"(?s)exit code 1.*RuntimeError: no weights here"):
        triton.start()
    assert not list(SHARED_MEMORY.glob(f"{triton.prefix}*"))
    with LocalTriton(repository, environment=ENVIRONMENT, strict=False) as triton:
        assert double(triton) == [2.0, 4.0]
        assert get(triton.http_address, "/v2/models/broken/ready")[0] == 400
        session, folder = triton.child.pid, backend_folder(triton.child.pid)
    assert left_behind(triton, session, folder) == []


def test_taken_ports_are_left_for_others(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when another process binds a port between our look and Triton's bind."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        offers = iter([[taken.getsockname()[1], *free_ports(2)], free_ports(3)])
        monkeypatch.setattr("hf_transformer.commands.local_triton.free_ports", lambda count: next(offers))
        with LocalTriton(repository, environment=ENVIRONMENT, models=[]) as triton:
            assert triton.http_port != taken.getsockname()[1]
            assert get(triton.http_address, "/v2/health/live")[0] == 200


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
    for path in sorted(folder.rglob("*"), reverse=True):  # nobody was left to do this
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def test_a_program_on_path_runs_as_it_is(tmp_path: Path) -> None:
    program = tmp_path / "tritonserver"
    with pytest.raises(LoadError, match=r"there is no tritonserver.*pip install 'hf-transformer\[demo\]'"):
        find_triton(None, {"PATH": str(tmp_path)})
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    found = find_triton(None, {"PATH": str(tmp_path), "PYTHONPATH": "/x"})
    assert found.program == [str(program)] and found.stub is None
    assert found.variables["PATH"] == str(tmp_path) and "PYTHONPATH" not in found.variables


def test_the_python_of_an_environment_comes_first() -> None:
    found = find_triton(ENVIRONMENT, {"PATH": "/bin", "LD_LIBRARY_PATH": "/lib"})
    assert re.fullmatch("/.+/bin:/bin", found.variables["PATH"])
    assert found.program[1].startswith("LD_LIBRARY_PATH=") and found.program[1].endswith(":/lib")


def test_unfit_environments(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"not a virtual environment.*pip install"):
        find_triton(tmp_path / "missing", {})
    made = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    with pytest.raises(LoadError, match=r"nvidia-pytriton is not installed in.*pip install"):
        find_triton(made, {})
    # With numpy 2 Triton's Python models would answer with empty tensors and status 200.
    packages = next((made / "lib").glob("python*/site-packages"))
    for folder, file, text in (
        ("pytriton", "__init__.py", ""),
        ("numpy-2.4.0.dist-info", "METADATA", "Metadata-Version: 2.1\nName: numpy\nVersion: 2.4.0\n"),
    ):
        (packages / folder).mkdir()
        (packages / folder / file).write_text(text)
    with pytest.raises(LoadError, match=r"numpy 2\.4\.0.*numpy<2"):
        find_triton(made, {})
