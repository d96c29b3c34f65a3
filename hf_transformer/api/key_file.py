"""The file of API keys."""

from __future__ import annotations

import re
from pathlib import Path

from hf_transformer.errors import ConfigError

_KEY = re.compile(r"[!-~]{1,1024}")


def read_keys(path: str) -> list[str]:
    """The keys in a file: one in each line, without those that are empty or begin with #.

    Raises:
        ConfigError: it can't be read, has none, or a line that can't be one; no key is in the message.
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
