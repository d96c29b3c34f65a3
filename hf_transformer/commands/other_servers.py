"""Names the server at an address where Triton or the service was expected. Blocks, without any HTTP library."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from hf_transformer.predictor.base import Address

PROBE_SECONDS: Final = 3.0
"""Timeout of a probe's connection, of the TLS handshake, and of each read."""
GET: Final = b"GET %b HTTP/1.1\r\nHost: predictor\r\nAccept-Encoding: identity\r\nConnection: close\r\n\r\n"
ITSELF: Final = "a service of hf-transformer, not Triton"
_MAX_BYTES: Final = 2**20
_BY_METRICS: Final = {
    b"\nhf_transformer_": ITSELF,
    b"\nnv_": "Triton's port for metrics",
    b"\nvllm:": "vLLM",
    b"\nte_": "text-embeddings-inference",
}
"""Servers by the prefix of the names of their metrics."""
_TRITON: Final = re.compile(rb'"name"\s*:\s*"triton"')
_HEADER: Final = re.compile(rb"\r\nserver: *([ -~]{1,40})", re.IGNORECASE)


def other_server(address: Address, context: ssl.SSLContext | None) -> str:
    """Identifies a server by its metrics. Returns an empty string for an unknown server or Triton's REST port."""
    metrics = _get(address, context, b"/metrics")
    return next((name for prefix, name in _BY_METRICS.items() if prefix in metrics), "")


def any_server(address: Address, context: ssl.SSLContext | None) -> str:
    """Identifies a server, Triton and web servers included. Returns an empty string for an unknown server."""
    if known := other_server(address, context):
        return known
    if _TRITON.search(_get(address, context, b"/v2")):
        return "Triton itself"
    header = _HEADER.search(_get(address, context, b"/"))
    return f"a server named {header[1].decode()}" if header else ""


def _get(address: Address, context: ssl.SSLContext | None, path: bytes) -> bytes:
    """The response to a GET, with its headers; whatever has arrived if the connection fails."""
    answer = b""
    with suppress(OSError), connected(address, context) as connection:
        connection.sendall(GET % path)
        while len(answer) < _MAX_BYTES and (more := connection.recv(_MAX_BYTES)):
            answer += more
    return answer


@contextmanager
def connected(address: Address, context: ssl.SSLContext | None) -> Iterator[socket.socket]:
    """Open a connection. A ``context`` adds the TLS handshake. Raises OSError, including ssl.SSLError."""
    with socket.create_connection((address.host, address.port), PROBE_SECONDS) as plain:
        if context is None:
            yield plain
            return
        with context.wrap_socket(plain, server_hostname=address.host.rstrip(".")) as secured:
            yield secured
