"""API keys (--api_keys_file), and the keys of model control (--model_control_keys_file).

A client sends its key as ``Authorization: Bearer KEY``, ``x-api-key: KEY`` or ``api-key: KEY`` (Azure OpenAI clients),
over gRPC as metadata with these names. The service neither forwards nor logs keys.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence

from hf_transformer.credentials import ReloadableFile, keep_renewing, read_small
from hf_transformer.errors import ConfigError

HEADERS = (b"authorization", b"x-api-key", b"api-key")
"""Headers that may contain a key. With --api_keys_file, the service removes these headers from every request."""
_BEARER = b"bearer "
API = "keys"
"""The API label in metrics for requests without a valid key, over HTTP and gRPC."""
CONTROL_PATH = "/v2/repository/models/"
"""The beginning of the paths that load and unload models. These need a key of --model_control_keys_file, and no other:
Triton runs the code of a model that it loads."""
CONTROL_METHODS = ("RepositoryModelLoad", "RepositoryModelUnload")
"""The methods of gRPC that load and unload models."""
API_KEYS, CONTROL_KEYS = "--api_keys_file", "--model_control_keys_file"


class ApiKeys:
    """The valid keys of a file, stored as keyed digests and compared in constant time. Raises ConfigError, see
    read_keys. ``refused`` is the message for a request without a valid key."""

    def __init__(self, path: str, flag: str = API_KEYS) -> None:
        self._salt = secrets.token_bytes(32)
        self.refused = f"a known API key is required, as 'Authorization: Bearer KEY' or 'x-api-key: KEY' ({flag})"
        self.file = ReloadableFile(flag, [path], lambda: [self._digest(key.encode()) for key in read_keys(path, flag)])

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._salt, digest_size=32).digest()

    async def keep_renewing(self) -> None:
        """Reloads the keys after each change of the file, until cancelled."""
        await keep_renewing(self.file, lambda digests: None)

    def accept(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a header contains a valid key. Header names are in lower case."""
        known = False
        for name, value in headers:
            if name in HEADERS:
                if name == b"authorization":
                    value = value[len(_BEARER) :] if value[: len(_BEARER)].lower() == _BEARER else b""
                digest = self._digest(value.strip())
                for expected in self.file.value:
                    known |= hmac.compare_digest(digest, expected)
        return known


def open_paths(models: Sequence[str]) -> frozenset[str]:
    """The paths of liveness, readiness and metrics. They need no key, since the kubelet and scrapers send no keys."""
    ready = [path for name in models for path in (f"/v1/models/{name}", f"/v2/models/{name}/ready")]
    return frozenset(("/", "/metrics", "/v2/health/live", "/v2/health/ready", *ready))


_KEY = re.compile(r"[!-~]{1,1024}")


def read_keys(path: str, flag: str = API_KEYS) -> list[str]:
    """Reads a file with one key per line. Skips empty lines and comments (#).

    Raises:
        ConfigError: the file is unreadable, has no key, or has an invalid line. The message contains no key.
    """
    try:
        lines = read_small(path).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise ConfigError(f"{flag}={path}: can't be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{flag}={path}: expected text in UTF-8") from None
    keys = []
    for number, line in enumerate(lines, 1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if not _KEY.fullmatch(key):
            raise ConfigError(
                f"{flag}={path}: line {number}: expected a key of 1 to 1024 visible ASCII characters, no space"
            )
        keys.append(key)
    if not keys:
        raise ConfigError(f"{flag}={path}: expected a key in each line, got none; # begins a comment")
    return keys
