"""The access log: lines in the format of --access_log_format.

A format has the atoms of gunicorn and of KServe's asgi-logger, such as ``%(h)s``.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from hf_transformer.errors import ESCAPES, QUOTES, ConfigError
from hf_transformer.observability.logging import names_of

SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key"})
CLIENT_CLOSED = 499  # status in nginx for a client that disconnects before the response
PHRASES = {int(status): status.phrase for status in HTTPStatus}


class AccessRecord:
    """A request and its response, for the access log.

    ``scope`` is an ASGI scope. For gRPC it has only method, path, http_version and headers.
    """

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.scope = scope
        self.status = CLIENT_CLOSED
        self.sent_headers: Iterable[tuple[bytes, bytes]] = ()
        self.body_bytes = 0
        self.started = time.perf_counter()

    @property
    def client(self) -> str:
        """Address and port of the client; ``-`` if unknown."""
        client = self.scope.get("client")
        return f"{client[0]}:{client[1]}" if client else "-"

    @property
    def status_phrase(self) -> str:
        """Reason phrase of the HTTP status; ``-`` if unknown."""
        return PHRASES.get(self.status, "-")

    def header(self, name: str, sent: bool = False) -> str:
        """Value of a request header, or of a response header with ``sent``. Returns ``-`` if missing, ``***`` for a
        secret."""
        value = self.raw_header(name, sent)
        return "-" if value is None else "***" if name.lower() in SECRET_HEADERS else printable(value)

    def raw_header(self, name: str, sent: bool = False) -> bytes | None:
        """Value of a header without escapes; None if missing."""
        lower_name = name.lower().encode("latin-1", "replace")
        headers = self.sent_headers if sent else self.scope["headers"]
        return next((value for key, value in headers if key.lower() == lower_name), None)

    def atoms(self) -> Atoms:
        """Computes the values of all atoms. Durations end at the time of the call."""
        scope, client, seconds = self.scope, self.client, time.perf_counter() - self.started
        method, protocol = scope["method"], f"HTTP/{scope.get('http_version', '1.1')}"
        path = quote(scope.get("root_path", "") + scope["path"], safe="/:@!$&'()*+,;=~", errors="replace")
        query = printable(scope.get("query_string", b""))
        request_line = f"{method} {path}{'?' * bool(query)}{query} {protocol}"
        atoms = Atoms(
            h=client,
            client_addr=client,
            l="-",
            u="-",
            t=time.strftime("[%d/%b/%Y:%H:%M:%S %z]"),
            r=f"{method} {path} {protocol}",
            R=request_line,
            request_line=request_line,
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
        atoms.record = self
        return atoms


class Atoms(dict[str, Any]):
    """Values by name. ``{name}i`` and ``{name}o`` are headers of the request and the response."""

    record: AccessRecord

    def __missing__(self, name: str) -> str:
        if name.startswith("{") and name.endswith(("}i", "}o")):
            return self.record.header(name[1:-2], sent=name.endswith("o"))
        raise KeyError(name)


_ESCAPED = {**ESCAPES, **QUOTES}


def printable(value: bytes) -> str:
    """Decodes a header or a query. Escapes control characters, and quotes, between which formats put a field."""
    return value.decode("latin-1").translate(_ESCAPED)


def check_format(format: str, source: str = "--access_log_format") -> None:
    """Raises ConfigError for an invalid format. ``source`` is the format's flag or environment variable."""
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


def write_line(logger: logging.Logger, format: str, record: AccessRecord) -> None:
    """Logs an answered request."""
    request_id = record.raw_header("x-request-id", sent=True)  # a field of its own in JSON, which escapes it
    extra = None if request_id is None else names_of(request_id.decode("latin-1"), record.header("traceparent"))
    logger.info("%s", format % record.atoms(), extra=extra)
