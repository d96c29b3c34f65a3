"""The Server-Timing header: where the time of one request went, for whoever has sent it.

Source: https://www.w3.org/TR/server-timing/
"""

from __future__ import annotations

from hf_transformer.types import Timings

NAME = "server-timing"


def server_timing(timings: Timings) -> bytes:
    """The header's value, in milliseconds; ``predict`` is what is left of it without ``queue``."""
    queue = timings.queue
    return b"parse;dur=%.3f, tokenize;dur=%.3f, queue;dur=%.3f, predict;dur=%.3f, decode;dur=%.3f" % (
        timings.parse * 1e3,
        timings.tokenize * 1e3,
        queue * 1e3,
        max(0.0, timings.predict - queue) * 1e3,
        timings.postprocess * 1e3,
    )
