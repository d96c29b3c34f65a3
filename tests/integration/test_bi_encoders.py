"""Bi-encoders: the model of labels beside that of texts, in the real Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.local_triton import LocalTriton
from tests.integration.conftest import Serve, message_of
from tests.integration.grpc_client import request, stub
from tests.integration.test_one_pass import counts
from tests.integration.test_several_models import CHANGE_SECONDS, state, write
from tests.integration.test_zero_shot_token_classification import ANNA, GOLDENS, assert_entities
from tests.support.service import Service
from tests.support.triton_repository import task_model_folder

MODEL, LABELS = "gliner_bi", "gliner_bi_labels"


def change(triton: LocalTriton, name: str, action: str) -> None:
    url = f"http://{triton.http_address}/v2/repository/models/{name}/{action}"
    httpx.post(url, json={}, timeout=60.0, trust_env=False, verify=False).raise_for_status()


def instances() -> tuple[list[Any], list[Any]]:
    """Texts whose parameters are equal, and their goldens."""
    cases = [case for case in GOLDENS[MODEL] if case["flat_ner"] and not case["multi_label"]]
    cases = [case for case in cases if case["threshold"] == cases[0]["threshold"]]
    return [{"text": case["text"], "labels": case["labels"]} for case in cases], cases


def test_each_label_is_read_once(serve: Serve, triton: LocalTriton) -> None:
    """Every label of the goldens, whichever text asks for it, and a text of another protocol."""
    service = serve.own(MODEL, "grpc-v2")
    with service:
        service.wait_until(f"/v1/models/{MODEL}")
        before, _ = counts(triton, LABELS)
        asked, cases = instances()
        threshold = {"threshold": cases[0]["threshold"]}
        for _ in range(2):
            for case, found in zip(cases, service.predict(asked, threshold), strict=True):
                assert_entities(found, case)
        different = {label for case in cases for label in case["labels"]}
        assert counts(triton, LABELS)[0] == before + len(different) > before + 20
        with stub(service) as methods:
            reply = methods.ModelInfer(request(MODEL, {"text": [ANNA], "labels": [[*different][:3]]}))
        assert reply.model_name == MODEL
        assert counts(triton, LABELS)[0] == before + len(different)


def test_the_model_is_ready_once_its_model_of_labels_is(serve: Serve, triton: LocalTriton) -> None:
    serve.load(MODEL)
    change(triton, LABELS, "unload")
    serve.forget(LABELS)
    flags = (f"--model_name={MODEL}", f"--model_dir={task_model_folder(MODEL)}")
    with Service(*flags, f"--predictor_host={triton.http_address}") as service:
        service.wait_until("/")
        refused = service.client.post(
            f"/v1/models/{MODEL}:predict", json={"instances": [{"text": "a", "labels": ["b"]}]}
        )
        assert f"does not have '{LABELS}'" in message_of(refused, 503)
        serve.load(MODEL)
        service.wait_until(f"/v1/models/{MODEL}")
        asked, cases = instances()
        [found] = service.predict(asked[:1], {"threshold": cases[0]["threshold"]})
        assert_entities(found, cases[0])


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_load_and_unload_both_models(serve: Serve, triton: LocalTriton, tmp_path: Path, workers: int) -> None:
    serve.load(MODEL)
    (keys := tmp_path / "control-keys").write_text("operator-key\n")
    key = {"x-api-key": "operator-key"}
    entry = {"model_name": "own", "predictor_model": MODEL, "model_dir": str(task_model_folder(MODEL))}
    write(path := tmp_path / "models.json", [entry])
    flags = ("--enable_model_control", f"--model_control_keys_file={keys}", f"--workers={workers}")
    asked, cases = instances()
    body = {"instances": asked[:2], "parameters": {"threshold": cases[0]["threshold"]}}

    def ready(name: str) -> bool:
        url = f"http://{triton.http_address}/v2/models/{name}/ready"
        return httpx.get(url, trust_env=False).status_code == 200

    def answers() -> bool:
        response = service.post(body, "own")
        if response.status_code != 200:
            return False
        for case, found in zip(cases[:2], response.json()["predictions"], strict=True):
            assert_entities(found, case)
        return True

    try:
        with Service(f"--models={path}", f"--predictor_host={triton.http_address}", *flags) as service:
            service.wait_until("/v2/health/ready")
            assert poll(answers, CHANGE_SECONDS)
            assert service.client.post("/v2/repository/models/own/unload", headers=key).status_code == 200
            assert poll(lambda: not (ready(MODEL) or ready(LABELS)), CHANGE_SECONDS)
            assert poll(lambda: state(service, "own")["state"] == "UNAVAILABLE", CHANGE_SECONDS)
            assert service.client.post("/v2/repository/models/own/load", headers=key).status_code == 200
            assert ready(MODEL) and ready(LABELS)
            assert poll(answers, CHANGE_SECONDS)
            assert "Traceback" not in service.log
    finally:
        serve.forget(MODEL)
        serve.forget(LABELS)


def test_a_new_entry_is_loaded_with_its_labels_and_leaves_those_of_others(
    serve: Serve, triton: LocalTriton, tmp_path: Path
) -> None:
    """Before the load, the service has not read that the new entry is a bi-encoder."""
    serve.load(MODEL)
    (keys := tmp_path / "control-keys").write_text("operator-key\n")
    key, folder = {"x-api-key": "operator-key"}, str(task_model_folder(MODEL))
    other = {"model_name": "other", "predictor_model": "absent", "model_dir": folder, "labels_model": LABELS}
    own = {"model_name": "own", "predictor_model": MODEL, "model_dir": folder}
    write(path := tmp_path / "models.json", [other])
    flags = ("--enable_model_control", f"--model_control_keys_file={keys}", f"--predictor_host={triton.http_address}")

    def ready(name: str) -> bool:
        url = f"http://{triton.http_address}/v2/models/{name}/ready"
        return httpx.get(url, trust_env=False).status_code == 200

    try:
        with Service(f"--models={path}", *flags) as service:
            service.wait_until("/")
            for name in (MODEL, LABELS):
                change(triton, name, "unload")
            assert poll(lambda: not (ready(MODEL) or ready(LABELS)), CHANGE_SECONDS)
            write(path, [other, own])
            loaded = service.client.post("/v2/repository/models/own/load", headers=key)
            assert loaded.status_code == 200, loaded.text
            assert ready(MODEL) and ready(LABELS)
            assert service.client.post("/v2/repository/models/own/unload", headers=key).status_code == 200
            assert poll(lambda: not ready(MODEL), CHANGE_SECONDS)
            assert ready(LABELS), "the other entry's labels are read by it"
    finally:
        serve.forget(MODEL)
        serve.forget(LABELS)


def test_many_labels_have_the_limit_of_sequences(serve: Serve) -> None:
    service = serve(MODEL, "v2", "--max_sequences=20")
    few = {"text": ANNA, "labels": [f"label {number}" for number in range(19)]}
    assert service.post({"instances": [few]}).status_code == 200
    assert "--max_sequences" in message_of(
        service.post({"instances": [few, {"text": ANNA, "labels": ["b", "c"]}]}), 413
    )


def test_labels_with_the_marks_of_other_models_are_labels(serve: Serve) -> None:
    assert serve(MODEL).predict([{"text": ANNA, "labels": ["a <<SEP>> b", "<<ENT>>"]}], {"threshold": 1}) == [[]]
