"""Gives free memory back to the system while the process is idle.

glibc keeps what a burst of requests has taken: a freed block returns to the system only from the end of a heap, and one
small block that is still in use there keeps all of it. ``malloc_trim`` returns whole free pages wherever they lie. It
takes some 100 ms for 400 MB, in which no thread can allocate, so it runs only when there is little else to do.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

SHORTEST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds between two looks."""
GROWN = 32 << 20
"""Bytes that are worth a trim."""
IDLE = 0.2
"""The share of one core that an idle process uses at most."""
STATM = Path("/proc/self/statm")


def held_memory() -> int:
    """Bytes of memory that this process alone holds: resident, without files and shared memory.

    Source: proc_pid_statm(5).

    Raises:
        OSError: the system has no such file.
    """
    _, resident, shared, *_ = map(int, STATM.read_bytes().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def find_malloc_trim() -> Callable[[int], int] | None:
    """glibc's function; None with another C library, or where the system does not tell how much memory is held."""
    if not STATM.exists():
        return None
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None


async def keep_trimmed() -> None:
    """Trims, for ever, when memory has grown and the process is idle; ends at once where it can't.

    What is still in use at a trim may be freed soon after it, so another one follows, and later ones more and more
    seldom while they give little back.
    """
    trim = find_malloc_trim()
    if trim is None:
        return
    pause, least, used = SHORTEST_PAUSE, held_memory(), time.process_time()
    while True:
        await asyncio.sleep(pause)
        before, used = used, time.process_time()
        held = held_memory()
        least = min(least, held)
        if held - least < GROWN or used - before > IDLE * pause:
            pause = SHORTEST_PAUSE
            continue
        await asyncio.to_thread(trim, 0)
        given_back = held - held_memory()
        logger.debug("gave %d MB of memory back", given_back >> 20)
        pause = SHORTEST_PAUSE if given_back >= GROWN else min(2 * pause, LONGEST_PAUSE)
