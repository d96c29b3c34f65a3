"""What processes use: CPU seconds and resident memory of all that belongs to a session."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

from hf_transformer.commands.local_triton import ChildProcess, session_members

TICK_SECONDS = 0.01
"""The kernel counts CPU time in such steps."""
SETTLE_SECONDS = 20.0


def cpu_seconds(child: ChildProcess) -> float:
    """User and system time of a child and all that it has started, as long as they live."""
    total = 0.0
    for process in _processes(child):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def resident_bytes(child: ChildProcess) -> int:
    """Resident memory, pages that are shared counted in each process."""
    return sum(process.memory_info().rss for process in _processes(child))


def settle(children: Sequence[ChildProcess]) -> None:
    """Wait until they do nothing any more: work that a load has left undone would disturb the next one."""
    deadline = time.monotonic() + SETTLE_SECONDS
    before = [cpu_seconds(child) for child in children]
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = [cpu_seconds(child) for child in children]
        if all(after - earlier <= TICK_SECONDS * 1.5 for earlier, after in zip(before, now, strict=True)):
            return
        before = now


def _processes(child: ChildProcess) -> list[psutil.Process]:
    found = []
    for pid in session_members(child.pid):
        try:
            found.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    return found
