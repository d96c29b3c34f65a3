"""Health and metrics, for the cluster rather than for clients.

GET /                   {"status": "alive"}
GET /v2/health/live     {"live": true}
GET /v2/health/ready    {"ready": true}, 503 while a model is not ready
GET /metrics            Prometheus text
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from hf_transformer.apis.base import JsonResponse, Service, error_json
from hf_transformer.errors import NotReady, RequestError
from hf_transformer.metrics import CONTENT_TYPE


def routes(service: Service) -> list[BaseRoute]:
    """The routes above."""
    models = service.models

    async def alive(request: Request) -> Response:
        return JsonResponse({"status": "alive"})

    async def live(request: Request) -> Response:
        return JsonResponse({"live": True})

    async def ready(request: Request) -> Response:
        try:
            for name in models.names:
                await models[name].require_ready()
        except NotReady as error:
            return JsonResponse(
                {"ready": False, "error": str(error)}, error.status, {"Retry-After": str(error.retry_after)}
            )
        return JsonResponse({"ready": True})

    async def show_metrics(request: Request) -> Response:
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)

    return [
        Route("/", alive),
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
        Route("/metrics", show_metrics),
    ]


async def request_error(request: Request, error: Exception) -> Response:
    """Answers a RequestError that an ordinary route raised."""
    if not isinstance(error, RequestError):
        raise error
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after is not None else None
    return Response(error_json(str(error), error.status), error.status, headers, media_type="application/json")


async def http_error(request: Request, error: Exception) -> Response:
    """Answers Starlette's own errors (no such path, wrong method) with the same body as ours."""
    if not isinstance(error, HTTPException):
        raise error
    message = f"{request.method} {request.url.path[:200]}: {error.detail}"
    return Response(
        error_json(message, error.status_code), error.status_code, error.headers, media_type="application/json"
    )
