"""The OpenAI API over real sockets, against what V1 answers."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.integration.conftest import Serve
from tests.service import Service
from tests.triton_repository import task_model_folder

TEXTS = ["The cat sleeps on the sofa.", "It will rain tomorrow!", "Who cooks dinner?"]
LONG = "The cat sleeps on the sofa. " * 60
QUERY = "Who cooks dinner?"
DOCUMENTS = ["It will rain tomorrow!", "They cook dinner together.", "The cat sleeps on the sofa."]
MODEL = "minibert_mean"
BODY = {"model": MODEL, "input": TEXTS[0]}
RERANK = {"model": "cross", "query": QUERY, "documents": DOCUMENTS}


def embeddings(serve: Serve, protocol: str = "v2", *flags: str) -> Service:
    """Takes token ids."""
    return serve(MODEL, protocol, f"--model_dir={task_model_folder(MODEL)}", "--enable_token_inputs=true", *flags)


def rerank(serve: Serve, protocol: str = "v2", *flags: str) -> Service:
    return serve("cross", protocol, f"--model_dir={task_model_folder('cross')}", "--task=rerank", *flags)


def ask(service: Service, endpoint: str, body: Any, prefix: str = "/openai") -> Any:
    response = service.client.post(f"{prefix}/v1/{endpoint}", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


def vectors(answer: Any) -> list[Any]:
    assert [one["index"] for one in answer["data"]] == list(range(len(answer["data"])))
    return [one["embedding"] for one in answer["data"]]


def error(response: httpx.Response, status: int) -> Any:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert list(response.json()) == ["error"]
    assert list(response.json()["error"]) == ["message", "type", "param", "code"]
    return response.json()["error"]


def token_ids(*texts: str) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(task_model_folder(MODEL) / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in texts]


def test_the_embeddings_are_those_of_v1(serve: Serve, protocol: str) -> None:
    service = embeddings(serve, protocol)
    expected = service.predict(TEXTS)
    answer = ask(service, "embeddings", {**BODY, "input": TEXTS, "encoding_format": "float", "user": "u"})
    assert vectors(answer) == expected
    count = sum(map(len, token_ids(*TEXTS)))
    usage = {"prompt_tokens": count, "total_tokens": count}
    assert {**answer, "data": []} == {"object": "list", "data": [], "model": MODEL, "usage": usage}
    assert {one["object"] for one in answer["data"]} == {"embedding"}
    encoded = vectors(ask(service, "embeddings", {**BODY, "input": TEXTS, "encoding_format": "base64"}))
    read = [np.frombuffer(base64.b64decode(one), "<f4") for one in encoded]
    assert np.array_equal(np.array(read), np.array(expected, np.float32))


def test_forms_of_input(serve: Serve) -> None:
    service = embeddings(serve)
    one, many = vectors(ask(service, "embeddings", BODY)), vectors(ask(service, "embeddings", BODY | {"input": TEXTS}))
    ids = token_ids(*TEXTS)
    assert vectors(ask(service, "embeddings", BODY | {"input": [TEXTS[0]]})) == one
    assert vectors(ask(service, "embeddings", BODY | {"input": ids[0]})) == one
    assert vectors(ask(service, "embeddings", BODY | {"input": ids})) == many
    assert vectors(ask(service, "embeddings", BODY | {"input": [TEXTS[0], ids[1], TEXTS[2]]})) == many
    assert ask(service, "embeddings", BODY | {"input": ids[0]})["usage"]["total_tokens"] == len(ids[0])


@pytest.mark.parametrize("given", [[3, 4], [[3, 4]], ["a", [3]]], ids=str)
def test_token_ids_need_a_flag(serve: Serve, given: Any) -> None:
    """Those of another tokenizer, as LangChain sends them by default, would give wrong vectors."""
    service = serve(MODEL, "v2", f"--model_dir={task_model_folder(MODEL)}")
    found = error(service.client.post("/openai/v1/embeddings", json=BODY | {"input": given}), 400)
    assert found["param"].startswith("input")
    assert "check_embedding_ctx_length=False" in found["message"] and "--enable_token_inputs" in found["message"]


def test_parameters(serve: Serve) -> None:
    service = embeddings(serve)
    for parameters in (
        {"dimensions": 16},
        {"prompt_name": "query"},
        {"prompt": "about: ", "normalize": False},
        {"truncation": True, "prompt": None},
    ):
        found = vectors(ask(service, "embeddings", BODY | parameters))
        assert found == service.predict([TEXTS[0]], parameters)
    assert len(vectors(ask(service, "embeddings", BODY | {"dimensions": 16}))[0]) == 16
    raw = vectors(ask(service, "embeddings", BODY | {"normalized": False, "truncate_prompt_tokens": -1}))
    assert raw == service.predict([TEXTS[0]], {"normalize": False})
    truncated = ask(service, "embeddings", BODY | {"input": LONG})["usage"]
    assert truncated == {"prompt_tokens": 128, "total_tokens": 128}


@pytest.mark.parametrize(
    ("fields", "status", "param", "says"),
    [
        pytest.param({"model": None}, 400, "model", "missing", id="no model"),
        pytest.param({"input": None}, 400, "input", "got nothing", id="no input"),
        pytest.param({"input": ["a", 3]}, 400, "input[1]", "got a number", id="element"),
        pytest.param({"input": [3, "a"]}, 400, "input", "token 1 is a string", id="token"),
        pytest.param({"input": [[3], [3, 10**6]]}, 400, "input[1]", "token 1 is 1000000, expected 0", id="no such id"),
        pytest.param({"input": [[3], []]}, 400, "input[1]", "got an empty list", id="no ids"),
        pytest.param({"input": [3] * 129}, 413, "input", "129 token ids, at most 128 are taken", id="many ids"),
        pytest.param({"input": [[3] * 129]}, 413, "input[0]", "129 token ids", id="many ids in a list"),
        pytest.param({"input": [3], "prompt": "x"}, 400, "prompt", "in front of token ids", id="prompt"),
        pytest.param({"input": [[3]], "prompt_name": "query"}, 400, "prompt_name", "token ids", id="prompt_name"),
        pytest.param({"input": ["a"] * 1025}, 413, "input", "--max_instances", id="many inputs"),
        pytest.param({"input": "a" * 1_000_001}, 413, "input", "--max_text_length", id="long input"),
        pytest.param({"input": LONG, "truncation": False}, 413, "input", "longer than the 128 tokens", id="long text"),
        pytest.param({"input": ["a", LONG], "truncation": False}, 413, "input[1]", "longer", id="long element"),
        pytest.param({"encoding_format": "int8"}, 400, "encoding_format", "float, base64", id="encoding_format"),
        pytest.param({"dimensions": 0}, 400, "dimensions", "0 is too small", id="dimensions"),
        pytest.param({"dimensions": 49}, 400, "dimensions", "have 48", id="many dimensions"),
        pytest.param({"dimensions": "16"}, 400, "dimensions", "got a string", id="dimensions' type"),
        pytest.param({"user": 7}, 400, "user", "got a number", id="user"),
        pytest.param({"input_type": "query"}, 400, "input_type", "expected prompt_name in its place", id="input_type"),
        pytest.param({"normalized": 1}, 400, "normalized", "expected true or false", id="normalized"),
        pytest.param({"normalize": True, "normalized": True}, 400, "normalized", "means the same", id="twice"),
        pytest.param({"normalize": 1}, 400, "normalize", "expected true or false", id="normalize"),
        pytest.param({"top_k": 1}, 400, "top_k", "unknown, expected some of model, input", id="unknown"),
        pytest.param({"output_format": "kserve"}, 400, "output_format", "unknown", id="not of this API"),
    ],
)
def test_wrong_embeddings_requests(serve: Serve, fields: Any, status: int, param: str, says: str) -> None:
    found = error(embeddings(serve).client.post("/openai/v1/embeddings", json=BODY | fields), status)
    assert (found["param"], found["type"], found["code"]) == (param, "invalid_request_error", None)
    assert found["message"].startswith(f"{param}: ") and says in found["message"]


def test_errors_without_a_field(serve: Serve) -> None:
    client = embeddings(serve).client
    bad = error(client.post("/openai/v1/embeddings", content=b"{"), 400)
    assert bad["param"] is None and bad["message"].startswith("body: not JSON")
    compressed = client.post("/openai/v1/embeddings", json=BODY, headers={"content-encoding": "br"})
    assert error(compressed, 415)["param"] is None
    for method, path, status, code in (
        ("GET", "/openai/v1/embeddings", 405, "method_not_supported"),
        ("POST", "/openai/v1/models", 405, "method_not_supported"),
        ("POST", "/openai/v1/chat", 404, None),
        ("GET", "/openai", 404, None),
    ):
        found = error(client.request(method, path), status)
        assert found["message"].startswith(f"{method} {path}: ")
        assert (found["type"], found["param"], found["code"]) == ("invalid_request_error", None, code)
    assert client.get("/v1/embeddings").json() == {"error": "GET /v1/embeddings: Not Found"}


def test_unknown_models(serve: Serve) -> None:
    client = embeddings(serve).client
    for response in (
        client.post("/openai/v1/embeddings", json=BODY | {"model": "gpt"}),
        client.post("/openai/v1/rerank", json=RERANK),
        client.get("/openai/v1/models/gpt"),
    ):
        found = error(response, 404)
        assert f"is not served here; served: {MODEL}" in found["message"]
        assert (found["type"], found["param"], found["code"]) == ("invalid_request_error", "model", "model_not_found")


def test_models_of_other_tasks(serve: Serve) -> None:
    wrong = embeddings(serve).client.post("/openai/v1/rerank", json=RERANK | {"model": MODEL})
    other = rerank(serve).client.post("/openai/v1/embeddings", json=BODY | {"model": "cross"})
    for response, said in (
        (wrong, f"{MODEL!r} does text_embedding, but rerank needs rerank"),
        (other, "'cross' does rerank, but embeddings needs text_embedding"),
    ):
        found = error(response, 400)
        assert said in found["message"] and found["param"] == "model"


@pytest.mark.parametrize("flags", [(), ("--output_format=pipeline",)], ids=["kserve", "pipeline"])
def test_rerank(serve: Serve, protocol: str, flags: tuple[str, ...]) -> None:
    service = rerank(serve, protocol, *flags)
    (expected,) = service.predict([{"query": QUERY, "texts": DOCUMENTS}], {"output_format": "kserve"})
    response = service.client.post("/openai/v1/rerank", json=RERANK, headers={"x-request-id": "caller-17"})
    answer = response.json()
    assert [(one["index"], one["relevance_score"]) for one in answer["results"]] == [
        (one["index"], one["score"]) for one in expected
    ]
    assert [one["document"] for one in answer["results"]] == [{"text": DOCUMENTS[one["index"]]} for one in expected]
    assert (answer["id"], answer["model"]) == ("rerank-caller-17", "cross")
    tokenizer = Tokenizer.from_file(str(task_model_folder("cross") / "tokenizer.json"))
    count = sum(len(tokenizer.encode(QUERY, document).ids) for document in DOCUMENTS)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}


def test_what_rerank_takes(serve: Serve) -> None:
    service = rerank(serve)
    everything = ask(service, "rerank", RERANK)["results"]
    objects = RERANK | {"documents": [{"text": one} for one in DOCUMENTS], "user": "u"}
    assert ask(service, "rerank", objects)["results"] == everything
    assert ask(service, "rerank", RERANK | {"top_n": 1})["results"] == everything[:1]
    short = ask(service, "rerank", RERANK | {"return_documents": False})["results"]
    assert short == [{name: one[name] for name in ("index", "relevance_score")} for one in everything]
    same = {"max_tokens_per_doc": 4096, "truncate_prompt_tokens": -1, "priority": 0}
    assert ask(service, "rerank", RERANK | same)["results"] == everything
    raw = ask(service, "rerank", RERANK | {"raw_scores": True})["results"]
    assert [one["index"] for one in raw] == [one["index"] for one in everything] and raw != everything


@pytest.mark.parametrize(
    ("fields", "status", "param", "says"),
    [
        pytest.param({"query": None}, 400, "query", "got nothing", id="no query"),
        pytest.param({"query": 7}, 400, "query", "got a number", id="query"),
        pytest.param({"documents": []}, 400, "documents", "an empty one", id="no documents"),
        pytest.param({"documents": ["a", {"txt": "b"}]}, 400, "documents[1]", "the keys txt", id="document"),
        pytest.param({"documents": ["a"] * 2049}, 413, "documents", "at most 2048 are taken", id="many documents"),
        pytest.param({"documents": ["a" * 1_000_001]}, 413, "documents[0]", "--max_text_length", id="long document"),
        pytest.param({"documents": ["a", LONG], "truncation": False}, 413, "documents[1]", "longer", id="truncation"),
        pytest.param({"top_n": 0}, 400, "top_n", "0 is too small", id="top_n"),
        pytest.param({"max_tokens_per_doc": 8}, 400, "max_tokens_per_doc", "8 is too small", id="max_tokens_per_doc"),
        pytest.param({"return_documents": "no"}, 400, "return_documents", "expected true", id="return_documents"),
        pytest.param({"texts": ["a"]}, 400, "texts", "unknown, expected some of model, query", id="unknown"),
    ],
)
def test_wrong_rerank_requests(serve: Serve, fields: Any, status: int, param: str, says: str) -> None:
    found = error(rerank(serve).client.post("/openai/v1/rerank", json=RERANK | fields), status)
    assert (found["param"], found["type"]) == (param, "invalid_request_error")
    assert found["message"].startswith(f"{param}: ") and says in found["message"]


def assert_card(card: Any) -> None:
    assert type(card["created"]) is int
    assert card == {"id": MODEL, "object": "model", "created": card["created"], "owned_by": "hf_transformer"}


def test_models(serve: Serve) -> None:
    client = embeddings(serve).client
    listed = client.get("/openai/v1/models").json()
    assert {**listed, "data": []} == {"object": "list", "data": []}
    (card,) = listed["data"]
    assert_card(card)
    assert client.get(f"/openai/v1/models/{MODEL}").json() == card
    assert client.get("/v1/models").json() == {"models": [MODEL]}


def test_another_prefix(serve: Serve) -> None:
    service = embeddings(serve, "v2", "--openai_route_prefix=/llm/api/")
    assert vectors(ask(service, "embeddings", BODY, "/llm/api")) == service.predict([TEXTS[0]])
    assert_card(service.client.get(f"/llm/api/v1/models/{MODEL}").json())
    assert error(service.client.get("/llm/api/v1/nothing"), 404)["type"] == "invalid_request_error"
    assert service.client.get("/openai/v1/models").json() == {"error": "GET /openai/v1/models: Not Found"}


def test_no_prefix(serve: Serve) -> None:
    """Two routes are V1's and OpenAI's then, and answer both."""
    service = embeddings(serve, "v2", "--openai_route_prefix=")
    client = service.client
    assert vectors(ask(service, "embeddings", BODY, "")) == service.predict([TEXTS[0]])
    listed = client.get("/v1/models").json()
    (card,) = listed["data"]
    assert_card(card)
    assert listed == {"models": [MODEL], "object": "list", "data": [card]}
    assert client.get(f"/v1/models/{MODEL}").json() == {"name": MODEL, "ready": True, **card}
    assert isinstance(client.get("/v1/models/gpt").json()["error"], str)
    assert error(client.get("/v1/embeddings"), 405)["code"] == "method_not_supported"
    assert error(client.post("/v1/images/generations"), 404)["code"] is None


def test_before_the_model_is_ready(serve: Serve) -> None:
    flags = (f"--model_dir={task_model_folder(MODEL)}", "--openai_route_prefix=")
    service = serve("absent", "v2", *flags, ready=False)
    response = service.client.post("/v1/embeddings", json=BODY | {"model": "absent"})
    found = error(response, 503)
    assert "not ready" in found["message"] and (found["type"], found["param"]) == ("server_error", None)
    assert int(response.headers["retry-after"]) >= 1
    shared = service.client.get("/v1/models/absent")
    assert shared.status_code == 503
    assert (shared.json()["ready"], shared.json()["id"]) == (False, "absent")


def test_requests_are_counted(serve: Serve) -> None:
    service = embeddings(serve)
    ask(service, "embeddings", BODY)
    name = 'hf_transformer_requests_total{api="openai",status="200"}'
    before = service.metric(name)
    ask(service, "embeddings", BODY)
    assert service.metric(name) == before + 1
