"""Files that are renewed while the service runs, as cert-manager and Kubernetes do it: replaced, or their links moved.

They are looked at every few seconds rather than watched: a mounted Secret changes by a link two folders above the file,
which inotify on the file does not tell, and four calls of stat cost some ten microseconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from hf_transformer.errors import ConfigError

logger = logging.getLogger(__name__)

PERIOD = 2.0
"""Seconds between two looks at the files."""

T = TypeVar("T")


class Renewable(Generic[T]):
    """What files hold, read again once they change. What can't be used leaves the last that could, and one line in the
    log for each change.

    Args:
        what: names it in the log.
        paths: the files; links are followed.
        read: gives what they hold; raises ConfigError where that can't be used, with a message that is no secret.

    Raises:
        ConfigError: they can't be used now.
    """

    def __init__(self, what: str, paths: Sequence[str], read: Callable[[], T]) -> None:
        self._what = what
        self._paths = paths
        self._read = read
        self._lock = threading.Lock()  # gRPC asks from threads of its own
        self._seen = self._look()  # before reading: what changes meanwhile is read again
        self.value = read()

    def renew(self) -> bool:
        """Whether ``value`` is new because the files have changed since the last call."""
        with self._lock:
            found = self._look()
            if found == self._seen:
                return False
            self._seen = found
            try:
                self.value = self._read()
            except ConfigError as error:
                logger.error("%s: the new files can't be used, the old ones stay in use: %s", self._what, error)
                return False
            logger.info("%s: renewed", self._what)
            return True

    def _look(self) -> list[tuple[int, int, int, int] | None]:
        return [identity(path) for path in self._paths]


def identity(path: str) -> tuple[int, int, int, int] | None:
    """What changes when another file takes a file's place, or its content is written anew; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


async def keep_renewing(renewable: Renewable[T], use: Callable[[T], None], period: float = PERIOD) -> None:
    """Looks at the files for ever, and hands on what is new."""
    while True:
        await asyncio.sleep(period)
        if renewable.renew():
            use(renewable.value)
