"""Web pages: /docs (Swagger UI for /openapi.json) and /playground.

/openapi.json does not describe these routes. scripts/swagger_ui downloads Swagger UI's files.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

UI = Path(__file__).parent / "ui"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'{style}; img-src 'self'{image}; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy. It forbids inline scripts and all access to other hosts."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page at ``path`` with the files of ``folder``. Relative URLs allow any path prefix at a proxy."""

    path: str
    folder: Path
    policy: str

    @property
    def files(self) -> Iterator[tuple[str, Path]]:
        """The URL paths of the page, each with its file. A file may be gzip-compressed."""
        for file in sorted(self.folder.iterdir()):
            name = file.name.removesuffix(".gz")
            if name == "index.html":
                yield self.path, file
            elif Path(name).suffix in TYPES:
                yield f"{self.path}/{name}", file

    def routes(self) -> list[BaseRoute]:
        return [_route(path, file, self.policy) for path, file in self.files]


# Swagger UI writes style attributes, and its icons are data: URLs.
DOCS = Page("/docs", UI, POLICY.format(style=" 'unsafe-inline'", image=" data:"))
PLAYGROUND = Page("/playground", UI / "playground", POLICY.format(style="", image=""))


def _route(path: str, file: Path, policy: str) -> Route:
    content = file.read_bytes()
    packed = content if file.suffix == ".gz" else gzip.compress(content, mtime=0)
    tag = f'"{hashlib.sha256(packed).hexdigest()[:16]}"'
    media_type = TYPES[Path(file.name.removesuffix(".gz")).suffix]
    headers = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "Vary": "Accept-Encoding",
        "Cache-Control": "no-cache",  # revalidate, since a new version of the service has other files
        "ETag": tag,
    }

    async def send(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        if not takes_gzip(request.headers.get("accept-encoding", "")):
            return Response(gzip.decompress(packed), headers=headers, media_type=media_type)
        return Response(packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=media_type)

    return Route(path, send)


def takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding header allows gzip. The header must contain gzip or * (RFC 9110, 12.5.3)."""
    allowed = {}
    for entry in accepted.lower().split(","):
        coding, _, weight = (part.strip() for part in entry.partition(";"))
        allowed[coding] = weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return allowed.get("gzip", allowed.get("*", False))
