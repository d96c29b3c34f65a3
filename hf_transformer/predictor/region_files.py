"""Files of regions in /dev/shm: their names, their locks, and the removal of leftovers.

A live owner locks its file (flock), so a file without a lock is the leftover of a killed process. Process ids can't
identify the owner: containers that share /dev/shm have separate process namespaces.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108 - the folder of shm_open, with which Triton opens a region's key
PREFIX = "hf_transformer_outputs_"
"""The prefix of file names, which are also the regions' names at the predictor."""

RESERVED_BYTES = 16 * 2**20
"""The free space that regions leave in /dev/shm, twice the default of ``--max_batch_output_bytes``. Triton's Python
backend stores outputs there, and its requests fail without free space."""


def free_bytes(folder: Path = FOLDER) -> int:
    """Free bytes in a folder's file system. Raises OSError for a missing folder."""
    return shutil.disk_usage(folder).free


def remove_leftovers(folder: Path = FOLDER) -> list[str]:
    """Removes the files of dead processes, and returns their names."""
    removed = []
    for path in folder.glob(f"{PREFIX}*"):
        with suppress(OSError):  # removed meanwhile, locked, or another user's
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if stat.S_ISREG(os.fstat(file).st_mode):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                    removed.append(path.name)
            finally:
                os.close(file)
    return removed


def remove_own_and_leftovers(folder: Path = FOLDER) -> None:
    """Removes the files of dead processes and of this one, before os._exit."""
    with suppress(OSError):
        for file in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the listing's own descriptor, or closed meanwhile
                path = Path(os.readlink(f"/proc/self/fd/{file}"))
                if path.parent == folder and path.name.startswith(PREFIX):
                    path.unlink()
    remove_leftovers(folder)


def no_space_error(size: int, folder: Path) -> OSError:
    """Creates the error for a region of ``size`` bytes that does not fit (ENOSPC)."""
    reason = f"{size} bytes do not fit with {RESERVED_BYTES} to spare, which the predictor itself may need there"
    return OSError(errno.ENOSPC, reason, str(folder))


def new_file(folder: Path) -> tuple[Path, int]:
    """Creates an empty, locked file with a random name; returns its path and descriptor."""
    for _ in range(10):
        path = folder / f"{PREFIX}{secrets.token_hex(16)}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_nlink:
                return path, file
        except BlockingIOError:
            pass
        # Between open and flock, another process has removed it as a leftover.
        remove_file(path, file)
    raise OSError(errno.EAGAIN, "other processes remove each new file", str(folder))


def remove_file(path: Path, file: int) -> None:
    """Removes a file and closes its descriptor."""
    path.unlink(missing_ok=True)
    os.close(file)
