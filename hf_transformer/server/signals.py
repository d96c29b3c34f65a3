"""What signals do until a server handles them. Imports next to nothing, so that it can be the first thing done."""

from __future__ import annotations

import signal
from types import FrameType


def handle_signals() -> None:
    """SIGTERM and SIGINT end the process with 0. SIGHUP is as SIGTERM, always: it comes from a terminal that is closed.

    uvicorn finishes gracefully on a signal and then raises it again; the start itself can just end. As process 1 of a
    container a signal without a handler would be ignored.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_cleanly)
    signal.signal(signal.SIGHUP, _as_sigterm)


def _exit_cleanly(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _as_sigterm(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGTERM)
