"""Signal handlers until a server takes over. Imports almost nothing, so that a program can call it first."""

from __future__ import annotations

import signal
from types import FrameType


def handle_signals() -> None:
    """Makes SIGTERM and SIGINT end the process with 0, and SIGHUP (a closed terminal) act as SIGTERM, also later.

    The kernel ignores a signal without a handler for process 1 of a container. uvicorn shuts down gracefully and then
    raises the signal again.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_cleanly)
    signal.signal(signal.SIGHUP, _as_sigterm)


def _exit_cleanly(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _as_sigterm(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGTERM)
