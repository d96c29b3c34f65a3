"""A predictor that comes late, hangs, dies and comes back, and a model that dies alone, with the real Triton."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.local_triton import LocalTriton
from tests.faults.environment import kill, members, regions
from tests.integration.conftest import MODEL_FOLDER, OPTIONS
from tests.support.service import Service, flags_for
from tests.support.triton_environment import triton_environment

TEXT = "The capital of france is [MASK]."
BODY = {"instances": [TEXT]}
SHARED = 'hf_transformer_shared_memory_batches_total{transfer="shared"}'


@pytest.fixture(scope="module")
def triton(repository: Path) -> Iterator[LocalTriton]:
    """One that a test may end, with one model; it is left running."""
    with LocalTriton(
        repository, environment=triton_environment(), models=["bert"], config_name=None, options=OPTIONS
    ) as server:
        yield server
        server.kill()


@pytest.fixture
def services(triton: LocalTriton) -> Iterator[list[Service]]:
    """One for each protocol, before their predictor is there; all outputs go through shared memory."""
    flags = (
        "--predictor_circuit_failures=3",
        "--enable_predictor_health_check=true",
        "--predictor_shared_memory_min_bytes=1",
        "--predictor_request_timeout_seconds=20",
        "--predictor_request_retries=1",
    )
    triton.kill()
    with ExitStack() as stack:
        yield [
            stack.enter_context(Service(*flags_for("bert", MODEL_FOLDER, address, protocol, flags)))
            for protocol, address in (("v2", triton.http_address), ("grpc-v2", triton.grpc_address))
        ]


def reload(triton: LocalTriton) -> None:
    for action in ("unload", "load"):
        url = f"http://{triton.http_address}/v2/repository/models/bert/{action}"
        httpx.post(url, timeout=60.0, trust_env=False, verify=False).raise_for_status()


def ready(service: Service) -> bool:
    return service.client.get("/v1/models/bert").status_code == 200


def uses_shared_memory(service: Service) -> Path:
    """The region in which an answer travels, once a request made the service ask for it: every ten seconds at most."""

    def registered() -> bool:
        assert service.predict([TEXT]) == ["paris"]
        return service.metric("hf_transformer_shared_memory_registered") == 1

    assert poll(registered, 30.0), service.log
    before = service.metric(SHARED)
    assert service.predict([TEXT]) == ["paris"]
    assert service.metric(SHARED) == before + 1
    assert service.metric('hf_transformer_shared_memory_slots{state="quarantined"}') == 0
    assert poll(lambda: len(regions(service)) == 1, 30.0), service.log  # another thread writes the log that names it
    return regions(service)[0]


def check_an_outage(triton: LocalTriton, services: list[Service]) -> None:
    """A dead predictor is left alone, with 503 for every request, and found when it is back."""
    triton.kill()
    for service in services:
        said = [service.post(BODY) for _ in range(6)]
        assert [response.status_code for response in said] == [503] * 6
        assert all("counts as dead" in response.json()["error"] for response in said[3:])
        assert said[-1].headers["retry-after"] == "1"
        assert service.metric("hf_transformer_predictor_circuit_open") == 1
        assert service.metric('hf_transformer_predictor_errors_total{kind="circuit_open"}') >= 3
        assert service.metric("hf_transformer_predictor_retries_total") >= 1
        assert not ready(service) and service.client.get("/").status_code == 200
    triton.restart()
    for service in services:
        assert poll(lambda one=service: one.post(BODY).status_code == 200, 20.0), service.log  # type: ignore[misc]
        assert service.metric("hf_transformer_predictor_circuit_open") == 0
        service.wait_until("/v1/models/bert")
        assert [service.predict([TEXT]) for _ in range(5)] == [["paris"]] * 5


def check_a_dead_model(triton: LocalTriton, services: list[Service]) -> None:
    """Triton says for ever that it is ready, and answers every inference with 500, after a second or two."""
    for pid in members(triton.child.pid, "backend_stub"):
        kill(pid)
    for service in services:
        assert poll(lambda one=service: one.post(BODY).status_code == 502, 20.0)  # type: ignore[misc]
        assert [service.post(BODY).status_code for _ in range(2)] == [502] * 2
        url = f"http://{triton.http_address}/v2/models/bert/ready"
        assert httpx.get(url, trust_env=False, verify=False).status_code == 200
        answer = service.client.get("/v1/models/bert")
        assert answer.status_code == 503 and "so does a trial" in answer.json()["error"]
        assert service.metric("hf_transformer_predictor_circuit_open") == 0, "the predictor is not dead"
    reload(triton)
    for service in services:
        service.wait_until("/v1/models/bert")
        assert service.predict([TEXT]) == ["paris"]


def test_services_answer_again_after_each_outage(triton: LocalTriton, services: list[Service]) -> None:
    """After an outage there are new regions, ten seconds after the first ones: meanwhile the model dies."""
    for service in services:
        service.wait_until("/").wait_until("/v1/models/bert", 503)
        assert service.post(BODY).status_code == 503
    triton.restart()
    for service in services:
        service.wait_until("/v1/models/bert")
        assert service.predict([TEXT]) == ["paris"]
    before = {uses_shared_memory(service) for service in services}
    check_an_outage(triton, services)
    check_a_dead_model(triton, services[:1])
    after = {uses_shared_memory(service) for service in services}
    assert not before & after and not any(region.exists() for region in before)
    for service in services:
        assert "Traceback" not in service.log
        assert service.stop() == 0


def test_a_hanging_predictor_is_504_and_retries_bridge_a_restart(triton: LocalTriton) -> None:
    """A timeout, after which it answers again; and a request whose retries bridge the restart."""
    flags = ("--predictor_request_timeout_seconds=20", "--predictor_request_retries=100")
    short = flags_for("bert", MODEL_FOLDER, triton.grpc_address, "grpc-v2", ["--predictor_request_timeout_seconds=1"])
    patient = flags_for("bert", MODEL_FOLDER, triton.http_address, "v2", flags)
    with Service(*short) as service, Service(*patient) as retrying:
        service.wait_until("/v1/models/bert")
        retrying.wait_until("/v1/models/bert")
        triton.child.suspend()
        assert service.post(BODY).status_code == 504
        triton.child.resume()
        assert poll(lambda: service.post(BODY).status_code == 200, 20.0)
        assert service.predict([TEXT]) == ["paris"]
        triton.kill()
        with ThreadPoolExecutor(1) as others:
            waiting = others.submit(retrying.predict, [TEXT])
            assert poll(lambda: retrying.metric("hf_transformer_requests_in_flight") == 1, 10.0)
            triton.restart()
            assert waiting.result(60) == ["paris"]


@pytest.mark.parametrize("protocol", ["v2", "grpc-v2"])
def test_retries_bridge_an_outage_under_load(triton: LocalTriton, protocol: str) -> None:
    """With the default circuit and budget. Only a call whose answer had begun when Triton was killed may fail."""
    address = triton.http_address if protocol == "v2" else triton.grpc_address
    flags = flags_for("bert", MODEL_FOLDER, address, protocol, ["--predictor_request_retries=10"])
    answers = Counter[str]()
    ended = threading.Event()
    with Service(*flags) as service:
        service.wait_until("/v1/models/bert")

        def ask() -> None:
            while not ended.is_set():
                response = service.post(BODY)
                answers["right" if response.json() == {"predictions": ["paris"]} else response.text] += 1

        with ThreadPoolExecutor(12) as clients:
            asking = [clients.submit(ask) for _ in range(12)]
            assert poll(lambda: answers.total() > 100, 20.0)
            triton.kill()
            assert poll(lambda: service.metric("hf_transformer_predictor_circuit_open") == 1, 10.0)
            time.sleep(3.0)  # far longer than the budget of retries lasts
            before = answers.total()
            triton.restart()
            assert poll(lambda: answers.total() > before + 100, 20.0), answers
            ended.set()
            for each in asking:
                each.result(60)
        assert service.metric("hf_transformer_predictor_retries_denied_total") == 0
    failed = {text: count for text, count in answers.items() if text != "right" and "middle of its answer" not in text}
    assert failed == {}
