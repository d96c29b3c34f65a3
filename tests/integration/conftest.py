"""The service in front of the real Triton; one Triton and one service per set of flags for the whole run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hf_transformer.commands.local_triton import LocalTriton
from tests.service import Service, flags_for
from tests.triton_environment import triton_environment
from tests.triton_repository import lay_out, model_names

ROOT = Path(__file__).parents[2]
MODEL_FOLDER = ROOT / "deploy" / "model_repository" / "bert"
"""The tokenizer and config.json that belong to every test model."""

OPTIONS = ("--disable-auto-complete-config",)
"""Triton would start every model's stub twice, once only to ask for the configuration that is written down."""

MOST_RUNNING = 12
"""Services kept running; each holds some 70 MB."""

Serve = Callable[..., Service]


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    lay_out(folder)
    return folder


@pytest.fixture(scope="session")
def triton(repository: Path) -> Iterator[LocalTriton]:
    """Without a model at first: ``serve`` loads what a test asks for."""
    with LocalTriton(
        repository, environment=triton_environment(), config_name=None, models=[], options=OPTIONS
    ) as server:
        yield server


@pytest.fixture(params=["v2", "grpc-v2"], ids=["rest", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class Services:
    """Ready services by their flags, the last MOST_RUNNING of them kept for the tests that come after."""

    def __init__(self, triton: LocalTriton, known: set[str]) -> None:
        self._triton = triton
        self._known = known
        self._loaded: set[str] = set()
        self._running: dict[tuple[str, ...], Service] = {}
        self._ending: list[Service] = []

    def __call__(self, model: str, protocol: str = "v2", *flags: str, ready: bool = True) -> Service:
        """A service for a model, a protocol and more flags; started at the first request for it."""
        self.load(model)
        address = self._triton.http_address if protocol == "v2" else self._triton.grpc_address
        key = tuple(flags_for(model, MODEL_FOLDER, address, protocol, flags))
        service = self._running.pop(key, None) or Service(*key)
        self._running[key] = service  # the last used stands last
        if len(self._running) > MOST_RUNNING:
            self._end(next(iter(self._running)))
        return service.wait_until(f"/v1/models/{model}" if ready else "/")

    def load(self, model: str) -> None:
        """Has Triton load a model, unless it has it already or there is none."""
        if model in self._known - self._loaded:
            url = f"http://{self._triton.http_address}/v2/repository/models/{model}/load"
            httpx.post(url, timeout=60.0, trust_env=False).raise_for_status()
            self._loaded.add(model)

    def _end(self, key: tuple[str, ...]) -> None:
        """Tells one to end; they are waited for together, when all are told."""
        service = self._running.pop(key)
        service.begin_stop()
        self._ending.append(service)

    def close(self) -> None:
        for key in list(self._running):
            self._end(key)
        for service in self._ending:
            service.__exit__(None, None, None)


@pytest.fixture(scope="session")
def load(serve: Services) -> Callable[[str], None]:
    """Has Triton load a model, for tests that start a service of their own."""
    return serve.load


@pytest.fixture(scope="session")
def serve(triton: LocalTriton) -> Iterator[Serve]:
    services = Services(triton, set(model_names()))
    yield services
    services.close()


@pytest.fixture(scope="session")
def goldens() -> Any:
    return json.loads((ROOT / "tests" / "goldens" / "fill_mask.json").read_text())
