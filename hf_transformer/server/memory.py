"""Memory of the process: fewer garbage collections, and free memory returned to the system."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import time
from pathlib import Path

logger = logging.getLogger(__name__)

GC_THRESHOLD = 20_000
"""Generation-0 threshold of the garbage collector. The requests of one batch pass Python's default of 700. Requests
leave no garbage to find, and a short one of 32 takes a fifteenth fewer instructions with this threshold."""

MIN_TRIM_PAUSE_SECONDS, MAX_TRIM_PAUSE_SECONDS = 2.0, 60.0
MIN_TRIM_BYTES = 32 << 20
"""Growth of the process that is worth a trim."""
IDLE_CPU_SHARE = 0.2
"""CPU time of an idle process, at most, as a share of one core."""


def freeze_garbage_collector() -> None:
    """Exempts all current objects, which live as long as the process, from garbage collection."""
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])


def held_memory() -> int:
    """Private memory of this process in bytes: resident, without files and shared memory (proc_pid_statm(5)).

    Raises OSError if the system has no such file.
    """
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_bytes().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


async def keep_trimmed() -> None:
    """Returns free memory to the system when the process has grown and is idle. Never ends, unless the C library lacks
    ``malloc_trim``.

    glibc keeps the memory of a burst of requests: it returns a freed block only from the end of a heap, and one small
    block in use there keeps all of it. ``malloc_trim`` returns all free pages. It takes some 100 ms for 400 MB, in
    which no thread can allocate, so it runs only in an idle process. Blocks in use at a trim may be freed soon after
    it, so further trims follow, at growing intervals while they return little.
    """
    try:
        trim, least = ctypes.CDLL(None).malloc_trim, held_memory()
    except (AttributeError, OSError):  # another C library, or another system
        return
    pause, used = MIN_TRIM_PAUSE_SECONDS, time.process_time()
    while True:
        await asyncio.sleep(pause)
        before, used = used, time.process_time()
        held = held_memory()
        least = min(least, held)
        if held - least < MIN_TRIM_BYTES or used - before > IDLE_CPU_SHARE * pause:
            pause = MIN_TRIM_PAUSE_SECONDS
            continue
        await asyncio.to_thread(trim, 0)
        returned = held - held_memory()
        logger.debug("returned %d MB of free memory to the system", returned >> 20)
        pause = MIN_TRIM_PAUSE_SECONDS if returned >= MIN_TRIM_BYTES else min(2 * pause, MAX_TRIM_PAUSE_SECONDS)
