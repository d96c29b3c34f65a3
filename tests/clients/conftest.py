"""Independent clients, each a program in a process and an environment of its own, in front of the service."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import protocol, repository, serve, triton
from tests.service import Service

__all__ = ["protocol", "repository", "serve", "triton"]

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 120
"""How long a program may take; importing KServe's SDK alone takes several seconds."""

Run = Callable[..., Any]


def clients_environment(program: str = "") -> Path:
    """The folder that HF_TRANSFORMER_CLIENTS_ENVIRONMENT names, else .venv-clients of the checkout.

    For langchain's program HF_TRANSFORMER_LANGCHAIN_ENVIRONMENT and .venv-langchain: KServe's SDK wants other versions.
    """
    name = "langchain" if program.startswith("langchain") else "clients"
    return Path(os.environ.get(f"HF_TRANSFORMER_{name.upper()}_ENVIRONMENT") or ROOT / f".venv-{name}")


@pytest.fixture
def client(tmp_path: Path) -> Run:
    """Runs one of the programs against a service: ``client("triton_http", "json", service=..., requests=[...])``."""

    def run(program: str, *arguments: str, service: Service, **task: Any) -> Any:
        given = {"http": f"127.0.0.1:{service.port}", "grpc": service.grpc_address, "model": service.model, **task}
        command = [str(clients_environment(program) / "bin" / "python"), str(PROGRAMS / f"{program}.py"), *arguments]
        variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NO_PROXY": "*"}
        done = subprocess.run(
            command,
            input=json.dumps(given),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=variables,
            check=False,
        )
        assert done.returncode == 0, f"{program} {arguments} ended with {done.returncode}:\n{done.stderr[-4000:]}"
        return json.loads(done.stdout)

    return run
