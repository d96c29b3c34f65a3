"""Schemas of bodies and answers without a declared type so far, from pending.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from hf_transformer.api.document.schemas import Schemas
from hf_transformer.types.request import Json

FILE = Path(__file__).with_suffix(".json")
REFERENCE = "#/components/schemas/"


@cache
def read() -> Any:
    return json.loads(FILE.read_text("utf-8"))


def pending(operation: str, content_type: str = "") -> Callable[[Schemas], Json]:
    """Makes the schema of an operation's body, or of its answer in a content type."""

    def make(schemas: Schemas) -> Json:
        schema = read()["shapes"][f"{operation} {content_type}".rstrip()]
        add_named(schema, schemas)
        return schema

    return make


def add_named(schema: Json, schemas: Schemas) -> None:
    """Adds the named schemas to which a schema refers."""
    if isinstance(schema, dict):
        name = str(schema.get("$ref", "")).removeprefix(REFERENCE)
        if name and name not in schemas.named and name in read()["schemas"]:
            schemas.named[name] = read()["schemas"][name]
            add_named(schemas.named[name], schemas)
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        add_named(part, schemas)
