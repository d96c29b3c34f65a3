"""Scale to zero: until the predictor has a model, and while it is away, every API answers 503 with Retry-After."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc
import httpx
import pytest

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.demo import default_model_repository, entry
from hf_transformer.commands.local_triton import LocalTriton
from tests.integration.cold import MODELS, Route, answering, grpc_answers, refusing, routes, silent
from tests.integration.conftest import OPTIONS
from tests.support.service import Service
from tests.support.triton_environment import triton_environment

REPOSITORY = default_model_repository()
ROUTES = routes()
NEEDS_NO_MODEL = ("/v2/repository/index", "/anonymize")
DNS = "no-such-service.invalid:8000"


@pytest.fixture(scope="module")
def predictor(repository: Path) -> Iterator[LocalTriton]:
    """A Triton without a model at first, which tests end and start again."""
    with LocalTriton(
        repository, environment=triton_environment(), models=[], config_name=None, options=OPTIONS
    ) as server:
        yield server
        server.kill()


@contextmanager
def service_for(folder: Path, address: str, protocol: str, *flags: str, models: bool = True) -> Iterator[Service]:
    """A service of all models; or of the embedding model alone, without --models."""
    entries = [entry(task, REPOSITORY) for task in MODELS.values()]
    (folder / "models.json").write_text(json.dumps(entries))
    of_models = [f"--models={folder / 'models.json'}"]
    if not models:
        of_models = ["--model_name=minibert_mean", f"--model_dir={REPOSITORY / 'minibert_mean'}"]
    more = (f"--predictor_host={address}", f"--predictor_protocol={protocol}", *flags)
    with Service(*of_models, *more) as service:
        yield service.wait_until("/")


def check_unavailable(service: Service, asked: Sequence[Route] = ROUTES, *, over_grpc: bool = True) -> None:
    """Every route says 503 and when to try again."""
    wrong = []
    for route in asked:
        response = route.send(service)
        if response.status_code != 503 or response.headers.get("retry-after") != "1":
            wrong.append((route.path, route.body, response.status_code, response.text[:200]))
    assert not wrong, wrong
    assert not over_grpc or set(grpc_answers(service).values()) == {grpc.StatusCode.UNAVAILABLE}


def statuses(service: Service) -> dict[str, int]:
    return {json.dumps([route.path, route.body]): route.send(service).status_code for route in ROUTES}


COLD: dict[str, tuple[str, Callable[[], AbstractContextManager[str]]]] = {
    "REST, nothing listens": ("v2", refusing),
    "gRPC, nothing listens": ("grpc-v2", refusing),
    "REST, no such host": ("v2", lambda: nullcontext(DNS)),
    "gRPC, no answer": ("grpc-v2", silent),
    **{f"REST, {status}": ("v2", partial(answering, status)) for status in (200, 404, 503)},
    "gRPC, another protocol": ("grpc-v2", partial(answering, 404)),
}


@pytest.mark.parametrize("state", COLD)
def test_a_predictor_that_is_not_there_is_503_at_every_route(state: str, tmp_path: Path) -> None:
    protocol, address_of = COLD[state]
    with address_of() as address, service_for(tmp_path, address, protocol) as service:
        assert poll(lambda: "is not ready, retrying" in service.log, 30.0), service.log
        check_unavailable(service)
        assert service.metric("hf_transformer_waiting_texts") == service.metric("hf_transformer_running_texts") == 0


@pytest.mark.parametrize("protocol", ["v2", "grpc-v2"])
def test_the_only_model_is_503_without_its_name_too(protocol: str, tmp_path: Path) -> None:
    unnamed = [
        replace(route, body={key: value for key, value in route.body.items() if key != "model"})
        for route in ROUTES
        if route.model == "minibert_mean" and route.body is not None
    ]
    with refusing() as address, service_for(tmp_path, address, protocol, models=False) as service:
        check_unavailable(service, unnamed, over_grpc=False)


def test_the_table_has_every_route(tmp_path: Path) -> None:
    with refusing() as address, service_for(tmp_path, address, "v2") as service:
        assert poll(lambda: service.client.get("/info").text.count('"task"') == len(MODELS), 30.0), "all are loaded"
        document = service.client.get("/openapi.json").json()["paths"]
        posts = {path for path, methods in document.items() if "post" in methods}
        asked = {
            route.path.partition("?")[0]
            .replace("versions/1", "versions/{version}")
            .replace(f"/{route.model}", "/{model}")
            for route in ROUTES
            if route.body is not None
        }
        control = {path for path in posts if path.startswith("/v2/repository/models/")}
        assert asked == posts - control - set(NEEDS_NO_MODEL)


@pytest.mark.parametrize("protocol", ["v2", "grpc-v2"])
def test_a_predictor_without_its_models_gets_them_goes_away_and_comes_back(
    predictor: LocalTriton, tmp_path: Path, protocol: str
) -> None:
    address = predictor.http_address if protocol == "v2" else predictor.grpc_address
    flags = ("--predictor_circuit_failures=0", "--enable_predictor_health_check")
    predictor.restart()
    with service_for(tmp_path, address, protocol, *flags) as service:
        check_unavailable(service)
        change_models(predictor, "load")
        service.wait_until("/v2/health/ready")
        ready = statuses(service)
        assert {status for key, status in ready.items()} <= {200, 400, 424, 501}, ready
        change_models(predictor, "unload")
        check_away(service, ready)
        predictor.kill()
        check_away(service, ready)
        predictor.restart()
        check_away(service, ready)
        change_models(predictor, "load")
        service.wait_until("/v2/health/ready")
        assert statuses(service) == ready
        assert set(grpc_answers(service).values()) == {grpc.StatusCode.OK}
        assert "Traceback" not in service.log


def check_away(service: Service, ready: dict[str, int]) -> None:
    """Answers are 503 with Retry-After if the predictor is needed, and as before if only the tokenizer is."""
    service.wait_until("/v2/health/ready", 503)
    wrong = []
    for route in ROUTES:
        before, response = ready[json.dumps([route.path, route.body])], route.send(service)
        away = route.asks or "ready" in route.path or route.path in ("/health", "/ping", "/openai/health")
        away = away or route.path in [f"/v1/models/{name}" for name in MODELS]
        expected = 503 if away and before == 200 else before
        if response.status_code != expected or (expected == 503 and response.headers.get("retry-after") != "1"):
            wrong.append((route.path, route.body, expected, response.status_code, response.text[:200]))
    assert not wrong, wrong
    codes = grpc_answers(service)
    assert codes["ModelInfer"] is codes["ModelStreamInfer"] is codes["ModelReady"] is grpc.StatusCode.UNAVAILABLE


def change_models(predictor: LocalTriton, action: str) -> None:
    for model in MODELS:
        url = f"http://{predictor.http_address}/v2/repository/models/{model}/{action}"
        httpx.post(url, timeout=60.0, trust_env=False, verify=False).raise_for_status()
