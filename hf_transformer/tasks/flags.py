"""Which of the service's flags each task reads, and what is wrong with those that are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from hf_transformer.errors import ConfigError
from hf_transformer.tasks.base import TaskSettings
from hf_transformer.tasks.generation_settings import USUAL
from hf_transformer.tasks.question_answering import MAX_SEQ_LEN

LOGITS = ("return_probabilities", "return_raw_logits")
FLAGS = (*LOGITS, "return_offsets_mapping", "aggregation_strategy", "stride")
"""Those that some tasks don't read; fields of TaskSettings."""
GENERATION: Mapping[str, str] = {
    "generation_max_length": "max_length",
    "temperature": "temperature",
    "do_sample": "do_sample",
    "top_k": "top_k",
    "top_p": "top_p",
    "return_full_text": "return_full_text",
    "max_new_tokens": "max_new_tokens",
}
"""Flags that only tasks that generate text read, with their names in GenerationSettings."""
GENERATIVE = ("text_generation", "text2text_generation")
READS: Mapping[str, frozenset[str]] = {
    "fill_mask": frozenset(LOGITS),
    "sequence_classification": frozenset(LOGITS),
    "zero_shot_classification": frozenset(),
    "rerank": frozenset(),
    "token_classification": frozenset(FLAGS),
    "question_answering": frozenset({"stride"}),
    "text_embedding": frozenset({"stride"}),
    "feature_extraction": frozenset(),
    "text_generation": frozenset(),
    "text2text_generation": frozenset(),
}
"""By the task's name. Tasks that read no LOGITS refuse them, so only the others can go without effect."""
SPECIAL_TOKENS, SPECIAL_TOKENS_OF_PAIR = 2, 3
"""Of a window in most tokenizers: [CLS] text [SEP], and [CLS] question [SEP] context [SEP]."""


def flags_without_effect(task: str, settings: TaskSettings) -> list[str]:
    """Flags that are set and that the task does not read, as they are given on a command line."""
    default = {field.name: field.default for field in fields(TaskSettings)}
    found = []
    for name in FLAGS:
        value = getattr(settings, name)
        if value != default[name] and name not in READS[task]:
            found.append(f"--{name}" if value is True else f"--{name}={value}")
    if task not in GENERATIVE:
        for flag, name in GENERATION.items():
            value = getattr(settings.generation, name)
            if value != getattr(USUAL, name):
                found.append(f"--{flag}={str(value).lower()}")
    return found


def check_stride(task: str, settings: TaskSettings) -> None:
    """Whether windows that share --stride tokens can have any others.

    Raises:
        ConfigError: they can't, so that every long text would be refused.
    """
    if settings.stride is None or "stride" not in READS[task]:
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
