"""Independent clients, each a program in a process and an environment of its own, in front of the service."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import protocol, repository, serve, triton
from tests.support.service import Service

__all__ = ["protocol", "repository", "serve", "triton"]

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 300
"""How long a program may take; importing KServe's SDK alone takes several seconds."""

Run = Callable[..., Any]


def clients_environment(program: str = "") -> Path:
    """The folder that HF_TRANSFORMER_CLIENTS_ENVIRONMENT names, else .venv-clients of the checkout.

    For langchain's program HF_TRANSFORMER_LANGCHAIN_ENVIRONMENT and .venv-langchain, for that of agents' libraries
    HF_TRANSFORMER_AGENTS_ENVIRONMENT and .venv-agents, for those of instructor, lm-evaluation-harness,
    text-embeddings-inference, other retrieval APIs and LiteLLM likewise: KServe's SDK wants other versions. The
    packages of the ai-sdk, for node, are in HF_TRANSFORMER_AI_SDK_ENVIRONMENT or .venv-ai-sdk.
    """
    names = ("langchain", "agents", "instructor", "lm_evaluation", "ai_sdk", "tei", "retrieval", "litellm")
    name = next((name for name in names if program.startswith(name)), "clients")
    folder = f".venv-{name.replace('ai_sdk', 'ai-sdk')}"
    return Path(os.environ.get(f"HF_TRANSFORMER_{name.upper()}_ENVIRONMENT") or ROOT / folder)


def done(line: Sequence[str], home: Path, given: Any = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, with JSON on its standard input."""
    text = None if given is None else json.dumps(given)
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "*", **options.pop("env", {})}
    options = {"timeout": SECONDS, **options}
    return subprocess.run(line, input=text, capture_output=True, text=True, env=variables, check=False, **options)


def output(line: Sequence[str], home: Path, given: Any = None, **options: Any) -> str:
    """The output of a program, which has to succeed."""
    found = done(line, home, given, **options)
    assert found.returncode == 0, f"{line[1:3]} ended with {found.returncode}:\n{found.stdout}{found.stderr[-4000:]}"
    return found.stdout


@pytest.fixture
def client(tmp_path: Path) -> Run:
    """Runs one of the programs against a service: ``client("triton_tensors", "json", service=..., requests=[...])``."""

    def run(program: str, *arguments: str, service: Service, **task: Any) -> Any:
        settings = {"http": f"127.0.0.1:{service.port}", "grpc": service.grpc_address, "model": service.model, **task}
        folder = clients_environment(program)
        if (script := PROGRAMS / f"{program}.mjs").is_file():
            line = ["node", str(script), str(folder)]
        else:
            line = [str(folder / "bin" / "python"), str(PROGRAMS / f"{program}.py")]
        return json.loads(output([*line, *arguments], tmp_path, settings))

    return run
