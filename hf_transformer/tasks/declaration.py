"""Declarations of a task for commands and pages: requests to try, the demo's model, the export's head, its schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hf_transformer.types.request import Json

BATCH, SEQUENCE, DECODED = "batch", "sequence", "decoder_sequence"
"""The dynamic axes of an exported model's outputs."""
MASK = "[MASK]"
"""The word for the model's mask token in an Example."""
Schema: TypeAlias = Mapping[str, Json]
"""A JSON schema, as OpenAPI 3.1 has it."""


@dataclass(frozen=True, slots=True)
class Example:
    """A request body of V1's predict route, for /openapi.json and the playground.

    ``key`` tells a task's examples apart in /openapi.json; the first one has none.
    """

    summary: str
    value: Mapping[str, Json]
    key: str = ""


@dataclass(frozen=True, slots=True)
class Demo:
    """A demo model, a request, and the service's flags for the model.

    ``served_name`` is the name in the service if another task has the model's own name.
    """

    model: str
    instance: str | Mapping[str, str | Sequence[str]]
    parameters: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    served_name: str = ""

    @property
    def name(self) -> str:
        return self.served_name or self.model

    @property
    def path(self) -> str:
        return f"/v1/models/{self.name}:predict"

    @property
    def body(self) -> str:
        return json.dumps({"instances": [self.instance]} | ({"parameters": self.parameters} if self.parameters else {}))


@dataclass(frozen=True, slots=True)
class ExportHead:
    """The class of transformers that loads a task's models, and the outputs of an exported model.

    Axes are BATCH, SEQUENCE, DECODED, or fields of config.json with their sizes.
    """

    loader: str
    outputs: Mapping[str, tuple[str, ...]]


def with_mask(value: Json, mask_token: str) -> Json:
    """An example's value with the model's mask token in place of MASK."""
    if isinstance(value, str):
        return value.replace(MASK, mask_token)
    if isinstance(value, list | tuple):
        return [with_mask(item, mask_token) for item in value]
    return {key: with_mask(item, mask_token) for key, item in value.items()} if isinstance(value, Mapping) else value


def closed(required: Sequence[str] = (), **properties: Json) -> dict[str, Json]:
    """The schema of an object without other properties."""
    schema: dict[str, Json] = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**schema, "required": [*required]} if required else schema


def array(items: Schema, **more: Json) -> dict[str, Json]:
    """The schema of a list."""
    return {"type": "array", "items": items, **more}


STRING, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}
OPTIONAL_STRING = {"type": ["string", "null"]}
FULL_STRING = {"type": "string", "minLength": 1}
TEXT_OBJECT = closed(["text"], text=STRING)
TEXT_SCHEMA: Schema = {"description": "A text.", "anyOf": [STRING, TEXT_OBJECT]}
"""The instance of most tasks."""


def takes_strings(schema: Schema) -> bool:
    """Whether a string may fit a schema."""
    return schema.get("type") == "string" or any(map(takes_strings, schema.get("anyOf", ())))
