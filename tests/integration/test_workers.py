"""Several workers in front of the real Triton: the errors of one process, and changes of models under load."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.demo import default_model_repository
from hf_transformer.commands.local_triton import LocalTriton
from tests.integration.conftest import Serve
from tests.integration.grpc_client import request, stub, values
from tests.support.service import Service

FOLDER = str(default_model_repository() / "bert")
TEXT = "The capital of france is [MASK]."
FAILING = {
    "fault_raises": (502, "deliberate failure"),
    "fault_wrong_shape": (502, "with the shape"),
    "fault_wrong_dtype": (502, "its configuration says FP32"),
    "fault_nan": (502, "NaN"),
    "fault_slow": (504, "0.3 s"),
}
SLOW = "fault_slow"
"""The call's timeout and the request's end at the same time, so either message comes."""
CODES = {grpc.StatusCode.INTERNAL: 502, grpc.StatusCode.DEADLINE_EXCEEDED: 504}
CHANGES, SECONDS = 6, 60.0
KEY = {"x-api-key": "operator-key"}


def entry(name: str, model: str, **more: Any) -> dict[str, Any]:
    return {"model_name": name, "predictor_model": model, "model_dir": FOLDER, **more}


@contextmanager
def serving(
    serve: Serve, triton: LocalTriton, folder: Path, entries: list[dict[str, Any]], *flags: str
) -> Iterator[Service]:
    for item in entries:
        serve.load(item["predictor_model"])
    write(folder, entries)
    with Service(f"--models={folder / 'models.json'}", f"--predictor_host={triton.http_address}", *flags) as service:
        yield service.wait_until("/v2/health/ready")


def write(folder: Path, entries: list[dict[str, Any]]) -> None:
    """Replaces the file of the models in one step."""
    new = folder / "models.new"
    new.write_text(json.dumps(entries))
    new.replace(folder / "models.json")


def has_value(service: Service, metric: str, value: float) -> bool:
    return service.metric(metric, missing=0) == value


def has_logged(service: Service, text: str, count: int) -> bool:
    return service.log.count(text) == count


def refusals(service: Service, model: str) -> list[tuple[int, str]]:
    """Status and message of a request that fails, over HTTP and over gRPC."""
    answer = service.post({"instances": [TEXT]}, model)
    with stub(service) as calls, pytest.raises(grpc.RpcError) as caught:
        calls.ModelInfer(request(model, {"text": [TEXT]}))
    error: Any = caught.value
    return [(answer.status_code, answer.json()["error"]), (CODES[error.code()], error.details())]


def test_errors_of_the_predictor_are_those_of_one_process(serve: Serve, triton: LocalTriton, tmp_path: Path) -> None:
    entries = [entry(name, name) for name in FAILING if name != SLOW]
    entries.append(entry(SLOW, SLOW, predictor_request_timeout_seconds=0.3))
    found = []
    for workers in (1, 2):
        with serving(serve, triton, tmp_path, entries, f"--workers={workers}") as service:
            found.append({name: refusals(service, name) for name in FAILING})
            name = 'hf_transformer_predictor_errors_total{kind="error",model_name="fault_raises"}'
            assert poll(partial(has_value, service, name, 2), SECONDS)
            assert service.stop() == 0
            assert "Traceback" not in service.log
    one, two = ({name: each for name, each in one.items() if name != SLOW} for one in found)
    assert one == two
    for name, (status, says) in FAILING.items():
        assert all((code, says in message) == (status, True) for code, message in found[1][name])


class Load:
    """Clients over HTTP and gRPC that ask one model all the time."""

    def __init__(self, service: Service, model: str, right: list[str]) -> None:
        self.counts: dict[Any, int] = {}
        self.wrong: list[Any] = []
        self._service, self._model, self._right = service, model, right
        self._ended = threading.Event()

    def _ask(self) -> None:
        with httpx.Client(base_url=self._service.url, trust_env=False, verify=False, timeout=SECONDS) as client:
            while not self._ended.is_set():
                answer = client.post(f"/v1/models/{self._model}:predict", json={"instances": [TEXT] * 3})
                self._count(answer.status_code, answer.json().get("predictions"))

    def _call(self) -> None:
        with stub(self._service) as calls:
            while not self._ended.is_set():
                try:
                    answer = values(calls.ModelInfer(request(self._model, {"text": [TEXT] * 3}), timeout=SECONDS))
                except grpc.RpcError as error:
                    self._count(error.code().name, None)
                else:
                    self._count(200, answer)

    def _count(self, status: Any, answer: Any) -> None:
        self.counts[status] = self.counts.get(status, 0) + 1
        if status == 200 and answer != self._right:
            self.wrong.append(answer)

    def goes_on(self) -> bool:
        """Waits for 30 right answers more."""
        before = self.counts.get(200, 0)
        return poll(lambda: self.counts.get(200, 0) >= before + 30, SECONDS)

    def is_refused(self) -> bool:
        """Waits for an answer that is none, as while the model is away."""

        def refused() -> int:
            return sum(count for status, count in list(self.counts.items()) if status != 200)

        before = refused()
        return poll(lambda: refused() > before, SECONDS)

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(6) as threads:
            asking = [
                threads.submit(ask) for ask in (self._ask, self._ask, self._ask, self._ask, self._call, self._call)
            ]
            try:
                assert self.goes_on()
                yield
            finally:
                self._ended.set()
        for one in asking:
            one.result()


def test_a_model_that_is_replaced_under_load_has_no_wrong_answer(
    serve: Serve, triton: LocalTriton, tmp_path: Path
) -> None:
    """The other model has other inputs and datatypes, so rows of the wrong scheduler would fail or differ."""
    models = ["bert_masked", "bert_int32"]
    serve.load(models[1])
    with serving(serve, triton, tmp_path, [entry("own", models[0])], "--workers=2") as service:
        load = Load(service, "own", ["paris"] * 3)
        with load.running():
            for number in range(1, CHANGES + 1):
                write(tmp_path, [entry("own", models[number % 2])])
                ready = 2 * (number + 1)  # each worker's first model, and its successors
                assert poll(partial(has_logged, service, "model 'own' is ready", ready), SECONDS), service.log
                assert load.goes_on()
        assert not load.wrong and set(load.counts) == {200}


def test_a_model_that_is_unloaded_and_loaded_under_load_has_no_wrong_answer(
    serve: Serve, triton: LocalTriton, tmp_path: Path
) -> None:
    (keys := tmp_path / "keys").write_text("operator-key\n")
    flags = ("--enable_model_control", f"--model_control_keys_file={keys}", "--workers=2")
    serve.load("bert_int32")
    try:
        with serving(serve, triton, tmp_path, [entry("own", "bert_int32"), entry("bert", "bert")], *flags) as service:
            load, other = Load(service, "own", ["paris"] * 3), Load(service, "bert", ["paris"] * 3)
            with load.running(), other.running():
                for _ in range(CHANGES // 2):
                    for change in ("unload", "load"):
                        answer = service.client.post(f"/v2/repository/models/own/{change}", headers=KEY)
                        assert answer.status_code == 200, answer.text
                        assert load.is_refused() if change == "unload" else load.goes_on()
                    assert other.goes_on()
            assert not load.wrong and set(load.counts) <= {200, 404, 503, "NOT_FOUND", "UNAVAILABLE"}
            assert not other.wrong and set(other.counts) == {200}
            assert service.stop() == 0
            assert "Traceback" not in service.log
    finally:
        serve.forget("bert_int32")
