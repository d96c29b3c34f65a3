"""Certificates and keys, and files that are reloaded while the service runs.

cert-manager and Kubernetes replace files, or move the links to them. The service polls the files every few seconds:
inotify on the file of a mounted Secret does not report its change, which moves a link two folders above. Four calls of
stat cost some ten microseconds.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import ssl
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from hf_transformer.errors import ConfigError

logger = logging.getLogger(__name__)

PERIOD_SECONDS = 2.0  # between two checks of the files

MAX_FILE_BYTES = 2**22
"""Size limit of a file with keys or certificates. A list of all public certificates has 0.3 MB."""

T = TypeVar("T")

FileIdentity = tuple[int, ...]


class ReloadableFile(Generic[T]):
    """A value reloaded when its files change. Unusable files leave the last value, and log one line per change.

    Args:
        name: the value's name in the log.
        paths: the files, or a function that lists them; links are followed.
        read: reads the value. Raises ConfigError for unusable files, with a message that can be logged; the constructor
            passes it on.
    """

    def __init__(self, name: str, paths: Sequence[str] | Callable[[], Sequence[str]], read: Callable[[], T]) -> None:
        self.name = name
        self.error = ""
        """The reason why the current files can't be used; empty if ``value`` is theirs."""
        self._paths = paths
        self._read = read
        self._lock = threading.Lock()  # gRPC calls renew from its own threads
        self._refused: tuple[list[FileIdentity | None], str] | None = None
        self._loaded = self._identities()  # before reading, so that a change in between is read again
        self.value = read()

    def renew(self) -> bool:
        """Reloads ``value`` if the files have changed, and returns whether it did.

        Unusable files are read again at each call, since the cause may lie elsewhere (too many open files).
        """
        with self._lock:
            current = self._identities()
            if current == self._loaded:
                self._refused, self.error = None, ""
                return False
            try:
                self.value = self._read()
            except ConfigError as error:
                self.error = str(error)
                if self._refused != (current, str(error)):
                    self._refused = current, str(error)
                    logger.error("%s: the new files can't be used, the old ones stay in use: %s", self.name, error)
                return False
            self._loaded, self._refused, self.error = current, None, ""
            logger.info("%s: renewed", self.name)
            return True

    def _identities(self) -> list[FileIdentity | None]:
        return [identity(path) for path in (self._paths() if callable(self._paths) else self._paths)]


def identity(path: str) -> FileIdentity | None:
    """A value that differs after a file is replaced or rewritten; None for a missing file.

    It has the time of change (ctime) because tools that unpack or copy files set the time of modification.
    """
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size


def read_beginning(path: str | Path, most: int) -> bytes:
    """Reads at most the first ``most`` bytes of a regular file. Raises OSError.

    A file may be replaced while the service runs. Reading a device or a pipe could never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "expected a regular file")
        return file.read(most)


def read_small(path: str | Path) -> bytes:
    """Reads a regular file of at most MAX_FILE_BYTES. Raises OSError."""
    content = read_beginning(path, MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"expected at most {MAX_FILE_BYTES} bytes")
    return content


async def keep_renewing(file: ReloadableFile[T], use: Callable[[T], None], period: float = PERIOD_SECONDS) -> None:
    """Calls ``use`` with each new value. Never ends.

    Errors are logged, once in a row. After an error in ``use`` the next period calls it again.
    """
    pending = failed = False
    while True:
        await asyncio.sleep(period)
        try:
            pending = file.renew() or pending
            if pending:
                use(file.value)
            pending = failed = False
        except Exception:  # any error of a library: without this, no later change would be loaded
            if not failed:
                logger.exception("%s: could not be renewed", file.name)
            failed = True


@dataclass(frozen=True, slots=True)
class KeyPair:
    """The contents of a certificate's and its private key's PEM files."""

    chain: bytes
    key: bytes = field(repr=False)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Loads the pair into a TLS context, for new connections only.

        OpenSSL only reads files. Files in memory have exactly the checked bytes: a new certificate with an old key
        would break the context.

        Raises ssl.SSLError for invalid PEM, or a key of another certificate.
        """
        with _memory_file(self.chain) as chain, _memory_file(self.key) as key:
            # Without a password OpenSSL would ask the terminal for one if the key is encrypted.
            context.load_cert_chain(chain, key, password="")


def read_key_pair(certificate: str, key: str, flags: tuple[str, str] = ("ssl_certfile", "ssl_keyfile")) -> KeyPair:
    """Reads a certificate and its key, and checks them.

    Args:
        certificate: the PEM file of the certificate and its intermediate certificates.
        key: the PEM file of its private key.
        flags: the flags that name the two files, for the message; by default those of the server.

    Raises:
        ConfigError: a file is unreadable or invalid PEM, or the key is of another certificate.
    """
    try:
        pair = KeyPair(read_small(certificate), read_small(key))
        pair.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"--{flags[0]}={certificate}, --{flags[1]}={key}: can't be used: {error.strerror or error}; expected a "
            "certificate and its key as PEM files"
        ) from error
    return pair


@contextmanager
def _memory_file(content: bytes) -> Iterator[str]:
    """Yields the path of a file in memory with this content."""
    file = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(file, content)
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)
