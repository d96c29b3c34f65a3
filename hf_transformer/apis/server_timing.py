"""The Server-Timing header: where the time of one request went, for whoever has sent it.

Source: https://www.w3.org/TR/server-timing/
"""

from __future__ import annotations

from hf_transformer.milliseconds import MICRO, SHORT, TEXTS, in_milliseconds
from hf_transformer.types import Timings

NAME = "server-timing"


def server_timing(timings: Timings) -> bytes:
    """The header's value, in milliseconds; ``predict`` is what is left of it without ``queue``."""
    parse, tokenize, queue, decode = timings.parse, timings.tokenize, timings.queue, timings.postprocess
    predict = timings.predict - queue
    if predict < 0.0:
        predict = 0.0
    if parse + tokenize + queue + predict + decode <= SHORT:
        one, two = TEXTS[int(parse * MICRO + 0.5)], TEXTS[int(tokenize * MICRO + 0.5)]
        three, four = TEXTS[int(queue * MICRO + 0.5)], TEXTS[int(predict * MICRO + 0.5)]
        five = TEXTS[int(decode * MICRO + 0.5)]
    else:
        one, two, three, four, five = in_milliseconds(parse, tokenize, queue, predict, decode)
    return f"parse;dur={one}, tokenize;dur={two}, queue;dur={three}, predict;dur={four}, decode;dur={five}".encode()
