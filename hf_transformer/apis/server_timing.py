"""The Server-Timing header: where the time of one request went, for whoever has sent it.

Source: https://www.w3.org/TR/server-timing/
"""

from __future__ import annotations

from hf_transformer.milliseconds import SHORT, TEXTS, in_milliseconds
from hf_transformer.types import Timings

NAME = "server-timing"


def server_timing(timings: Timings) -> bytes:
    """The header's value, in milliseconds; ``predict`` is what is left of it without ``queue``."""
    parse, tokenize, queue, decode = timings.parse, timings.tokenize, timings.queue, timings.postprocess
    rest = timings.predict - queue
    if rest < 0.0:
        rest = 0.0
    if parse + tokenize + queue + rest + decode <= SHORT:  # none is negative: all are short
        one = TEXTS[int(parse * 1e6 + 0.5)]
        two = TEXTS[int(tokenize * 1e6 + 0.5)]
        three = TEXTS[int(queue * 1e6 + 0.5)]
        four = TEXTS[int(rest * 1e6 + 0.5)]
        five = TEXTS[int(decode * 1e6 + 0.5)]
    else:
        one, two, three, four, five = map(in_milliseconds, (parse, tokenize, queue, rest, decode))
    return f"parse;dur={one}, tokenize;dur={two}, queue;dur={three}, predict;dur={four}, decode;dur={five}".encode()
