"""For the cluster rather than for clients, and how ordinary routes answer errors.

GET /           {"status": "alive"}
GET /metrics    Prometheus text
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ExceptionHandler

from hf_transformer.api.base import JsonResponse, RenderError, Service
from hf_transformer.api.elsewhere import Hints
from hf_transformer.errors import RequestError
from hf_transformer.observability.metrics import CONTENT_TYPE


def routes(service: Service) -> list[BaseRoute]:
    """The routes above."""

    async def alive(request: Request) -> Response:
        return JsonResponse({"status": "alive"})

    async def show_metrics(request: Request) -> Response:
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)

    return [
        Route("/", alive),
        Route("/metrics", show_metrics),
    ]


def error_handlers(errors_by_path: Callable[[str], RenderError], hints: Hints) -> dict[Any, ExceptionHandler]:
    """What answers an error that an ordinary route raised, and Starlette's own (no such path, wrong method).

    Args:
        errors_by_path: the error body of the API that a path belongs to.
        hints: what is said of a POST that belongs elsewhere.
    """

    def respond(request: Request, message: str, status: int, headers: Any) -> Response:
        body = errors_by_path(request.url.path)(message, status)
        return Response(body, status, headers, media_type="application/json")

    async def request_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, RequestError):
            raise error
        again = error.retry_after
        return respond(request, str(error), error.status, None if again is None else {"Retry-After": str(again)})

    async def http_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        path, status, headers = request.url.path, error.status_code, error.headers
        if request.method == "POST" and (hint := hints(path, status)) is not None:
            body = hint.render(f"POST {path[:200]}: {hint.said}", hint.status)
            return Response(body, hint.status, media_type="application/json")
        message = f"{request.method} {path[:200]}: {error.detail}"
        if status == 405 and headers:
            # Starlette joins a set: without an order of its own, each process would name the methods in another.
            allowed = ", ".join(sorted(headers["Allow"].split(", ")))
            headers = {**headers, "Allow": allowed}
            message += f", expected {allowed}"
        return respond(request, message, status, headers)

    return {RequestError: request_error, HTTPException: http_error}
