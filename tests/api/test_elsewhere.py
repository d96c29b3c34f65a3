"""What is said of requests that belong to another route, or to another server."""

from __future__ import annotations

import pytest

from hf_transformer.api.health import hint_for
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
