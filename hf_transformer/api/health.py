"""Routes for liveness, readiness and metrics, and the errors of all routes outside the endpoints.

    GET /           {"status": "alive"}; redirects browsers to the playground, if enabled
    GET /health     200 without a body, 503 if a model is not ready; also under the OpenAI API's prefix
    GET /ping       the same, for text-embeddings-inference and SageMaker
    GET /metrics    Prometheus text

vLLM also serves /health, and clients such as guidellm poll this route before they start.

A 404 has a hint (hints.py).
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ExceptionHandler

from hf_transformer.api.hints import MODEL_ROUTES, hint_about, hint_for
from hf_transformer.api.openai.routes import errors_by_path
from hf_transformer.api.responses import JsonResponse, View
from hf_transformer.api.service import Service
from hf_transformer.errors import RequestError
from hf_transformer.observability.metrics import CONTENT_TYPE
from hf_transformer.observability.series import text_of


def views(service: Service, page: str | None = None) -> dict[str, View]:
    """Creates the views of this module. ``page`` is the redirect target for browsers, relative to /."""

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

    return {"alive": alive, "health": healthy, "metrics": show_metrics}


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
            if (hint := hint_for(path, status, openai_prefix, request.method)) is not None:
                status, detail, render = hint
            elif request.method == "POST" and path.startswith(MODEL_ROUTES):
                detail += "; /v1/models/NAME:predict and /v2/models/NAME/infer run a model"
            elif status == 404:
                detail += hint_about(path, openai_prefix)
            error = RequestError(f"{request.method} {path[:200]}: {detail}")
        else:
            raise error
        return Response(render(error, status), status, headers, media_type="application/json")

    return dict.fromkeys((RequestError, HTTPException), handle)
