"""What the OpenAI API says whatever the model is: its errors, and hints for requests to other routes and servers."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from hf_transformer.api.base import error_json
from hf_transformer.api.health import hint_for
from hf_transformer.api.openai import embeddings
from hf_transformer.api.openai.fields import render_error
from hf_transformer.api.openai.routes import errors_by_path
from tests.api.generating import bench, post

BASE = "the base_url of an OpenAI client is http://HOST:PORT"
SCORES = "Not Found; /openai/v1/rerank gives the scores of documents for a query"


def expected(route: str, base: str = "/openai/v1") -> str:
    return f"Not Found, expected {base}/{route}: {BASE}{base}"


@pytest.mark.parametrize(
    ("prefix", "path", "status", "found"),
    [
        ("openai", "/v1/completions", 404, expected("completions")),
        ("openai", "/chat/completions", 404, expected("chat/completions")),
        ("openai", "/v1/rerank", 404, expected("rerank")),
        ("openai", "/openai/v1/v1/chat/completions", 404, expected("chat/completions")),
        ("openai", "/openai/v1/embeddings/", 404, expected("embeddings")),
        ("/a/b/", "/v1/completions", 404, expected("completions", "/a/b/v1")),
        ("", "/openai/v1/completions", 404, expected("completions", "/v1")),
        *[("openai", path, 404, SCORES) for path in ("/v1/score", "/score", "/openai/v1/score")],
        # Of others nothing is said, and models may be called as routes.
        *[("openai", path, 404, None) for path in ("/", "/completions_", "/v1/models/m", "/v1/explain", "/v3")],
        *[("openai", path, 404, None) for path in ("/v1/models/a/b:explain", "/v1/models/m/rerank")],
        ("openai", "/v2/models/m/score", 404, None),
        ("openai", "/v1/models/rerank", 405, None),
    ],
)
def test_hints(prefix: str, path: str, status: int, found: str | None) -> None:
    hint = hint_for(path, status, prefix)
    assert (None if hint is None else (hint.status, hint.said)) == (None if found is None else (404, found))


@pytest.mark.parametrize("path", ["/v1/models/m:explain", "/v2/models/m/explain", "/v2/models/m/versions/1/explain"])
def test_explanations_are_not_implemented_as_with_kserve(path: str) -> None:
    hint = hint_for(path, 404, "openai")
    assert hint is not None and hint.status == 501 and hint.said.startswith("no explanations are given here")


async def test_the_answers() -> None:
    """OpenAI's clients show no message in another form than OpenAI's, wherever they ask."""
    async with bench() as made:
        for path in ("/v1/chat/completions", "/openai/chat/completions"):
            status, found = await post(made, path, {})
            message = f"POST {path}: {expected('chat/completions')}"
            about = {"type": "invalid_request_error", "param": None, "code": None}
            assert (status, found) == (404, {"error": {"message": message, **about}})
        status, found = await post(made, "/v1/models/gpt2:explain", {})
        assert status == 501 and found["error"].startswith("POST /v1/models/gpt2:explain: no explanations")
        status, found = await post(made, "/v1/models/gpt2", {})
        assert status == 405 and found == {"error": "POST /v1/models/gpt2: Method Not Allowed, expected GET, HEAD"}


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
