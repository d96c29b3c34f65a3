"""GET /docs: a page to read and try the API, made from /openapi.json by Swagger UI. All of its files are served here.

scripts/swagger_ui says where those in swagger_ui/ come from.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

FOLDER = Path(__file__).parent / "ui"
FILES = {
    "start.js": "text/javascript",
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
}
"""What the page loads, with its media type."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing comes from another host, nothing goes there, and no script stands in the page. Swagger UI writes style
attributes, and has its icons as data: URLs."""
HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


def routes() -> list[BaseRoute]:
    """The routes of the page and its files, which are not among those that the page describes."""
    page = (FOLDER / "index.html").read_bytes()

    async def show(request: Request) -> Response:
        return Response(page, headers=HEADERS, media_type="text/html")

    return [Route("/docs", show), *(_route(name, media_type) for name, media_type in FILES.items())]


def _route(name: str, media_type: str) -> Route:
    compressed = FOLDER / f"{name}.gz"
    content = compressed.read_bytes() if compressed.exists() else (FOLDER / name).read_bytes()

    async def send(request: Request) -> Response:
        if not compressed.exists():
            return Response(content, headers=HEADERS, media_type=media_type)
        headers = {**HEADERS, "Vary": "Accept-Encoding", "Cache-Control": "max-age=3600"}
        if not takes_gzip(request.headers.get("accept-encoding", "")):
            return Response(gzip.decompress(content), headers=headers, media_type=media_type)
        return Response(content, headers={**headers, "Content-Encoding": "gzip"}, media_type=media_type)

    return Route(f"/docs/{name}", send)


def takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding header allows gzip; one that names neither gzip nor * does not (RFC 9110, 12.5.3)."""
    found = {}
    for entry in accepted.lower().split(","):
        coding, _, weight = (part.strip() for part in entry.partition(";"))
        found[coding] = weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return found.get("gzip", found.get("*", False))
