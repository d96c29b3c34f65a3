"""Durations as text: a short request writes eight of them, and formatting those takes a twentieth of its time."""

from __future__ import annotations

from math import floor

SHORT = 0.0099
"""Seconds. A duration that is no longer, and not negative, has its text in the table."""
TEXTS = tuple(f"{whole}.{rest:03d}" for whole in range(10) for rest in range(1000))
"""By microseconds, for which floor takes half as long as int. Where several durations are known to be short, looking
them up in place saves their calls."""


def in_milliseconds(seconds: float) -> str:
    """A duration in milliseconds with three digits."""
    return TEXTS[floor(seconds * 1e6 + 0.5)] if 0.0 <= seconds <= SHORT else f"{seconds * 1e3:.3f}"
