"""What the schemas of all tasks have in common."""

from __future__ import annotations

from dataclasses import dataclass

from hf_transformer.tasks.base import TaskSettings
from hf_transformer.tasks.schema_forms import Schema, nullable, record
from hf_transformer.types import Json


@dataclass(frozen=True, slots=True)
class TaskSchemas:
    """What a task takes and gives. ``parameters`` has a property per parameter; ``example`` is an instance, and
    ``example_parameters`` what it needs beside it."""

    instance: Schema
    parameters: Schema
    prediction: Schema
    example: Json
    example_parameters: Json = None


def parameters_of(settings: TaskSettings, **properties: Schema) -> Schema:
    """A request's parameters: ``output_format`` and those of the task."""
    form = nullable(
        {"type": "string", "enum": ["kserve", "pipeline"]},
        "Answers as KServe's runtime gives them, or as a Hugging Face pipeline does.",
        settings.output_format,
    )
    return record({"output_format": form, **properties}, "output_format", *properties)
