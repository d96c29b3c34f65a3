"""The service's own half: its flags, and what lies in the model's folder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hf_transformer.commands.doctor.findings import Finding, ok
from hf_transformer.commands.doctor.subject import Subject
from hf_transformer.model_parts import load_parts


async def flags(subject: Subject) -> Sequence[Finding]:
    """What was set and has no effect."""
    notes = [Finding("warning", note, "correct the flag or the variable, or leave it out") for note in subject.notes]
    return notes or ok("all understood")


async def model_files(subject: Subject) -> Sequence[Finding]:
    """The tokenizer, config.json and the task, loaded as the service loads them. Raises LoadError, ConfigError."""
    with _warnings() as warnings:
        subject.parts = parts = await asyncio.to_thread(load_parts, subject.config)
    architectures = parts.task.settings.model_config.get("architectures") or ["no architecture"]
    where = subject.config.model_id or subject.config.model_dir
    found = ok(f"{architectures[0]} in {where}, served as {parts.task.name}; {parts.tokenizer.vocab_size} tokens")
    return [
        *found,
        *(Finding("warning", one, "leave the flag out, or see what it says of the file") for one in warnings),
    ]


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What the service would log as warnings while it loads."""
    records: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record.getMessage())

    ours, keeper = logging.getLogger("hf_transformer"), Keeper(logging.WARNING)
    ours.addHandler(keeper)
    try:
        yield records
    finally:
        ours.removeHandler(keeper)
