"""The number of CPUs that this process may use: those of its affinity, within the quota of its cgroups.

A container with a limit of two CPUs on a machine of 64 has all 64 in its affinity. The kernel stops its threads once
they have used their share of a period, so more threads than that only wait.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SYSTEM = Path("/")
GROUPS = "sys/fs/cgroup"
"""The folder of the groups of version 2. Version 1 has one folder in it for each controller."""


def available_cpus(root: Path = SYSTEM) -> int:
    """Returns the number of CPUs at hand, at least 1. A fraction of a CPU counts as a whole one.

    Args:
        root: the folder of ``proc`` and ``sys``.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *map(math.ceil, cpu_quotas(root))]))


def cpu_quotas(root: Path) -> Iterator[float]:
    """Yields the quotas of this process's cgroup and of the groups above it, in CPUs.

    In a container the path of a group may be that of the host. Its own group is then the uppermost folder.

    Source: Documentation/admin-guide/cgroup-v2.rst and Documentation/scheduler/sched-bwc.rst of Linux.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, group = line.partition(":")
        controllers, _, path = group.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / GROUPS / "cpu" if controllers else root / GROUPS
        own = top / path.lstrip("/")
        for folder in (own, *own.parents):
            if controllers:
                limit = f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"
            else:
                limit = _read(folder / "cpu.max")
            quota, _, period = limit.strip().partition(" ")
            with suppress(ValueError):  # "max" in version 2; no such file
                if int(quota) > 0 and int(period) > 0:  # -1 in version 1 is no quota
                    yield int(quota) / int(period)
            if folder == top:
                break


def _read(path: Path) -> str:
    """Returns the text of a file, or an empty text if it can't be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
