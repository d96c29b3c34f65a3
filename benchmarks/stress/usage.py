"""What one process uses, as the kernel says in /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """At one moment; memory in bytes. ``shared`` are the files in /dev/shm that the process has mapped."""

    resident: int
    peak: int
    descriptors: int
    threads: int
    shared: int


def usage_of(pid: int) -> Usage:
    """Raises FileNotFoundError when the process is gone."""
    folder = Path(f"/proc/{pid}")
    fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
    return Usage(
        resident=_kilobytes(fields["VmRSS"]),
        peak=_kilobytes(fields["VmHWM"]),
        descriptors=len(list((folder / "fd").iterdir())),
        threads=int(fields["Threads"]),
        shared=_shared(folder / "maps"),
    )


def cpu_seconds(pid: int) -> float:
    """User and system time, in the kernel's steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def forget_peak(pid: int) -> None:
    """The peak begins anew at what is resident now (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _kilobytes(text: str) -> int:
    return int(text.split()[0]) * 1024


def _shared(maps: Path) -> int:
    total = 0
    for line in maps.read_text().splitlines():
        columns = line.split(maxsplit=5)
        if len(columns) == 6 and columns[5].startswith(f"{SHARED_MEMORY}/"):
            begin, _, end = columns[0].partition("-")
            total += int(end, 16) - int(begin, 16)
    return total
