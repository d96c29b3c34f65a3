"""The access log (--access_log_format), with the atoms of gunicorn and KServe's asgi-logger, such as ``%(h)s``."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from hf_transformer.errors import ESCAPES, ConfigError
from hf_transformer.observability.logging import names_of

SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key"})
CLIENT_CLOSED = 499  # status of a request whose client disconnected before the response, as in nginx
PHRASES = {int(status): status.phrase for status in HTTPStatus}


class AccessRecord:
    """A request and its response, for the access log.

    ``scope`` is the ASGI scope. For gRPC it has only method, path, http_version and headers.
    """

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.scope = scope
        self.status = CLIENT_CLOSED
        self.sent_headers: Iterable[tuple[bytes, bytes]] = ()
        self.body_bytes = 0
        self.started = time.perf_counter()

    @property
    def client(self) -> str:
        """Address and port of the client."""
        client = self.scope.get("client")
        return f"{client[0]}:{client[1]}" if client else "-"

    @property
    def status_phrase(self) -> str:
        """Reason phrase of the status code."""
        return PHRASES.get(self.status, "-")

    def header(self, name: str, sent: bool = False) -> str:
        """Value of a header: ``-`` for a missing header, ``***`` for a secret."""
        wanted = name.lower().encode("latin-1", "replace")
        for key, value in self.sent_headers if sent else self.scope["headers"]:
            if key.lower() == wanted:
                return "***" if name.lower() in SECRET_HEADERS else printable(value)
        return "-"

    def atoms(self) -> Atoms:
        """Computes the values of all atoms. Durations end at the time of the call."""
        scope, client, seconds = self.scope, self.client, time.perf_counter() - self.started
        method, protocol = scope["method"], f"HTTP/{scope.get('http_version', '1.1')}"
        path = quote(scope.get("root_path", "") + scope["path"], safe="/:@!$&'()*+,;=~", errors="replace")
        query = printable(scope.get("query_string", b""))
        whole = f"{method} {path}{'?' * bool(query)}{query} {protocol}"
        atoms = Atoms(
            h=client,
            client_addr=client,
            l="-",
            u="-",
            t=time.strftime("[%d/%b/%Y:%H:%M:%S %z]"),
            r=f"{method} {path} {protocol}",
            R=whole,
            request_line=whole,
            m=method,
            U=path,
            q=query,
            H=protocol,
            s=self.status,
            st=self.status_phrase,
            status_code=f"{self.status} {self.status_phrase}",
            B=self.body_bytes,
            b=self.body_bytes or "-",
            f=self.header("referer"),
            a=self.header("user-agent"),
            T=int(seconds),
            M=int(seconds * 1e3),
            D=int(seconds * 1e6),
            L=f"{seconds:.6f}",
            p=f"<{os.getpid()}>",
        )
        atoms.exchange = self
        return atoms


class Atoms(dict[str, Any]):
    """Values of atoms by name. ``{name}i`` is a request header, ``{name}o`` a response header."""

    exchange: AccessRecord

    def __missing__(self, name: str) -> str:
        if name.startswith("{") and name.endswith(("}i", "}o")):
            return self.exchange.header(name[1:-2], sent=name.endswith("o"))
        raise KeyError(name)


def printable(value: bytes) -> str:
    """Decodes a header or a query, and escapes control characters."""
    return value.decode("latin-1").translate(ESCAPES)


def check_format(format: str, source: str = "--access_log_format") -> None:
    """Raises ConfigError for an invalid format. ``source`` is the flag or environment variable of the format."""
    atoms = AccessRecord({"method": "GET", "path": "/", "headers": []}).atoms()
    expected = f"{source}: expected atoms such as %(h)s, got {format!r}"
    if set(re.findall("%(.?)", format.replace("%%", ""))) != {"("}:
        raise ConfigError(expected)
    try:
        _ = format % atoms
    except KeyError as exc:
        known = ", ".join([*atoms, "{header}i", "{header}o"])
        raise ConfigError(f"{source}: unknown atom %({exc.args[0]})s, expected one of {known}") from exc
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"{expected} ({exc})") from exc


def write_line(logger: logging.Logger, format: str, exchange: AccessRecord) -> None:
    """Logs one answered request."""
    request_id = exchange.header("x-request-id", sent=True)
    extra = None if request_id == "-" else names_of(request_id, exchange.header("traceparent"))
    logger.info("%s", format % exchange.atoms(), extra=extra)
