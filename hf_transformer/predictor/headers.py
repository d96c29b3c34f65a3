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
    (
        "accept accept-encoding connection content-encoding content-length content-type expect host http2-settings"
        " inference-header-content-length keep-alive proxy-connection te trailer transfer-encoding upgrade user-agent"
    ).split()
)
"""What a transport sets itself, or what means one connection only."""


def forwarded(headers: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """The headers that describe the request and not its framing, with lower-case names.

    Names that are no tokens, values with control characters, and headers beyond MOST characters are left out: no client
    sends them in good faith, and the libraries refuse the whole call for them.
    """
    left = MOST
    passed = []
    for name, value in headers.items():
        name = name.lower()
        size = len(name) + len(value)
        if size <= left and name not in _OWN and _NAME.fullmatch(name) and _VALUE.fullmatch(value):
            left -= size
            passed.append((name, value))
    return passed


def header_lines(headers: Mapping[str, str]) -> bytes:
    """``forwarded`` as lines of an HTTP/1.1 head."""
    return "".join([f"{name}: {value}\r\n" for name, value in forwarded(headers)]).encode("latin-1")
