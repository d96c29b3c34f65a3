"""Fields, answers and errors of the OpenAI API without a model; tests/integration/test_openai.py has the rest."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hf_transformer.api.base import Call, Model, Models, Service, error_json, renamed
from hf_transformer.api.openai import embeddings
from hf_transformer.api.openai.fields import as_sent, read_request, render_error
from hf_transformer.api.openai.routes import errors_by_path
from hf_transformer.errors import InvalidInput, RequestError, UnknownModel
from hf_transformer.protocol.json_text import JsonLimits
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types import Context

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


def test_what_asks_for_nothing() -> None:
    given = read({"model": "mini", "user": None, "input": "a", "n": None})
    assert given.get("input") == "a" and "user" not in given
    body = '{"model": "mini", "input": "é"}'.encode("utf-16")
    assert read(body, content_type=b"application/json; charset=utf-16").get("input") == "é"
    assert set(LABELS) < set(embeddings.FIELDS)
    query, _ = embeddings.read_query(read({"model": "mini", "input": "a", **LABELS, **JINAS}), 9)
    assert query == embeddings.read_query(read({"model": "mini", "input": "a", "service_tier": "default"}), 9)[0]


NOT_DONE = [
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
]


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
        *[({"model": "mini", name: value}, InvalidInput, f"{name}: {says}") for name, value, says in NOT_DONE],
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_wrong_requests(body: Any, kind: type[RequestError], says: str) -> None:
    with pytest.raises(kind) as raised:
        read(body)
    assert says in str(raised.value)


def test_base64_is_float32_in_little_endian() -> None:
    found = base64.b64decode(embeddings.to_base64(np.array([1, 9, -2, 9], ">f8")[::2]))
    assert found.hex() == "0000803f" + "000000c0"


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
