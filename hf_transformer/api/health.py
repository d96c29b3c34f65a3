"""Routes for liveness, readiness and metrics, and the errors of all routes outside the endpoints.

    GET /           {"status": "alive"}; redirects browsers to the playground, if enabled
    GET /health     200 without a body, 503 if a model is not ready; also under the OpenAI API's prefix
    GET /ping       the same, for text-embeddings-inference and SageMaker
    GET /metrics    Prometheus text

vLLM also serves /health, and clients such as guidellm poll this route before they start.

A 404 suggests a route of this service for an incomplete path or a route of another server (docs/clients.md), or the
flag that a page needs. OpenAI
clients often omit the prefix or /v1 in base_url. They show only errors in OpenAI's format, so these paths return this
format. As in KServe without an explainer, :explain returns 501.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ExceptionHandler

from hf_transformer.api.dialects.table import ROUTES
from hf_transformer.api.errors import RenderError, error_json
from hf_transformer.api.openai.fields import TASKS, render_error
from hf_transformer.api.openai.routes import errors_by_path, root_of
from hf_transformer.api.responses import JsonResponse
from hf_transformer.api.service import Service
from hf_transformer.errors import RequestError
from hf_transformer.observability.metrics import CONTENT_TYPE
from hf_transformer.observability.series import text_of

_EXPLAIN = re.compile(r"/v1/models/[^/]+:explain|/v2/models/[^/]+(/versions/[^/]+)?/explain")
_MODEL_ROUTES = ("/v1/models/", "/v2/models/")
"""Prefixes of the model routes of V1 and V2. A model may have the name of an OpenAI route."""
_ROUTES = sorted(TASKS, key=len, reverse=True)
"""OpenAI's routes, longest first, since a path that ends with chat/completions also ends with completions."""
_FOREIGN = {
    r"api/embed": "{base}/embeddings returns the vectors of texts",
    r"(v[12]/|api/)?chat|v1/messages|v1/complete": "{base}/chat/completions answers chats",
    r"generate|generate_stream|(v1|api)/generate": "{base}/completions and /v2/models/NAME/generate generate text",
}
"""Route patterns of other servers (Cohere, text-generation-inference, Ollama) without the leading slash, each with a
hint to the equivalent route."""
_EXPECTED = {
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


def hint_for(path: str, status: int, openai_prefix: str) -> tuple[int, str, RenderError] | None:
    """Returns the status, message and error format for a POST to an unknown path, or None if no hint applies."""
    if _EXPLAIN.fullmatch(path):
        return 501, "the service has no explanations; add an explainer to the InferenceService", error_json
    if path.startswith(_MODEL_ROUTES) or status != 404:
        return None
    root, bare = root_of(openai_prefix), path.rstrip("/")
    base, within = f"{root}/v1", bare if bare == root else bare.removeprefix(root)
    for pattern, hint in _FOREIGN.items():
        if re.fullmatch(pattern, within.removeprefix("/")):
            return status, f"{HTTPStatus(status).phrase}; {hint.format(base=base)}", render_error
    for route in _ROUTES:
        if bare.endswith(f"/{route}"):
            base_url = f"the base_url of an OpenAI client is http://HOST:PORT{base}"
            return 404, f"Not Found, expected {base}/{route}: {base_url}", render_error
    if root and within in ROUTES and within != bare:
        return 404, f"Not Found; this route is {within}, without {root}", render_error
    return None


def hint_about(path: str, openai_prefix: str) -> str:
    """Returns a hint to the route in place of an unknown path, or an empty text."""
    within = path.rstrip("/").removeprefix(root_of(openai_prefix)).removeprefix("/").lower()
    return next((f"; {hint}" for pattern, hint in _EXPECTED.items() if re.fullmatch(pattern, within)), "")


def health_paths(openai_prefix: str) -> list[str]:
    """The distinct paths of the health route."""
    return [*dict.fromkeys(f"{root}/health" for root in ("", root_of(openai_prefix))), "/ping"]


def routes(service: Service, openai_prefix: str, page: str | None = None) -> list[BaseRoute]:
    """Creates the routes of this module. ``page`` is the redirect target for browsers, relative to /."""

    async def alive(request: Request) -> Response:
        headers = None if page is None else {"Vary": "Accept"}
        if page is not None and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(page, 307, headers)
        return JsonResponse({"status": "alive"}, headers=headers)

    async def healthy(request: Request) -> Response:
        error = await service.models.find_not_ready()
        if error is not None:
            raise error
        return Response()

    async def show_metrics(request: Request) -> Response:
        # Fifty models have thousands of lines, so requests must not wait for their rendering.
        text = await asyncio.to_thread(text_of, service.metrics.shown())
        return Response(text, media_type=CONTENT_TYPE)

    health = [Route(path, healthy) for path in health_paths(openai_prefix)]
    return [Route("/", alive), *health, Route("/metrics", show_metrics)]


def error_handlers(openai_prefix: str) -> dict[Any, ExceptionHandler]:
    """Exception handlers for RequestError, and for Starlette's errors about unknown paths and methods."""
    render_for = errors_by_path(openai_prefix)

    async def handle(request: Request, error: Exception) -> Response:
        path = request.url.path
        render, headers = render_for(path), {}
        if isinstance(error, RequestError):
            status = error.status
            if error.retry_after is not None:
                headers["Retry-After"] = str(error.retry_after)
        elif isinstance(error, HTTPException):
            detail, status = error.detail, error.status_code
            if status == 405 and error.headers:
                # Starlette joins a set, and its order differs between processes.
                headers["Allow"] = ", ".join(sorted(error.headers["Allow"].split(", ")))
                detail += f", expected {headers['Allow']}"
            if request.method == "POST" and (hint := hint_for(path, status, openai_prefix)) is not None:
                status, detail, render = hint
            elif request.method == "POST" and path.startswith(_MODEL_ROUTES):
                detail += "; /v1/models/NAME:predict and /v2/models/NAME/infer run a model"
            elif status == 404:
                detail += hint_about(path, openai_prefix)
            error = RequestError(f"{request.method} {path[:200]}: {detail}")
        else:
            raise error
        return Response(render(error, status), status, headers, media_type="application/json")

    return dict.fromkeys((RequestError, HTTPException), handle)
