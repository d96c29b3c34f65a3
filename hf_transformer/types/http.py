"""HTTP requests, responses and applications: the interface between server/ and api/."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias


class ClientGone(Exception):
    """The client has closed its connection."""


NO_PARAMS: Final[Mapping[str, str]] = {}


class Request(ABC):
    """An HTTP request with a complete head; ``read`` returns the body.

    Attributes:
        path: the percent-decoded path, without the query.
        raw_path: the percent-encoded path.
        query: the query string, without the question mark.
        fields: the header lines in order, with lower-case names.
        headers: the header fields by name; the last value of a repeated name applies.
        id: the request id for logs and the response.
        route: the template of the path; empty before routing.
        params: the path parameters, such as the model.
        log: the access log record; None if the access log is disabled.
        at_end: whether ``read`` has returned the whole body.
    """

    __slots__ = (
        "at_end",
        "fields",
        "headers",
        "id",
        "log",
        "method",
        "params",
        "path",
        "query",
        "raw_path",
        "route",
        "scheme",
        "version",
    )

    def __init__(
        self,
        method: str,
        path: str,
        raw_path: bytes,
        query: bytes,
        fields: list[tuple[bytes, bytes]],
        version: str,
        scheme: str,
    ) -> None:
        self.method = method
        self.path = path
        self.raw_path = raw_path
        self.query = query
        self.fields = fields
        self.headers = dict(fields)
        self.version = version
        self.scheme = scheme
        self.id = self.route = ""
        self.params: Mapping[str, str] = NO_PARAMS
        self.log: Any = None
        self.at_end = False

    @abstractmethod
    async def read(self) -> bytes:
        """Waits for the next bytes of the body; returns empty bytes at the end. Raises ClientGone."""

    @property
    @abstractmethod
    def client(self) -> tuple[str, int] | None:
        """The client's host and port."""

    @property
    @abstractmethod
    def server(self) -> tuple[str, int] | None:
        """The server's host and port for this connection."""

    def scope(self) -> dict[str, Any]:
        """The ASGI scope of the request; see https://asgi.readthedocs.io/en/latest/specs/www.html"""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self.version,
            "method": self.method,
            "scheme": self.scheme,
            "path": self.path,
            "raw_path": self.raw_path,
            "query_string": self.query,
            "root_path": "",
            "headers": self.fields,
            "client": self.client,
            "server": self.server,
        }


HeaderLines: TypeAlias = list[tuple[bytes, bytes]]
"""Header lines in order, with lower-case names."""


@dataclass(slots=True)
class Response:
    """A complete response. The server adds Content-Length, Date and Connection, and calls ``sent`` when the client has
    read the response or has gone."""

    status: int
    body: bytes
    headers: HeaderLines
    sent: Callable[[], None] | None = None


@dataclass(slots=True)
class Stream:
    """A streamed response. The server sends ``first`` with the head, then ``parts`` with flow control.

    The server always closes ``parts`` at the end.
    """

    status: int
    first: bytes
    parts: AsyncGenerator[bytes, None]
    headers: HeaderLines


class Application(Protocol):
    """The service's interface to an HTTP server."""

    async def handle(self, request: Request) -> Response | Stream:
        """Answers a request. The server cancels this call when the client disconnects."""

    def refuse(self, request: Request, status: int, message: str) -> Response:
        """The error response to a request that the server rejects. ``fields`` is empty if the head was unreadable."""

    def finished(self, request: Request, answer: Response | Stream | None, sent: int) -> None:
        """Logs a request. ``answer`` is None if the client has disconnected; ``sent`` counts bytes of the body."""
