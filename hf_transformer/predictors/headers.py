"""Which of a client's headers go on to the predictor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

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


def forwarded(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The headers that describe the request and not its framing, with lower-case names.

    Left out are also names that are no tokens, values with control characters, and what comes after MOST characters:
    no client sends them in good faith, and the libraries refuse the whole call for them.
    """
    left = MOST
    for name, value in headers.items():
        key = name.lower()
        size = len(key) + len(value)
        if key not in _OWN and _NAME.fullmatch(key) and _VALUE.fullmatch(value) and size <= left:
            left -= size
            yield key, value
