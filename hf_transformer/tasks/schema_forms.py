"""The vocabulary that JSON schemas (2020-12) are written in here."""

from __future__ import annotations

from collections.abc import Mapping

from hf_transformer.types import Json

Schema = dict[str, Json]

STRING: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}


def array(items: Schema, **more: Json) -> Schema:
    """A list of ``items``."""
    return {"type": "array", "items": items, **more}


def record(properties: Mapping[str, Schema], *optional: str, **more: Json) -> Schema:
    """An object with these properties and no others."""
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": dict(properties),
        "required": required,
        "additionalProperties": False,
        **more,
    }


def any_of(*schemas: Schema, **more: Json) -> Schema:
    """One of several forms."""
    return {"anyOf": list(schemas), **more}


def nullable(schema: Schema, description: str, default: Json = None) -> Schema:
    """A value that may be left out, which null does too."""
    kinds = schema["type"]
    whole = {**schema, "type": [kinds, "null"], "description": description}
    if "enum" in schema:
        whole["enum"] = [*schema["enum"], None]
    return whole if default is None else {**whole, "default": default}


def flag(description: str, default: bool | None = None) -> Schema:
    return nullable({"type": "boolean"}, description, default)


def integer(description: str, minimum: int, default: int | None = None) -> Schema:
    return nullable({"type": "integer", "minimum": minimum}, description, default)


def text(description: str, **more: Json) -> Schema:
    return nullable({"type": "string", **more}, description)


def string_or_strings(description: str, **more: Json) -> Schema:
    return any_of(STRING, array(STRING, **more), {"type": "null"}, description=description)


def by_number(values: Schema) -> Schema:
    """{"0": ..., "1": ...}: values by the number of a label or of a token."""
    return {"type": "object", "additionalProperties": values, "minProperties": 1}
