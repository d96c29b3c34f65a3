"""A first word to a port, in each of the ways in which a predictor may be asked; nothing else is sent."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto

from hf_transformer.credentials import KeyPair
from hf_transformer.predictor.base import Address

SECONDS = 3.0
"""For a connection, its handshake, and each part of an answer."""

_HTTP1 = b"GET /v2/health/live HTTP/1.1\r\nHost: predictor\r\nAccept-Encoding: identity\r\nConnection: close\r\n\r\n"
# The preface of RFC 9113, section 3.4, and an empty SETTINGS frame.
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
HELLO = {"v2": _HTTP1, "grpc-v2": _HTTP2}
_FRAME_BYTES, _SETTINGS = 9, 4
_MOST_BYTES = 4096

ALPN = {"v2": "http/1.1", "grpc-v2": "h2"}
"""What a client of each protocol offers in the handshake."""


class Reply(Enum):
    """What came of it. ``SILENT``: the connection stands, and nothing comes; ``CLOSED``: it ends without a word."""

    UNDERSTOOD = auto()
    ASKS_FOR_CERTIFICATE = auto()
    SOMETHING_ELSE = auto()
    SILENT = auto()
    CLOSED = auto()


async def say_hello(address: Address, protocol: str, own: KeyPair | None, *, tls: bool) -> Reply:
    """Whether a port speaks this protocol (v2 is HTTP/1.1, grpc-v2 HTTP/2), with TLS or without.

    The certificate is not looked at: that is for the check of TLS, which verifies it. ``own`` is shown to a server that
    asks for one.
    """
    context = _trusting_context(protocol, own) if tls else None
    # In a thread: asyncio keeps to itself what a server refuses after the handshake.
    return await asyncio.to_thread(_say_hello, address, protocol, context)


def _say_hello(address: Address, protocol: str, context: ssl.SSLContext | None) -> Reply:
    stands = False
    try:
        with connected(address, context, SECONDS) as connection:
            stands = True
            reply = _exchange(connection, protocol)
    except TimeoutError:
        return Reply.SILENT
    except (ConnectionError, ssl.SSLEOFError):
        reply = Reply.CLOSED if stands else Reply.SOMETHING_ELSE
    except ssl.SSLError as exc:
        return Reply.ASKS_FOR_CERTIFICATE if asks_for_certificate(exc) else Reply.SOMETHING_ELSE
    except (OSError, ValueError):
        return Reply.SOMETHING_ELSE
    if reply is Reply.CLOSED and context is not None and _is_refused(address, context):
        return Reply.ASKS_FOR_CERTIFICATE
    return reply


def _is_refused(address: Address, context: ssl.SSLContext) -> bool:
    try:
        await_refusal(address, context)
    except ssl.SSLError as exc:
        return asks_for_certificate(exc)
    except OSError:
        return False
    return False


def await_refusal(address: Address, context: ssl.SSLContext) -> None:
    """What a server says that closes connections after the handshake: to a client that has sent something the reset of
    the connection may hide it. Raises ssl.SSLError, or another OSError where it says nothing."""
    with connected(address, context, SECONDS) as connection:
        connection.recv(1)


@contextmanager
def connected(address: Address, context: ssl.SSLContext | None, seconds: float) -> Iterator[socket.socket]:
    """A connection, after its handshake if there is a ``context``; each step may take ``seconds``.

    Raises:
        OSError: there is none; TimeoutError, ssl.SSLError and ssl.SSLCertVerificationError are such.
    """
    with socket.create_connection((address.host, address.port), seconds) as plain:
        if context is None:
            yield plain
            return
        with context.wrap_socket(plain, server_hostname=address.host.rstrip(".")) as secured:
            yield secured


def asks_for_certificate(error: ssl.SSLError) -> bool:
    """Whether a server has refused our certificate, or that there is none; in TLS 1.3 it does so late."""
    return any(part in str(error.reason) for part in ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "UNKNOWN_CA"))


def _exchange(connection: socket.socket, protocol: str) -> Reply:
    connection.sendall(HELLO[protocol])
    answer = b""
    while len(answer) < _FRAME_BYTES and (more := connection.recv(_MOST_BYTES)):
        answer += more
    if not answer:
        return Reply.CLOSED
    if protocol == "v2":
        return Reply.UNDERSTOOD if _is_http1(connection, answer) else Reply.SOMETHING_ELSE
    settings = len(answer) >= _FRAME_BYTES and answer[3] == _SETTINGS and not any(answer[5:_FRAME_BYTES])
    return Reply.UNDERSTOOD if settings else Reply.SOMETHING_ELSE


def _is_http1(connection: socket.socket, answer: bytes) -> bool:
    """Whether it is an answer to the request, and not one that says that TLS is spoken here."""
    if not answer.startswith(b"HTTP/1."):
        return False
    if re.match(rb"HTTP/1\.\d 400", answer) is None:
        return True
    with suppress(OSError):
        while len(answer) < _MOST_BYTES and (more := connection.recv(_MOST_BYTES)):
            answer += more
    return b"HTTPS" not in answer  # nginx's "plain HTTP request was sent to HTTPS port", and Go's and Envoy's


def _trusting_context(protocol: str, own: KeyPair | None) -> ssl.SSLContext:
    """One that takes any certificate: all that is asked is whether TLS is spoken."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([ALPN[protocol]])
    if own is not None:
        own.load_into(context)
    return context
