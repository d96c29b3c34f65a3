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
from pathlib import Path

logger = logging.getLogger(__name__)

SHORTEST_PAUSE, LONGEST_PAUSE = 2.0, 60.0  # seconds between two looks
GROWN = 32 << 20  # bytes that are worth a trim
IDLE = 0.2  # the share of one core that an idle process uses at most


def held_memory() -> int:
    """Bytes of memory that this process alone holds: resident, without files and shared memory (proc_pid_statm(5)).
    Raises OSError where the system has no such file."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_bytes().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


async def keep_trimmed() -> None:
    """Trims, for ever, when memory has grown and the process is idle; ends at once where it can't.

    What is still in use at a trim may be freed soon after it, so another one follows, and later ones more and more
    seldom while they give little back.
    """
    try:
        trim, least = ctypes.CDLL(None).malloc_trim, held_memory()
    except (AttributeError, OSError):  # another C library, or another system
        return
    pause, used = SHORTEST_PAUSE, time.process_time()
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
