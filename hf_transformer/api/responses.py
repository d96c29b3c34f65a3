"""JSON responses, GET routes and readiness checks for all APIs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import TypeAlias

import orjson
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route

from hf_transformer.api.call import path_pattern
from hf_transformer.api.large_json import is_large, write_large, write_small
from hf_transformer.errors import NotReady
from hf_transformer.types.http import Response
from hf_transformer.types.request import Context, Json

JSON = b"application/json"
View: TypeAlias = Callable[[StarletteRequest], Awaitable[StarletteResponse]]
"""Answers a GET request."""


class JsonResponse(StarletteResponse):
    """A Starlette response with JSON serialized by orjson."""

    media_type = "application/json"

    def render(self, content: Json) -> bytes:
        return orjson.dumps(content)


def json_view(answer: Callable[..., Json]) -> View:
    """Returns a view with a JSON response. ``answer`` receives the path parameters as keyword arguments."""

    async def show(request: StarletteRequest) -> JsonResponse:
        return JsonResponse(answer(**request.path_params))

    return show


def get_route(path: str, show: View) -> Route:
    """Creates a GET route whose path may have the name of a model."""
    route = Route(path, show)
    route.path_regex = path_pattern(path)
    return route


def reply(body: bytes, content_type: bytes = JSON, *headers: tuple[bytes, bytes]) -> Response:
    """A response with status 200."""
    return Response(200, body, [(b"content-type", content_type), *headers])


async def reply_arrays(
    answer: Json, context: Context, executor: Executor | None, *headers: tuple[bytes, bytes]
) -> Response:
    """A response with status 200 and JSON that may contain numpy arrays."""
    body = await write_large(answer, executor) if is_large(context) else write_small(answer)
    return reply(body, JSON, *headers)


def readiness(error: NotReady | None, about: Mapping[str, Json]) -> JsonResponse:
    """The response to a readiness probe, from the result of Models.find_not_ready. ``about`` contains more fields."""
    if error is None:
        return JsonResponse({**about, "ready": True})
    body = {**about, "ready": False, "error": str(error)}
    return JsonResponse(body, error.status, {"Retry-After": str(error.retry_after)})
