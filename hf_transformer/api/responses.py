"""JSON responses, and GET routes that answer with them."""

from __future__ import annotations

from collections.abc import Callable

import orjson
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route

from hf_transformer.types.http import Response
from hf_transformer.types.request import Json

JSON = b"application/json"


class JsonResponse(StarletteResponse):
    """A Starlette response with JSON serialized by orjson."""

    media_type = "application/json"

    def render(self, content: Json) -> bytes:
        return orjson.dumps(content)


def json_route(path: str, answer: Callable[..., Json]) -> Route:
    """A GET route that responds with JSON; ``answer`` gets the path's parameters as keyword arguments."""

    async def show(request: StarletteRequest) -> JsonResponse:
        return JsonResponse(answer(**request.path_params))

    return Route(path, show)


def reply(body: bytes, content_type: bytes = JSON, *headers: tuple[bytes, bytes]) -> Response:
    """A response with status 200."""
    return Response(200, body, [(b"content-type", content_type), *headers])
