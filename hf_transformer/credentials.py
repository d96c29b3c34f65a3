"""Certificates, keys, and files that are reloaded while the service runs.

cert-manager and Kubernetes replace files, or the links to them. The service polls every few seconds. A mounted Secret
changes through a link two folders above the file, which inotify on the file does not report. Four stat calls take about
ten microseconds.
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
        name: the name of the value in the log.
        paths: the files; links are followed.
        read: loads the value. Raises ConfigError for unusable content, as the constructor then does, without secrets in
            its message.
    """

    def __init__(self, name: str, paths: Sequence[str], read: Callable[[], T]) -> None:
        self.name = name
        self._paths = paths
        self._read = read
        self._lock = threading.Lock()  # gRPC renews from its own threads
        self._refused: tuple[list[Identity | None], str] | None = None
        self._seen = self._look()  # before reading, to detect a change during the read
        self.value = read()

    def renew(self) -> bool:
        """Reload changed files; returns whether ``value`` is new. Always retries unusable files, since the cause may be
        outside them."""
        with self._lock:
            current = self._look()
            if current == self._seen:
                self._refused = None
                return False
            try:
                self.value = self._read()
            except ConfigError as error:
                if self._refused != (current, str(error)):
                    self._refused = current, str(error)
                    logger.error("%s: the new files can't be used, the old ones stay in use: %s", self.name, error)
                return False
            self._seen, self._refused = current, None
            logger.info("%s: renewed", self.name)
            return True

    def _look(self) -> list[Identity | None]:
        return [identity(path) for path in self._paths]


def identity(path: str) -> Identity | None:
    """Device, inode, size and times of a file, which change with its content; None for a missing file.

    The change time is included because tools that unpack or copy files set the modification time.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


async def keep_renewing(renewable: ReloadableFile[T], use: Callable[[T], None], period: float = PERIOD) -> None:
    """Check the files until cancelled, and pass each new value to ``use``. Retries a failure at each check, and logs
    only the first of consecutive failures."""
    pending = failed = False
    while True:
        await asyncio.sleep(period)
        try:
            pending = renewable.renew() or pending
            if pending:
                use(renewable.value)
            pending = failed = False
        except Exception:  # any library error; without this, renewal would stop
            if not failed:
                logger.exception("%s: could not be renewed", renewable.name)
            failed = True


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Certificate chain and private key as PEM bytes."""

    chain: bytes
    key: bytes = field(repr=False)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load both into an SSL context, also one in use; open connections keep their certificate.

        OpenSSL reads only files, so memory files hold exactly the validated bytes. A new certificate with an old key
        would break the context.

        Raises ssl.SSLError for bytes that are not PEM, or a key of another certificate.
        """
        with _file_of(self.chain) as chain, _file_of(self.key) as key:
            # Without a password, OpenSSL would prompt for one if the key is encrypted.
            context.load_cert_chain(chain, key, password="")


def read_key_pair(certificate: str, key: str, flags: tuple[str, str] = ("ssl_certfile", "ssl_keyfile")) -> KeyPair:
    """Read a certificate chain and its private key from PEM files, and check that they match. ``flags`` are for
    messages.

    Raises ConfigError for an unreadable file, one that is not PEM, or a key of another certificate.
    """
    try:
        pair = KeyPair(Path(certificate).read_bytes(), Path(key).read_bytes())
        pair.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    except OSError as error:  # or ssl.SSLError
        raise ConfigError(
            f"--{flags[0]}={certificate}, --{flags[1]}={key}: can't be used: {error.strerror or error}; expected a "
            "certificate and its key as PEM files"
        ) from error
    return pair


@contextmanager
def _file_of(content: bytes) -> Iterator[str]:
    """The path of an in-memory file with this content."""
    file = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(file, content)
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)
