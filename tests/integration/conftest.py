"""The real Triton with the test models, and services in front of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from hf_transformer.commands.local_triton import LocalTriton
from tests.support.service import Service, flags_for
from tests.support.triton_26 import Triton26
from tests.support.triton_environment import triton_environment
from tests.support.triton_repository import lay_out, model_names, task_model_folder

ROOT = Path(__file__).parents[2]
MODEL_FOLDER = ROOT / "deploy" / "model_repository" / "bert"
"""The tokenizer and config.json of the demo model, its variants and the models that fail."""

OPTIONS = ("--disable-auto-complete-config",)
"""Triton would start every model's stub twice, once only to ask for the configuration that is written down."""

NAMED_TASKS = {"cross": "rerank", "nli": "zero_shot_classification"}
"""Models whose files choose another task than the one that they are for."""

MOST_RUNNING = 12
"""Services kept running. Each holds some 70 MB and takes 0.2 percent of a core; another one is ready in 0.3 s."""


@cache
def goldens(task: str) -> Any:
    """The answers that scripts/goldens/generate_TASK.py has stored."""
    return json.loads((ROOT / "tests" / "goldens" / f"{task}.json").read_text(encoding="utf-8"))


def message_of(response: httpx.Response, status: int = 400) -> str:
    """The message of an error with this status, in the form that all APIs but OpenAI's have."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    message: str = body["error"]
    return message


def refused(service: Service, instances: Any, parameters: Any, says: str, status: int = 400) -> None:
    """The predict route says this status, and a message with each part of ``says`` between its ``...``."""
    message = message_of(service.post({"instances": instances, "parameters": parameters}), status)
    assert all(part in message for part in says.split("...")), message


def cut_or_refused(service: Service, instances: list[Any], says: str, **parameters: Any) -> Any:
    """The answers to instances of which one is too long: cut and counted; with ``truncation: false`` it is 413."""
    counter = f'hf_transformer_truncated_instances_total{{model_name="{service.model}"}}'
    before = service.metric(counter)
    answers = service.predict(instances, parameters)
    assert service.metric(counter) == before + 1
    refused(service, instances, {**parameters, "truncation": False}, says, 413)
    return answers


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    lay_out(folder)
    return folder


@pytest.fixture(scope="session")
def triton(repository: Path, pytestconfig: pytest.Config) -> Iterator[LocalTriton]:
    """Without a model at first: ``serve`` loads what a test asks for."""
    server_of = Triton26 if pytestconfig.getoption("--triton") == "26" else LocalTriton
    with server_of(
        repository, environment=triton_environment(), config_name=None, models=[], options=OPTIONS
    ) as server:
        yield server
        server.kill()  # quicker than its end


@pytest.fixture(params=["v2", "grpc-v2"], ids=["rest", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class Serve:
    """Ready services by their flags, the last MOST_RUNNING of them kept for the tests that come after."""

    def __init__(self, triton: LocalTriton) -> None:
        self._triton = triton
        self._known = set(model_names())
        self._loaded: set[str] = set()
        self._running: dict[tuple[str, ...], Service] = {}
        self._ending: list[Service] = []

    def __call__(self, model: str, protocol: str = "v2", *flags: str, ready: bool = True) -> Service:
        """A service for a model with its folder, a protocol and more flags; started at the first request for it."""
        key = self._flags(model, protocol, flags)
        service = self._running.pop(key, None) or Service(*key)
        self._running[key] = service  # the last used stands last
        if len(self._running) > MOST_RUNNING:
            self._end(next(iter(self._running)))
        return service.wait_until(f"/v1/models/{model}" if ready else "/")

    def own(
        self,
        model: str,
        protocol: str = "v2",
        *flags: str,
        forked: bool = True,
        environ: dict[str, str] | None = None,
    ) -> Service:
        """A service that the caller ends, of which nothing is waited for."""
        return Service(*self._flags(model, protocol, flags), forked=forked, environ=environ)

    def _flags(self, model: str, protocol: str, flags: tuple[str, ...]) -> tuple[str, ...]:
        self.load(model)
        address = self._triton.http_address if protocol == "v2" else self._triton.grpc_address
        folder = task_model_folder(model) if model in self._known else MODEL_FOLDER
        task = (f"--task={NAMED_TASKS[model]}",) if model in NAMED_TASKS else ()
        return tuple(flags_for(model, folder, address, protocol, (*task, *flags)))

    def load(self, model: str) -> None:
        """Has Triton load a model, and that of a bi-encoder's labels, unless it has it already or there is none."""
        if f"{model}_labels" in self._known:
            self.load(f"{model}_labels")
        if model in self._known - self._loaded:
            url = f"http://{self._triton.http_address}/v2/repository/models/{model}/load"
            httpx.post(url, timeout=60.0, trust_env=False, verify=False).raise_for_status()
            self._loaded.add(model)

    def forget(self, model: str) -> None:
        """Has the next ``load`` load a model again, which a test has unloaded."""
        self._loaded.discard(model)

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
def load(serve: Serve) -> Callable[[str], None]:
    """Has Triton load a model, for tests that start a service of their own."""
    return serve.load


@pytest.fixture(scope="session")
def serve(triton: LocalTriton) -> Iterator[Serve]:
    services = Serve(triton)
    yield services
    services.close()
