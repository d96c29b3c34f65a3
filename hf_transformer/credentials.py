"""Certificates and keys, and files that are renewed while the service runs.

cert-manager and Kubernetes replace files, or move the links to them. The service looks at them every few seconds rather
than watching them: a mounted Secret changes by a link two folders above the file, which inotify on the file does not
report, and four calls of stat cost some ten microseconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from hf_transformer.errors import ConfigError

logger = logging.getLogger(__name__)

PERIOD = 2.0  # seconds between two looks at the files

T = TypeVar("T")

Identity = tuple[int, ...]


class ReloadableFile(Generic[T]):
    """What files hold, read again once they change. What can't be used leaves the last that could, and one line in the
    log for each change.

    Args:
        what: names it in the log.
        paths: the files; links are followed.
        read: gives what they hold; raises ConfigError where that can't be used, with a message that is no secret. So
            does the constructor.
    """

    def __init__(self, what: str, paths: Sequence[str], read: Callable[[], T]) -> None:
        self.what = what
        self._paths = paths
        self._read = read
        self._lock = threading.Lock()  # gRPC asks from threads of its own
        self._refused: tuple[list[Identity | None], str] | None = None
        self._seen = self._look()  # before reading: what changes meanwhile is read again
        self.value = read()

    def renew(self) -> bool:
        """Whether ``value`` is new because the files have changed since they were read last. Files that can't be used
        are tried again each time: why they could not may have been no fault of theirs."""
        with self._lock:
            found = self._look()
            if found == self._seen:
                self._refused = None
                return False
            try:
                self.value = self._read()
            except ConfigError as error:
                if self._refused != (found, str(error)):
                    self._refused = found, str(error)
                    logger.error("%s: the new files can't be used, the old ones stay in use: %s", self.what, error)
                return False
            self._seen, self._refused = found, None
            logger.info("%s: renewed", self.what)
            return True

    def _look(self) -> list[Identity | None]:
        return [identity(path) for path in self._paths]


def identity(path: str) -> Identity | None:
    """What changes when another file takes a file's place, or its content is written anew; None where there is none.

    The time of change is in it because the other one can be set: what unpacks or copies files sets it to the same.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


async def keep_renewing(renewable: ReloadableFile[T], use: Callable[[T], None], period: float = PERIOD) -> None:
    """Looks at the files for ever, and hands on what is new. A fault does not end it: it is logged, once in a row, and
    what could not be handed on is handed on the next time."""
    pending = failed = False
    while True:
        await asyncio.sleep(period)
        try:
            pending = renewable.renew() or pending
            if pending:
                use(renewable.value)
            pending = failed = False
        except Exception:  # whatever a library makes of the files: the last resort, or nothing would be renewed again
            if not failed:
                logger.exception("%s: could not be renewed", renewable.what)
            failed = True


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, as the content of their PEM files."""

    chain: bytes
    key: bytes = field(repr=False)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Has a context use them, at once where it is in use already; connections that are open keep theirs.

        OpenSSL reads files only. These are in memory, so that they are the very bytes that were checked: a context that
        got a new certificate and then failed on a key that had not been renewed yet would be broken.

        Raises ssl.SSLError where they are no PEM, or don't belong together.
        """
        with _file_of(self.chain) as chain, _file_of(self.key) as key:
            # Without a password OpenSSL would ask the terminal for that of an encrypted key.
            context.load_cert_chain(chain, key, password="")


def read_key_pair(certificate: str, key: str, flags: tuple[str, str] = ("ssl_certfile", "ssl_keyfile")) -> KeyPair:
    """Reads two files and checks that they can be used.

    Args:
        certificate: the PEM file of the certificate, and of those between it and the root.
        key: the PEM file of its private key.
        flags: what the two files are called in the message; by default those that clients see.

    Raises ConfigError where a file can't be read, is no PEM, or the two don't belong together.
    """
    try:
        pair = KeyPair(Path(certificate).read_bytes(), Path(key).read_bytes())
        pair.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"--{flags[0]}={certificate}, --{flags[1]}={key}: can't be used: {error.strerror or error}; expected a "
            "certificate and its key as PEM files"
        ) from error
    return pair


@contextmanager
def _file_of(content: bytes) -> Iterator[str]:
    """The path of a file in memory."""
    file = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(file, content)
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)
