"""Free ports of 127.0.0.1 for children of this process, and requests to them."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

HOST = "127.0.0.1"


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Reserves free ports of HOST for children of this process. Yields their numbers."""
    with ExitStack() as stack:
        yield [stack.enter_context(reserved_port()) for _ in range(count)]


@contextmanager
def reserved_port(port: int = 0) -> Iterator[int]:
    """Reserves ``port`` of HOST, or a free one for 0, for a child of this process. Yields its number.

    Until the end, other processes that ask for any port get others. A program that sets SO_REUSEADDR or SO_REUSEPORT,
    as servers do, can still bind it. The reserving socket never listens, so it receives no connections. Raises OSError
    for an unavailable port.
    """
    with socket.socket() as reserving:
        if port:  # connections in TIME_WAIT do not make it unavailable
            reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserving.bind((HOST, port))
        # After the bind, because two reservations with these options could get the same port.
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            reserving.setsockopt(socket.SOL_SOCKET, option, 1)
        yield int(reserving.getsockname()[1])


def exchange(port: int, path: str, body: str | None = None, *, seconds: float = 5.0) -> tuple[int, str]:
    """Send a POST with ``body``, otherwise a GET; return the response's status and body.

    Raises OSError without a connection or response within ``seconds``, HTTPException for an invalid response.
    """
    with closing(http.client.HTTPConnection(HOST, port, timeout=seconds)) as connection:
        connection.request("GET" if body is None else "POST", path, body)
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace")


def is_ready(port: int, path: str) -> bool:
    """Whether a GET of ``path`` returns status 200."""
    try:
        return exchange(port, path)[0] == 200
    except (OSError, http.client.HTTPException):
        return False
