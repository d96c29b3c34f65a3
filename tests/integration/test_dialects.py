"""APIs of Cohere, Jina, Voyage, vLLM and NVIDIA NIM in front of the real Triton, against the same models over V1."""

from __future__ import annotations

import base64
from math import exp, log
from typing import Any

import numpy as np
import pytest

from tests.integration.conftest import Serve
from tests.integration.grpc_client import request, stub, values
from tests.support.service import Service

TEXTS = ["The cat sleeps on the sofa.", "It will rain tomorrow!"]
LONG = "The cat sleeps on the sofa. " * 60
QUERY = "Who cooks dinner?"
DOCUMENTS = ["It will rain tomorrow!", "They cook dinner together.", "The cat sleeps on the sofa."]


def answer(service: Service, path: str, body: Any, status: int = 200) -> Any:
    response = service.client.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


def close(found: Any, expected: Any) -> bool:
    return bool(np.allclose(np.array(found, np.float64), np.array(expected, np.float64), atol=1e-5, rtol=0))


def embeddings(service: Service, body: Any, path: str = "/v1/embeddings") -> Any:
    return [one["embedding"] for one in answer(service, path, body)["data"]]


def unbase64(text: str, dtype: Any) -> Any:
    return np.frombuffer(base64.b64decode(text), dtype).tolist()


# Cohere


def test_cohere_s_embed_gives_each_type_from_one_pass(serve: Serve) -> None:
    service = serve("minibert_mean")
    floats = np.array(service.predict(TEXTS, {"input_type": "query"}), np.float32)
    body = {"model": "minibert_mean", "texts": TEXTS, "input_type": "search_query"}
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    before = service.metric('hf_transformer_batch_instances_sum{model_name="minibert_mean"}')
    whole = answer(service, "/v2/embed", body | {"embedding_types": types})
    assert service.metric('hf_transformer_batch_instances_sum{model_name="minibert_mean"}') - before == len(TEXTS)
    embeddings_by_type = whole["embeddings"]
    assert list(embeddings_by_type) == types and whole["response_type"] == "embeddings_by_type"
    assert close(embeddings_by_type["float"], floats)
    assert np.array_equal(
        [unbase64(one, "<f4") for one in embeddings_by_type["base64"]], np.float32(embeddings_by_type["float"])
    )
    assert embeddings_by_type["ubinary"] == np.packbits(np.array(embeddings_by_type["float"]) >= 0, axis=1).tolist()
    assert embeddings_by_type["binary"] == (np.array(embeddings_by_type["ubinary"]) - 128).tolist()
    assert embeddings_by_type["int8"] == (np.array(embeddings_by_type["uint8"]) - 128).tolist()
    assert embeddings_by_type["uint8"] == service.predict(TEXTS, {"input_type": "query", "precision": "uint8"})
    assert whole["texts"] == TEXTS and whole["meta"]["api_version"] == {"version": "2"}
    assert list(answer(service, "/v2/embed", body)["embeddings"]) == ["float"]


def test_cohere_s_first_version_has_bare_vectors(serve: Serve) -> None:
    service = serve("minibert_mean")
    body = {"model": "minibert_mean", "texts": TEXTS, "input_type": "search_document"}
    whole = answer(service, "/v1/embed", body)
    assert whole["response_type"] == "embeddings_floats" and set(whole) >= {"id", "texts", "meta"}
    assert close(whole["embeddings"], service.predict(TEXTS, {"input_type": "document"}))
    typed = answer(service, "/v1/embed", body | {"embedding_types": ["ubinary"]})
    assert list(typed["embeddings"]) == ["ubinary"]


def test_cohere_truncates_the_end_by_default_or_the_start(serve: Serve) -> None:
    service = serve("minibert_mean")
    body = {"texts": [LONG + "dinner"], "input_type": "clustering"}
    for fields, meant in (
        ({}, {"truncation": True}),
        ({"truncate": "START"}, {"truncation": True, "truncation_side": "left"}),
        ({"max_tokens": 16}, {"truncation": True, "max_tokens": 16}),
        ({"output_dimension": 8}, {"dimensions": 8, "normalize": True}),
    ):
        found = answer(service, "/v2/embed", body | fields)["embeddings"]["float"]
        assert close(found, service.predict([LONG + "dinner"], meant)), fields
    error = answer(service, "/v2/embed", body | {"truncate": "NONE"}, 400)
    assert list(error) == ["message"] and error["message"].startswith("texts[0]: expected at most 128 tokens")
    assert "This model's maximum context length is 128 tokens." in error["message"]


def test_cohere_s_inputs_are_parts_of_text(serve: Serve) -> None:
    service = serve("minibert_mean")
    parts = [{"content": [{"type": "text", "text": one}]} for one in TEXTS]
    found = answer(service, "/v2/embed", {"inputs": parts, "input_type": "search_document"})
    assert close(found["embeddings"]["float"], service.predict(TEXTS, {"input_type": "document"}))


COHERE_WRONG: list[tuple[dict[str, Any], str]] = [
    ({"texts": None}, "texts: expected a list of texts, got nothing"),
    ({"texts": ["a", 1]}, "texts[1]: expected a string, got a number"),
    ({"input_type": "question"}, "input_type: expected one of query, search_query"),
    ({"output_dimension": 12, "embedding_types": ["binary"]}, "embedding_types: expected another type for vectors"),
    ({"texts": None, "inputs": [{"content": [{"type": "image_url"}]}]}, 'inputs[0].content[0].type: expected "text"'),
]


def test_cohere_s_errors_have_a_message(serve: Serve) -> None:
    service = serve("minibert_mean")
    for fields, says in COHERE_WRONG:
        error = answer(service, "/v2/embed", {"texts": TEXTS} | fields, 400)
        assert list(error) == ["message"] and error["message"].startswith(says), error


def test_cohere_s_rerank(serve: Serve) -> None:
    service = serve("cross")
    [expected] = service.predict([{"query": QUERY, "texts": DOCUMENTS}])
    body = {"model": "cross", "query": QUERY, "documents": DOCUMENTS}
    ranked = answer(service, "/v2/rerank", body)
    assert [(result["index"], result["relevance_score"]) for result in ranked["results"]] == [
        (result["index"], result["score"]) for result in expected
    ]
    assert all(result.keys() == {"index", "relevance_score"} for result in ranked["results"])
    assert ranked["meta"]["billed_units"] == {"search_units": 1}
    assert len(answer(service, "/v2/rerank", body | {"top_n": 1})["results"]) == 1
    long = body | {"documents": ["They cook dinner together. " + LONG, LONG]}
    [cut] = service.predict(
        [{"query": QUERY, "texts": long["documents"]}], {"max_tokens_per_doc": 9, "truncate_document": True}
    )
    short = answer(service, "/v2/rerank", long | {"max_tokens_per_doc": 9})["results"]
    assert close([result["relevance_score"] for result in short], [result["score"] for result in cut])
    assert short != answer(service, "/v2/rerank", long)["results"]
    strict = serve("cross", "v2", "--on_overflow=error")
    assert close(
        [result["relevance_score"] for result in answer(strict, "/v2/rerank", long)["results"]],
        [result["relevance_score"] for result in answer(service, "/v2/rerank", long)["results"]],
    )
    documents = [{"text": text, "number": number} for number, text in enumerate(DOCUMENTS)]
    ranked = answer(service, "/v1/rerank", body | {"documents": documents, "return_documents": True})["results"]
    assert [result["document"] for result in ranked] == [documents[result["index"]] for result in expected]
    error = answer(service, "/v2/rerank", body | {"documents": ["a", 1]}, 400)
    assert error == {"message": 'documents[1]: expected a string or {"text": string}, got a number'}


def test_cohere_s_number_of_chunks_is_a_bound_with_or_without_windows(serve: Serve) -> None:
    body = {"query": QUERY, "documents": [LONG + "They cook dinner together.", "They cook dinner together."]}
    for flags, ignored in (
        ((), "max_chunks_per_doc"),
        (("--on_overflow=window", "--max_model_len=24"), None),
    ):
        service = serve("cross", "v2", *flags)
        response = service.client.post("/v1/rerank", json=body | {"max_chunks_per_doc": 1})
        assert (response.status_code, response.headers.get("x-ignored-parameters")) == (200, ignored), response.text
        meta = {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}}
        assert response.json()["meta"].items() >= meta.items()
        every = answer(service, "/v1/rerank", body)["results"]
        assert (response.json()["results"] == every) is (ignored is not None)
        error = answer(service, "/v1/rerank", body | {"max_chunks_per_doc": 0}, 400)
        assert error["message"] == "max_chunks_per_doc: expected 1 or more, got 0"
    error = answer(service, "/v1/rerank", body | {"max_chunks_per_doc": 1, "truncation": True}, 400)
    assert error["message"].startswith("max_chunks_per_doc: expected no value without windows")


# Paths that several share


def test_rerank_is_at_the_paths_of_all(serve: Serve) -> None:
    service = serve("cross")
    body = {"query": QUERY, "documents": DOCUMENTS}
    expected = answer(service, "/openai/v1/rerank", body)["results"]
    for path in ("/v1/rerank", "/rerank"):
        assert answer(service, path, body)["results"] == expected
    error = answer(service, "/v1/rerank", body | {"top_n": "all"}, 400)
    assert (
        error["message"]
        == error["detail"]
        == error["error"]["message"]
        == "top_n: expected a whole number, got a string"
    )
    voyage = answer(service, "/v1/rerank", body | {"truncation": True, "top_k": 2, "model": "cross"})
    assert [one["index"] for one in voyage["data"]] == [one["index"] for one in expected[:2]]
    assert all(one.keys() == {"index", "relevance_score"} for one in voyage["data"])
    voyage = answer(service, "/v1/rerank", body | {"truncation": True, "return_documents": True})
    assert [one["document"] for one in voyage["data"]] == [DOCUMENTS[one["index"]] for one in expected]


def test_embeddings_read_the_fields_of_jina_voyage_and_nim(serve: Serve) -> None:
    service = serve("minibert_mean")
    asked: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"task": "retrieval.query"}, {"input_type": "query"}),
        ({"task": "nl2code.query"}, {"input_type": "query"}),
        ({"task": "nl2code.passage"}, {"input_type": "document"}),
        ({"task": "retrieval.passage", "normalized": False}, {"input_type": "document", "normalize": False}),
        ({"task": "text-matching", "truncate": True}, {}),
        ({"embedding_type": "ubinary"}, {"precision": "ubinary"}),
        (
            {"input_type": "query", "output_dtype": "int8", "truncation": True},
            {"input_type": "query", "precision": "int8"},
        ),
        ({"output_dimension": 8, "output_dtype": "float"}, {"dimensions": 8, "normalize": True}),
        ({"input_type": "passage", "truncate": "NONE", "modality": "text"}, {"input_type": "document"}),
        ({"model": "minibert_mean-query"}, {"input_type": "query"}),
        ({"model": "minibert_mean-passage", "input_type": "passage"}, {"input_type": "document"}),
        ({"input": [{"text": item} for item in TEXTS]}, {}),
    ]
    for fields, meant in asked:
        vectors = embeddings(service, {"model": "minibert_mean", "input": TEXTS} | fields)
        assert close(vectors, service.predict(TEXTS, meant)), fields
    for fields, meant in (
        ({"truncate": "START"}, {"truncation_side": "left"}),
        ({"truncate_prompt_tokens": 9, "truncation_side": "left"}, {"truncation_side": "left", "max_tokens": 9}),
        ({"truncate_prompt_tokens": -1}, {"truncation": True}),
    ):
        vectors = embeddings(service, {"input": LONG + "dinner"} | fields)
        assert close(vectors, service.predict([LONG + "dinner"], meant)), fields
    coded = embeddings(service, {"input": TEXTS, "output_dtype": "uint8", "encoding_format": "base64"})
    assert [unbase64(item, np.uint8) for item in coded] == service.predict(TEXTS, {"precision": "uint8"})
    [jina] = embeddings(service, {"input": TEXTS[:1], "embedding_type": "base64"})
    assert close(unbase64(jina, "<f4"), service.predict(TEXTS[:1])[0])


BASE64_OF: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "OpenAI": ("/v1/embeddings", {"input": TEXTS}, {"encoding_format": "base64"}),
    "NIM": ("/v1/embeddings", {"input": TEXTS, "input_type": "query"}, {"encoding_format": "base64"}),
    "Jina": ("/v1/embeddings", {"input": TEXTS, "task": "retrieval.query"}, {"embedding_type": "base64"}),
    "Jina's vectors of tokens": ("/v1/multi-vector", {"input": TEXTS}, {"embedding_type": "base64"}),
    "Voyage": ("/v1/embeddings", {"input": TEXTS, "input_type": "query"}, {"encoding_format": "base64"}),
    "Voyage's chunks": ("/v1/contextualizedembeddings", {"inputs": [TEXTS]}, {"encoding_format": "base64"}),
    "Cohere v1": ("/v1/embed", {"texts": TEXTS, "embedding_types": ["float"]}, {"embedding_types": ["base64"]}),
    "Cohere v2": ("/v2/embed", {"texts": TEXTS}, {"embedding_types": ["base64"]}),
    "vLLM": ("/pooling", {"input": TEXTS, "task": "embed"}, {"encoding_format": "base64"}),
    "vLLM's vectors of tokens": ("/pooling", {"input": TEXTS, "task": "token_embed"}, {"encoding_format": "base64"}),
}
"""Path, body, and the fields that ask for base64."""


def vectors_of(found: Any) -> list[Any]:
    """All vectors of an answer in order: lists of numbers, or strings."""
    if isinstance(found, dict):
        keys = ("data", "embeddings", "embedding", "float", "base64")
        return [vector for key in keys if key in found for vector in vectors_of(found[key])]
    if isinstance(found, list) and found and isinstance(found[0], float):
        return [found]
    return [vector for one in found for vector in vectors_of(one)] if isinstance(found, list) else [found]


@pytest.mark.parametrize("api", BASE64_OF)
def test_base64_has_the_numbers_of_the_vectors(serve: Serve, api: str) -> None:
    service = serve("m3" if "tokens" in api else "minibert_mean")
    path, body, fields = BASE64_OF[api]
    if "Voyage" in api or api.startswith("Cohere"):
        body = {"model": service.model, **body}
    plain, coded = (vectors_of(answer(service, path, one)) for one in (body, body | fields))
    assert coded and all(isinstance(one, str) for one in coded)
    numbers = [number for one in coded for number in unbase64(one, "<f4")]
    assert close(numbers, [number for one in plain for number in one])


def test_a_suffix_of_a_model_s_name_contradicts_another_input_type(serve: Serve) -> None:
    service = serve("minibert_mean")
    body = {"model": "minibert_mean-query", "input": TEXTS, "input_type": "passage"}
    error = answer(service, "/v1/embeddings", body, 400)["detail"]
    assert error == "input_type: expected 'query', as in the name of the model, got 'passage'"
    assert answer(service, "/v1/embeddings", body | {"model": "other-query"}, 404)["error"]["param"] == "model"


def test_late_chunking_of_jina_and_voyage(serve: Serve) -> None:
    service = serve("minibert_mean")
    [together] = service.predict([{"chunks": TEXTS}])
    jina = embeddings(service, {"input": TEXTS, "late_chunking": True})
    assert close(jina, together) and not close(jina, service.predict(TEXTS))
    path = "/v1/contextualizedembeddings"
    body = {"model": "minibert_mean", "inputs": [TEXTS, [QUERY]], "input_type": "document"}
    whole = answer(service, path, body)
    expected = service.predict([{"chunks": TEXTS}, {"chunks": [QUERY]}], {"input_type": "document"})
    for document, vectors in zip(whole["data"], expected, strict=True):
        assert close([one["embedding"] for one in document["data"]], vectors)
    assert [document["index"] for document in whole["data"]] == [0, 1] and list(whole["usage"]) == ["total_tokens"]
    coded = answer(service, path, body | {"encoding_format": "base64", "output_dimension": 8})
    assert len(unbase64(coded["data"][1]["data"][0]["embedding"], "<f4")) == 8
    for fields, says in (
        ({"inputs": [["a"], "b"]}, "inputs[1]: expected a list of texts, got a string"),
        ({"inputs": [["a", 1]]}, "inputs[0][1]: expected a string, got a number"),
        ({"output_dimension": 999}, "output_dimension: expected at most 48"),
        ({"enable_auto_chunking": True}, "enable_auto_chunking: expected false"),
    ):
        assert answer(service, path, body | fields, 400)["detail"].startswith(says), fields


def test_vectors_of_tokens_of_jina_and_vllm_and_representations(serve: Serve) -> None:
    service = serve("m3")
    expected = service.predict(TEXTS, {"representations": ["dense", "sparse", "multi_vector"]})
    body = {"model": "m3", "input": TEXTS}
    found = embeddings(service, body | {"representations": ["dense", "sparse", "multi_vector"]})
    for vectors, wanted in zip(found, expected, strict=True):
        assert close(vectors["dense"], wanted["dense"]) and vectors["sparse"] == wanted["sparse"]
    tokens = answer(service, "/v1/multi-vector", body | {"input_type": "document"})["data"]
    pooled = answer(service, "/pooling", body | {"task": "token_embed"})["data"]
    for index, wanted in enumerate(expected):
        assert close(tokens[index]["embeddings"], wanted["multi_vector"])
        assert close(pooled[index]["data"], wanted["multi_vector"])
    dense = answer(service, "/pooling", body)["data"]
    assert close([vectors["data"] for vectors in dense], [vectors["dense"] for vectors in expected])


def test_models_without_a_vector_per_text_answer_in_no_other_form(serve: Serve) -> None:
    """Vectors of another form never stand in the place of dense ones, and OpenAI's default of base64 is no fault."""
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": TEXTS[:1]}
    nim = {"inputs": [tensor], "parameters": {"truncate": "END"}}
    for model, has in (("splade", "sparse vectors"), ("colbert", "vectors of tokens")):
        service = serve(model)
        says = f"model: expected a model with a vector per text, got '{model}', which has {has}"
        asked: list[tuple[str, Any]] = [
            ("/v1/embed", {"texts": TEXTS}),
            ("/v2/embed", {"texts": TEXTS, "embedding_types": ["int8", "binary"]}),
            ("/v1/contextualizedembeddings", {"inputs": [TEXTS]}),
            (f"/v2/models/{model}/infer", nim),
        ]
        for path, body in asked:
            error = answer(service, path, body, 400)
            assert (error.get("message") or error["error"]) == says, path
        expected = service.predict(TEXTS)
        found = embeddings(service, {"input": TEXTS, "encoding_format": "base64"})
        for one, other in zip(found, expected, strict=True):
            assert one == other if model == "splade" else close(one, other)
    assert close(answer(service, "/pooling", {"input": TEXTS[0]})["data"][0]["data"], expected[0])
    error = answer(service, "/pooling", {"input": TEXTS, "task": "embed"}, 400)["error"]
    assert error["message"] == "task: expected one of token_embed, got 'embed'"
    service = serve("splade")
    assert "which has sparse vectors" in answer(service, "/pooling", {"input": TEXTS}, 400)["error"]["message"]
    error = answer(service, "/v1/multi-vector", {"input": TEXTS}, 400)["detail"]
    assert error.startswith("model: expected a model with vectors of tokens, got 'splade'")


ALIASES: list[tuple[dict[str, Any], str]] = [
    ({"output_dimension": 999}, "output_dimension: expected at most 48"),
    ({"dimensions": 999}, "dimensions: expected at most 48"),
    ({"normalized": "yes"}, "normalized: expected true or false"),
    ({"use_activation": 1}, "use_activation: expected true or false"),
    ({"max_tokens": 9, "truncate_prompt_tokens": 9}, "truncate_prompt_tokens: expected max_tokens or"),
    ({"task": "retrieval.query", "prompt_name": "query"}, "task: expected input_type or prompt_name, got both"),
    ({"input": [{"text": 5}]}, "input[0]: expected a string or a list of token ids"),
    ({"late_chunking": True, "representations": "dense"}, "representations: expected no value beside late_chunking"),
]


def test_errors_name_the_field_of_the_request(serve: Serve) -> None:
    service = serve("minibert_mean")
    for fields, says in ALIASES:
        assert answer(service, "/v1/embeddings", {"input": TEXTS} | fields, 400)["detail"].startswith(says), fields
    body = {"query": QUERY, "documents": DOCUMENTS, "top_k": 0}
    assert answer(serve("cross"), "/v1/rerank", body, 400)["detail"] == "top_k: expected 1 or more, got 0"


# vLLM


def test_score_takes_one_to_several_or_pairs(serve: Serve) -> None:
    service = serve("cross")
    [ranked] = service.predict([{"query": QUERY, "texts": DOCUMENTS}])
    scores = [item["score"] for item in sorted(ranked, key=lambda item: item["index"])]
    for path in ("/score", "/v1/score"):
        for first, second in (
            ("queries", "documents"),
            ("queries", "items"),
            ("text_1", "text_2"),
            ("data_1", "data_2"),
        ):
            scored = answer(service, path, {"model": "cross", first: QUERY, second: DOCUMENTS})
            assert [item["index"] for item in scored["data"]] == [0, 1, 2]
            assert close([item["score"] for item in scored["data"]], scores)
    pairs = answer(service, "/score", {"text_1": [QUERY] * 3, "text_2": DOCUMENTS})
    assert close([item["score"] for item in pairs["data"]], scores) and pairs["usage"] == scored["usage"]
    assert close(answer(service, "/score", {"text_1": QUERY, "text_2": DOCUMENTS[1]})["data"][0]["score"], scores[1])
    logits = answer(service, "/score", {"text_1": QUERY, "text_2": DOCUMENTS, "use_activation": False})["data"]
    assert close([1 / (1 + exp(-item["score"])) for item in logits], scores)
    query = {"content": [{"type": "text", "text": QUERY}]}
    documents = [{"content": [{"type": "text", "text": text}]} for text in DOCUMENTS[:2]]
    parts = answer(service, "/score", {"queries": query, "documents": [*documents, DOCUMENTS[2]]})
    assert close([item["score"] for item in parts["data"]], scores)
    assert close(answer(service, "/score", {"data_1": QUERY, "data_2": documents[1]})["data"][0]["score"], scores[1])
    ranks = answer(service, "/v1/rerank", {"query": query, "documents": [*documents, DOCUMENTS[2]]})["results"]
    assert close([item["relevance_score"] for item in ranks], sorted(scores, reverse=True))
    cut = answer(service, "/score", {"text_1": QUERY, "text_2": [LONG], "max_tokens_per_query": 2})
    assert cut["data"] != answer(service, "/score", {"text_1": QUERY, "text_2": [LONG]})["data"]


SCORE_WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"text_1": "a"}, "body", "the fields queries and documents or queries and items or text_1 and text_2"),
    ({"text_1": "a", "text_2": "b", "queries": "c"}, "body", "got queries and text_1 and text_2"),
    ({"text_1": ["a", "b"], "text_2": ["c"]}, "text_2", "one text for each of the 2 in text_1, got 1"),
    ({"text_1": "a", "text_2": ["b", 1]}, "text_2[1]", "expected a string"),
    ({"text_1": {"content": [{"type": "image_url"}]}, "text_2": "b"}, "text_1.content[0].type", 'expected "text"'),
    ({"text_1": "a", "text_2": ["b", {"content": []}]}, "text_2[1].content", "expected a list"),
    ({"text_1": {"image": "a"}, "text_2": "b"}, "text_1", "expected a string"),
    ({"text_1": "a", "text_2": ["b", LONG], "truncate": "NONE"}, "text_2[1]", "must not be truncated"),
    ({"text_1": "a", "text_2": LONG, "truncate": "NONE"}, "text_2", "must not be truncated"),
    ({"text_1": ["a", "b"], "text_2": ["b", LONG], "truncate": "NONE"}, "text_2[1]", "must not be truncated"),
]


def test_score_names_its_fields_in_errors(serve: Serve) -> None:
    service = serve("cross")
    for body, param, says in SCORE_WRONG:
        error = answer(service, "/score", body, 400)["error"]
        assert error["code"] == ("context_length_exceeded" if "truncate" in body else None)
        assert (error["param"] or "body") == param and says in error["message"], error


def test_classify_has_all_probabilities_in_the_order_of_the_labels(serve: Serve) -> None:
    service = serve("emotions")
    expected = service.predict(TEXTS, {"return_probabilities": True, "output_format": "kserve"})
    for path in ("/classify", "/v1/classify", "/pooling"):
        rows = answer(service, path, {"model": "emotions", "input": TEXTS})["data"]
        for row, other in zip(rows, expected, strict=True):
            probabilities = row["data"] if path == "/pooling" else row["probs"]
            assert np.allclose(probabilities, list(other.values()), atol=1e-4)
    assert rows[0]["object"] == "pooling"
    [row] = answer(service, "/classify", {"input": TEXTS[0]})["data"]
    [[best]] = service.predict(TEXTS[:1], {"output_format": "pipeline", "top_k": 1})
    assert (row["label"], row["num_classes"]) == (best["label"], len(row["probs"]))
    logits = service.predict(TEXTS[:1], {"return_raw_logits": True, "output_format": "kserve"})[0]
    [raw] = answer(service, "/classify", {"input": TEXTS[0], "use_activation": False})["data"]
    assert close(raw["probs"], list(logits.values()))
    error = answer(service, "/classify", {"input": [[1, 2]]}, 400)["error"]
    assert error["param"] == "input[0]" and "token ids" in error["message"]
    error = answer(service, "/pooling", {"input": TEXTS, "task": "embed"}, 400)["error"]
    assert error["param"] == "task"
    for name, value in (("dimensions", 2), ("normalize", True)):
        error = answer(service, "/pooling", {"input": TEXTS, name: value}, 400)["error"]
        assert error["param"] == name and "no value for a model of sequence_classification" in error["message"]


def test_pooling_s_vectors_have_a_length_of_one_unless_normalize_is_false(serve: Serve) -> None:
    service = serve("minibert_mean")
    for name in ("normalize", "use_activation"):
        for value in (True, False):
            found = [one["data"] for one in answer(service, "/pooling", {"input": TEXTS, name: value})["data"]]
            assert close(found, service.predict(TEXTS, {"normalize": value}))
            assert close(np.linalg.norm(found, axis=1), 1) is value
    error = answer(service, "/pooling", {"input": TEXTS, "normalize": True, "use_activation": True}, 400)["error"]
    assert "they mean the same" in error["message"]


def test_pooling_of_token_vectors(serve: Serve) -> None:
    service = serve("minibert_mean", "v2", "--task=feature_extraction")
    found = answer(service, "/pooling", {"input": TEXTS})["data"]
    for one, other in zip(found, service.predict(TEXTS), strict=True):
        assert close(one["data"], other[0])
    error = answer(service, "/pooling", {"input": TEXTS, "dimensions": 8}, 400)["error"]
    assert error["param"] == "dimensions"


@pytest.mark.parametrize("model", ["minibert_mean", "gpt2_logits"])
def test_tokenize_and_detokenize(serve: Serve, model: str) -> None:
    service = serve(model)
    expected = service.client.post(f"/v1/models/{model}:tokenize", json={"instances": [TEXTS[0]]}).json()
    [tokens] = expected["predictions"]
    tokenized = answer(service, "/tokenize", {"prompt": TEXTS[0], "return_token_strs": True})
    assert tokenized == {
        "count": tokens["count"],
        "max_model_len": tokens["max_length"],
        "tokens": tokens["ids"],
        "token_strs": tokens["tokens"],
    }
    bare = answer(service, "/tokenize", {"prompt": TEXTS[0], "add_special_tokens": False})
    assert bare["token_strs"] is None and bare["count"] <= tokenized["count"]
    text = answer(service, "/detokenize", {"tokens": bare["tokens"]})
    assert text["prompt"].lower().replace(" ", "") == TEXTS[0].lower().replace(" ", "")
    for path, body, param in (
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, None),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ):
        error = answer(service, path, body, 400)
        assert param is None or error["error"]["param"] == param, error


def test_tokenize_renders_a_chat(serve: Serve) -> None:
    service = serve("gpt2_logits")
    messages = [{"role": "user", "content": "Hello"}]
    found = answer(service, "/tokenize", {"messages": messages})
    without = answer(service, "/tokenize", {"messages": messages, "add_generation_prompt": False})
    assert found["tokens"][: without["count"]] == without["tokens"] and found["count"] > without["count"]
    assert "Hello" in answer(service, "/detokenize", {"tokens": found["tokens"]})["prompt"]
    error = answer(serve("minibert_mean"), "/tokenize", {"messages": messages}, 400)["error"]
    assert "text_generation" in error["message"]


def test_generative_scoring_is_the_probability_of_the_next_token(serve: Serve) -> None:
    service = serve("gpt2_logits")
    prompt, items = "The capital of", [" france is", " spain"]
    ids = [answer(service, "/tokenize", {"prompt": item, "add_special_tokens": False})["tokens"] for item in items]
    start = answer(service, "/tokenize", {"prompt": prompt})["tokens"]
    labels = [7, 3, 11]
    body = {"query": prompt, "items": items, "label_token_ids": labels}
    whole = answer(service, "/generative_scoring", body | {"apply_softmax": False})
    among = answer(service, "/generative_scoring", body)
    for index, tokens in enumerate(ids):
        logprobs = []
        for label in labels:
            echoed = {"prompt": [*start, *tokens, label], "echo": True, "logprobs": 0, "max_tokens": 0}
            choice = answer(service, "/openai/v1/completions", echoed)["choices"][0]
            logprobs.append(choice["logprobs"]["token_logprobs"][-1])
        assert log(whole["data"][index]["score"]) == pytest.approx(logprobs[0], abs=1e-4)
        total = sum(map(exp, logprobs))
        assert among["data"][index] == {
            "index": index,
            "object": "score",
            "score": pytest.approx(exp(logprobs[0]) / total, abs=1e-5),
        }
    assert whole["usage"]["completion_tokens"] == len(items)
    same = answer(service, "/generative_scoring", body | {"query": start, "items": ids})
    assert close([item["score"] for item in same["data"]], [item["score"] for item in among["data"]])
    twice = answer(service, "/generative_scoring", body | {"label_token_ids": [7, *labels, 3]})
    assert close([item["score"] for item in twice["data"]], [item["score"] for item in among["data"]])
    long = answer(service, "/generative_scoring", body | {"items": [[1, 2], "a" * 1_000_001]}, 400)["error"]
    assert long["param"] == "items[1]" and "--max_text_length" in long["message"]
    turned = answer(service, "/generative_scoring", {**body, "query": ids[0], "items": [start], "item_first": True})
    assert close(turned["data"][0]["score"], among["data"][0]["score"])
    for fields, param in (
        ({"label_token_ids": []}, "label_token_ids"),
        ({"label_token_ids": [10**9]}, "label_token_ids"),
        ({"items": []}, "items"),
        ({"items": [1]}, "items[0]"),
        ({"query": None}, "query"),
    ):
        assert answer(service, "/generative_scoring", body | fields, 400)["error"]["param"] == param


def test_generative_scoring_has_the_limits_of_a_request(serve: Serve) -> None:
    service = serve("gpt2_logits", "v2", "--max_total_length=40", "--max_answer_values=4")
    for fields, param, flag in (
        ({"query": [1] * 12}, "items", "--max_total_length"),
        ({"label_token_ids": [1, 2]}, "label_token_ids", "--max_answer_values"),
    ):
        body = {"query": [1], "items": [[2, 3]] * 3, "label_token_ids": [1]} | fields
        error = answer(service, "/generative_scoring", body, 413)["error"]
        assert error["param"] == param and flag in error["message"]


def test_generative_scoring_needs_logits(serve: Serve) -> None:
    body = {"query": "a", "items": ["b"], "label_token_ids": [1]}
    error = answer(serve("gpt2_vllm"), "/generative_scoring", body, 400)["error"]
    assert error["param"] == "label_token_ids" and "a parameter that this text model supports" in error["message"]


# NVIDIA NIM


def test_nim_s_ranking(serve: Serve) -> None:
    service = serve("cross")
    [expected] = service.predict([{"query": QUERY, "texts": DOCUMENTS}], {"raw_scores": True})
    body = {"model": "cross", "query": {"text": QUERY}, "passages": [{"text": one} for one in DOCUMENTS]}
    found = answer(service, "/v1/ranking", body)["rankings"]
    assert found == [{"index": one["index"], "logit": one["score"]} for one in expected]
    for fields, status, says in (
        ({"query": QUERY}, 400, "query: expected"),
        ({"passages": [{"text": "a"}, {"image": "b"}]}, 400, "passages[1]: expected"),
        ({"passages": []}, 400, "passages: expected a list of"),
        ({"passages": [{"text": "a"}, {"text": LONG}], "truncate": "NONE"}, 400, "passages[1].text: expected at most"),
    ):
        error = answer(service, "/v1/ranking", body | fields, status)
        assert error["object"] == "error" and error["detail"].startswith(says), error


def test_nim_s_form_of_v2(serve: Serve) -> None:
    service = serve("minibert_mean")
    rows = [[one] for one in TEXTS]
    counts = [answer(service, "/tokenize", {"prompt": one})["count"] for one in TEXTS]
    inputs = {"text": rows, "modality": [["text"]] * 2}
    parameters = {"input_type": "passage", "truncate": "end", "dimensions": 8}
    with stub(service) as methods:
        found = methods.ModelInfer(request("minibert_mean", inputs, parameters=parameters, raw=True))
        expected = service.predict(TEXTS, {"input_type": "document", "dimensions": 8, "normalize": True})
        assert [output.name for output in found.outputs] == ["token_count", "embeddings"]
        assert close(values(found, "embeddings"), expected)
        bits = {"input_type": "query", "truncate": "NONE", "embedding_type": "ubinary"}
        named = request("minibert_mean", {"text": rows}, parameters=bits, outputs=["embeddings"])
        packed = values(methods.ModelInfer(named), "embeddings")
        assert packed == service.predict(TEXTS, {"input_type": "query", "precision": "ubinary"})
        own = methods.ModelInfer(request("minibert_mean", {"text": rows}, parameters={"input_type": "query"}))
        assert [output.name for output in own.outputs] == ["output-0"]
    body = {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [2, 1], "data": TEXTS}],
        "parameters": {"input_type": "query", "truncate": "START"},
        "outputs": [{"name": "token_count"}],
    }
    [output] = answer(service, "/v2/models/minibert_mean/infer", body)["outputs"]
    assert (output["datatype"], len(output["data"])) == ("INT32", 2)
    body["parameters"] = {"truncate": "NONE"}
    assert answer(service, "/v2/models/minibert_mean/infer", body)["outputs"][0]["data"] == counts
