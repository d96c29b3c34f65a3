"""Certificates, keys, and files that are reloaded while the service runs.

cert-manager and Kubernetes replace files, or the links to them. The service polls every few seconds: a mounted Secret
changes through a link two folders above the file, which inotify on the file does not report, and four stat calls cost
about ten microseconds.
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

PERIOD = 2.0  # seconds between two checks of the files

T = TypeVar("T")

Identity = tuple[int, ...]


class ReloadableFile(Generic[T]):
    """A value reloaded when its files change. Unusable content keeps the last usable value, and logs one line per
    change.

    Args:
        what: the name of the value in the log.
        paths: the files; links are followed.
        read: loads the value; raises ConfigError, without secrets in its message, for unusable content. The
            constructor raises it too.
    """

    def __init__(self, what: str, paths: Sequence[str], read: Callable[[], T]) -> None:
        self.what = what
        self._paths = paths
        self._read = read
        self._lock = threading.Lock()  # gRPC reads it from its own threads
        self._refused: tuple[list[Identity | None], str] | None = None
        self._seen = self._look()  # taken before reading, so that a change during the read is noticed
        self.value = read()

    def renew(self) -> bool:
        """Reload changed files; returns whether ``value`` is new. Retries unusable files each time, since the cause may
        lie outside the files."""
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
    """Device, inode, size and times of a file, which change with its content; None for a missing file.

    The change time is included because tools that unpack or copy files set the modification time.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


async def keep_renewing(renewable: ReloadableFile[T], use: Callable[[T], None], period: float = PERIOD) -> None:
    """Check the files until cancelled, and pass each new value to ``use``. A failure is logged, once in a row, and
    retried with the next check."""
    pending = failed = False
    while True:
        await asyncio.sleep(period)
        try:
            pending = renewable.renew() or pending
            if pending:
                use(renewable.value)
            pending = failed = False
        except Exception:  # any error of a library: without this nothing would be renewed again
            if not failed:
                logger.exception("%s: could not be renewed", renewable.what)
            failed = True


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Certificate chain and private key as PEM bytes."""

    chain: bytes
    key: bytes = field(repr=False)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load both into an SSL context, also one in use; open connections keep their certificate.

        OpenSSL reads files only; these are in memory, so that it gets exactly the bytes that were checked. A context
        with a new certificate and an old key would be broken.

        Raises ssl.SSLError for bytes that are not PEM, or a key of another certificate.
        """
        with _file_of(self.chain) as chain, _file_of(self.key) as key:
            # Without a password OpenSSL would prompt for that of an encrypted key.
            context.load_cert_chain(chain, key, password="")


def read_key_pair(certificate: str, key: str, flags: tuple[str, str] = ("ssl_certfile", "ssl_keyfile")) -> KeyPair:
    """Read a certificate and its key, and check that they match.

    Args:
        certificate: the PEM file of the certificate chain.
        key: the PEM file of its private key.
        flags: the flags of the two files, for messages.

    Raises ConfigError for an unreadable file, one that is not PEM, or a key of another certificate.
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
    """The path of a memory file with this content."""
    file = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(file, content)
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)
