"""API keys (--api_keys_file).

A key comes as ``Authorization: Bearer KEY``, ``x-api-key: KEY`` or ``api-key: KEY`` (Azure's clients of OpenAI), over
gRPC as metadata of the same names. Neither the predictor nor a log sees it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

from hf_transformer.credentials import ReloadableFile, keep_renewing
from hf_transformer.errors import ConfigError

HEADERS = (b"authorization", b"x-api-key", b"api-key")
"""Headers that may hold a key. None is passed on, with a key or without."""
_BEARER = b"bearer "
API = "keys"
"""Requests without a key are counted under this name, over HTTP and over gRPC."""
REFUSED = (
    "an API key that is known here is required, as 'Authorization: Bearer KEY' or 'x-api-key: KEY' (--api_keys_file)"
)


class ApiKeys:
    """The keys of --api_keys_file, read again when the file changes. Raises ConfigError, see read_keys.

    Only digests are kept, under a secret of this process. A key is compared with all of them in constant time.
    """

    def __init__(self, path: str) -> None:
        self._salt = secrets.token_bytes(32)
        self.file = ReloadableFile(
            "--api_keys_file", [path], lambda: [self._digest(key.encode()) for key in read_keys(path)]
        )

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._salt, digest_size=32).digest()

    async def keep_renewing(self) -> None:
        """Runs until it is cancelled."""
        await keep_renewing(self.file, lambda digests: None)

    def accept(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether any of the headers (names in lower case) holds a known key."""
        known = False
        for name, value in headers:
            if name in HEADERS:
                if name == b"authorization":
                    value = value[len(_BEARER) :] if value[: len(_BEARER)].lower() == _BEARER else b""
                digest = self._digest(value.strip())
                for other in self.file.value:
                    known |= hmac.compare_digest(digest, other)
        return known


def open_paths(models: Sequence[str]) -> frozenset[str]:
    """Liveness, readiness and metrics: the kubelet and scrapers have no key."""
    ready = [path for name in models for path in (f"/v1/models/{name}", f"/v2/models/{name}/ready")]
    return frozenset(("/", "/metrics", "/v2/health/live", "/v2/health/ready", *ready))


_KEY = re.compile(r"[!-~]{1,1024}")


def read_keys(path: str) -> list[str]:
    """The keys in a file: one per line; empty lines and those that begin with # are skipped.

    Raises:
        ConfigError: the file can't be read, has no key, or a line that can't be one; the message shows no key.
    """
    try:
        lines = Path(path).read_bytes().decode("utf-8-sig").splitlines()
    except OSError as error:
        raise ConfigError(f"--api_keys_file={path}: can't be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--api_keys_file={path}: is no text in UTF-8") from None
    keys = []
    for number, line in enumerate(lines, 1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if not _KEY.fullmatch(key):
            raise ConfigError(
                f"--api_keys_file={path}: line {number} is no key; expected 1 to 1024 visible ASCII characters and no "
                "space"
            )
        keys.append(key)
    if not keys:
        raise ConfigError(f"--api_keys_file={path}: has no key; expected one in each line, # begins a comment")
    return keys
