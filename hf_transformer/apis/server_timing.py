"""The Server-Timing header: where the time of one request went, for whoever has sent it.

Source: https://www.w3.org/TR/server-timing/
"""

from __future__ import annotations

from hf_transformer.milliseconds import in_milliseconds
from hf_transformer.types import Timings

NAME = "server-timing"


def server_timing(timings: Timings) -> bytes:
    """The header's value, in milliseconds; ``predict`` is what is left of it without ``queue``."""
    queue, predict = timings.queue, timings.predict
    rest = predict - queue if predict > queue else 0.0
    text = (
        f"parse;dur={in_milliseconds(timings.parse)}, tokenize;dur={in_milliseconds(timings.tokenize)}, "
        f"queue;dur={in_milliseconds(queue)}, predict;dur={in_milliseconds(rest)}, "
        f"decode;dur={in_milliseconds(timings.postprocess)}"
    )
    return text.encode()
