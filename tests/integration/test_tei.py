"""text-embeddings-inference's API in front of the real Triton, against the same models over V1."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from tests.integration.conftest import Serve
from tests.support.service import Service

TEXTS = ["The cat sleeps on the sofa.", "It will rain tomorrow!"]
LONG = "The cat sleeps on the sofa. " * 60
SIMILAR = {"source_sentence": "a", "sentences": ["b"]}
HEADERS = "compute-type compute-time compute-characters compute-tokens total-time tokenization-time queue-time " + (
    "inference-time"
)


def asked(service: Service, path: str, body: Any, status: int = 200, **options: Any) -> httpx.Response:
    response = service.client.post(path, json=body, **options)
    assert response.status_code == status, response.text
    return response


def answer(service: Service, path: str, body: Any) -> Any:
    return asked(service, path, body).json()


def refused(service: Service, path: str, body: Any, status: int, kind: str, *says: str) -> None:
    error = asked(service, path, body, status).json()
    assert list(error) == ["error", "error_type"]
    assert error["error_type"] == kind
    assert all(part in error["error"] for part in says), error["error"]


def close(found: Any, expected: Any) -> bool:
    return bool(np.allclose(np.array(found), np.array(expected), atol=1e-5, rtol=0))


def test_embed_is_v1_with_normalized_vectors(serve: Serve) -> None:
    service = serve("minibert_mean")
    expected = service.predict(TEXTS, {"normalize": True})
    for path in ("/embed", "/", "/invocations"):
        assert close(answer(service, path, {"inputs": TEXTS}), expected)
        assert close(answer(service, path, {"inputs": TEXTS[0]}), expected[:1])
    raw = answer(service, "/embed", {"inputs": TEXTS, "normalize": False, "truncate": None})
    assert close(raw, service.predict(TEXTS, {"normalize": False}))
    short = answer(service, "/embed", {"inputs": TEXTS, "dimensions": 4})
    assert np.array(short).shape == (2, 4) and close(np.linalg.norm(short, axis=1), [1, 1])


def test_embed_takes_token_ids(serve: Serve) -> None:
    service = serve("minibert_mean")
    [tokens] = answer(service, "/tokenize", {"inputs": TEXTS[0]})
    ids = [token["id"] for token in tokens]
    expected = answer(service, "/embed", {"inputs": TEXTS[0]})
    assert close(answer(service, "/embed", {"inputs": ids}), expected)
    assert close(answer(service, "/embed", {"inputs": [ids, TEXTS[0]]}), expected * 2)


def test_an_answer_has_the_headers_of_the_computation(serve: Serve) -> None:
    service = serve("minibert_mean")
    response = asked(service, "/embed", {"inputs": TEXTS, "more": 1, "encoding_format": "float"})
    assert {f"x-{name}" for name in HEADERS.split()} <= response.headers.keys()
    assert response.headers["x-compute-characters"] == str(sum(map(len, TEXTS)))
    tokens = answer(service, "/tokenize", {"inputs": TEXTS})
    assert response.headers["x-compute-tokens"] == str(sum(map(len, tokens)))
    assert response.headers["x-ignored-parameters"] == "more, encoding_format"
    assert 'api="tei"' in service.client.get("/metrics").text


def test_embed_all_has_a_vector_per_token(serve: Serve) -> None:
    service = serve("minibert_mean", "v2", "--task=feature_extraction")
    expected = [one[0] for one in service.predict(TEXTS)]
    for path in ("/embed_all", "/"):
        found = answer(service, path, {"inputs": TEXTS})
        assert all(close(one, other) for one, other in zip(found, expected, strict=True))


def test_embed_all_has_the_vectors_that_pooling_reads(serve: Serve) -> None:
    service = serve("minibert_mean")
    expected = [one[0] for one in serve("minibert_mean", "v2", "--task=feature_extraction").predict(TEXTS)]
    found = answer(service, "/embed_all", {"inputs": TEXTS})
    assert all(close(one, other) for one, other in zip(found, expected, strict=True))
    [both] = service.predict(TEXTS[:1], {"representations": ["dense", "token_embeddings"], "normalize": False})
    assert close(both["token_embeddings"], expected[0]) and close(both["dense"], np.mean(expected[0], axis=0))


def test_similarity_is_the_cosine(serve: Serve) -> None:
    service = serve("minibert_mean")
    source, *others = service.predict([TEXTS[0], *TEXTS], {"normalize": True})
    body = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}, "parameters": {"truncate": True}}
    for path in ("/similarity", "/"):
        assert close(answer(service, path, body), np.array(others) @ source)
    refused(service, "/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 400, "Empty")
    wrong = {"inputs": {"source_sentence": "a", "sentences": [1]}}
    refused(service, "/similarity", wrong, 422, "Validation", "inputs.sentences[0]: expected a text")
    long = {"inputs": {"source_sentence": "a", "sentences": ["a", LONG]}, "parameters": {"truncate": False}}
    refused(service, "/similarity", long, 413, "Validation", "inputs.sentences[1]: expected at most")
    for name, value, status in (
        ("truncation_direction", "up", 422),
        ("truncate", 1, 422),
        ("prompt_name", "none", 413),
    ):
        parameters = {"parameters": {name: value}}
        refused(service, "/similarity", body | parameters, status, "Validation", f"parameters.{name}: expected")


def test_rerank_has_the_scores_of_v1(serve: Serve) -> None:
    service = serve("cross")
    query = "Who cooks dinner?"
    for path in ("/rerank", "/", "/invocations"):
        ranks = answer(service, path, {"query": query, "texts": TEXTS, "return_text": True})
        [expected] = service.predict([{"query": query, "texts": TEXTS}])
        assert [list(result) for result in ranks] == [["index", "text", "score"]] * 2
        assert [(result["index"], result["score"]) for result in ranks] == [
            (result["index"], result["score"]) for result in expected
        ]
        assert [result["text"] for result in ranks] == [TEXTS[result["index"]] for result in ranks]
    raw = answer(service, "/rerank", {"query": query, "texts": TEXTS, "raw_scores": True})
    assert raw == service.predict([{"query": query, "texts": TEXTS}], {"raw_scores": True})[0]
    documents = answer(service, "/rerank", {"query": query, "documents": TEXTS})
    assert [result["relevance_score"] for result in documents["results"]] == [result["score"] for result in ranks]
    refused(service, "/rerank", {"query": query, "texts": []}, 400, "Empty", "texts: expected a list")
    refused(service, "/rerank", {"query": query, "texts": ["a", 1]}, 422, "Validation", "texts[1]: expected a string")
    both = asked(service, "/rerank", {"query": query, "texts": TEXTS, "documents": TEXTS}, 400).json()["error"]
    assert "documents, query (openai) or query, texts (tei)" in both["message"]
    [pair] = answer(service, "/predict", {"inputs": [[query, TEXTS[1]]]})
    assert [list(result) for result in pair] == [["score", "label"]]
    assert pair[0]["score"] == pytest.approx(
        next(result["score"] for result in ranks if result["index"] == 1), abs=1e-6
    )
    refused(service, "/predict", {"inputs": [["alone"]]}, 422, "Validation", "inputs[0]: expected a pair of texts")


def test_predict_has_all_labels(serve: Serve) -> None:
    service = serve("sentiment")
    texts = ["What a fine day.", "I am sad."]
    expected = service.predict(texts, {"output_format": "pipeline", "top_k": None})
    assert answer(service, "/predict", {"inputs": texts[0]}) == expected[0]
    assert answer(service, "/predict", {"inputs": texts[:1]}) == expected[0]
    assert answer(service, "/", {"inputs": [[text] for text in texts]}) == expected
    pair = service.predict([{"text": texts[0], "text_pair": texts[1]}], {"output_format": "pipeline", "top_k": None})
    assert answer(service, "/predict", {"inputs": texts, "parameters": None}) == pair[0]
    assert answer(service, "/", {"inputs": texts}) == pair[0]
    raw = service.predict(texts[:1], {"output_format": "pipeline", "top_k": None, "function_to_apply": "none"})
    assert answer(service, "/predict", {"inputs": texts[0], "raw_scores": True}) == raw[0]
    top = answer(service, "/", {"inputs": texts[0], "parameters": {"top_k": 1}})
    assert top == [expected[0][:1]]
    refused(service, "/predict", {"inputs": ["a", "b", "c"]}, 422, "Validation", "inputs: expected at most 2")
    refused(service, "/predict", {"inputs": [["a"], "b"]}, 422, "Validation", "inputs[1]: expected [text]")


def test_the_root_serves_tasks_that_the_original_refuses(serve: Serve) -> None:
    service = serve("ner")
    text = "Angela lives in Paris."
    expected = service.predict([text], {"output_format": "pipeline"})
    assert answer(service, "/", {"inputs": text, "parameters": {}}) == expected[0]
    assert answer(service, "/", {"inputs": [text]}) == expected
    masked = serve("bert")
    found = answer(masked, "/", {"inputs": "The capital of france is [MASK].", "parameters": {"top_k": 1}})
    assert [one["token_str"] for one in found] == ["paris"]


def test_tokens_have_spans_in_bytes(serve: Serve) -> None:
    service = serve("minibert_mean")
    text = "Ünïted rain, 😀 rain"
    [tokens] = answer(service, "/tokenize", {"inputs": text})
    assert [list(token) for token in tokens] == [["id", "text", "special", "start", "stop"]] * len(tokens)
    first, *middle, last = tokens
    assert first["special"] and last["special"] and first["start"] is last["stop"] is None
    assert (first["text"], last["text"]) == ("[CLS]", "[SEP]")
    for token in middle:
        assert text.encode()[token["start"] : token["stop"]].decode("utf-8", "replace") == token["text"]
    assert middle[-1]["stop"] == len(text.encode())
    [bare] = answer(service, "/tokenize", {"inputs": [text], "add_special_tokens": False})
    assert bare == middle
    ids = [token["id"] for token in answer(service, "/tokenize", {"inputs": TEXTS[0]})[0]]
    assert answer(service, "/decode", {"ids": ids}) == ["the cat sleeps on the sofa."]
    both = answer(service, "/decode", {"ids": [ids, ids[1:3]], "skip_special_tokens": False})
    assert both[0].startswith("[CLS]") and both[1] == "the cat"
    refused(service, "/decode", {"ids": [10**6]}, 422, "Validation", "ids[0]")
    refused(service, "/decode", {"ids": []}, 400, "Empty")
    refused(service, "/decode", {"ids": [[1], []]}, 400, "Empty", "ids[1]: expected a list of token ids")


def test_vertex_answers_each_body_by_the_kind_of_the_model(serve: Serve) -> None:
    service = serve("minibert_mean")
    bodies = [{"inputs": TEXTS[0]}, {"inputs": TEXTS, "normalize": False, "more": 1}]
    response = asked(service, "/vertex", {"instances": bodies})
    found = response.json()["predictions"]
    assert response.headers["x-ignored-parameters"] == "more"
    assert all(close(one, answer(service, "/embed", body)) for one, body in zip(found, bodies, strict=True))
    refused(service, "/vertex", {"instances": [{"inputs": "a"}, {}]}, 422, "Validation", "instances[1].inputs: ")
    wrong = {"instances": [{"inputs": "a", "dimensions": 0}]}
    refused(service, "/vertex", wrong, 413, "Validation", "instances[0].dimensions: ")
    reranker = serve("cross")
    body = {"query": "Who cooks dinner?", "texts": TEXTS}
    assert answer(reranker, "/vertex", {"instances": [body]}) == {"predictions": [answer(reranker, "/rerank", body)]}


def test_bodies_of_vertex_share_the_limits_of_a_request(serve: Serve) -> None:
    service = serve("minibert_mean", "v2", "--max_answer_values=20")
    body = {"inputs": TEXTS[0]}
    assert len(answer(service, "/vertex", {"instances": [body]})["predictions"]) == 1
    # Either body may be the one that exceeds the limit, since they run at the same time.
    says = ("instances[", "].inputs: expected at most 20 values in an answer (--max_answer_values), got about 24")
    refused(service, "/vertex", {"instances": [body] * 2}, 413, "Validation", *says)
    few = serve("minibert_mean", "v2", "--max_instances=4", "--max_sequences=4")
    assert len(answer(few, "/vertex", {"instances": [{"inputs": TEXTS}] * 2})["predictions"]) == 2
    several = {"instances": [{"inputs": TEXTS}] * 3}
    refused(few, "/vertex", several, 413, "Validation", "instances[2].inputs: expected at most 4 ", "got 6")
    ranking = {"instances": [{"query": "a", "texts": ["b"]}]}
    refused(service, "/vertex", ranking, 422, "Validation", "instances[0].inputs: expected a text")


def test_a_reranker_without_labels_predicts_one(serve: Serve) -> None:
    """Such as one that compares the vectors of an embedding model."""
    service = serve("minibert_mean", "v2", "--task=rerank")
    [ranked] = service.predict([{"query": TEXTS[0], "texts": TEXTS[1:]}])
    [[score]] = answer(service, "/predict", {"inputs": [TEXTS]})
    assert score == {"score": ranked[0]["score"], "label": "LABEL_0"}
    same = {"inputs": TEXTS, "add_special_tokens": False}
    assert answer(service, "/tokenize", same) == answer(serve("minibert_mean"), "/tokenize", same)
    wrong = {"inputs": TEXTS, "prompt_name": "query"}
    refused(service, "/tokenize", wrong, 413, "Validation", "prompt_name: expected one of")
    assert answer(service, "/", {"query": TEXTS[0], "texts": TEXTS[1:], "inputs": None})[0]["score"] == score["score"]


def test_a_long_text_is_cut_or_refused(serve: Serve) -> None:
    service = serve("minibert_mean")
    assert len(answer(service, "/embed", {"inputs": LONG})) == 1
    refused(service, "/embed", {"inputs": LONG, "truncate": False}, 413, "Validation", "inputs: expected at most")
    refused(service, "/embed", {"inputs": ["a", LONG], "truncate": False}, 413, "Validation", "inputs[1]: expected")


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "says"),
    [
        ("/embed", {"inputs": []}, 400, "Empty", "inputs: expected"),
        ("/embed", {"inputs": [1.5]}, 422, "Validation", "inputs[0]: expected a text or a list of token ids"),
        ("/embed", {"inputs": "a", "truncate": "END"}, 422, "Validation", "truncate: expected true or false"),
        ("/embed", {"inputs": "a", "prompt_name": "none"}, 413, "Validation", "prompt_name: expected"),
        ("/embed", {"inputs": "a", "dimensions": 10**6}, 413, "Validation", "dimensions: expected at most"),
        ("/predict", {"inputs": "a"}, 424, "Backend", "a model for sequence_classification or rerank"),
        ("/tokenize", {"inputs": [1]}, 422, "Validation", "inputs[0]: expected a text"),
    ],
)
def test_errors_have_the_original_s_form(serve: Serve, path: str, body: Any, status: int, kind: str, says: str) -> None:
    refused(serve("minibert_mean"), path, body, status, kind, says)


def test_a_broken_body_and_a_method_have_the_original_s_form(serve: Serve) -> None:
    service = serve("minibert_mean")
    for body in (b"{", b"[]"):
        response = service.client.post("/embed", content=body)
        assert (response.status_code, response.json()["error_type"]) == (400, "Validation")
    response = service.client.get("/embed")
    found = response.status_code, response.headers["allow"], response.json()["error_type"]
    assert found == (405, "POST", "Validation")
    assert service.client.get("/").json() == {"status": "alive"}
    assert service.client.put("/").headers["allow"] == "GET, HEAD, POST"
    assert service.client.get("/ping").status_code == 200


# Kinds of models


ONE_SCORE = {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}
KINDS: list[tuple[str, tuple[str, ...], dict[str, Any], list[str] | None]] = [
    ("minibert_mean", (), {"embedding": {"pooling": "mean"}}, ["mean"]),
    ("minibert_cls", (), {"embedding": {"pooling": "cls"}}, ["cls"]),
    ("splade", (), {"embedding": {"pooling": "splade"}}, []),
    ("colbert", (), {"embedding": {}}, []),
    ("cross", (), ONE_SCORE, None),
    ("minibert_mean", ("--task=rerank",), ONE_SCORE, None),
]


@pytest.mark.parametrize(("model", "flags", "kind", "pooling"), KINDS, ids=[f"{one[0]}{one[1]}" for one in KINDS])
def test_info_has_the_pooling_and_the_labels_that_the_model_uses(
    serve: Serve, model: str, flags: tuple[str, ...], kind: dict[str, Any], pooling: list[str] | None
) -> None:
    service = serve(model, "v2", *flags)
    assert service.client.get("/info").json()["model_type"] == kind
    assert service.client.get(f"/v1/models/{model}/info").json().get("pooling") == pooling


# Sparse vectors and vectors of tokens


def test_sparse_vectors_are_those_of_v1_with_the_dialect_s_names(serve: Serve) -> None:
    service = serve("splade")
    expected = [vector["sparse"] for vector in service.predict([*TEXTS, ""], {"representations": "sparse"})]
    for path in ("/embed_sparse", "/"):
        found = answer(service, path, {"inputs": [*TEXTS, ""]})
        for vector, sparse in zip(found, expected, strict=True):
            assert [value["index"] for value in vector] == sparse["indices"]
            assert close([value["value"] for value in vector], sparse["values"])
    source = dict(zip(expected[0]["indices"], expected[0]["values"], strict=True))
    body = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}}
    products = [
        sum(source.get(index, 0) * value for index, value in zip(vector["indices"], vector["values"], strict=True))
        for vector in expected[:2]
    ]
    assert close(answer(service, "/similarity", body), products)
    refused(service, "/embed_all", {"inputs": "a"}, 424, "Backend", "representations: expected one of sparse, which")
    refused(service, "/embed", {"inputs": "a"}, 424, "Backend", "model: expected a model with a vector per text")


def test_vectors_of_tokens_are_those_of_v1(serve: Serve) -> None:
    service = serve("colbert")
    expected = [np.array(one["multi_vector"]) for one in service.predict(TEXTS, {"representations": "multi_vector"})]
    for path in ("/embed_all", "/"):
        found = answer(service, path, {"inputs": TEXTS})
        assert all(close(one, other) for one, other in zip(found, expected, strict=True))
    refused(service, "/embed", {"inputs": "a"}, 424, "Backend", "'colbert', which has vectors of tokens")
    body = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}}
    scores = [(expected[0] @ other.T).max(axis=1).sum() for other in expected]
    assert close(answer(service, "/similarity", body), scores)


def test_a_model_with_all_representations_serves_every_route(serve: Serve) -> None:
    service = serve("m3")
    [expected] = service.predict(TEXTS[:1], {"representations": ["dense", "sparse", "multi_vector"]})
    assert close(answer(service, "/embed", {"inputs": TEXTS[0]}), [expected["dense"]])
    assert close(answer(service, "/", {"inputs": TEXTS[0]}), [expected["dense"]])
    [tokens] = answer(service, "/embed_all", {"inputs": TEXTS[0]})
    assert close(tokens, expected["multi_vector"])
    [weights] = answer(service, "/embed_sparse", {"inputs": TEXTS[0]})
    assert [one["index"] for one in weights] == expected["sparse"]["indices"]
    refused(serve("minibert_mean"), "/embed_sparse", {"inputs": "a"}, 424, "Backend", "expected one of dense")


def test_left_truncation_keeps_the_end(serve: Serve) -> None:
    service = serve("minibert_mean")
    ends = {"inputs": [LONG + "It will rain.", LONG]}
    same = answer(service, "/embed", ends | {"truncation_direction": "Right"})
    differ = answer(service, "/embed", ends | {"truncation_direction": "left"})
    assert close(same[0], same[1]) and not close(differ[0], differ[1])


@pytest.mark.parametrize("name", ["other", "BAAI/bge-small-en-v1.5", ""], ids=repr)
def test_the_only_model_answers_under_every_name(serve: Serve, name: str) -> None:
    service = serve("minibert_mean")
    for path in ("/embed", "/", "/invocations", "/similarity"):
        body = {"inputs": SIMILAR if path == "/similarity" else TEXTS}
        response = asked(service, path, {**body, "model": name})
        assert close(response.json(), answer(service, path, body))
        assert response.headers["x-ignored-parameters"] == "model"
    vertex = {"instances": [{"inputs": "a"}]}
    assert answer(service, "/vertex", {**vertex, "model": name}) == answer(service, "/vertex", vertex)
    for named in ("minibert_mean", None):
        assert "x-ignored-parameters" not in asked(service, "/embed", {"inputs": "a", "model": named}).headers


AGENT = {"user-agent": "@huggingface/inference/4.13.30 Node.js/22"}


def test_the_inference_api_s_client_for_javascript_gets_its_form(serve: Serve) -> None:
    """It sends no parameters, and refuses an answer in another form."""
    service = serve("sentiment")
    text: dict[str, Any] = {"inputs": "The hotel was wonderful."}
    plain = answer(service, "/", text)
    assert [entry.keys() for entry in plain] == [{"label", "score"}] * len(plain)
    for body in (text, text | {"parameters": {}}, text | {"parameters": None}):
        [labels] = asked(service, "/", body, headers=AGENT).json()
        assert labels == plain
    assert asked(service, "/", text | {"parameters": {"top_k": 1}}, headers=AGENT).json() == [plain[:1]]
    assert (
        asked(service, "/", text | {"parameters": [1]}, 422, headers=AGENT).json()["error"].startswith("parameters: ")
    )
    service, text = serve("ner"), {"inputs": "Anna works at Siemens in Berlin."}
    groups = asked(service, "/", text, headers=AGENT).json()
    assert groups and all(entry.keys() == {"entity_group", "score", "word", "start", "end"} for entry in groups)
    assert groups == answer(service, "/", text | {"parameters": {"aggregation_strategy": "simple"}})
    own = text | {"parameters": {"aggregation_strategy": "none"}}
    assert asked(service, "/", own, headers=AGENT).json() == answer(service, "/", text)
    vectors = serve("minibert_mean")
    response = asked(vectors, "/", {"inputs": "a"}, headers=AGENT)
    assert response.json() == answer(vectors, "/", {"inputs": "a"}) and "x-ignored-parameters" not in response.headers
