"""Which of a client's headers go on to the predictor."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_NAME = re.compile(r"[0-9a-z_.-]+")
_VALUE = re.compile(r"[ -~\x80-\xff]*")
"""Octets without control characters, decoded as latin-1, as they came (RFC 9110, 5.5). Other characters came in no
header, and can't leave in one."""
MOST = 8000
"""Characters of all names and values together. gRPC refuses a call with more than 8 to 16 KiB of metadata, and no
client's header is worth its request."""
_OWN = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "http2-settings",
        "inference-header-content-length",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)
"""What a transport sets itself, or what means one connection only."""


_USUAL = frozenset({"authorization", "traceparent", "tracestate", "x-request-id"})
"""Names that need no look."""


def forwarded(headers: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """The headers that describe the request and not its framing, with lower-case names.

    Left out are also names that are no tokens, values with control characters, and what comes after MOST characters:
    no client sends them in good faith, and the libraries refuse the whole call for them.
    """
    left = MOST
    passed = []
    for name, value in headers.items():
        if name not in _USUAL:
            name = name.lower()
            if name in _OWN or not _NAME.fullmatch(name):
                continue
        size = len(name) + len(value)
        # The first two say the same of the usual values, in a third of the time.
        if size <= left and ((value.isascii() and value.isprintable()) or _VALUE.fullmatch(value)):
            left -= size
            passed.append((name, value))
    return passed


def header_lines(headers: Mapping[str, str]) -> bytes:
    """``forwarded`` as lines of an HTTP/1.1 head."""
    return "".join([f"{name}: {value}\r\n" for name, value in forwarded(headers)]).encode("latin-1")
