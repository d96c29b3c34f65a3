"""Pages for a browser, with all of their files: /docs (Swagger UI, made from /openapi.json) and /playground.

Neither is among the routes that /openapi.json describes. scripts/swagger_ui says where Swagger UI's files come from.
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
"""Nothing comes from another host, nothing goes there, and no script stands in a page."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page at ``path`` and the files of ``folder`` below it. The addresses in them are relative, so that they work
    behind a proxy that serves the page under a path of its own."""

    path: str
    folder: Path
    policy: str

    @property
    def files(self) -> Iterator[tuple[str, Path]]:
        """The paths that the page takes, each with its file, which may be compressed."""
        for file in sorted(self.folder.iterdir()):
            name = file.name.removesuffix(".gz")
            if name == "index.html":
                yield self.path, file
            elif Path(name).suffix in TYPES:
                yield f"{self.path}/{name}", file

    def routes(self) -> list[BaseRoute]:
        """The routes of the page and its files."""
        return [_route(path, file, self.policy) for path, file in self.files]


# Swagger UI writes style attributes, and has its icons as data: URLs.
DOCS = Page("/docs", UI, POLICY.format(style=" 'unsafe-inline'", image=" data:"))
PLAYGROUND = Page("/playground", UI / "playground", POLICY.format(style="", image=""))


def _route(path: str, file: Path, policy: str) -> Route:
    content = file.read_bytes()
    packed = content if file.suffix == ".gz" else gzip.compress(content, mtime=0)
    tag = f'"{hashlib.sha256(packed).hexdigest()[:16]}"'
    media_type = TYPES[Path(file.name.removesuffix(".gz")).suffix]
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Vary": "Accept-Encoding",
        "Cache-Control": "no-cache",  # asked for again each time: another version of the service may answer
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
    """Whether an Accept-Encoding header allows gzip; one that names neither gzip nor * does not (RFC 9110, 12.5.3)."""
    found = {}
    for entry in accepted.lower().split(","):
        coding, _, weight = (part.strip() for part in entry.partition(";"))
        found[coding] = weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return found.get("gzip", found.get("*", False))
