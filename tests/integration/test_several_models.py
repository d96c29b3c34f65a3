"""Several models in one service, in front of the real Triton: lists, choices, changes of the file, loads."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.demo import default_model_repository, demos, entry
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.integration.conftest import Serve, message_of
from tests.support.service import NOBODY, Service
from tests.support.triton_repository import held

REPOSITORY = default_model_repository()
CHANGE_SECONDS = 30.0
"""Timeout for a change of the entries, which the service looks for every two seconds."""
FILL, TEXT = "The capital of france is [MASK].", "The hotel was wonderful."


def write(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Replaces the file in one step, as editors and Kubernetes do."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(list(entries)))
    new.replace(path)


def entries_of(*tasks: str) -> list[dict[str, Any]]:
    return [entry(task, REPOSITORY) for task in tasks]


@contextmanager
def several(
    serve: Serve, triton: LocalTriton, path: Path, entries: Sequence[Mapping[str, Any]], *flags: str
) -> Iterator[Service]:
    """A service with the models of a file. The file may name models that Triton does not have."""
    for item in entries:
        name = item.get("predictor_model", item["model_name"])
        if (REPOSITORY / name).is_dir():
            serve.load(name)
    write(path, entries)
    with Service(f"--models={path}", f"--predictor_host={triton.http_address}", *flags) as service:
        yield service.wait_until("/")


def state(service: Service, name: str) -> Any:
    """The entry of a model in the repository index; None for a model that is not listed."""
    index = service.client.post("/v2/repository/index").json()
    return next((item for item in index if item["name"] == name), None)


def answers(service: Service, name: str, text: str) -> Any:
    """The predictions, or the status of a failed request."""
    response = service.post({"instances": [text]}, name)
    return response.json()["predictions"] if response.status_code == 200 else response.status_code


def test_ten_models_answer_as_ten_services_do(serve: Serve, triton: LocalTriton, tmp_path: Path) -> None:
    with several(serve, triton, tmp_path / "models.json", entries_of(*demos())) as service:
        service.wait_until("/v2/health/ready")
        names = [example.name for example in demos().values()]
        assert service.client.get("/v1/models").json()["models"] == names
        assert service.client.get("/v2/models").json() == {"models": names}
        cards = service.client.get("/openai/v1/models").json()["data"]
        assert [card["id"] for card in cards] == names
        index = service.client.post("/v2/repository/index").json()
        assert [(item["name"], item["state"]) for item in index] == [(name, "READY") for name in names]
        models = service.client.get("/info").json()["models"]
        assert [(item["name"], item["task"]) for item in models] == [(demos()[task].name, task) for task in demos()]
        document = service.client.get("/openapi.json").json()
        parameter = document["components"]["parameters"]["PathModel"]
        assert parameter["schema"]["enum"] == names
        for task, example in demos().items():
            alone = serve(example.model, "v2", *([f"--task={task}"] if example.name != example.model else []))
            body = json.loads(example.body)
            assert service.post(body, example.name).json() == alone.post(body).json(), task
            samples = f'request_predict_seconds_count{{model_name="{example.name}"}}'
            assert service.metric(samples) == 1


def test_a_request_without_a_name_goes_to_the_only_model_that_fits(
    serve: Serve, triton: LocalTriton, tmp_path: Path
) -> None:
    again = {**entry("text_embedding", REPOSITORY), "model_name": "again", "predictor_model": "minibert_mean"}
    with several(serve, triton, tmp_path / "models.json", [*entries_of("text_embedding", "rerank"), again]) as service:
        service.wait_until("/v2/health/ready")
        post = service.client.post
        rerank = {"query": "france", "documents": ["paris", "rome"]}
        assert post("/openai/v1/rerank", json=rerank).json()["model"] == "cross"
        refused = post("/openai/v1/embeddings", json={"input": "a"})
        error = refused.json()["error"]
        assert refused.status_code == 400 and error["param"] == "model"
        assert "(minibert_mean, again)" in error["message"]
        chosen = post("/openai/v1/embeddings?model=again", json={"input": "a"}).json()
        assert chosen["model"] == "again"
        assert post("/openai/v1/embeddings", json={"input": "a", "model": "again"}).json() == chosen
        differs = post("/openai/v1/embeddings?model=again", json={"input": "a", "model": "minibert_mean"})
        assert differs.json()["error"]["message"] == "model: expected 'again', as in the query, got 'minibert_mean'"
        assert service.client.get("/info?model=").status_code == 404
        assert post("/openai/v1/rerank?model=", json=rerank).status_code == 404
        wrong = post("/openai/v1/embeddings", json={"input": "a", "model": "cross"})
        assert wrong.status_code == 400 and "'cross' for rerank" in wrong.json()["error"]["message"]
        assert service.client.get("/info?model=cross").json()["model_type"].keys() == {"reranker"}
        assert "model_id" not in service.client.get("/info").json()


def test_aliases_answer_under_the_name_that_was_asked(serve: Serve, triton: LocalTriton, tmp_path: Path) -> None:
    [bert] = entries_of("fill_mask")
    with several(serve, triton, tmp_path / "models.json", [bert | {"aliases": ["old", "older"]}]) as service:
        service.wait_until("/v2/health/ready")
        assert service.predict([FILL], model="older") == ["paris"]
        assert service.client.get("/v1/models").json()["models"] == ["bert", "old", "older"]
        tensors = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [FILL]}]}
        infer = service.client.post("/v2/models/old/infer", json=tensors).json()
        assert infer["model_name"] == "old" and infer["outputs"][0]["data"] == ["paris"]
        assert service.client.get("/v2/models/old").json()["name"] == "bert"
        cards = service.client.get("/openai/v1/models").json()["data"]
        assert [(card["id"], card.get("root")) for card in cards] == [
            ("bert", None),
            ("old", "bert"),
            ("older", "bert"),
        ]
        assert service.metric('hf_transformer_requests_total{api="v1",model_name="bert",status="200"}') == 1
        with grpc.insecure_channel(service.grpc_address) as channel:
            call = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                pb.ModelInferRequest.SerializeToString,
                pb.ModelInferResponse.FromString,
            )
            request = pb.ModelInferRequest(model_name="older")
            request.inputs.add(name="text", datatype="BYTES", shape=[1]).contents.bytes_contents.append(FILL.encode())
            assert call(request).model_name == "older"


def test_models_of_one_folder_share_the_word_cache(serve: Serve, triton: LocalTriton, tmp_path: Path) -> None:
    [bert] = entries_of("fill_mask")
    twin = {**bert, "model_name": "twin", "predictor_model": bert["model_name"]}
    checks = 'hf_transformer_word_cache_checks_total{{model_name="{}",result="same"}}'
    with several(serve, triton, tmp_path / "models.json", [bert, twin]) as service:
        service.wait_until("/v2/health/ready")
        before = service.metric(checks.format("twin"))
        assert service.predict([FILL] * 1100) == ["paris"] * 1100
        # One in 1,024 texts of the cache is compared with the library.
        assert service.metric(checks.format("twin")) == service.metric(checks.format("bert")) == before + 1
        assert service.predict([FILL], model="twin") == ["paris"]


def test_an_adapter_is_chosen_like_a_model(serve: Serve, triton: LocalTriton, tmp_path: Path) -> None:
    vllm = {"model_name": "gpt2_vllm", "model_dir": str(REPOSITORY / "gpt2"), "adapters": ["shouting", "unknown"]}
    serve.load("gpt2_vllm")
    with several(serve, triton, tmp_path / "models.json", [vllm]) as service:
        service.wait_until("/v2/health/ready")
        post, prompt = service.client.post, "The capital of france is"
        body = {"prompt": prompt, "max_tokens": 3, "temperature": 0}

        def completion(**fields: Any) -> tuple[str, str]:
            answer = post("/openai/v1/completions", json=body | fields).json()
            return answer["model"], answer["choices"][0]["text"]

        assert completion() == ("gpt2_vllm", " paris.")
        assert completion(model="shouting") == ("shouting", " PARIS.")
        streamed = post("/openai/v1/completions", json=body | {"model": "shouting", "stream": True}).text
        chunks = [
            json.loads(line.removeprefix("data: ")) for line in streamed.split("\n\n") if line.startswith("data: {")
        ]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " PARIS."
        assert {chunk["model"] for chunk in chunks} == {"shouting"}
        assert service.predict([prompt], model="shouting") == [[{"generated_text": f"{prompt} PARIS."}]]
        generated = post("/v2/models/shouting/generate", json={"text_input": prompt, "max_tokens": 3}).json()
        assert generated["model_name"] == "shouting" and generated["text_output"].endswith(" PARIS.")
        refused = post("/openai/v1/completions", json=body | {"model": "unknown"})
        assert refused.status_code == 502 and "LoRA unknown is not supported" in refused.text
        cards = service.client.get("/openai/v1/models").json()["data"]
        assert [(card["id"], card.get("parent")) for card in cards[1:]] == [
            ("shouting", "gpt2_vllm"),
            ("unknown", "gpt2_vllm"),
        ]
    bert = entry("fill_mask", REPOSITORY) | {"adapters": ["shouting"]}
    with several(serve, triton, tmp_path / "models.json", [bert]) as service:
        assert poll(lambda: "can't be loaded" in state(service, "bert")["reason"], CHANGE_SECONDS)
        assert "expected a model for text_generation, got fill_mask" in state(service, "bert")["reason"]


def test_a_model_that_fails_leaves_the_others_alone(serve: Serve, triton: LocalTriton, tmp_path: Path) -> None:
    missing = {"model_name": "missing", "model_dir": str(REPOSITORY / "bert")}
    nowhere = {"model_name": "nowhere", "model_dir": str(tmp_path / "nowhere")}
    down = {**missing, "model_name": "down", "predictor_host": NOBODY}
    silent = socket.create_server(("127.0.0.1", 0))  # the kernel accepts connections, and nobody answers
    hung = {**missing, "model_name": "hung", "predictor_host": f"127.0.0.1:{silent.getsockname()[1]}"}
    entries = [*entries_of("fill_mask"), missing, nowhere, down, hung]
    with silent, several(serve, triton, tmp_path / "models.json", entries) as service:
        service.wait_until("/v2/models/bert/ready")
        assert service.predict([FILL], model="bert") == ["paris"]
        ready = service.client.get("/v2/health/ready")
        assert ready.status_code == 503
        reasons = ready.json()["error"].split("; ")
        assert [reason.split("'")[1] for reason in reasons] == ["missing", "down", "hung", "nowhere"]
        wrong: list[Any] = []

        def ask(name: str, expected: Any) -> None:
            for _ in range(100):
                if (got := answers(service, name, FILL)) != expected:
                    wrong.append((name, got))

        expected = {"bert": ["paris"], "hung": 503, "missing": 503, "down": 503, "nowhere": 503}
        asking = [threading.Thread(target=ask, args=pair) for pair in expected.items()]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        assert wrong == []
        assert poll(lambda: "can't be loaded" in state(service, "nowhere")["reason"], CHANGE_SECONDS)
        assert "does not have 'missing'" in state(service, "missing")["reason"]
        assert message_of(service.post({"instances": [FILL]}, "nowhere"), 503).startswith(
            "model 'nowhere' is not ready"
        )
        assert service.post({"instances": [FILL]}, "down").status_code == 503
    with several(serve, triton, tmp_path / "models.json", entries, "--ready_when=any") as service:
        service.wait_until("/v2/health/ready")
        assert service.client.get("/v2/models/missing/ready").status_code == 503


def test_changes_of_the_file_are_applied_without_a_wrong_answer(
    serve: Serve, triton: LocalTriton, tmp_path: Path
) -> None:
    """Adds, changes, breaks, mends and removes entries while two models are asked all the time."""
    path = tmp_path / "models.json"
    [bert, sentiment, ner] = entries_of("fill_mask", "sequence_classification", "token_classification")
    serve.load("ner")
    with several(serve, triton, path, [bert, sentiment]) as service:
        service.wait_until("/v2/health/ready")
        expected = {"bert": ["paris"], "sentiment": answers(service, "sentiment", TEXT)}
        wrong: list[Any] = []
        ended = threading.Event()

        def ask() -> None:
            while not ended.is_set():
                for name, text in (("bert", FILL), ("sentiment", TEXT)):
                    if (got := answers(service, name, text)) != expected[name]:
                        wrong.append((name, got))

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            write(path, [bert, sentiment, ner])
            assert poll(lambda: (state(service, "ner") or {}).get("state") == "READY", CHANGE_SECONDS)
            assert service.predict(["Anna lives in Berlin."], model="ner")

            path.write_text("- model_name: [")
            assert poll(lambda: "errors" in service.client.get("/info").json(), CHANGE_SECONDS)
            [(flag, error)] = service.client.get("/info").json()["errors"].items()
            assert flag == "--models" and error.startswith(f"{path.name} is not YAML: line"), "without the folder"
            assert service.metric("hf_transformer_model_entries_valid") == 0
            assert service.predict(["Anna lives in Berlin."], model="ner")

            write(path, [bert, sentiment, ner | {"output_format": "pipeline"}])
            changed = {"entity", "score", "index", "word", "start", "end"}

            def has_changed() -> bool:
                [found] = service.predict(["Anna lives in Berlin."], model="ner")
                return isinstance(found[0], dict) and found[0].keys() == changed

            assert poll(has_changed, CHANGE_SECONDS)
            assert service.metric("hf_transformer_model_entries_valid") == 1

            write(path, [bert, sentiment, ner | {"model_dir": str(tmp_path / "nowhere")}])
            assert poll(lambda: "ner" in service.client.get("/info").json().get("errors", {}), CHANGE_SECONDS)
            assert has_changed(), "the served model stays"
            assert poll(lambda: service.metric("hf_transformer_model_entries_valid") == 0, CHANGE_SECONDS)

            write(path, [bert, sentiment])
            assert poll(lambda: answers(service, "ner", TEXT) == 404, CHANGE_SECONDS)
            assert "errors" not in service.client.get("/info").json()
            assert 'model_name="ner"' not in service.client.get("/metrics").text
        finally:
            ended.set()
            asking.join()
        assert wrong == []


def test_a_removed_model_finishes_its_requests(
    serve: Serve, triton: LocalTriton, repository: Path, tmp_path: Path
) -> None:
    path = tmp_path / "models.json"
    slow = {"model_name": "slow", "predictor_model": "fault_slow", "model_dir": str(REPOSITORY / "bert")}
    serve.load("fault_slow")
    with several(serve, triton, path, [slow]) as service:
        service.wait_until("/v2/health/ready")
        answered: list[Any] = []
        texts = [FILL] * 40
        asking = threading.Thread(target=lambda: answered.append(service.post({"instances": texts}, "slow").json()))
        with held(repository):
            asking.start()
            assert poll(lambda: service.metric("hf_transformer_requests_in_flight") == 1, CHANGE_SECONDS)
            write(path, [])
            assert poll(lambda: service.client.get("/v1/models").json()["models"] == [], CHANGE_SECONDS)
        asking.join()
        assert answered == [{"predictions": ["paris"] * 40}]
        assert message_of(service.client.get("/v1/models/slow"), 404).endswith("got 'slow'")


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_load_and_unload_models(serve: Serve, triton: LocalTriton, tmp_path: Path, workers: int) -> None:
    new_entry = {"model_name": "own", "predictor_model": "bert_int32", "model_dir": str(REPOSITORY / "bert")}
    serve.load("bert_int32")
    (keys := tmp_path / "control-keys").write_text("operator-key\n")
    flags = ("--enable_model_control", f"--model_control_keys_file={keys}", f"--workers={workers}")
    key = {"x-api-key": "operator-key"}
    try:
        with several(serve, triton, tmp_path / "models.json", [*entries_of("fill_mask"), new_entry], *flags) as service:
            service.wait_until("/v2/health/ready")
            assert service.client.post("/v2/repository/models/own/unload").status_code == 401
            assert service.client.post("/v2/repository/models/own/unload", headers=key).status_code == 200
            for _ in range(3):  # other workers follow
                assert poll(lambda: state(service, "own")["state"] == "UNAVAILABLE", CHANGE_SECONDS)
            assert poll(lambda: answers(service, "own", FILL) == 503, CHANGE_SECONDS)
            assert service.predict([FILL], model="bert") == ["paris"]
            assert poll(lambda: service.client.get("/v2/health/ready").status_code == 200, CHANGE_SECONDS)
            with grpc.insecure_channel(service.grpc_address) as channel:
                load = channel.unary_unary(
                    "/inference.GRPCInferenceService/RepositoryModelLoad",
                    pb.RepositoryModelLoadRequest.SerializeToString,
                    pb.RepositoryModelLoadResponse.FromString,
                )
                load(pb.RepositoryModelLoadRequest(model_name="own"), metadata=tuple(key.items()))
                with pytest.raises(grpc.RpcError, match="expected a declared model"):
                    load(pb.RepositoryModelLoadRequest(model_name="nobody"), metadata=tuple(key.items()))
            assert poll(lambda: answers(service, "own", FILL) == ["paris"], CHANGE_SECONDS)
            assert service.client.post("/v2/repository/models/nobody/load", headers=key).status_code == 404
    finally:
        serve.forget("bert_int32")


def test_models_are_loaded_only_with_the_flag(serve: Serve) -> None:
    response = serve("bert").client.post("/v2/repository/models/bert/unload")
    assert "--enable_model_control" in message_of(response, 400)


def test_folders_with_a_tokenizer_are_served(serve: Serve, triton: LocalTriton, tmp_path: Path) -> None:
    """A folder that is added is served; others are named in the log once."""
    for name in ("bert", "sentiment"):
        serve.load(name)
    folder = tmp_path / "repository"
    (folder / "ensemble" / "1").mkdir(parents=True)
    (folder / "bert").symlink_to(REPOSITORY / "bert")
    with Service(f"--model_repository={folder}", f"--predictor_host={triton.http_address}") as service:
        service.wait_until("/v2/models/bert/ready")
        (folder / "sentiment").symlink_to(REPOSITORY / "sentiment")
        assert poll(lambda: (state(service, "sentiment") or {}).get("state") == "READY", CHANGE_SECONDS)
        assert service.client.get("/v1/models").json()["models"] == ["bert", "sentiment"]
        (folder / "sentiment").unlink()
        assert poll(lambda: state(service, "sentiment") is None, CHANGE_SECONDS)
        assert service.stop() == 0
        assert service.log.count("ensemble is not served: no config.json") == 1


def test_a_client_s_error_names_no_folder_of_the_server(serve: Serve, triton: LocalTriton, tmp_path: Path) -> None:
    """The log has the folders, and the commands that mend a model."""
    home = tmp_path / "a folder" / "models"
    broken = {"json": "{", "array": "[]", "bare": '{"architectures": ["BertForMaskedLM"]}'}
    for name, content in broken.items():
        (home / name).mkdir(parents=True)
        (home / name / "config.json").write_text(content)
    slow = home / "slow"
    slow.mkdir()
    (slow / "config.json").write_text('{"architectures": ["BertForMaskedLM"], "model_type": "bert"}')
    (slow / "tokenizer_config.json").write_text('{"tokenizer_class": "CTRLTokenizer"}')
    (slow / "vocab.json").write_text("{}")
    (slow / "merges.txt").write_text("")
    entries = [{"model_name": name, "model_dir": str(home / name)} for name in (*broken, "slow", "absent")]
    entries.append(
        {"model_name": "template", "model_dir": str(REPOSITORY / "gpt2"), "chat_template": f"{home}/x.jinja"}
    )
    entries.append({"model_name": "hub", "model_id": f"{home}/a model"})
    with several(serve, triton, tmp_path / "models.json", entries) as service:
        for item in entries:
            name = item["model_name"]
            assert poll(lambda name=name: "can't be loaded" in state(service, name)["reason"], CHANGE_SECONDS)  # type: ignore[misc]
            texts = [
                service.post({"instances": [FILL]}, name).text,
                service.client.get(f"/v1/models/{name}").text,
                service.client.get(f"/v2/models/{name}/ready").text,
                service.client.post("/openai/v1/completions", json={"model": name, "prompt": "x"}).text,
                json.dumps(state(service, name)),
            ]
            for text in texts:
                assert "not ready" in text or "can't be loaded" in text
                for secret in (str(tmp_path), "a folder", str(REPOSITORY), "pip install"):
                    assert secret not in text, text
            assert f"model {name!r} can't be loaded" in service.log
        for name in ("json", "array", "absent"):
            assert str(home / name) in service.log
        for path in ("/v2/health/ready", "/info"):
            assert str(tmp_path) not in service.client.get(path).text


@contextmanager
def always_ready(service: Service) -> Iterator[None]:
    """Asks for the readiness of a service over HTTP and gRPC all the time; it must not change."""
    statuses, ended = Counter[str](), threading.Event()
    with grpc.insecure_channel(service.grpc_address) as channel:
        stub, request = health_pb2_grpc.HealthStub(channel), pb.ServerReadyRequest()
        server_ready = channel.unary_unary(
            "/inference.GRPCInferenceService/ServerReady",
            pb.ServerReadyRequest.SerializeToString,
            pb.ServerReadyResponse.FromString,
        )

        def ask() -> None:
            while not ended.wait(0.05):
                for path in ("/v2/health/ready", "/health"):
                    statuses[f"{path} {service.client.get(path).status_code}"] += 1
                statuses[f"gRPC {server_ready(request).ready}"] += 1
                statuses[f"health {stub.Check(health_pb2.HealthCheckRequest()).status}"] += 1

        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask)
            try:
                yield
            finally:
                ended.set()
                asking.result(30)
    assert statuses.keys() == {"/v2/health/ready 200", "/health 200", "gRPC True", "health 1"}, statuses


def info_entry(service: Service, name: str) -> Any:
    """The entry of a model in /info."""
    return next((item for item in service.client.get("/info").json()["models"] if item["name"] == name), None)


def unserved(service: Service, name: str) -> float:
    """When a model ceased to be served, from the metric; 0 for a served one."""
    return service.metric(f'hf_transformer_model_unserved_timestamp_seconds{{model_name="{name}"}}', 0.0)


def test_a_ready_service_stays_ready_whatever_its_file_becomes(
    serve: Serve, triton: LocalTriton, tmp_path: Path
) -> None:
    path = tmp_path / "models.json"
    [bert, sentiment] = entries_of("fill_mask", "sequence_classification")
    missing = {"model_name": "missing", "model_dir": str(REPOSITORY / "bert")}
    nowhere = {"model_name": "nowhere", "model_dir": str(tmp_path / "nowhere")}
    down = {**missing, "model_name": "down", "predictor_host": NOBODY}
    renamed = sentiment | {"model_name": "feeling", "predictor_model": "sentiment"}
    with several(serve, triton, path, [bert, sentiment | {"aliases": ["mood"]}]) as service:
        service.wait_until("/v2/health/ready")
        right = answers(service, "sentiment", TEXT)
        with always_ready(service):
            write(path, [bert, sentiment, missing, nowhere, down])
            for name, reason in (("missing", "does not have"), ("nowhere", "can't be loaded"), ("down", "unavailable")):
                assert poll(lambda n=name, r=reason: r in (state(service, n) or {}).get("reason", ""), CHANGE_SECONDS)  # type: ignore[misc]
                entry_of_info = info_entry(service, name)
                assert (entry_of_info["ready"], entry_of_info["counts"]) == (False, False)
                assert time.time() - 60 < datetime.fromisoformat(entry_of_info["since"]).timestamp() <= time.time()
                assert time.time() - 60 < unserved(service, name) <= time.time()
                assert answers(service, name, FILL) == 503
                assert service.client.get(f"/v2/models/{name}/ready").status_code == 503
            assert unserved(service, "bert") == 0 and "since" not in info_entry(service, "bert")
            assert poll(lambda: service.metric("hf_transformer_model_entries_valid") == 0, CHANGE_SECONDS)

            write(path, [bert | {"aliases": ["mood"]}, sentiment])
            assert poll(lambda: answers(service, "mood", FILL) == ["paris"], CHANGE_SECONDS), "the alias has moved"
            assert unserved(service, "missing") == 0 and answers(service, "missing", FILL) == 404

            write(path, [bert | {"model_dir": str(tmp_path / "nowhere")}, renamed | {"aliases": ["sentiment", "mood"]}])
            assert poll(lambda: answers(service, "feeling", TEXT) == right, CHANGE_SECONDS)
            assert answers(service, "sentiment", TEXT) == right == answers(service, "mood", TEXT)
            assert poll(lambda: unserved(service, "bert") > 0, CHANGE_SECONDS), "its change is not applied"
            assert answers(service, "bert", FILL) == ["paris"] and "since" in info_entry(service, "bert")

            def listed() -> Any:
                return service.client.get("/v1/models").json()["models"]

            write(path, [renamed])
            assert poll(lambda: listed() == ["feeling"], CHANGE_SECONDS), "its aliases are gone, too"
            assert answers(service, "bert", FILL) == answers(service, "sentiment", TEXT) == 404
            write(path, [sentiment])
            assert poll(lambda: listed() == ["sentiment"], CHANGE_SECONDS)
            assert poll(lambda: answers(service, "sentiment", TEXT) == right, CHANGE_SECONDS), "the only model"
        assert service.metric("hf_transformer_model_entries_valid") == 1


def test_a_moved_alias_and_a_renamed_model_answer_all_the_time(
    serve: Serve, triton: LocalTriton, tmp_path: Path
) -> None:
    """Old and new owner are the same model, so that each answer under the name must be right."""
    path = tmp_path / "models.json"
    [bert] = entries_of("fill_mask")
    green = bert | {"model_name": "green", "predictor_model": "bert"}
    with several(serve, triton, path, [bert | {"aliases": ["live"]}]) as service:
        service.wait_until("/v2/health/ready")
        wrong, ended = list[Any](), threading.Event()

        def ask() -> None:
            while not ended.is_set():
                if (got := answers(service, "live", FILL)) != ["paris"]:
                    wrong.append(got)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            for entries, names in (
                ([bert, green | {"aliases": ["live"]}], ["bert", "green", "live"]),
                ([bert | {"aliases": ["live"]}], ["bert", "live"]),
                ([green | {"aliases": ["live"]}], ["green", "live"]),
                ([bert | {"model_name": "live", "predictor_model": "bert"}], ["live"]),
            ):
                write(path, entries)
                assert poll(lambda e=names: service.client.get("/v1/models").json()["models"] == e, CHANGE_SECONDS)  # type: ignore[misc]
                assert poll(lambda n=names[0]: answers(service, n, FILL) == ["paris"], CHANGE_SECONDS)  # type: ignore[misc]
        finally:
            ended.set()
            asking.join()
        assert wrong == []


def test_a_folder_that_is_copied_or_broken_leaves_the_service_ready(
    serve: Serve, triton: LocalTriton, tmp_path: Path
) -> None:
    for name in ("bert", "sentiment"):
        serve.load(name)
    folder = tmp_path / "repository"
    shutil.copytree(REPOSITORY / "bert", folder / "bert")
    with Service(f"--model_repository={folder}", f"--predictor_host={triton.http_address}") as service:
        service.wait_until("/v2/health/ready")
        with always_ready(service):
            (folder / "sentiment").mkdir()
            shutil.copyfile(REPOSITORY / "sentiment" / "config.json", folder / "sentiment" / "config.json")
            whole = (REPOSITORY / "sentiment" / "tokenizer.json").read_bytes()
            (folder / "sentiment" / "tokenizer.json").write_bytes(whole[: len(whole) // 2])
            assert poll(
                lambda: "can't be loaded" in (state(service, "sentiment") or {}).get("reason", ""), CHANGE_SECONDS
            )
            assert unserved(service, "sentiment") > 0
            shutil.copytree(REPOSITORY / "sentiment", folder / "sentiment", dirs_exist_ok=True)
            assert poll(lambda: (state(service, "sentiment") or {}).get("state") == "READY", CHANGE_SECONDS)
            assert unserved(service, "sentiment") == 0

            for broken in (folder / "bert").iterdir():
                if broken.is_file() and broken.name != "config.json":
                    broken.unlink()
            assert poll(lambda: "bert" in service.client.get("/info").json().get("errors", {}), CHANGE_SECONDS)
            assert answers(service, "bert", FILL) == ["paris"], "the folder is there"
            assert unserved(service, "bert") > 0
            shutil.copytree(REPOSITORY / "bert", folder / "bert", dirs_exist_ok=True)
            assert poll(lambda: unserved(service, "bert") == 0, CHANGE_SECONDS)
            shutil.rmtree(folder / "bert")
            assert poll(lambda: answers(service, "bert", FILL) == 404, CHANGE_SECONDS)


@pytest.mark.parametrize("counts", [True, False], ids=["health_check", "default"])
def test_a_model_that_triton_loses_is_named(counts: bool, serve: Serve, triton: LocalTriton, tmp_path: Path) -> None:
    """With the health check a model that was ready counts; without it, its requests fail and readiness stays."""
    serve.load("bert_int32")
    lost = {"model_name": "lost", "model_dir": str(REPOSITORY / "bert"), "predictor_model": "bert_int32"}
    flags = (f"--enable_predictor_health_check={str(counts).lower()}", "--predictor_check_seconds=1")
    try:
        with several(serve, triton, tmp_path / "models.json", [*entries_of("fill_mask"), lost], *flags) as service:
            service.wait_until("/v2/health/ready")
            unload = f"http://{triton.http_address}/v2/repository/models/bert_int32/unload"
            httpx.post(unload, timeout=60.0, trust_env=False, verify=False).raise_for_status()
            assert poll(lambda: unserved(service, "lost") > 0, CHANGE_SECONDS)
            service.wait_until("/v2/health/ready", 503 if counts else 200)
            assert unserved(service, "bert") == 0
            found = info_entry(service, "lost")
            assert found["since"] and "counts" not in found and found["ready"] is not counts
            assert "does not have 'bert_int32'" in found["reason"] and "(--predictor_model)" in found["reason"]
            assert answers(service, "bert", FILL) == ["paris"] and answers(service, "lost", FILL) == 503
            serve.forget("bert_int32")
            serve.load("bert_int32")
            assert poll(lambda: unserved(service, "lost") == 0, CHANGE_SECONDS)
            assert "reason" not in info_entry(service, "lost") and answers(service, "lost", FILL) == ["paris"]
    finally:
        serve.forget("bert_int32")
