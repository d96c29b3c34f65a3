"""To know at once that the process is to end."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def told_of_the_end(callback: Callable[[], None]) -> Iterator[None]:
    """Calls back, on the running event loop, when a signal asks the process to end; other handlers do what they did.

    uvicorn ends the application's lifespan only after the last HTTP request. What has its own requests to finish would
    begin then, and both together would take longer than Kubernetes waits.
    """
    loop = asyncio.get_running_loop()
    before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(callback)
        other = before[number]
        if callable(other):
            other(number, frame)

    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            before[number] = signal.getsignal(number)
            signal.signal(number, handle)
    try:
        yield
    finally:
        for which, other in before.items():
            signal.signal(which, other)
