"""HTTP requests, responses and applications: the interface between server/ and api/."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias


class ClientGone(Exception):
    """The client has closed its connection: there is nobody to answer."""


NO_PARAMS: Final[Mapping[str, str]] = {}


class Request(ABC):
    """One HTTP request whose head is there, however it came in. ``read`` gives its body.

    Attributes:
        method: in capitals, as sent.
        path: percent-decoded, without the query.
        raw_path, query: as sent; the query without its question mark.
        fields: the header lines in their order, names in lower case.
        headers: the same by name; of a name that comes twice the last one counts.
        version: ``1.1`` or ``1.0``.
        scheme: http or https.
        id: what logs and the response call it; set by the function around every request.
        route: the template of the path, once it is known.
        params: what the path names, such as the model.
        log: what the access log keeps of it, None without one.
        at_end: whether ``read`` has given all of the body.
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
        """The next bytes of the body, as soon as there are any; none at its end. Raises ClientGone."""

    @property
    @abstractmethod
    def client(self) -> tuple[str, int] | None:
        """The address that the request came from."""

    @property
    @abstractmethod
    def server(self) -> tuple[str, int] | None:
        """The address that it came to."""

    def scope(self) -> dict[str, Any]:
        """The request as ASGI has it. Source: https://asgi.readthedocs.io/en/latest/specs/www.html"""
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
"""Header lines in their order, names in lower case."""


@dataclass(slots=True)
class Response:
    """A whole response. Whoever sends it adds Content-Length, Date and Connection."""

    status: int
    body: bytes
    headers: HeaderLines


@dataclass(slots=True)
class Stream:
    """A response whose body is sent as it comes: ``first`` with the head, then ``parts``, each when the client has
    read what came before. Whoever sends it closes ``parts`` in the end, whatever happens."""

    status: int
    first: bytes
    parts: AsyncGenerator[bytes, None]
    headers: HeaderLines


class Application(Protocol):
    """What a server of HTTP needs to know of the service."""

    async def handle(self, request: Request) -> Response | Stream:
        """Answers one request; cancelled when its client leaves."""

    def refuse(self, request: Request, status: int, message: str) -> Response:
        """The answer to a request that the server can't take. If its head could not be read, it has no fields."""

    def finished(self, request: Request, answer: Response | Stream | None, sent: int) -> None:
        """Notes the end of a request whose ``log`` is set. ``answer`` is None if its client has left; ``sent`` is in
        bytes of the body."""
