"""What is said of requests that belong to another route, or to another server."""

from __future__ import annotations

import pytest

from hf_transformer.api.health import hints
from tests.api.generating import bench, post

BASE = "the base_url of an OpenAI client is http://HOST:PORT/openai/v1"


def said(prefix: str, path: str, status: int = 404) -> tuple[int, str] | None:
    found = hints(prefix)(path, status)
    return None if found is None else (found.status, found.said)


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/completions", "completions"),
        ("/chat/completions", "chat/completions"),
        ("/v1/rerank", "rerank"),
        ("/openai/v1/v1/chat/completions", "chat/completions"),
        ("/openai/v1/embeddings/", "embeddings"),
    ],
)
def test_a_route_of_openai_s_is_named(path: str, route: str) -> None:
    assert said("openai", path) == (404, f"Not Found, expected /openai/v1/{route}: {BASE}")


def test_the_prefix_is_the_service_s_own() -> None:
    base = "the base_url of an OpenAI client is http://HOST:PORT"
    assert said("/a/b/", "/v1/completions") == (404, f"Not Found, expected /a/b/v1/completions: {base}/a/b/v1")
    assert said("", "/openai/v1/completions") == (404, f"Not Found, expected /v1/completions: {base}/v1")


def test_scores_are_those_of_rerank() -> None:
    for path in ("/v1/score", "/score", "/openai/v1/score"):
        assert said("openai", path) == (404, "Not Found; /openai/v1/rerank gives the scores of documents for a query")


@pytest.mark.parametrize(
    "path",
    ["/v1/models/m:explain", "/v2/models/m/explain", "/v2/models/m/versions/1/explain"],
    ids=["v1", "v2", "version"],
)
def test_explanations_are_not_implemented_as_with_kserve(path: str) -> None:
    status, message = said("openai", path) or (0, "")
    assert status == 501 and message.startswith("no explanations are given here")


@pytest.mark.parametrize("path", ["/", "/completions_", "/v1/models/m", "/v1/explain", "/v1/models/a/b:explain", "/v3"])
def test_of_others_nothing_is_said(path: str) -> None:
    assert said("openai", path) is None


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/models/rerank", 405), ("/v1/models/m/rerank", 404), ("/v2/models/m/score", 404)]
)
def test_models_may_be_called_as_routes(path: str, status: int) -> None:
    assert said("openai", path, status) is None


async def test_the_answers() -> None:
    """OpenAI's clients show no message in another form than OpenAI's, wherever they ask."""
    async with bench() as made:
        for path in ("/v1/chat/completions", "/openai/chat/completions"):
            status, found = await post(made, path, {})
            message = f"POST {path}: Not Found, expected /openai/v1/chat/completions: {BASE}"
            about = {"type": "invalid_request_error", "param": None, "code": None}
            assert (status, found) == (404, {"error": {"message": message, **about}})
        status, found = await post(made, "/v1/models/gpt2:explain", {})
        assert status == 501 and found["error"].startswith("POST /v1/models/gpt2:explain: no explanations")
        status, found = await post(made, "/v1/models/gpt2", {})
        assert status == 405 and found == {"error": "POST /v1/models/gpt2: Method Not Allowed, expected GET, HEAD"}
