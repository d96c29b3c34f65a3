"""Hints for requests to unknown paths: a route of another server that the service lacks, an incomplete path, or a path
that people and probes expect.

OpenAI clients often omit the prefix or /v1 in base_url. A client shows only errors in the form of its own API, so a
hint has the form of the API whose client asks. As in KServe without an explainer, :explain returns 501.

Sources: the API references of OpenAI, Azure OpenAI, Anthropic, Cohere, Voyage, NVIDIA and Gemini, vllm/entrypoints of
https://github.com/vllm-project/vllm, https://github.com/ollama/ollama/blob/main/docs/api.md and
https://github.com/huggingface/text-generation-inference/blob/main/docs/openapi.json
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple

from hf_transformer.api.dialects import tei_form
from hf_transformer.api.document.operation import PREFIX
from hf_transformer.api.document.table import OPERATIONS
from hf_transformer.api.error_forms import render_anthropic, render_detail, render_error, render_message
from hf_transformer.api.errors import RenderError, error_json
from hf_transformer.api.openai.routes import root_of


class ForeignRoutes(NamedTuple):
    """Routes of another server that the service does not have.

    Attributes:
        pattern: the paths, without the leading slash and the OpenAI API's prefix.
        hint: what to use instead; ``{base}`` is the OpenAI API's path with /v1.
        render: the form of errors that the clients of these routes read.
    """

    pattern: str
    hint: str
    render: RenderError


CHATS, TEXTS = "{base}/chat/completions answers chats", "{base}/completions and /v2/models/NAME/generate generate text"
VECTORS = "{base}/embeddings returns the vectors of texts"
FOREIGN = (
    ForeignRoutes(r"v1/messages/.+", "the service has /v1/messages and /v1/messages/count_tokens", render_anthropic),
    ForeignRoutes(r"v1/complete", "/v1/messages answers chats", render_anthropic),
    ForeignRoutes(r"(openai/)?deployments/[^/]+/.+", "Azure's deployments are models: {url}", render_error),
    ForeignRoutes(
        r"(chat/)?completions/derender", "POST /v1/completions/derender returns the text of token ids", render_error
    ),
    ForeignRoutes(
        r"(v1/)?(responses|chat/completions|completions|conversations)/.+|(v1/)?conversations",
        "the service stores no answers; send all items of a conversation to {base}/responses",
        render_error,
    ),
    ForeignRoutes(
        r"(v1/)?(batches|files|uploads|audio|images|videos|realtime|fine_tuning|fine-tunes|assistants|threads"
        r"|vector_stores|containers|evals|edits)(/.*)?",
        "the service has no such route; it has {routes} below {base}",
        render_error,
    ),
    ForeignRoutes(
        r"(v1/)?(un)?load_lora_adapter",
        "the adapters are those of --adapters; a request names one as model",
        render_error,
    ),
    ForeignRoutes(r"(v1/)?(engines|deployments)", "/v1/models lists the models", render_error),
    ForeignRoutes(r"v1/retrieval/.+", "/v1/ranking ranks passages, with the field model", render_detail),
    ForeignRoutes(r"v1beta/models/.+:(g|streamG)enerateContent", CHATS, render_error),
    ForeignRoutes(r"v1beta/models/.+:(batchEmbedContents|embedContent)", VECTORS, render_error),
    ForeignRoutes(r"tokenizer_info|server_info", "/v1/models/NAME/info describes a model", render_error),
    ForeignRoutes(r"api/chat", CHATS, error_json),
    ForeignRoutes(r"api/generate", TEXTS, error_json),
    ForeignRoutes(r"api/embed(dings)?", VECTORS, error_json),
    ForeignRoutes(r"api/(show|ps)", "/v1/models lists the models, and /info describes them", error_json),
    ForeignRoutes(
        r"api/(pull|push|create|copy|delete|blobs/.+)", "the models are those of --models or the flags", error_json
    ),
    ForeignRoutes(r"generate|generate_stream", TEXTS, tei_form.render_error),
    ForeignRoutes(r"chat_tokenize", "POST /tokenize with messages tokenizes a chat", tei_form.render_error),
    ForeignRoutes(r"v[12]/chat", CHATS, render_message),
    ForeignRoutes(r"v1/generate", TEXTS, render_message),
    ForeignRoutes(r"v1/(tokenize|detokenize)", "the routes are /tokenize and /detokenize", render_message),
    ForeignRoutes(r"v1/multimodalembeddings", "the models read texts: " + VECTORS, render_detail),
    ForeignRoutes(r"chat", CHATS, render_error),
    ForeignRoutes(r"completion|infill", TEXTS, render_error),
)
"""The first matching entry applies."""
CLEAR = ("/v1/", "/v1beta/", "/api/", "/deployments", "/openai/", "/tokenizer_info", "/server_info")
"""Starts of paths that only API clients ask for. A browser may GET /images/logo.png."""
_EXPLAIN = re.compile(r"/v1/models/.+:explain|/v2/models/.+/explain")
MODEL_ROUTES = ("/v1/models/", "/v2/models/")
"""Prefixes of the model routes of V1 and V2. A model may have the name of an OpenAI route."""
_BASE = f"{PREFIX}/v1/"
_POSTED = [one.path for one in OPERATIONS if one.method == "post"]
OPENAI_ROUTES = [path.removeprefix(_BASE) for path in _POSTED if path.startswith(_BASE)]
_LONGEST_FIRST = sorted(OPENAI_ROUTES, key=len, reverse=True)
"""OpenAI's routes, since a path that ends with chat/completions also ends with completions."""
_EXPECTED: Mapping[str, str] = {
    r"(api/)?(docs|redoc|swagger|swagger-ui|api-docs)(/index\.html)?|docs/.*": "the API's page is /docs, and needs "
    "--enable_docs_url; its document is /openapi.json",
    r"playground|playground/.*|ui|gradio|demo": "the playground is /playground, and needs --enable_playground",
    r"(api/|docs/|v[123]/)?(openapi|swagger|api-docs)(\.json|\.ya?ml)?": "the document of the API is /openapi.json",
    r"(api/|v[12]/|-/)?(healthz?|healthy|livez?|alive|liveness|status|up)(/live|/liveness|/check)?": "/health "
    "says whether the models are ready, /v2/health/live whether the service is alive",
    r"(api/|v[12]/|-/)?(health/)?(ready|readyz|readiness|startup|startupz)": "/v2/health/ready says whether the "
    "service is ready",
    r"(v[12]/|actuator/)?(metrics|stats|statistics|prometheus)": "/metrics has the metrics",
    r"(v1/|api/)?version": "/v2 and /info have the version",
    r"models|api/models|api/tags|list": "/v1/models lists the models",
    r"infer|predictions(/.*)?|v1/predict|v2/infer|pipeline(/.*)?": "/v1/models/NAME:predict answers instances",
    r"(v1/|v2/|api/)?(embed|embeddings?)": "/embed, /v1/embeddings and /v2/embed return the vectors of texts",
    r"(v1/|v2/|api/)?(rerank|reranking|ranking)": "/rerank, /v1/rerank and /v2/rerank rank texts",
}
"""Patterns of paths that people and probes expect, with a hint to the route, or to the flag that switches it on. They
apply only to a 404, so not to a path that the service has."""


def hint_for(path: str, status: int, openai_prefix: str, method: str = "POST") -> tuple[int, str, RenderError] | None:
    """Returns the status, message and error format for a request to an unknown path, or None if no hint applies."""
    posts = method == "POST"
    if posts and _EXPLAIN.fullmatch(path):
        return 501, "the service has no explanations; add an explainer to the InferenceService", error_json
    if path.startswith(MODEL_ROUTES) or status != 404:
        return None
    root, bare = root_of(openai_prefix), path.rstrip("/")
    base, within = f"{root}/v1", bare if bare == root else bare.removeprefix(root)
    url = f"the base_url of an OpenAI client is http://HOST:PORT{base}"
    is_openai = bool(root) and within != bare
    if posts or is_openai or within.startswith(CLEAR):
        for foreign in FOREIGN:
            if re.fullmatch(foreign.pattern, within.removeprefix("/")):
                hint = foreign.hint.format(base=base, url=url, routes=", ".join(OPENAI_ROUTES))
                render = render_error if is_openai else foreign.render
                return status, f"{HTTPStatus(status).phrase}; {hint}", render
    if not posts:
        return None
    for route in _LONGEST_FIRST:
        if bare.endswith(f"/{route}"):
            return 404, f"Not Found, expected {base}/{route}: {url}", render_error
    if is_openai and within in _POSTED:
        return 404, f"Not Found; this route is {within}, without {root}", render_error
    return None


def hint_about(path: str, openai_prefix: str) -> str:
    """Returns a hint to the route in place of an unknown path, or an empty text."""
    within = path.rstrip("/").removeprefix(root_of(openai_prefix)).removeprefix("/").lower()
    return next((f"; {hint}" for pattern, hint in _EXPECTED.items() if re.fullmatch(pattern, within)), "")
