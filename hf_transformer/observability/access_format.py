"""The format of --access_log_format: the atoms of gunicorn and of KServe's asgi-logger, such as ``%(h)s``."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from hf_transformer.errors import ConfigError
from hf_transformer.observability.json_log import REQUEST_ID

SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key"})
CLIENT_CLOSED = 499
"""The status of a request that was not answered, because its client went away; nginx's invention."""
CONTROL_CHARACTERS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
"""Written as escapes, so that a request can't forge a line of the log."""


class Exchange:
    """One request and its answer, as far as the log wants to know it."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.scope = scope
        self.status = CLIENT_CLOSED
        self.sent_headers: Iterable[tuple[bytes, bytes]] = ()
        self.body_bytes = 0
        self.started = time.perf_counter()
        self.seconds = 0.0

    def finish(self) -> None:
        self.seconds = time.perf_counter() - self.started

    @property
    def client(self) -> str:
        client = self.scope.get("client")
        return f"{client[0]}:{client[1]}" if client else "-"

    @property
    def path(self) -> str:
        return quote(self.scope.get("root_path", "") + self.scope["path"], safe="/:@!$&'()*+,;=~", errors="replace")

    @property
    def query(self) -> str:
        return printable(self.scope.get("query_string", b""))

    @property
    def protocol(self) -> str:
        return f"HTTP/{self.scope.get('http_version', '1.1')}"

    @property
    def status_phrase(self) -> str:
        try:
            return HTTPStatus(self.status).phrase
        except ValueError:
            return "-"

    def request_line(self, query: bool) -> str:
        path = f"{self.path}?{self.query}" if query and self.query else self.path
        return f"{self.scope['method']} {path} {self.protocol}"

    def header(self, name: str, sent: bool = False) -> str:
        """A header's value, - where there is none and *** where it is a secret."""
        wanted = name.lower().encode("latin-1", "replace")
        for key, value in self.sent_headers if sent else self.scope["headers"]:
            if key.lower() == wanted:
                return "***" if name.lower() in SECRET_HEADERS else printable(value)
        return "-"


def printable(value: bytes) -> str:
    return value.decode("latin-1").translate(CONTROL_CHARACTERS)


ATOMS: Mapping[str, Callable[[Exchange], Any]] = {
    "h": lambda exchange: exchange.client,
    "client_addr": lambda exchange: exchange.client,
    "l": lambda exchange: "-",
    "u": lambda exchange: "-",
    "t": lambda exchange: time.strftime("[%d/%b/%Y:%H:%M:%S %z]"),
    "r": lambda exchange: exchange.request_line(query=False),
    "R": lambda exchange: exchange.request_line(query=True),
    "request_line": lambda exchange: exchange.request_line(query=True),
    "m": lambda exchange: exchange.scope["method"],
    "U": lambda exchange: exchange.path,
    "q": lambda exchange: exchange.query,
    "H": lambda exchange: exchange.protocol,
    "s": lambda exchange: exchange.status,
    "st": lambda exchange: exchange.status_phrase,
    "status_code": lambda exchange: f"{exchange.status} {exchange.status_phrase}",
    "B": lambda exchange: exchange.body_bytes,
    "b": lambda exchange: exchange.body_bytes or "-",
    "f": lambda exchange: exchange.header("referer"),
    "a": lambda exchange: exchange.header("user-agent"),
    "T": lambda exchange: int(exchange.seconds),
    "M": lambda exchange: int(exchange.seconds * 1e3),
    "D": lambda exchange: int(exchange.seconds * 1e6),
    "L": lambda exchange: f"{exchange.seconds:.6f}",
    "p": lambda exchange: f"<{os.getpid()}>",
}
"""Name and value: T, M, D and L are the request's seconds, milliseconds, microseconds and decimal seconds."""


class Atoms(Mapping[str, Any]):
    """The atoms of one exchange, made when the format asks; ``{name}i`` and ``{name}o`` are headers."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    def __getitem__(self, name: str) -> Any:
        if name.startswith("{") and name.endswith(("}i", "}o")):
            return self.exchange.header(name[1:-2], sent=name.endswith("o"))
        return ATOMS[name](self.exchange)

    def __iter__(self) -> Any:
        return iter(ATOMS)

    def __len__(self) -> int:
        return len(ATOMS)


def check_format(format: str, source: str = "--access_log_format") -> None:
    """Raises ConfigError where a format can't be written; ``source`` is the flag or variable it came from."""
    sample = Exchange({"type": "http", "method": "GET", "path": "/", "headers": []})
    directives = re.findall("%(.?)", format.replace("%%", ""))
    if set(directives) != {"("}:
        raise ConfigError(f"{source}: expected atoms such as %(h)s, got {format!r}")
    try:
        _ = format % Atoms(sample)
    except KeyError as exc:
        known = ", ".join([*ATOMS, "{header}i", "{header}o"])
        raise ConfigError(f"{source}: unknown atom %({exc.args[0]})s, expected one of {known}") from exc
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"{source}: expected atoms such as %(h)s, got {format!r} ({exc})") from exc


def write_line(logger: logging.Logger, format: str, exchange: Exchange) -> None:
    """Logs one request that has been answered."""
    request_id = exchange.header("x-request-id", sent=True)
    logger.info("%s", format % Atoms(exchange), extra=None if request_id == "-" else {REQUEST_ID: request_id})
