"""What the programs that call Triton one request after the other have in common: their flags and their figures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np


def flags(description: str | None) -> argparse.Namespace:
    """Those that PythonClient of bare.py gives."""
    parser = argparse.ArgumentParser(description=description)
    for name in ("url", "protocol", "shared_memory", "model", "output"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("tokens", "output_bytes", "seconds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def figures(times: Sequence[float], seconds: float) -> dict[str, float]:
    """Of calls one after the other, each time in seconds: requests, seconds, and percentiles in ms."""
    p50, p99 = np.percentile(times, (50, 99)) * 1000
    return {"requests": len(times), "seconds": seconds, "p50_ms": float(p50), "p99_ms": float(p99)}
