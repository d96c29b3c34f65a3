"""Files about a model's labels: --moderation_categories, --entity_names and the key of --mask_key_file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from hf_transformer.config.options import Config
from hf_transformer.errors import ConfigError, FieldError, nearest
from hf_transformer.tasks.base import Servable, TaskSettings
from hf_transformer.tasks.entities import entities_of
from hf_transformer.tasks.labels import read_labels
from hf_transformer.tasks.masking import PersonalData
from hf_transformer.tasks.moderation import LabelRule, Moderation
from hf_transformer.tasks.sequence_classification import SequenceClassification
from hf_transformer.tasks.token_classification import TokenClassification
from hf_transformer.tasks.zero_shot_token_classification import ZeroShotTokenClassification
from hf_transformer.tokenizer.files import read_file
from hf_transformer.types.fields import Form
from hf_transformer.types.request import Json

RULE: Final = Form(LabelRule)
MAX_TABLE_BYTES, MAX_KEY_BYTES, MIN_KEY_BYTES = 2**20, 4096, 16
MAX_NAME: Final = 100
"""Maximum length of a name, and of a label in a message."""


def with_label_files(task: type[Servable], config: Config, settings: TaskSettings) -> TaskSettings:
    """Adds what the flags' files say about the labels of a model of this task. Raises LoadError and ConfigError."""
    if task is SequenceClassification:
        labels = read_labels(settings.model_config)
        moderation = read_moderation(config.moderation_categories, config.moderation_threshold, labels)
        return replace(settings, moderation=moderation)
    if task is TokenClassification:
        entities: Collection[str] = entities_of(read_labels(settings.model_config))
    elif task is ZeroShotTokenClassification:
        entities = [label.strip() for label in (config.labels or "").split(",")]
    else:
        return settings
    return replace(settings, personal_data=read_personal_data(config, entities))


def read_moderation(path: str | None, threshold: float, labels: Sequence[str]) -> Moderation:
    """Reads the file of --moderation_categories for a classifier with these ``labels``.

    Raises:
        LoadError: the file can't be read.
        ConfigError: it is no table, names a label that the model lacks, or an unknown category.
    """
    if path is None:
        return Moderation(threshold)
    flag = f"--moderation_categories={path}"
    table = parse_table(read_file(Path(path), MAX_TABLE_BYTES), flag, "categories")
    categories: dict[str, Sequence[str]] = {}
    thresholds: dict[str, float] = {}
    for label, value in table.items():
        if not isinstance(label, str):
            raise ConfigError(f"{flag}: expected quotes around the label {label}, which YAML reads as another value")
        if label not in labels:
            hint = nearest(label, {name: name for name in labels})
            raise ConfigError(f"{flag}: expected labels of the model, got {label[:MAX_NAME]!r}{hint}")
        if value is None:
            continue
        try:
            rule = RULE.read(value if isinstance(value, dict) else {"category": value}, path=(label,))
        except FieldError as error:
            raise ConfigError(f"{flag}: {error}") from None
        categories[label] = [rule.category] if isinstance(rule.category, str) else rule.category
        if rule.threshold is not None:
            thresholds[label] = rule.threshold
    if not categories:
        raise ConfigError(f"{flag}: expected a category for at least one label")
    return Moderation(threshold, categories, thresholds)


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


def parse_table(text: bytes, flag: str, values: str) -> Mapping[Any, Json]:
    """Parses a mapping in YAML, of which JSON is a part. Raises ConfigError, for a key that is repeated too."""
    import yaml  # imported late: few services have such a file

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        keys = [key.value for key, _ in pairs if isinstance(key.value, str)]
        if len(keys) < len(pairs) or len(set(keys)) < len(keys):
            raise ConfigError(f"{flag}: expected each label once")
        table = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{flag}: expected JSON or YAML, got a fault{where}") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{flag}: expected a table from the model's labels to {values}")
    return table
