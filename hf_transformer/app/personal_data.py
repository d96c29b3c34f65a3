"""The settings of masking and of Presidio's routes: the key of --mask_key_file, and the names of --entity_names."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from hf_transformer.app.moderation import parse_table
from hf_transformer.config.options import Config
from hf_transformer.errors import ConfigError, nearest
from hf_transformer.tasks.masking import PersonalData
from hf_transformer.tokenizer.files import read_file

MAX_TABLE_BYTES, MAX_KEY_BYTES, MIN_KEY_BYTES = 2**20, 4096, 16
MAX_NAME: Final = 100


def read_personal_data(config: Config, entities: Collection[str]) -> PersonalData:
    """Reads the files of the flags, for a model of these ``entities``.

    Raises:
        LoadError: a file can't be read.
        ConfigError: the key is short, or the table is none, has a label that the model lacks, or another value than a
            name.
    """
    key = None
    if config.mask_key_file is not None:
        key = read_file(Path(config.mask_key_file), MAX_KEY_BYTES).strip()
        if len(key) < MIN_KEY_BYTES:
            raise ConfigError(f"--mask_key_file={config.mask_key_file}: expected {MIN_KEY_BYTES} bytes or more")
    return PersonalData(key, read_names(config.entity_names, entities), config.enable_pii_patterns)


def read_names(path: str | None, entities: Collection[str]) -> dict[str, str | None] | None:
    """Reads the table from the model's entities to names. None without a file."""
    if path is None:
        return None
    flag = f"--entity_names={path}"
    names: dict[str, str | None] = {}
    for label, name in parse_table(read_file(Path(path), MAX_TABLE_BYTES), flag, "names").items():
        if label not in entities:
            hint = nearest(str(label), {name: name for name in entities})
            raise ConfigError(f"{flag}: expected entities of the model, got {str(label)[:MAX_NAME]!r}{hint}")
        if name is not None and not (isinstance(name, str) and 0 < len(name) <= MAX_NAME):
            raise ConfigError(f"{flag}: expected a name or null for {label}")
        names[label] = name
    return names
