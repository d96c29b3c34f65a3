"""The OpenAI API over real sockets, against what V1 answers."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.integration.conftest import Serve
from tests.support.service import Service
from tests.support.triton_repository import task_model_folder

TEXTS = ["The cat sleeps on the sofa.", "It will rain tomorrow!", "Who cooks dinner?"]
LONG = "The cat sleeps on the sofa. " * 60
QUERY = "Who cooks dinner?"
DOCUMENTS = ["It will rain tomorrow!", "They cook dinner together.", "The cat sleeps on the sofa."]
MODEL = "minibert_mean"
BODY = {"model": MODEL, "input": TEXTS[0]}
RERANK = {"model": "cross", "query": QUERY, "documents": DOCUMENTS}


def embeddings(serve: Serve) -> Service:
    """Takes token ids."""
    return serve(MODEL, "v2", "--enable_token_inputs=true")


def ask(service: Service, endpoint: str, body: Any, prefix: str = "/openai") -> Any:
    response = service.client.post(f"{prefix}/v1/{endpoint}", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


def vectors(answer: Any) -> list[Any]:
    assert [one["index"] for one in answer["data"]] == list(range(len(answer["data"])))
    return [one["embedding"] for one in answer["data"]]


def error(response: httpx.Response, status: int) -> Any:
    """The error, whose type is the one of clients' mistakes."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert list(response.json()) == ["error"]
    found = response.json()["error"]
    assert list(found) == ["message", "type", "param", "code"]
    assert found["type"] == "invalid_request_error"
    return found


def token_ids(*texts: str) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(task_model_folder(MODEL) / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in texts]


def test_the_embeddings_are_those_of_v1(serve: Serve) -> None:
    service = embeddings(serve)
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


def test_texts_and_token_ids_have_the_same_embeddings(serve: Serve) -> None:
    service = embeddings(serve)
    single = vectors(ask(service, "embeddings", BODY))
    many = vectors(ask(service, "embeddings", BODY | {"input": TEXTS}))
    ids = token_ids(*TEXTS)
    for texts, expected in (
        ([TEXTS[0]], single),
        (ids[0], single),
        (ids, many),
        ([TEXTS[0], ids[1], TEXTS[2]], many),
    ):
        assert vectors(ask(service, "embeddings", BODY | {"input": texts})) == expected
    assert ask(service, "embeddings", BODY | {"input": ids[0]})["usage"]["total_tokens"] == len(ids[0])


def test_2048_inputs_are_answered_as_by_openai(serve: Serve) -> None:
    texts = [f"{TEXTS[0]} {number}" for number in range(2048)]
    found = vectors(ask(serve(MODEL), "embeddings", BODY | {"input": texts}))
    assert len(found) == 2048
    assert np.allclose(found[-1], vectors(ask(serve(MODEL), "embeddings", BODY | {"input": texts[-1]}))[0], atol=1e-6)


def test_token_ids_need_a_flag(serve: Serve) -> None:
    """Ids of another tokenizer, as LangChain sends them by default, would give wrong vectors."""
    for given in ([3, 4], [[3, 4]], ["a", [3]]):
        found = error(serve(MODEL).client.post("/openai/v1/embeddings", json=BODY | {"input": given}), 400)
        assert found["param"].startswith("input")
        assert "check_embedding_ctx_length=False" in found["message"] and "--enable_token_inputs" in found["message"]


NOTHING: dict[str, Any] = {
    **{"user": "me", "safety_identifier": "abc", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
    **{"store": True, "service_tier": "default", "priority": 0, "metadata": {"team": "search"}, "n": None},
    **{"embedding_type": "float", "late_chunking": False, "add_special_tokens": True, "modality": "text"},
    **{"request_id": "r", "padding": "do_not_pad", "embed_dtype": "float32", "endianness": "little"},
}
"""Fields that ask for nothing."""


def test_fields_mean_the_parameters_of_v1(serve: Serve) -> None:
    service = embeddings(serve)
    asked: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"dimensions": 16}, {"dimensions": 16, "normalize": True}),
        ({"dimensions": 16, "normalize": False}, {"dimensions": 16, "normalize": False}),
        ({"prompt_name": "query"}, {"prompt_name": "query"}),
        ({"prompt": "about: ", "normalize": False}, {"prompt": "about: ", "normalize": False}),
        ({"truncation": True, "prompt": None}, {}),
        ({"normalized": False, "truncate_prompt_tokens": -1}, {"normalize": False}),
        (NOTHING, {}),
        *[({"truncate": value}, {}) for value in ("END", True, "NONE", False, None)],
    ]
    for sent, meant in asked:
        found = vectors(ask(service, "embeddings", BODY | sent))
        assert found == service.predict([TEXTS[0]], meant)
        assert len(found[0]) == meant.get("dimensions", 48)
    for value in ("END", True):
        assert ask(service, "embeddings", BODY | {"input": LONG, "truncate": value})["usage"]["total_tokens"] == 128
    truncated = ask(service, "embeddings", BODY | {"input": LONG})["usage"]
    assert truncated == {"prompt_tokens": 128, "total_tokens": 128}


WRONG: list[tuple[Any, int, str, str]] = [
    ({"input": ["a", 3]}, 400, "input[1]", "got a number"),
    ({"input": [[3], [3, 10**6]]}, 400, "input[1]", "got 1000000 at index 1"),
    ({"input": [3] * 129}, 400, "input", "expected at most 128 token ids, the model's length, got 129"),
    ({"input": [3], "prompt": "x"}, 400, "prompt", "expected no value for token ids"),
    ({"input": ["a"] * 2049}, 413, "input", "--max_instances"),
    ({"input": "a" * 1_000_001}, 400, "input", "--max_text_length"),
    ({"input": LONG, "truncation": False}, 400, "input", "expected at most 128 tokens"),
    ({"input": ["a", LONG], "truncation": False}, 400, "input[1]", "must not be truncated"),
    *[
        ({"input": ["a", LONG], "truncate": value}, 400, "input[1]", "must not be truncated")
        for value in ("NONE", False)
    ],
    (
        {"truncate": "START", "truncation_side": "left"},
        400,
        "truncation_side",
        """no value beside truncate: "START\"""",
    ),
    ({"dimensions": 49}, 400, "dimensions", "at most 48"),
    ({"input_type": "question"}, 400, "input_type", "expected one of query, search_query, document, passage"),
    ({"input_type": "query", "prompt": "x"}, 400, "input_type", "both"),
    ({"truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens", "-1 for the model's length, got 0"),
    ({"input": [{"txt": "a"}]}, 400, "input[0]", "the keys txt"),
]
WRONG_RERANK: list[tuple[Any, int, str, str]] = [
    ({"documents": ["a", {"txt": "b"}]}, 400, "documents[1]", "the keys txt"),
    ({"documents": ["a"] * 2049}, 413, "documents", "at most 2048"),
    ({"documents": ["a" * 1_000_001]}, 400, "documents[0]", "--max_text_length"),
    ({"documents": ["a", LONG], "truncation": False}, 400, "documents[1]", "must not be truncated"),
    *[
        ({"documents": ["a", LONG], "truncate": value}, 400, "documents[1]", "must not be truncated")
        for value in ("NONE", False)
    ],
    ({"documents": [{"title": "a"}], "rank_fields": ["name"]}, 400, "documents[0].name", "rank_fields names it"),
]


def test_wrong_fields_are_named_as_param(serve: Serve) -> None:
    for service, endpoint, body, wrong in (
        (embeddings(serve), "embeddings", BODY, WRONG),
        (serve("cross"), "rerank", RERANK, WRONG_RERANK),
    ):
        for fields, status, param, says in wrong:
            refusal = error(service.client.post(f"/openai/v1/{endpoint}", json=body | fields), status)
            code = "context_length_exceeded" if "Please reduce the length of the" in refusal["message"] else None
            assert (refusal["param"], refusal["code"]) == (param, code)
            assert (code is None) == ("This model's maximum context length is 128 tokens." not in refusal["message"])
            assert refusal["message"].startswith(f"{param}: ") and says in refusal["message"]


UNKNOWN = {"param": "model", "code": "model_not_found"}
ELSEWHERE: list[tuple[str, str, Any, int, dict[str, Any], str]] = [
    ("POST", "embeddings", b"{", 400, {"param": None}, "body: expected JSON in UTF-8"),
    ("POST", "embeddings", [1], 400, {"param": None}, "body: expected an object, got a list"),
    ("POST", "embeddings", dict.fromkeys("abcdefgh", 1), 400, {"param": None}, "'d', 'e' and 3 more"),
    ("GET", "embeddings", None, 405, {"param": None, "code": "method_not_supported"}, "GET /openai/v1/embeddings: "),
    ("POST", "models", None, 405, {"param": None, "code": "method_not_supported"}, "POST /openai/v1/models: "),
    ("POST", "chat", None, 404, {"param": None, "code": None}, "POST /openai/v1/chat: "),
    ("POST", "embeddings", BODY | {"model": "gpt"}, 404, UNKNOWN, f"a served model ({MODEL})"),
    ("POST", "rerank", RERANK, 404, UNKNOWN, f"a served model ({MODEL})"),
    ("GET", "models/gpt", None, 404, UNKNOWN, f"a served model ({MODEL})"),
]


def test_unknown_models_and_routes_have_openais_errors(serve: Serve) -> None:
    client = serve(MODEL).client
    for method, endpoint, body, status, about, says in ELSEWHERE:
        sent: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
        found = error(client.request(method, f"/openai/v1/{endpoint}", **sent), status)
        assert found.items() >= about.items()
        assert says in found["message"]
    content = json.dumps(BODY).encode("utf-16")
    utf_16 = {"content-type": "application/json; charset=utf-16"}
    assert client.post("/openai/v1/embeddings", content=content, headers=utf_16).status_code == 200
    compressed = client.post("/openai/v1/embeddings", json=BODY, headers={"content-encoding": "br"})
    assert error(compressed, 415)["param"] is None
    assert error(client.get("/openai"), 404)["message"].startswith("GET /openai: ")
    for path in ("/openai2/v1/embeddings",):
        assert client.get(path).json() == {"error": f"GET {path}: Not Found"}


def test_rerank_has_the_scores_of_v1(serve: Serve) -> None:
    """Whatever the format of V1's answers is."""
    service = serve("cross", "v2", "--output_format=pipeline")
    (expected,) = service.predict([{"query": QUERY, "texts": DOCUMENTS}], {"output_format": "kserve"})
    response = service.client.post("/openai/v1/rerank", json=RERANK, headers={"x-request-id": "caller-17"})
    answer = response.json()
    everything = answer["results"]
    assert [(result["index"], result["relevance_score"]) for result in everything] == [
        (result["index"], result["score"]) for result in expected
    ]
    assert [result["document"] for result in everything] == [
        {"text": DOCUMENTS[result["index"]]} for result in expected
    ]
    assert (answer["id"], answer["model"]) == ("rerank-caller-17", "cross")
    tokenizer = Tokenizer.from_file(str(task_model_folder("cross") / "tokenizer.json"))
    count = sum(len(tokenizer.encode(QUERY, document).ids) for document in DOCUMENTS)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    short = [{name: result[name] for name in ("index", "relevance_score")} for result in everything]
    asked: list[tuple[dict[str, Any], Any]] = [
        ({"documents": [{"text": text} for text in DOCUMENTS], "user": "u"}, everything),
        ({"top_n": 1}, everything[:1]),
        ({"return_documents": False}, short),
        *[({"truncate": value}, everything) for value in ("END", True, "NONE", False)],
        ({"max_tokens_per_doc": 4096, "truncate_prompt_tokens": -1, "priority": 0}, everything),
        ({"max_tokens_per_doc": 0, "max_tokens_per_query": 0, "use_activation": True}, everything),
    ]
    for fields, results in asked:
        assert ask(service, "rerank", RERANK | fields)["results"] == results
    raw = ask(service, "rerank", RERANK | {"raw_scores": True})["results"]
    assert [result["index"] for result in raw] == [result["index"] for result in everything] and raw != everything
    assert ask(service, "rerank", RERANK | {"use_activation": False})["results"] == raw
    assert answer.keys() == {"id", "model", "usage", "results"}
    assert ask(service, "rerank", RERANK | {"top_k": 1})["results"] == everything[:1]
    shared = ask(service, "rerank", RERANK, "")
    assert (shared["results"], shared["object"], shared["data"]) == (everything, "list", short)
    infinity = service.client.post("/infinity/rerank", json=RERANK).json()
    assert (infinity["results"], infinity["object"]) == (short, "rerank") and "data" not in infinity
    texts = [{**result, "document": everything[index]["document"]["text"]} for index, result in enumerate(short)]
    body = RERANK | {"return_documents": True}
    assert service.client.post("/infinity/rerank", json=body).json()["results"] == texts
    assert ask(service, "rerank", body, "")["data"] == texts
    assert shared["meta"]["tokens"] == {"input_tokens": count}
    titled = [{"title": text, "year": "1"} for text in DOCUMENTS]
    ranked = ask(service, "rerank", RERANK | {"documents": titled, "rank_fields": ["title"]})["results"]
    assert ranked[0]["document"]["text"].startswith("title: ")


def assert_card(card: Any) -> None:
    assert type(card["created"]) is int
    assert card == {"id": MODEL, "object": "model", "created": card["created"], "owned_by": "hf_transformer"}


@pytest.mark.parametrize("prefix", ["/openai", "/llm/api"])
def test_all_routes_have_the_prefix(serve: Serve, prefix: str) -> None:
    service = serve(MODEL, "v2", *(() if prefix == "/openai" else (f"--openai_route_prefix={prefix}/",)))
    assert vectors(ask(service, "embeddings", BODY, prefix)) == service.predict([TEXTS[0]])
    listed = service.client.get(f"{prefix}/v1/models").json()
    (card,) = listed["data"]
    assert_card(card)
    assert listed == {"object": "list", "data": [card]}
    assert service.client.get(f"{prefix}/v1/models/{MODEL}").json() == card
    error(service.client.get(f"{prefix}/v1/nothing"), 404)
    assert service.client.get("/other/v1/models").json() == {"error": "GET /other/v1/models: Not Found"}


def test_routes_without_a_prefix_answer_v1_and_openai(serve: Serve) -> None:
    """Two routes are V1's and OpenAI's then, and answer both. tests/integration/test_errors.py: before it is ready."""
    service = serve(MODEL, "v2", "--openai_route_prefix=")
    client = service.client
    assert vectors(ask(service, "embeddings", BODY, "")) == service.predict([TEXTS[0]])
    listed = client.get("/v1/models").json()
    (card,) = listed["data"]
    assert_card(card)
    assert listed == {"models": [MODEL], "object": "list", "data": [card]}
    assert client.get(f"/v1/models/{MODEL}").json() == {"name": MODEL, "ready": True, **card}
    for path in ("/v1/models", "/v1/models/gpt", "/v2/models", "/v2/models/gpt"):
        assert isinstance(client.post(path).json()["error"], str), path
    refused = client.get("/v1/embeddings")  # other APIs share this path, and their clients read other keys
    assert (refused.status_code, refused.json()["error"]["code"]) == (405, "method_not_supported")
    assert refused.json()["message"] == refused.json()["detail"] == refused.json()["error"]["message"]
    assert error(client.post("/v1/images/generations"), 404)["code"] is None
