"""The Server-Timing header: where the time of one request went, for whoever has sent it.

Source: https://www.w3.org/TR/server-timing/
"""

from __future__ import annotations

from math import floor

from hf_transformer.observability.milliseconds import SHORT, TEXTS
from hf_transformer.types import Timings

NAME = "server-timing"


def server_timing(timings: Timings) -> bytes:
    """The header's value, in milliseconds; ``predict`` is what is left of it without ``queue``."""
    parse, tokenize, queue, decode = timings.parse, timings.tokenize, timings.queue, timings.postprocess
    rest = timings.predict - queue
    if rest < 0.0:
        rest = 0.0
    if parse + tokenize + queue + rest + decode <= SHORT:  # none is negative: all are short
        one = TEXTS[floor(parse * 1e6 + 0.5)]
        two = TEXTS[floor(tokenize * 1e6 + 0.5)]
        three = TEXTS[floor(queue * 1e6 + 0.5)]
        four = TEXTS[floor(rest * 1e6 + 0.5)]
        five = TEXTS[floor(decode * 1e6 + 0.5)]
        return f"parse;dur={one}, tokenize;dur={two}, queue;dur={three}, predict;dur={four}, decode;dur={five}".encode()
    return b"parse;dur=%.3f, tokenize;dur=%.3f, queue;dur=%.3f, predict;dur=%.3f, decode;dur=%.3f" % (
        parse * 1e3,
        tokenize * 1e3,
        queue * 1e3,
        rest * 1e3,
        decode * 1e3,
    )
