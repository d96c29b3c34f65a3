"""vLLM's /health, which its clients poll before they start; hints for requests to other routes and servers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from hf_transformer.api.health import hint_for
from hf_transformer.app.application import build_app
from hf_transformer.server.asgi import AsgiApplication
from tests.api.generating import Exchange, ServedModel, application, post
from tests.support.configuring import config
from tests.support.triton_repository import DEMO_MODEL

BOTH = ("/health", "/openai/health", "/ping")


async def get(app: AsgiApplication, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        return await client.get(path)


@pytest.mark.parametrize("path", BOTH)
async def test_health_is_200_for_a_ready_model(made: ServedModel, path: str) -> None:
    found = await get(made.app, path)
    assert (found.status_code, found.content) == (200, b"")


@pytest.mark.parametrize("path", BOTH)
async def test_health_is_503_with_the_reason_until_the_model_is_ready(path: str) -> None:
    found = await get(build_app(config(f"--model_dir={DEMO_MODEL}", "--model_name=bert")), path)
    assert (found.status_code, found.headers["retry-after"]) == (503, "1")
    said: Any = found.json()["error"]
    message = said["message"] if path == "/openai/health" else said
    assert "not ready" in message


@pytest.mark.parametrize(("prefix", "path"), [("", "/health"), ("a/b", "/a/b/health")], ids=["none", "long"])
async def test_health_is_also_under_the_openai_prefix(made: ServedModel, prefix: str, path: str) -> None:
    app = application(made.service, None, f"--openai_route_prefix={prefix}")
    assert (await get(app, path)).status_code == 200
    assert (await get(app, "/openai/health")).status_code == 404


# Hints


BASE = "the base_url of an OpenAI client is http://HOST:PORT"
VECTORS = "Not Found; /openai/v1/embeddings returns the vectors of texts"
CHATS = "Not Found; /openai/v1/chat/completions answers chats"
TEXTS = "Not Found; /openai/v1/completions and /v2/models/NAME/generate generate text"


def expected(route: str, base: str = "/openai/v1") -> str:
    return f"Not Found, expected {base}/{route}: {BASE}{base}"


@pytest.mark.parametrize(
    ("prefix", "path", "status", "hint"),
    [
        ("openai", "/v1/completions", 404, expected("completions")),
        ("openai", "/chat/completions", 404, expected("chat/completions")),
        ("openai", "/v1/rerank", 404, expected("rerank")),
        ("openai", "/openai/v1/v1/chat/completions", 404, expected("chat/completions")),
        ("openai", "/openai/v1/embeddings/", 404, expected("embeddings")),
        ("/a/b/", "/v1/completions", 404, expected("completions", "/a/b/v1")),
        ("", "/openai/v1/completions", 404, expected("completions", "/v1")),
        *[
            ("openai", f"/openai{path}", 404, f"Not Found; this route is {path}, without /openai")
            for path in ("/v1/score", "/classify", "/v1/ranking", "/v2/embed", "/embed_all", "/tokenize")
        ],
        ("openai", "/openai/v2/rerank", 404, expected("rerank")),
        ("openai", "/openai/rerank", 404, expected("rerank")),
        *[
            ("openai", path, 404, expected("responses"))
            for path in ("/v1/responses", "/openai/responses", "/responses")
        ],
        ("openai", "/api/embed", 404, VECTORS),
        *[("openai", path, 404, CHATS) for path in ("/v2/chat", "/api/chat")],
        *[("openai", path, 404, TEXTS) for path in ("/generate", "/generate_stream", "/api/generate")],
        # Models may have the names of routes.
        *[("openai", path, 404, None) for path in ("/completions_", "/v1/models/m", "/v1/explain", "/v3")],
        *[("openai", path, 404, None) for path in ("/v1/models/responses", "/v2/models/m/embed", "/embedded")],
        *[("openai", path, 404, None) for path in ("/v1/models/a/b:explain", "/v1/models/m/rerank")],
        ("openai", "/v2/models/m/score", 404, None),
        ("openai", "/v1/models/rerank", 405, None),
        ("openai", "/openai/", 404, None),
    ],
)
def test_an_unknown_route_has_a_hint_to_the_equivalent_one(
    prefix: str, path: str, status: int, hint: str | None
) -> None:
    result = hint_for(path, status, prefix)
    assert (result and result[:2]) == (None if hint is None else (status, hint))


@pytest.mark.parametrize("path", ["/v1/models/m:explain", "/v2/models/m/explain", "/v2/models/m/versions/1/explain"])
def test_explanations_are_501_as_in_kserve(path: str) -> None:
    hint = hint_for(path, 404, "openai")
    assert hint is not None and hint[0] == 501 and hint[1].startswith("the service has no explanations")


async def test_hints_are_in_openai_s_form_where_its_clients_may_ask(made: ServedModel) -> None:
    for path in ("/v1/chat/completions", "/openai/chat/completions"):
        message = f"POST {path}: {expected('chat/completions')}"
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        assert await post(made, path, {}) == (404, {"error": error})
    status, answer = await post(made, "/v1/models/gpt2:explain", {})
    assert status == 501 and answer["error"].startswith("POST /v1/models/gpt2:explain: the service has no explanations")
    status, answer = await post(made, "/v1/models/gpt2", {})
    assert status == 405 and answer == {"error": "POST /v1/models/gpt2: Method Not Allowed, expected GET, HEAD"}
    async with Exchange(made.app, "/v1/models/gpt2", {}) as exchange:
        status, headers = await exchange.head()
        assert (status, headers["allow"]) == (405, "GET, HEAD")
