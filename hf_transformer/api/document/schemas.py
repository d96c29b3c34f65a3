"""JSON Schemas of one OpenAPI document: of types, and of what the served tasks declare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import FunctionType, UnionType
from typing import Any, Union, get_args, get_origin

from msgspec import Struct

from hf_transformer.generation.task import GENERATIVE
from hf_transformer.tasks.base import Servable
from hf_transformer.types.fields import json_schemas
from hf_transformer.types.request import Json


class ClosedAnswer(Struct, forbid_unknown_fields=True):
    """An answer, or a part of one. Handlers build answers as dicts; the types are for the document."""


class Schemas:
    """The schemas of a document, by name.

    Args:
        tasks: the classes of the served tasks.
        names: all names of the served models.
    """

    def __init__(self, tasks: Sequence[type[Servable]], names: Sequence[str]) -> None:
        self.tasks = tasks
        self.names = names
        self.named: dict[str, Json] = {}
        self._made: dict[Any, Json] = {}
        self._types: dict[str, Json] = {}

    def title(self, task: type[Servable], summary: str) -> str:
        """The title of a task's example."""
        return summary if len(self.tasks) == 1 else f"{task.name}: {summary}"

    @property
    def generates(self) -> bool:
        """Whether a served task generates text."""
        return any(task.name in GENERATIVE for task in self.tasks)

    def of(self, shape: Any, *, closed: bool = False) -> Json:
        """The schema of a type, or what a function makes of the served tasks. ``closed`` refuses other fields."""
        if isinstance(shape, FunctionType):
            return shape(self)
        if get_origin(shape) in (Union, UnionType):  # msgspec reads no unions of objects without tags
            return {"anyOf": [self.of(member, closed=closed) for member in get_args(shape)]}
        if shape in self._made:
            return self._made[shape]
        [schema], found = json_schemas([shape])
        self._made[shape] = schema
        for name, component in found.items():
            component = _without_null_defaults(component)
            if closed:
                component.setdefault("additionalProperties", False)
            if self._types.setdefault(name, component) != component:
                raise AssertionError(f"two types have the name {name}, or one is a part of bodies and of answers")
            self.named.setdefault(name, component)
        return schema

    def reference(self, name: str, make: Callable[[], Json]) -> Json:
        """A reference to a named schema, which is made once."""
        if name not in self.named:
            self.named[name] = make()
        return {"$ref": f"#/components/schemas/{name}"}


def distinct(schemas: Iterable[Json]) -> list[Json]:
    """The schemas, each once, in their order."""
    different: list[Json] = []
    for schema in schemas:
        if schema not in different:
            different.append(schema)
    return different


def nullable(schema: Json) -> Json:
    """A schema that also allows null."""
    return {"anyOf": [schema, {"type": "null"}]}


def events(kind: type[Struct], *, done: bool = False) -> Callable[[Schemas], Json]:
    """Makes the schema of one server-sent event: the form of OpenAPI 3.2, as 3.1 has none. ``done`` adds [DONE]."""

    def make(schemas: Schemas) -> Json:
        content = schemas.of(kind, closed=True)
        data: Json = {"type": "string", "contentMediaType": "application/json", "contentSchema": content}
        forms: Json = {"anyOf": [{"const": "[DONE]"}, data]} if done else data
        return {"type": "object", "required": ["data"], "properties": {"data": forms}}

    return make


def named_events(kinds: Sequence[type[Struct]], example: str) -> Callable[[Schemas], Json]:
    """Makes the schema of one server-sent event whose name is the type in its data."""

    def make(schemas: Schemas) -> Json:
        forms = [schemas.of(kind, closed=True) for kind in kinds]
        data = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": forms}}
        event = {"type": "string", "description": f"{example}, for instance."}
        return {"type": "object", "required": ["event", "data"], "properties": {"event": event, "data": data}}

    return make


def _without_null_defaults(schema: Json) -> Json:
    """The schema of an object. A default of null says nothing more than that a field is optional."""
    for part in schema.get("properties", {}).values():
        if part.get("default", False) is None:
            del part["default"]
    return schema
