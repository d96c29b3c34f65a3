"""Fields, answers and errors of the OpenAI API without a model; tests/integration/test_openai.py has the rest."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hf_transformer.api.base import Call, Model, Models, Service, error_json, renamed
from hf_transformer.api.openai import embeddings, rerank
from hf_transformer.api.openai.fields import as_sent, read_request, render_error
from hf_transformer.api.openai.routes import errors_by_path, model_cards, root_of
from hf_transformer.errors import InvalidInput, RequestError, TooLarge, TooManyRequests, UnknownModel
from hf_transformer.protocol.json_text import JsonLimits
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types import Answers, Context

LABELS = {
    **{"user": "me", "safety_identifier": "abc", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
    **{"store": True, "service_tier": "auto", "priority": 0},
    "metadata": {"team": "search"},
}
"""Fields of every endpoint that ask for nothing; some of them are not rerank's."""
JINAS = {"embedding_type": "float", "late_chunking": False, "truncate_prompt_tokens": -1, "add_special_tokens": True}


def models(task: str = "text_embedding") -> Models:
    return Models([cast(Model, SimpleNamespace(name="mini", task=SimpleNamespace(name=task)))])


def read(body: Any, task: str = "text_embedding", **headers: bytes) -> Parameters:
    """The fields of an embeddings request."""
    found = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    service = cast(Service, SimpleNamespace(models=models(task)))
    with renamed(as_sent):
        call = Call({}, found, content, Context("id", {}), JsonLimits(99, 99))
        model, given = read_request(service, call, "embeddings", embeddings.FIELDS)
    assert model.name == "mini"
    return given


def wrong(kind: type[RequestError], says: str, function: Any, *arguments: Any) -> None:
    with pytest.raises(kind) as raised, renamed(as_sent):
        function(*arguments)
    assert says in str(raised.value)


def test_fields_that_are_null_were_not_sent() -> None:
    given = read({"model": "mini", "user": None, "input": "a", "n": None})
    assert given.get("input") == "a" and "user" not in given


def test_the_charset_counts() -> None:
    body = '{"model": "mini", "input": "é"}'.encode("utf-16")
    assert read(body, content_type=b"application/json; charset=utf-16").get("input") == "é"


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        (b"{", InvalidInput, "body: not JSON: "),
        ([1], InvalidInput, "body: expected an object, got a list"),
        ({"model": "mini", "inputs": []}, InvalidInput, "inputs: unknown, expected some of model, input, encoding"),
        (dict.fromkeys("abcdefgh", 1), InvalidInput, "'a', 'b', 'c', 'd', 'e' and 3 more, expected"),
        ({}, InvalidInput, "model: missing, expected the name of the model that is served: mini"),
        ({"model": 3}, InvalidInput, "model: expected a string, got a number"),
        ({"model": "gpt"}, UnknownModel, "model: 'gpt' is not served here; served: mini"),
    ],
    ids=["JSON", "list", "unknown", "unknown ones", "no model", "model's type", "another model"],
)
def test_wrong_bodies(body: Any, kind: type[RequestError], says: str) -> None:
    wrong(kind, says, read, body)


def test_a_model_for_another_task() -> None:
    says = "model: 'mini' does rerank, but embeddings needs text_embedding"
    wrong(InvalidInput, says, read, {"model": "mini"}, "rerank")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("store", 0, "nothing is stored here, expected true or false, got a number"),
        ("priority", 1, "requests have none here, expected 0, got a number"),
        ("priority", False, "requests have none here, expected 0, got false"),
        ("truncate_prompt_tokens", 8, "texts are cut at the model's length, expected -1, got a number"),
        ("embedding_type", "binary", "vectors are not quantized, expected float, got 'binary'"),
        ("input_type", 1, "expected a string, got a number"),
        ("add_special_tokens", False, "they are added (--disable_special_tokens), expected true, got false"),
        ("service_tier", "flex", "there is one here, expected auto or default, got 'flex'"),
        ("service_tier", 1, "there is one here, expected auto or default, got a number"),
        ("user", 7, "expected a string, got a number"),
        ("safety_identifier", 7, "expected a string, got a number"),
        ("prompt_cache_key", ["k"], "expected a string, got a list"),
        ("prompt_cache_retention", 24, "expected a string, got a number"),
        ("metadata", "x", "expected an object of strings, got a string"),
        ("metadata", {"a": 1}, "the key 'a' has a number, expected a string"),
        ("metadata", {"a" * 65: "x"}, "a key has 65 characters, at most 64 are taken"),
        ("metadata", {"a": "x" * 513}, "the key 'a' has 513 characters, at most 512 are taken"),
        ("metadata", {str(number): "x" for number in range(17)}, "17 keys, at most 16 are taken"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_what_asks_for_something_that_is_not_done(name: str, value: Any, says: str) -> None:
    wrong(InvalidInput, f"{name}: {says}", read, {"model": "mini", name: value})


def test_what_asks_for_nothing() -> None:
    assert set(LABELS) < set(embeddings.FIELDS)
    query, _ = embeddings.read_query(read({"model": "mini", "input": "a", **LABELS, **JINAS}), 9)
    assert query == embeddings.read_query(read({"model": "mini", "input": "a", "service_tier": "default"}), 9)[0]


@pytest.mark.parametrize(
    ("given", "instances", "single"),
    [
        ("a", ["a"], True),
        (["a", "b"], ["a", "b"], False),
        ([7, 8], [{"token_ids": [7, 8]}], True),
        ([[7], [8, 9]], [{"token_ids": [7]}, {"token_ids": [8, 9]}], False),
    ],
    ids=["string", "strings", "ids", "lists of ids"],
)
def test_forms_of_input(given: Any, instances: Any, single: bool) -> None:
    own = {"dimensions": 2, "prompt": "q", "prompt_name": "x", "normalize": True, "truncation": False, "stride": 1}
    query, alone = embeddings.read_query(
        read({"model": "mini", "input": given, "encoding_format": "float", **own}), 2, True
    )
    assert (query.instances, alone, query.name, query.parameters) == (instances, single, "input", own)


FORMS = "input: expected a string, a list of strings, a list of token ids or a list of such lists, got "


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        (None, InvalidInput, f"{FORMS}nothing"),
        ([], InvalidInput, f"{FORMS}an empty list"),
        ({"text": "a"}, InvalidInput, f"{FORMS}an object with the keys text"),
        (["a", {"text": "a"}], InvalidInput, "input[1]: expected a string or a list of token ids, got an object"),
        ([True], InvalidInput, "input[0]: expected a string or a list of token ids, got a boolean"),
        (["a"] * 4, TooLarge, "input: 4 in a request, at most 3 are taken (--max_instances, --max_sequences)"),
    ],
    ids=["none", "empty", "object", "mixed", "booleans", "many"],
)
def test_wrong_input(given: Any, kind: type[RequestError], says: str) -> None:
    wrong(kind, says, embeddings.read_query, Parameters({"input": given}, ("input",)), 3)


@pytest.mark.parametrize("wanted", ["float", "base64"])
def test_an_embeddings_response(wanted: str) -> None:
    vectors = np.array([[0.1, -2.5], [3, 1e-20]], np.float32)
    body = embeddings.render(Answers(list(vectors), tokens=9), "mini", wanted == "base64")
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
    found = base64.b64decode(embeddings.to_base64(np.array([1, 9, -2, 9], ">f8")[::2]))
    assert found.hex() == "0000803f" + "000000c0"


def reranking(**fields: Any) -> Any:
    return rerank.read_query(Parameters(fields, rerank.FIELDS), 3)


def test_a_rerank_request() -> None:
    query = reranking(query="q", documents=["a", {"text": "b"}], top_n=1)
    assert query.instances == [{"query": "q", "texts": ["a", "b"]}]
    assert query.parameters == {"top_n": 1, "return_documents": True, "output_format": "kserve"}
    more = {"return_documents": False, "truncation": False, "raw_scores": True}
    assert reranking(query="q", documents=["a"], **more).parameters == {"output_format": "kserve", **more}


@pytest.mark.parametrize(
    ("fields", "kind", "says"),
    [
        ({"documents": ["a"]}, InvalidInput, "query: expected a string, got nothing"),
        ({"query": ["q"], "documents": ["a"]}, InvalidInput, "query: expected a string, got a list"),
        ({"query": "q"}, InvalidInput, "documents: expected a list of texts, got nothing"),
        ({"query": "q", "documents": "a"}, InvalidInput, "documents: expected a list of texts, got a string"),
        ({"query": "q", "documents": []}, InvalidInput, "documents: expected a list of texts, got an empty one"),
        ({"query": "q", "documents": ["a", 1]}, InvalidInput, "documents[1]: expected a string or {"),
        ({"query": "q", "documents": [{"title": "a"}]}, InvalidInput, "got an object with the keys title"),
        ({"query": "q", "documents": ["a"] * 4}, TooLarge, "documents: 4 in a request, at most 3 are taken"),
    ],
    ids=str,
)
def test_wrong_rerank_requests(fields: Any, kind: type[RequestError], says: str) -> None:
    wrong(kind, says, lambda: reranking(**fields))


def test_a_rerank_response() -> None:
    answers = Answers([[{"index": 1, "score": 0.9, "text": "b"}, {"index": 0, "score": 0.5}]], tokens=4)
    assert json.loads(rerank.render(answers, "mini", "17")) == {
        "id": "rerank-17",
        "model": "mini",
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
        "results": [
            {"index": 1, "document": {"text": "b"}, "relevance_score": 0.9},
            {"index": 0, "relevance_score": 0.5},
        ],
    }


def test_errors_keep_their_kind_and_cause() -> None:
    with pytest.raises(TooManyRequests, match=r"^n: 3 is too small$") as raised, renamed(as_sent):
        raise TooManyRequests("parameters.n: 3 is too small")
    assert isinstance(raised.value.__cause__, TooManyRequests)


@pytest.mark.parametrize(
    ("status", "message", "kind", "param", "code"),
    [
        (400, "input[3]: expected a string", "invalid_request_error", "input[3]", None),
        (400, "messages[1].content: expected a string", "invalid_request_error", "messages[1].content", None),
        (400, "body: not JSON: unexpected end", "invalid_request_error", None, None),
        (400, "a stride of 3: too long", "invalid_request_error", None, None),
        (401, "token: missing", "invalid_request_error", None, None),
        (404, "model: 'x' is not served here", "invalid_request_error", "model", "model_not_found"),
        (404, "GET /openai/v1/x: Not Found", "invalid_request_error", None, None),
        (405, "GET /openai/v1/rerank: Method Not Allowed", "invalid_request_error", None, "method_not_supported"),
        (413, "input: 9 in a request", "invalid_request_error", "input", None),
        (429, "9 requests are in flight", "requests", None, "rate_limit_exceeded"),
        (502, "onnx: the predictor's own words", "server_error", None, None),
    ],
)
def test_error_bodies(status: int, message: str, kind: str, param: str | None, code: str | None) -> None:
    found = json.loads(render_error(message, status))
    assert found == {"error": {"message": message, "type": kind, "param": param, "code": code}}


@pytest.mark.parametrize(("prefix", "root"), [("openai", "/openai"), ("/a/b/", "/a/b"), ("", ""), ("/", "")])
def test_the_prefix(prefix: str, root: str) -> None:
    assert root_of(prefix) == root


@pytest.mark.parametrize(
    ("prefix", "path", "ours"),
    [
        ("openai", "/openai/v1/embeddings", True),
        ("/openai/", "/openai", True),
        ("openai", "/openai2/v1/embeddings", False),
        ("openai", "/v1/embeddings", False),
        ("", "/v1/chat/completions", True),
        ("", "/v1/models", False),
        ("", "/v1/models/mini", False),
        ("", "/v2/models", False),
    ],
)
def test_which_paths_have_openais_errors(prefix: str, path: str, ours: bool) -> None:
    assert errors_by_path(prefix)(path) is (render_error if ours else error_json)


def test_model_cards() -> None:
    [card] = model_cards(models()).values()
    assert card.pop("created") > 1_700_000_000
    assert card == {"id": "mini", "object": "model", "owned_by": "hf_transformer"}
