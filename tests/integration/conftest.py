"""The service in front of the real Triton; one Triton and one service per set of flags for the whole run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.local_triton import LocalTriton
from tests.service import Service, flags_for
from tests.triton_environment import triton_environment
from tests.triton_repository import lay_out

ROOT = Path(__file__).parents[2]
MODEL_FOLDER = ROOT / "deploy" / "model_repository" / "bert"
"""The tokenizer and config.json that belong to every test model."""

OPTIONS = ("--disable-auto-complete-config",)
"""Triton would start every model's stub twice, once only to ask for the configuration that is written down."""

Serve = Callable[..., Service]


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    lay_out(folder)
    return folder


@pytest.fixture(scope="session")
def triton(repository: Path) -> Iterator[LocalTriton]:
    with LocalTriton(
        repository, environment=triton_environment(), config_name=None, options=OPTIONS, timeout_seconds=120.0
    ) as server:
        yield server


@pytest.fixture(params=["v2", "grpc-v2"], ids=["rest", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def serve(triton: LocalTriton) -> Iterator[Serve]:
    """A ready service for a model, a protocol and more flags; started at the first request for it."""
    running: dict[tuple[str, ...], Service] = {}
    with ExitStack() as stack:

        def start(model: str, protocol: str = "v2", *flags: str, ready: bool = True) -> Service:
            address = triton.http_address if protocol == "v2" else triton.grpc_address
            arguments = flags_for(model, MODEL_FOLDER, address, protocol, flags)
            key = tuple(arguments)
            if key not in running:
                running[key] = stack.enter_context(Service(*arguments))
            service = running[key]
            return service.wait_until(f"/v1/models/{model}" if ready else "/")

        yield start


@pytest.fixture(scope="session")
def goldens() -> Any:
    return json.loads((ROOT / "tests" / "goldens" / "fill_mask.json").read_text())
