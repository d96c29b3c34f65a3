"""Which of a client's headers go on to the predictor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_NAME = re.compile(r"[0-9a-z_.-]+")
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
        "inference-header-content-length",
        "keep-alive",
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

    Left out are also names that are no tokens and values with control characters: no client sends them in
    good faith, and the libraries refuse the whole call for them.
    """
    for name, value in headers.items():
        key = name.lower()
        if key not in _OWN and _NAME.fullmatch(key) and value.isprintable():
            yield key, value
