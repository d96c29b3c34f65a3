"""The service's flags that only some tasks read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from hf_transformer.errors import ConfigError
from hf_transformer.tasks.base import GenerationSettings, TaskSettings
from hf_transformer.tasks.question_answering import MAX_SEQ_LEN

LOGITS = frozenset(("return_probabilities", "return_raw_logits"))
FLAGS = (*sorted(LOGITS), "return_offsets_mapping", "aggregation_strategy", "stride")
"""Fields of TaskSettings that only some tasks read."""
GENERATIVE = ("text_generation", "text2text_generation")
"""The tasks that read GenerationSettings."""
READS: Mapping[str, frozenset[str]] = {
    "fill_mask": LOGITS,
    "sequence_classification": LOGITS,
    "token_classification": frozenset(FLAGS),
    "question_answering": frozenset(("stride",)),
    "text_embedding": frozenset(("stride",)),
}
"""The FLAGS that a task reads, by its name. Other tasks read none, and refuse LOGITS."""
SPECIAL_TOKENS, SPECIAL_TOKENS_OF_PAIR = 2, 3
"""Of a window in most tokenizers: [CLS] text [SEP], and [CLS] question [SEP] context [SEP]."""


def reads(task: str, flag: str) -> bool:
    """Whether a task reads one of FLAGS."""
    return flag in READS.get(task, ())


def flags_without_effect(task: str, settings: TaskSettings) -> list[str]:
    """The flags that are set and that the task does not read, as on a command line."""
    default = {field.name: field.default for field in fields(TaskSettings)}
    given = {name: getattr(settings, name) for name in FLAGS}
    found = [
        f"--{name}" if value is True else f"--{name}={value}"
        for name, value in given.items()
        if value != default[name] and not reads(task, name)
    ]
    if task not in GENERATIVE:
        for field in fields(GenerationSettings):
            value = getattr(settings.generation, field.name)
            if value != field.default:
                flag = "generation_max_length" if field.name == "max_length" else field.name
                found.append(f"--{flag}={str(value).lower()}")
    return found


def check_stride(task: str, settings: TaskSettings) -> None:
    """Checks that windows that share --stride tokens have others too.

    Raises:
        ConfigError: they have none, so every long text would be refused.
    """
    if settings.stride is None or not reads(task, "stride"):
        return
    window, special = settings.max_length, SPECIAL_TOKENS
    if task == "question_answering":
        window, special = min(window, MAX_SEQ_LEN), SPECIAL_TOKENS_OF_PAIR
    room = window - special
    if settings.stride >= room:
        raise ConfigError(
            f"--stride={settings.stride}: windows of {window} tokens have room for {room} beside the special ones, "
            "and have to share fewer than these"
        )
