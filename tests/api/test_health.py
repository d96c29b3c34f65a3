"""vLLM's /health, which its clients poll before they start; hints for requests to other routes and servers."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from hf_transformer.api.hints import FOREIGN, hint_about, hint_for
from hf_transformer.app.application import build_app
from hf_transformer.server.asgi import AsgiApplication
from tests.api.generating import Exchange, ServedModel, application, post
from tests.support.configuring import config
from tests.support.triton_repository import DEMO_MODEL

BOTH = ("/health", "/openai/health", "/ping")


async def get(app: AsgiApplication, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service", verify=False) as client:
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


UNKNOWN = "/redoc /ui /openapi /healthz /readyz /stats /version /models /infer /v1/embedding /reranking".split()
"""A path of each kind that people expect."""
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
        ("openai", "/v1/moderations", 404, expected("moderations")),
        ("openai", "/moderations", 404, expected("moderations")),
        ("openai", "/openai/v1/v1/chat/completions", 404, expected("chat/completions")),
        ("openai", "/openai/v1/embeddings/", 404, expected("embeddings")),
        ("/a/b/", "/v1/completions", 404, expected("completions", "/a/b/v1")),
        ("", "/openai/v1/completions", 404, expected("completions", "/v1")),
        *[
            ("openai", f"/openai{path}", 404, f"Not Found; this route is {path}, without /openai")
            for path in (
                "/v1/score",
                "/classify",
                "/v1/ranking",
                "/v2/embed",
                "/embed_all",
                "/tokenize",
                "/v1/messages",
            )
        ],
        ("openai", "/openai/v2/rerank", 404, expected("rerank")),
        ("openai", "/openai/rerank", 404, expected("rerank")),
        *[
            ("openai", path, 404, expected("responses"))
            for path in ("/v1/responses", "/openai/responses", "/responses")
        ],
        ("openai", "/api/embed", 404, VECTORS),
        *[("openai", path, 404, CHATS) for path in ("/v2/chat", "/api/chat", "/chat")],
        *[("openai", path, 404, TEXTS) for path in ("/generate", "/generate_stream", "/api/generate")],
        # Models may have the names of routes.
        *[("openai", path, 404, None) for path in ("/completions_", "/v1/models/m", "/v1/explain", "/v3")],
        *[("openai", path, 404, None) for path in ("/v1/models/responses", "/v2/models/m/embed", "/embedded")],
        *[("openai", path, 404, None) for path in ("/v1/models/m/rerank",)],
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


@pytest.mark.parametrize(
    "path",
    ["/v1/models/m:explain", "/v1/models/a/b:explain", "/v2/models/m/explain", "/v2/models/a/b/versions/1/explain"],
)
def test_explanations_are_501_as_in_kserve(path: str) -> None:
    hint = hint_for(path, 404, "openai")
    assert hint is not None and hint[0] == 501 and hint[1].startswith("the service has no explanations")


@pytest.mark.parametrize(
    ("paths", "hint"),
    [
        ("/healthz /livez /live /health/live /v1/health /status /openai/healthz /-/healthy", "/health says whether"),
        ("/readyz /ready /readiness /health/ready /HEALTH/READY /-/ready", "/v2/health/ready says"),
        ("/docs /docs/ /redoc /swagger-ui/index.html /docs/swagger-ui.css", "needs --enable_docs_url"),
        ("/playground /playground/ /playground/chat.js /ui", "needs --enable_playground"),
        ("/openapi /openapi.yaml /swagger.json /v3/api-docs /docs/openapi.json /v1/openapi.json", "/openapi.json"),
        ("/stats /v1/metrics /v2/stats", "/metrics has"),
        ("/version /api/version", "/v2 and /info have the version"),
        ("/models /api/tags", "/v1/models lists"),
        ("/infer /predictions/bert /v1/predict", "/v1/models/NAME:predict answers"),
        ("/v1/embedding /embed/ /v1/rerank/ /reranking /openai/embed", "texts"),
    ],
)
async def test_an_expected_path_has_a_hint_to_its_route_or_flag(made: ServedModel, paths: str, hint: str) -> None:
    for path in paths.split():
        found = await get(made.app, path)
        assert found.status_code == 404, path
        error = found.json()["error"]
        message = error if isinstance(error, str) else error["message"]
        assert message.startswith(f"GET {path}: Not Found; ") and hint in message, path


@pytest.mark.parametrize("path", ["/", "/v3", "/embedded", "/v1/models/health", "/v2/models/docs", "/uploads"])
def test_another_path_has_no_hint(path: str) -> None:
    assert hint_about(path, "openai") == "" and hint_for(path, 404, "openai", "GET") is None


async def test_a_hint_names_a_path_that_the_service_has(made: ServedModel) -> None:
    """All but those of models, and with the flags that it names."""
    app = application(made.service, None, "--enable_docs_url", "--enable_playground")
    routes = {
        route for path in UNKNOWN for route in re.findall(r"(?<![\w.])/[a-z0-9/.]+(?![a-zA-Z])", hint_about(path, ""))
    }
    assert {"/docs", "/playground", "/health", "/v2/health/live", "/openapi.json", "/v1/models", "/v2/embed"} <= routes
    for route in routes - {"/v1/models/"}:
        assert (await get(app, route)).status_code in (200, 405), route


SERVED = (
    "the service has no such route; it has embeddings, rerank, moderations, completions, chat/completions, responses "
    "below "
)
STORED = "the service stores no answers; send all items"
FOREIGNERS: list[tuple[str, str, str, str]] = [
    ("anthropic", "POST", "/v1/messages/batches", "the service has /v1/messages and /v1/messages/count_tokens"),
    ("anthropic", "GET", "/v1/messages/batches/1", "the service has /v1/messages and"),
    ("anthropic", "POST", "/v1/complete", "/v1/messages answers chats"),
    *[
        ("openai", method, f"{base}/{path}", SERVED)
        for base in ("/v1", "/openai/v1")
        for method, path in (
            *[("POST", "batches"), ("GET", "batches/1"), ("POST", "files"), ("GET", "files")],
            *[("DELETE", "files/1"), ("POST", "audio/speech"), ("POST", "audio/transcriptions")],
            *[("POST", "images/generations"), ("POST", "fine_tuning/jobs"), ("POST", "assistants")],
            *[("POST", "threads/1/runs"), ("GET", "vector_stores"), ("POST", "uploads"), ("POST", "realtime/sessions")],
        )
    ],
    ("openai", "GET", "/openai/v1/responses/resp_1", STORED),
    ("openai", "POST", "/openai/v1/responses/resp_1/cancel", STORED),
    ("openai", "DELETE", "/v1/chat/completions/1", STORED),
    ("openai", "POST", "/openai/v1/conversations", STORED),
    ("openai", "POST", "/completions/derender", "POST /v1/completions/derender returns"),
    *[
        ("openai", "POST", f"/openai/deployments/gpt2/{path}", "Azure's deployments are models: the base_url of")
        for path in ("chat/completions", "completions", "embeddings", "audio/transcriptions", "images/generations")
    ],
    ("openai", "GET", "/openai/v1/engines", "/v1/models lists the models"),
    ("openai", "GET", "/deployments", "/v1/models lists the models"),
    ("openai", "POST", "/v1/load_lora_adapter", "the adapters are those of --adapters"),
    ("openai", "POST", "/v1/unload_lora_adapter", "the adapters are those of --adapters"),
    ("openai", "POST", "/v1beta/models/gemini:generateContent", "/openai/v1/chat/completions answers chats"),
    ("openai", "POST", "/v1beta/models/gemini:streamGenerateContent", "/openai/v1/chat/completions answers chats"),
    ("openai", "POST", "/v1beta/models/gemini:embedContent", "/openai/v1/embeddings returns"),
    ("openai", "GET", "/tokenizer_info", "/v1/models/NAME/info describes a model"),
    ("openai", "POST", "/completion", "/openai/v1/completions and"),
    ("ollama", "POST", "/api/chat", "/openai/v1/chat/completions answers chats"),
    ("ollama", "POST", "/api/generate", "/openai/v1/completions and"),
    ("ollama", "POST", "/api/embed", "/openai/v1/embeddings returns"),
    ("ollama", "POST", "/api/embeddings", "/openai/v1/embeddings returns"),
    ("ollama", "GET", "/api/tags", "/v1/models lists the models"),
    ("ollama", "POST", "/api/show", "/v1/models lists the models"),
    ("ollama", "GET", "/api/ps", "/v1/models lists the models"),
    ("ollama", "POST", "/api/pull", "the models are those of --models"),
    ("tgi", "POST", "/generate", "/openai/v1/completions and"),
    ("tgi", "POST", "/generate_stream", "/openai/v1/completions and"),
    ("cohere", "POST", "/v2/chat", "/openai/v1/chat/completions answers chats"),
    ("cohere", "POST", "/v1/chat", "/openai/v1/chat/completions answers chats"),
    ("cohere", "POST", "/v1/tokenize", "the routes are /tokenize"),
    ("nvidia", "POST", "/v1/retrieval/nvidia/rerank-qa/reranking", "/v1/ranking ranks passages"),
    ("voyage", "POST", "/v1/multimodalembeddings", "the models read texts: /openai/v1/embeddings"),
]


@pytest.mark.parametrize(
    ("form", "method", "path", "hint"), FOREIGNERS, ids=[f"{method} {path}" for _, method, path, _ in FOREIGNERS]
)
async def test_a_route_of_another_server_has_a_hint_in_its_form(
    made: ServedModel, form: str, method: str, path: str, hint: str
) -> None:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(made.app), base_url="http://service", verify=False
    ) as client:
        response = await client.request(method, path)
    assert response.status_code == 404
    body: Any = response.json()
    match form:
        case "anthropic":
            assert body.keys() == {"type", "error", "request_id"} and body["error"].keys() == {"type", "message"}
            assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
            message = body["error"]["message"]
        case "openai":
            assert body["error"]["type"] == "invalid_request_error"
            message = body["error"]["message"]
        case "tgi":
            assert body.keys() == {"error", "error_type"}
            message = body["error"]
        case "cohere":
            assert body.keys() == {"message"}
            message = body["message"]
        case "voyage" | "nvidia":
            message = body["detail"]
        case _:
            assert body.keys() == {"error"}
            message = body["error"]
    assert message.startswith(f"{method} {path}: Not Found") and hint in message


def test_every_foreign_route_has_a_request_above() -> None:
    paths = [path.removeprefix("/openai").removeprefix("/") for _, _, path, _ in FOREIGNERS]
    others = ["chat", "server_info", "chat_tokenize", "v1/generate"]
    patterns = {foreign.pattern for foreign in FOREIGN}
    asked = {pattern for pattern in patterns for path in paths + others if re.fullmatch(pattern, path)}
    assert patterns and patterns == asked


async def test_hints_are_in_openai_s_form_where_its_clients_may_ask(made: ServedModel) -> None:
    for path in ("/v1/chat/completions", "/openai/chat/completions"):
        message = f"POST {path}: {expected('chat/completions')}"
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        assert await post(made, path, {}) == (404, {"error": error})
    status, answer = await post(made, "/v1/models/gpt2:explain", {})
    assert status == 501 and answer["error"].startswith("POST /v1/models/gpt2:explain: the service has no explanations")
    status, answer = await post(made, "/v1/models/gpt2", {})
    assert status == 405 and answer["error"].startswith(
        "POST /v1/models/gpt2: Method Not Allowed, expected GET, HEAD; /v1/models/NAME:predict and "
    )
    async with Exchange(made.app, "/v1/models/gpt2", {}) as exchange:
        status, headers = await exchange.head()
        assert (status, headers["allow"]) == (405, "GET, HEAD")
