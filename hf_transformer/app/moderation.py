"""The table of --moderation_categories, from a classifier's labels to OpenAI's categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hf_transformer.errors import ConfigError, FieldError, nearest
from hf_transformer.tasks.moderation import LabelRule, Moderation
from hf_transformer.tokenizer.files import read_file
from hf_transformer.types.fields import Form
from hf_transformer.types.request import Json

RULE: Final = Form(LabelRule)
MAX_BYTES: Final = 2**20
MAX_QUOTED: Final = 100


def read_moderation(path: str | None, threshold: float, labels: Sequence[str]) -> Moderation:
    """Reads the file of --moderation_categories for a classifier with these ``labels``.

    Raises:
        LoadError: the file can't be read.
        ConfigError: it is no table, names a label that the model lacks, or an unknown category.
    """
    if path is None:
        return Moderation(threshold)
    flag = f"--moderation_categories={path}"
    table = parse_table(read_file(Path(path), MAX_BYTES), flag, "categories")
    categories: dict[str, Sequence[str]] = {}
    thresholds: dict[str, float] = {}
    for label, value in table.items():
        if not isinstance(label, str):
            raise ConfigError(f"{flag}: expected quotes around the label {label}, which YAML reads as another value")
        if label not in labels:
            hint = nearest(label, {name: name for name in labels})
            raise ConfigError(f"{flag}: expected labels of the model, got {label[:MAX_QUOTED]!r}{hint}")
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
