"""The scripts of examples/, as they are, in front of the service."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.loopback import reserved_port
from tests.clients.conftest import ROOT, SECONDS, clients_environment, done, output
from tests.integration.conftest import Serve
from tests.support.service import Service

EXAMPLES = ROOT / "examples"
ENVIRONMENTS = {
    **dict.fromkeys(("openai_client", "tritonclient_infer"), "clients"),
    **dict.fromkeys(("langchain_chain", "gradio_app"), "langchain"),
}
"""The environment of scripts/test_clients that has what a script needs."""
CALL_GRADIO = """
import json, sys
from gradio_client import Client
print(json.dumps(Client(sys.argv[1], verbose=False).predict(sys.argv[2], api_name="/predict")))
"""


def command(example: str, *arguments: str) -> list[str]:
    python = clients_environment(ENVIRONMENTS[example]) / "bin" / "python"
    return [str(python), str(EXAMPLES / f"{example}.py"), *arguments]


GRADIO = {"GRADIO_ANALYTICS_ENABLED": "False", "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def generating(serve: Serve) -> Service:
    return serve("gpt2_logits")


def test_every_script_is_run_and_on_the_page() -> None:
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    assert scripts == ENVIRONMENTS.keys()
    page = (EXAMPLES / "README.md").read_text()
    assert set(re.findall(r"\]\((\w+)\.py\)", page)) == scripts


def test_openai(generating: Service, tmp_path: Path) -> None:
    said = output(command("openai_client", f"--url={generating.url}"), tmp_path)
    whole = re.search(rf"^{generating.model}: (.+)\ntokens: \d+ in, \d+ out\nstream: (.+)\n\Z", said, re.DOTALL)
    assert whole is not None, said
    assert "paris" in whole[1] and whole[1] == whole[2]


def test_langchain(generating: Service, tmp_path: Path) -> None:
    said = output(command("langchain_chain", f"--url={generating.url}"), tmp_path)
    answers = re.search(r"^france: (.+)\nitaly: (.+)\njapan: (.+)\nstream: (.+)\n\Z", said, re.DOTALL)
    assert answers is not None, said
    assert "paris" in answers[1] and answers[1] == answers[4]


def test_tritonclient(serve: Serve, tmp_path: Path) -> None:
    service = serve("bert", "v2")
    addresses = (f"--http=127.0.0.1:{service.port}", f"--grpc={service.grpc_address}")
    said = output(command("tritonclient_infer", *addresses), tmp_path)
    assert said == "tritonclient.http: ['paris', 'rome']\ntritonclient.grpc: ['paris', 'rome']\n"


@contextmanager
def running(line: list[str], home: Path, until: str) -> Iterator[None]:
    """The program, from when it has written ``until``."""
    log, variables = home / "output", {"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "*", **GRADIO}
    with log.open("w") as file:
        process = subprocess.Popen(line, stdout=file, stderr=subprocess.STDOUT, env=variables)
    try:
        poll(lambda: until in log.read_text() or process.poll() is not None, SECONDS)
        assert until in log.read_text(), log.read_text()[-4000:]
        yield
    finally:
        process.terminate()
        process.wait(30)


def test_gradio(serve: Serve, tmp_path: Path) -> None:
    service = serve("bert", "v2")
    with reserved_port() as port, ExitStack() as stack:
        line = command("gradio_app", f"--url={service.url}", f"--port={port}")
        stack.enter_context(running(line, tmp_path, until="Running on"))
        caller = [line[0], "-c", CALL_GRADIO, f"http://127.0.0.1:{port}"]
        assert '"label": "paris"' in output([*caller, "The capital of france is [MASK]."], tmp_path, env=GRADIO)
        refused = done([*caller, "no mask"], tmp_path, env=GRADIO)
    assert refused.returncode != 0
    assert "[MASK]" in refused.stderr
