"""A certificate and its private key, from two PEM files to OpenSSL and gRPC."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hf_transformer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KeyPair:
    """The content of both files."""

    chain: bytes
    key: bytes = field(repr=False)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Has a context use them, at once where it is in use already; connections that are open keep theirs.

        OpenSSL reads files only. These are in memory, so that they are the very bytes that were checked: a context that
        got a new certificate and then failed on a key that had not been renewed yet would be broken.

        Raises:
            ssl.SSLError: they are no PEM, or don't belong together.
        """
        with _file_of(self.chain) as chain, _file_of(self.key) as key:
            # Without a password OpenSSL would ask the terminal for that of an encrypted key.
            context.load_cert_chain(chain, key, password="")


def read_key_pair(certificate: str, key: str, flags: tuple[str, str]) -> KeyPair:
    """Reads two files and checks that they can be used.

    Args:
        certificate: the PEM file of the certificate, and of those between it and the root.
        key: the PEM file of its private key.
        flags: what the two files are called in the message.

    Raises:
        ConfigError: a file can't be read, is no PEM, or the two don't belong together.
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


def read_server_pair(certificate: str, key: str) -> KeyPair:
    """The certificate that clients see, and its key. Raises ConfigError where they can't be used."""
    return read_key_pair(certificate, key, ("ssl_certfile", "ssl_keyfile"))


@contextmanager
def _file_of(content: bytes) -> Iterator[str]:
    """The path of a file in memory."""
    file = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(file, content)
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)
