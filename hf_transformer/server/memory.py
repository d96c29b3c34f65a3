"""Memory of the process: fewer garbage collections, and free memory kept under load and returned when idle."""

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
"""Threshold of the garbage collector's generation 0.

The requests of one batch exceed Python's default of 700, but create no reference cycles. With this value, a short
request takes 7 % fewer CPU instructions at 32 concurrent requests.
"""

MIN_TRIM_PAUSE_SECONDS, MAX_TRIM_PAUSE_SECONDS = 2.0, 60.0
MIN_TRIM_BYTES = 32 << 20
"""Minimum growth of the process before a trim."""
IDLE_CPU_SHARE = 0.2
"""Maximum CPU time of an idle process, as a share of one core."""

KEPT_BYTES = 32 << 20
"""Maximum size of a block that glibc takes from a heap, and of free memory that it keeps at the end of a heap.

It is glibc's own maximum for such blocks, and its limits grow as a process frees larger blocks. With lower limits, as
after MALLOC_TRIM_THRESHOLD_, it returns the memory of each answer of the predictor to the system, which clears it again
page by page. 1 MB takes 270 page faults over REST, 340 to 520 over gRPC. Without them, a request takes 0.6 to 0.75
of the service's CPU time over REST, 0.7 to 1.0 over gRPC.
"""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def freeze_garbage_collector() -> None:
    """Excludes existing objects from garbage collection, since they live as long as the process."""
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])


def keep_freed_blocks() -> None:
    """Makes glibc reuse the memory of large blocks (mallopt(3)). ``keep_trimmed`` returns it in an idle process.

    Does nothing with another C library. Overrides the variables MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def held_memory() -> int:
    """Private resident memory of this process in bytes, without files and shared memory (proc_pid_statm(5)).

    Raises OSError on systems without /proc.
    """
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_bytes().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


async def keep_trimmed() -> None:
    """Returns free memory to the system when the process has grown and is idle, until cancelled.

    Ends immediately if the C library lacks ``malloc_trim``.

    After a burst of requests, glibc keeps freed memory. It returns memory only from the end of a heap, and a small
    block in use there prevents that. ``malloc_trim`` returns all free pages. It blocks all allocations for some 100 ms
    per 400 MB, so it runs only in an idle process. Blocks in use during a trim may be freed soon afterwards, so trims
    repeat. The interval increases while trims return little memory.
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
