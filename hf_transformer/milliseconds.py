"""Durations as text: a short request writes eight of them, and formatting those takes a twentieth of its time."""

from __future__ import annotations

MICRO = 1e6
SHORT = 0.0099
"""Seconds. Each duration that is no longer, and not negative, has its text in ``TEXTS``."""
TEXTS = tuple(f"{whole}.{rest:03d}" for whole in range(10) for rest in range(1000))
"""Milliseconds with three digits, by the number of microseconds."""


def in_milliseconds(*durations: float) -> tuple[str, ...]:
    """Durations in seconds as milliseconds with three digits."""
    return tuple(f"{one * 1e3:.3f}" for one in durations)
