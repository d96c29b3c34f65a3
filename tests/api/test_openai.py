"""Parsers and renderers of the OpenAI API by themselves; tests/integration/test_openai.py has the rest."""

from __future__ import annotations

import base64
import json
from typing import Any, cast

import numpy as np
import pytest

from hf_transformer.api.base import Call, Model, Models, error_json
from hf_transformer.api.openai import embeddings as openai_embeddings
from hf_transformer.api.openai import rerank as openai_rerank
from hf_transformer.api.openai.bodies import find_model, named_as_sent, read_fields, render_error
from hf_transformer.api.openai.routes import errors_by_path, model_cards, model_list, root_of
from hf_transformer.errors import InvalidInput, PredictorError, RequestError, TooLarge, TooManyRequests, UnknownModel
from hf_transformer.protocol.json_text import JsonLimits
from hf_transformer.types import Answers, Context

KNOWN = ("model", "input", "user")


class Task:
    def __init__(self, name: str) -> None:
        self.name = name


class NamedModel:
    """A model as far as its name and task go."""

    def __init__(self, name: str, task: str) -> None:
        self.name = name
        self.task = Task(task)


def models(task: str = "text_embedding") -> Models:
    return Models([cast(Model, NamedModel("mini", task))])


def fields_of(body: bytes, **headers: bytes) -> dict[str, Any]:
    found = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return read_fields(Call({}, found, body, Context("id", {}), JsonLimits(9, 9)), KNOWN)


def test_fields() -> None:
    assert fields_of(b'{"model": "mini", "user": null}') == {"model": "mini"}
    assert fields_of(b'{"model": "mini", "service_tier": null}') == {"model": "mini"}
    utf16 = '{"input": "é"}'.encode("utf-16")
    assert fields_of(utf16, content_type=b"application/json; charset=utf-16") == {"input": "é"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "body: not JSON: "),
        (b"[1]", "body: expected an object, got a list"),
        (b'{"inputs": []}', "inputs: unknown, expected some of model, input, user"),
        (b'{"a": 1, "b": 2}', "body: unknown fields 'a', 'b', expected some of model"),
        (json.dumps(dict.fromkeys("abcdefgh", 1)).encode(), "'a', 'b', 'c', 'd', 'e' and 3 more, expected"),
    ],
)
def test_wrong_bodies(body: bytes, says: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        fields_of(body)
    assert says in str(raised.value)


def test_the_model_is_found() -> None:
    assert find_model(models(), {"model": "mini"}, "embeddings").name == "mini"
    assert find_model(models("rerank"), {"model": "mini"}, "rerank").name == "mini"


@pytest.mark.parametrize(
    ("task", "fields", "kind", "says"),
    [
        ("text_embedding", {}, InvalidInput, "model: missing, expected the name of the model that is served: mini"),
        ("text_embedding", {"model": 3}, InvalidInput, "model: expected a string, got a number"),
        ("text_embedding", {"model": "gpt"}, UnknownModel, "model: 'gpt' is not served here; served: mini"),
        (
            "rerank",
            {"model": "mini"},
            InvalidInput,
            "model: 'mini' does rerank, but embeddings needs text_embedding",
        ),
    ],
)
def test_wrong_models(task: str, fields: Any, kind: type[RequestError], says: str) -> None:
    with pytest.raises(kind) as raised, named_as_sent():
        find_model(models(task), fields, "embeddings")
    assert str(raised.value) == says


@pytest.mark.parametrize(
    ("given", "instances", "single"),
    [
        ("a", ["a"], True),
        (["a", "b"], ["a", "b"], False),
        (["a"], ["a"], False),
        ([7, 8], [{"token_ids": [7, 8]}], True),
        ([[7], [8, 9]], [{"token_ids": [7]}, {"token_ids": [8, 9]}], False),
    ],
    ids=["string", "strings", "one string", "ids", "lists of ids"],
)
def test_forms_of_input(given: Any, instances: Any, single: bool) -> None:
    request = openai_embeddings.parse({"model": "mini", "input": given, "user": "u"}, 2)
    assert (request.query.instances, request.single, request.base64) == (instances, single, False)
    assert (request.query.name, request.query.parameters, request.query.tensors) == ("input", {}, False)


def test_parameters_of_embeddings() -> None:
    own = {"dimensions": 2, "prompt": "q", "prompt_name": "x", "normalize": True, "truncation": False, "stride": 1}
    request = openai_embeddings.parse({"input": "a", "encoding_format": "base64", **own}, 9)
    assert request.base64 and request.query.parameters == own


@pytest.mark.parametrize(
    ("fields", "kind", "says"),
    [
        ({}, InvalidInput, "input: expected a string, a list of strings, a list of token ids or a list of such lists"),
        ({"input": []}, InvalidInput, "such lists, got an empty list"),
        ({"input": {"text": "a"}}, InvalidInput, "such lists, got an object with the keys text"),
        ({"input": ["a", {"text": "a"}]}, InvalidInput, "input[1]: expected a string or a list of token ids, got an"),
        ({"input": [True]}, InvalidInput, "input[0]: expected a string or a list of token ids, got a boolean"),
        ({"input": [None]}, InvalidInput, "input[0]: expected a string or a list of token ids, got null"),
        ({"input": ["a"] * 4}, TooLarge, "input: 4 in a request, at most 3 are taken (--max_instances, --max_seq"),
        ({"input": "a", "user": 1}, InvalidInput, "user: expected a string, got a number"),
        ({"input": "a", "encoding_format": "int8"}, InvalidInput, "encoding_format: 'int8' is not one of float, base"),
    ],
    ids=str,
)
def test_wrong_embeddings_requests(fields: Any, kind: type[RequestError], says: str) -> None:
    with pytest.raises(kind) as raised, named_as_sent():
        openai_embeddings.parse(fields, 3)
    assert says in str(raised.value)


@pytest.mark.parametrize("wanted", ["float", "base64"])
def test_an_embeddings_response(wanted: str) -> None:
    vectors = np.array([[0.1, -2.5], [3, 1e-20]], np.float32)
    body = openai_embeddings.render(Answers(list(vectors), tokens=9), "mini", wanted == "base64")
    found = json.loads(body)
    data = found.pop("data")
    assert found == {"object": "list", "model": "mini", "usage": {"prompt_tokens": 9, "total_tokens": 9}}
    assert [(one["object"], one["index"]) for one in data] == [("embedding", 0), ("embedding", 1)]
    for one, vector in zip(data, vectors, strict=True):
        given = one["embedding"]
        read = np.frombuffer(base64.b64decode(given), "<f4") if wanted == "base64" else np.array(given, np.float32)
        assert read.tolist() == vector.tolist()
    assert b"0.1," in body or wanted == "base64"


def test_base64_is_float32_in_little_endian() -> None:
    assert base64.b64decode(openai_embeddings.to_base64(np.array([1, 9, -2, 9], ">f8")[::2])).hex() == (
        "0000803f" + "000000c0"
    )


def test_a_rerank_request() -> None:
    fields = {"model": "mini", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1, "user": "u"}
    query = openai_rerank.parse(fields, 2)
    assert query.instances == [{"query": "q", "texts": ["a", "b"]}]
    assert query.parameters == {"top_n": 1, "return_documents": True, "output_format": "kserve"}
    more = {"return_documents": False, "truncation": False, "raw_scores": True}
    parameters = openai_rerank.parse({"query": "q", "documents": ["a"], **more}, 2).parameters
    assert parameters == {"output_format": "kserve", **more}


@pytest.mark.parametrize(
    ("fields", "kind", "says"),
    [
        ({"documents": ["a"]}, InvalidInput, "query: expected a string, got nothing"),
        ({"query": ["q"], "documents": ["a"]}, InvalidInput, "query: expected a string, got a list"),
        ({"query": "q"}, InvalidInput, "documents: expected a list of texts, got nothing"),
        ({"query": "q", "documents": "a"}, InvalidInput, "documents: expected a list of texts, got a string"),
        ({"query": "q", "documents": []}, InvalidInput, "documents: expected a list of texts, got an empty one"),
        ({"query": "q", "documents": ["a", 1]}, InvalidInput, "documents[1]: expected a string or {"),
        ({"query": "q", "documents": [{"text": 1}]}, InvalidInput, "documents[0]: expected a string or {"),
        ({"query": "q", "documents": [{"title": "a"}]}, InvalidInput, "got an object with the keys title"),
        ({"query": "q", "documents": ["a"] * 4}, TooLarge, "documents: 4 in a request, at most 3 are taken"),
        ({"query": "q", "documents": ["a"], "user": {}}, InvalidInput, "user: expected a string, got an empty object"),
    ],
    ids=str,
)
def test_wrong_rerank_requests(fields: Any, kind: type[RequestError], says: str) -> None:
    with pytest.raises(kind) as raised, named_as_sent():
        openai_rerank.parse(fields, 3)
    assert says in str(raised.value)


def test_a_rerank_response() -> None:
    answers = Answers([[{"index": 1, "score": 0.9, "text": "b"}, {"index": 0, "score": 0.5}]], tokens=4)
    assert json.loads(openai_rerank.render(answers, "mini", "17")) == {
        "id": "rerank-17",
        "model": "mini",
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
        "results": [
            {"index": 1, "document": {"text": "b"}, "relevance_score": 0.9},
            {"index": 0, "relevance_score": 0.5},
        ],
    }


@pytest.mark.parametrize(
    ("whole", "message", "expected"),
    [
        (None, "parameters.dimensions: 3 is too small", "dimensions: 3 is too small"),
        (None, "input[0]: too long", "input[0]: too long"),
        ("input", "input[0]: too long", "input: too long"),
        ("input", "input[03]: too long", "input[03]: too long"),
        ("documents", "documents: 3 sequences", "documents: 3 sequences"),
    ],
)
def test_fields_are_named_as_they_were_sent(whole: str | None, message: str, expected: str) -> None:
    for kind in (InvalidInput, TooManyRequests):
        with pytest.raises(kind) as raised, named_as_sent(whole):
            raise kind(message)
        assert (type(raised.value), str(raised.value)) == (kind, expected)


@pytest.mark.parametrize(
    ("status", "message", "kind", "param", "code"),
    [
        (400, "input[3]: expected a string", "invalid_request_error", "input[3]", None),
        (400, "dimensions: 0 is too small", "invalid_request_error", "dimensions", None),
        (400, "messages[1].content: expected a string", "invalid_request_error", "messages[1].content", None),
        (400, "body: not JSON: unexpected end", "invalid_request_error", None, None),
        (400, "a stride of 3: too long", "invalid_request_error", None, None),
        (401, "token: missing", "invalid_request_error", None, None),
        (404, "model: 'x' is not served here", "invalid_request_error", "model", "model_not_found"),
        (404, "GET /openai/v1/x: Not Found", "invalid_request_error", None, None),
        (405, "GET /openai/v1/rerank: Method Not Allowed", "invalid_request_error", None, "method_not_supported"),
        (413, "input: 9 in a request", "invalid_request_error", "input", None),
        (415, "Content-Type: charset 'x' is not taken", "invalid_request_error", None, None),
        (429, "9 requests are in flight", "requests", None, "rate_limit_exceeded"),
        (500, "internal error; the log has it", "server_error", None, None),
        (502, "onnx: the predictor's own words", "server_error", None, None),
        (503, "model 'mini' is not ready: why", "server_error", None, None),
    ],
)
def test_error_bodies(status: int, message: str, kind: str, param: str | None, code: str | None) -> None:
    found = json.loads(render_error(message, status))
    assert found == {"error": {"message": message, "type": kind, "param": param, "code": code}}


def test_other_errors_keep_their_cause() -> None:
    with pytest.raises(PredictorError, match="deliberate") as raised, named_as_sent("input"):
        raise PredictorError("deliberate")
    assert isinstance(raised.value.__cause__, PredictorError)


@pytest.mark.parametrize(
    ("prefix", "root"),
    [("openai", "/openai"), ("/openai/", "/openai"), ("a/b", "/a/b"), ("", ""), ("/", "")],
)
def test_the_prefix(prefix: str, root: str) -> None:
    assert root_of(prefix) == root


@pytest.mark.parametrize(
    ("prefix", "path", "ours"),
    [
        ("openai", "/openai/v1/embeddings", True),
        ("/openai/", "/openai", True),
        ("openai", "/openai2/v1/embeddings", False),
        ("openai", "/v1/embeddings", False),
        ("openai", "/v2/models", False),
        ("", "/v1/embeddings", True),
        ("", "/v1/chat/completions", True),
        ("", "/v1/models", False),
        ("", "/v1/models/mini", False),
        ("", "/v2/models", False),
    ],
)
def test_which_paths_have_openais_errors(prefix: str, path: str, ours: bool) -> None:
    assert errors_by_path(prefix)(path) is (render_error if ours else error_json)


def test_model_cards() -> None:
    cards = model_cards(models())
    created = cards["mini"].pop("created")
    assert type(created) is int and created > 1_700_000_000
    assert cards == {"mini": {"id": "mini", "object": "model", "owned_by": "hf_transformer"}}
    assert model_list(cards) == {"object": "list", "data": [cards["mini"]]}
