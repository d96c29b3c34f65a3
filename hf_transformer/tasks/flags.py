"""The service's flags that only some tasks read."""

from __future__ import annotations

from dataclasses import fields

from hf_transformer.errors import ConfigError
from hf_transformer.tasks.base import LOGITS, GenerationSettings, Servable, TaskSettings
from hf_transformer.tasks.question_answering import MAX_SEQ_LEN, QuestionAnswering

FLAGS = (*LOGITS, "return_offsets_mapping", "aggregation_strategy", "stride")
"""Fields of TaskSettings that only tasks with a parameter of that name read."""
GENERATIVE = ("text_generation", "text2text_generation")
"""The tasks that read GenerationSettings."""
SPECIAL_TOKENS, SPECIAL_TOKENS_OF_PAIR = 2, 3
"""Of a window in most tokenizers: [CLS] text [SEP], and [CLS] question [SEP] context [SEP]."""


def flags_without_effect(task: type[Servable], settings: TaskSettings) -> list[str]:
    """The flags that are set and that the task does not read, as on a command line."""
    default = {field.name: field.default for field in fields(TaskSettings)}
    given = {name: getattr(settings, name) for name in FLAGS}
    found = [
        f"--{name}" if value is True else f"--{name}={value}"
        for name, value in given.items()
        if value != default[name] and name not in task.parameters
    ]
    if task.name not in GENERATIVE:
        for field in fields(GenerationSettings):
            value = getattr(settings.generation, field.name)
            if value != field.default:
                flag = "generation_max_length" if field.name == "max_length" else field.name
                found.append(f"--{flag}={str(value).lower()}")
    return found


def check_stride(task: type[Servable], settings: TaskSettings) -> None:
    """Checks that windows that share --stride tokens have others too.

    Raises:
        ConfigError: they have none, so every long text would be refused.
    """
    if settings.stride is None or "stride" not in task.parameters:
        return
    window, special = settings.max_length, SPECIAL_TOKENS
    if task is QuestionAnswering:
        window, special = min(window, MAX_SEQ_LEN), SPECIAL_TOKENS_OF_PAIR
    room = window - special
    if settings.stride >= room:
        raise ConfigError(
            f"--stride={settings.stride}: windows of {window} tokens have room for {room} beside the special ones, "
            "and have to share fewer than these"
        )
