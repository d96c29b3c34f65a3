"""Operations of the HTTP APIs as data: path, method, body, answers, statuses, tasks.

The tables of operations (table.py lists them) give the application its paths, and /openapi.json its content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec import UnsetType

from hf_transformer.types.request import Json

if TYPE_CHECKING:
    from hf_transformer.api.document.schemas import Schemas

PREFIX = "{prefix}"
"""The beginning of paths below --openai_route_prefix."""
MODEL = "{model}"
"""The path parameter for a model, and in examples the name of a served model."""
JSON, JSON_LINES, EVENTS = "application/json", "application/jsonl", "text/event-stream"
CLOUD_EVENT, BINARY = "application/cloudevents+json", "application/octet-stream"

Item = TypeVar("Item")
Maybe: TypeAlias = Item | UnsetType
"""A field that an answer may omit; its default is UNSET."""
Shape: TypeAlias = Any
"""A type for msgspec, or a function that makes the JSON Schema for the served tasks."""


class ErrorForm(Enum):
    """The form of errors. Paths that several APIs share have the form of the body's API."""

    SERVICE = "Error"
    OPENAI = "OpenAIError"
    ANTHROPIC = "AnthropicError"
    TEI = "TeiError"
    MESSAGE = "MessageError"
    SHARED = "SharedError"
    PRESIDIO = "PresidioError"


BODY_STATUSES = (400, 401, 404, 408, 413, 415, 429, 503)
"""Failures of each operation with a body."""
PREDICTOR_STATUSES = (502, 504)
"""Failures of operations that call the predictor."""
TEI_STATUSES, PRESIDIO_STATUSES = (422, 424), (422,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A path with a method.

    Attributes:
        path: with PREFIX and MODEL; the model's name may have slashes.
        id: the operationId.
        handler: the id by which the API names the handler; ``id`` if it is empty.
        tags: the names of its APIs.
        tasks: the names of tasks whose models answer; empty for all.
        body: the body in JSON.
        other_bodies: the body in other content types.
        answer: the answer in JSON; None for an answer without a body.
        other_answers: the answer in other content types.
        returns: the answer in words.
        examples: bodies, or answers of an operation without a body, by a title.
        parameters: names of shared parameters.
        errors: the form of errors.
        not_ready: the answer of status 503, if it is no error; True for an error.
        runs_model: whether the predictor is called.
        is_open: whether it needs no API key.
        only_with_prefix: whether it exists only with --openai_route_prefix.
        notes_ignored: whether a header lists ignored parameters.
    """

    path: str
    id: str
    summary: str
    tags: tuple[str, ...]
    method: str = "post"
    description: str = ""
    tasks: tuple[str, ...] = ()
    body: Shape = None
    body_is_required: bool = True
    body_description: str = ""
    other_bodies: Mapping[str, Shape] = field(default_factory=dict)
    answer: Shape = None
    other_answers: Mapping[str, Shape] = field(default_factory=dict)
    returns: str = "The answer."
    examples: Mapping[str, Json] | Callable[[Schemas], Mapping[str, Json]] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    errors: ErrorForm = ErrorForm.SERVICE
    not_ready: Shape = None
    runs_model: bool = True
    is_open: bool = False
    only_with_prefix: bool = False
    notes_ignored: bool = False
    handler: str = ""

    @property
    def statuses(self) -> tuple[int, ...]:
        """The failures, without 503 where ``not_ready`` is an answer."""
        if self.method == "get":
            failures = () if self.is_open else (401,)
            return (*failures, *((404,) if MODEL in self.path or self.id == "info" else ()))
        if self.errors is ErrorForm.TEI:
            return (*BODY_STATUSES, *TEI_STATUSES)
        shared: tuple[int, ...] = TEI_STATUSES if self.errors is ErrorForm.SHARED else ()
        if self.errors is ErrorForm.PRESIDIO and not self.runs_model:
            shared = PRESIDIO_STATUSES
        return (*BODY_STATUSES, *(PREDICTOR_STATUSES if self.runs_model else ()), *shared)

    def at(self, path: str, id: str, **changes: Any) -> Operation:
        """A similar operation at another path, by default with the same body and answer."""
        return replace(self, path=path, id=id, **changes)


def versioned(*operations: Operation) -> list[Operation]:
    """Operations of a model, each with a version in its path, and without.

    The path with a version is the first, since a model's name may have slashes.
    """
    made = []
    for one in operations:
        path = one.path.replace(MODEL, f"{MODEL}/versions/{{version}}")
        made += [one.at(path, f"{one.id.removesuffix('Model')}Version", is_open=False, handler=one.id), one]
    return made
