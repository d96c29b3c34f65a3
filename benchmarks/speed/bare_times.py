"""What a list of times comes to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def figures(times: Sequence[float], seconds: float) -> dict[str, float]:
    """Of calls one after the other, each time in seconds: requests, seconds, and percentiles in ms."""
    p50, p99 = np.percentile(times, (50, 99)) * 1000
    return {"requests": len(times), "seconds": seconds, "p50_ms": float(p50), "p99_ms": float(p99)}
