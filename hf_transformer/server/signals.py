"""Signal handlers for startup, before a server handles signals. Imports few modules, so that it can run first."""

from __future__ import annotations

import signal
from types import FrameType


def handle_signals() -> None:
    """Ends the process with exit code 0 on SIGTERM and SIGINT. SIGHUP, sent when a terminal closes, acts as SIGTERM.

    uvicorn shuts down gracefully and then raises the signal again. Process 1 of a container ignores signals without a
    handler.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_cleanly)
    signal.signal(signal.SIGHUP, _as_sigterm)


def _exit_cleanly(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _as_sigterm(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGTERM)
