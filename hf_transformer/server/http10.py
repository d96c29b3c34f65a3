"""Answers of unknown length to clients of HTTP/1.0, which know no chunks: the end of the connection is theirs.

uvicorn sends chunks to everybody. Source: RFC 9112, 6.1 (Transfer-Encoding) and 6.3 (message body length).
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Unchunked:
    """ASGI application in front of ``app`` for one request of HTTP/1.0, whose ``cycle`` sends the answer."""

    def __init__(self, app: Any, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle
        self._bare = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, self._send)

    async def _send(self, message: Any) -> None:
        cycle = self._cycle
        if message["type"] == "http.response.start":
            self._bare = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if self._bare:
                cycle.chunked_encoding = False
        elif self._bare:
            # The cycle counts what is missing of the length, and there is none: each piece is all that is expected.
            cycle.expected_content_length = len(message.get("body", b""))
        await cycle.send(message)
