"""The pieces that the paths of the document are made of (OpenAPI 3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hf_transformer.errors import (
    InvalidInput,
    PredictorError,
    PredictorTimeout,
    RequestError,
    TooLarge,
    TooManyRequests,
    Unavailable,
    UnknownModel,
    UnsupportedEncoding,
)
from hf_transformer.tasks.base import Servable
from hf_transformer.tasks.schema_forms import STRING, Schema, any_of
from hf_transformer.tasks.task_schemas import TaskSchemas
from hf_transformer.types import Json

JSON = "application/json"
BYTES = "application/octet-stream"
EVENTS, LINES = "text/event-stream", "application/jsonl"

ERRORS: Sequence[tuple[type[RequestError], str]] = (
    (InvalidInput, "The request is wrong in itself; the message names the field and what was expected."),
    (UnknownModel, "No such model, version or path."),
    (TooLarge, "The body, the batch or a text is over its limit, which the message names."),
    (UnsupportedEncoding, "The body has a compression or a charset that is not understood."),
    (TooManyRequests, "Too many requests are in flight; try again after Retry-After seconds."),
    (PredictorError, "The predictor answered with an error of its own, which is quoted."),
    (Unavailable, "Not ready yet, or the predictor is down; try again after Retry-After seconds."),
    (PredictorTimeout, "The answer took too long."),
)
"""What a request can fail with, by the classes that carry the status."""

QUESTION = (UnknownModel,)
READINESS = (UnknownModel, Unavailable)
BODY = (InvalidInput, TooLarge, UnsupportedEncoding, TooManyRequests)
"""Of every POST, beside what its own work fails with."""
ALONE = (UnknownModel, *BODY, Unavailable)
"""Of a POST that does not ask the predictor."""
WORK = (*ALONE, PredictorError, PredictorTimeout)


@dataclass(frozen=True, slots=True)
class Described:
    """What the document is made from.

    ``models`` are the names that are served, ``task`` is what they do and ``schemas`` what it takes and gives; ``root``
    comes before /v1 in the OpenAI API ("" or "/openai"), ``max_bytes`` is the size of a body.
    """

    models: Sequence[str]
    task: Servable
    schemas: TaskSchemas
    root: str
    max_bytes: int


def ref(name: str, kind: str = "schemas") -> Schema:
    """A reference to a component."""
    return {"$ref": f"#/components/{kind}/{name}"}


def body(schema: Schema, example: Json, description: str = "", **more: Json) -> Json:
    """A request's body in JSON; ``more`` are further content types."""
    content = {JSON: {"schema": schema, "example": example}, **more}
    return {"required": True, "description": description, "content": content}


def answer(schema: Schema, description: str, content_type: str = JSON, *, again: bool = False) -> Json:
    """A response with one content type; ``again`` if it says when to try again."""
    found: dict[str, Json] = {"description": description, "content": {content_type: {"schema": schema}}}
    return {**found, "headers": {"Retry-After": ref("RetryAfter", "headers")}} if again else found


def streamed(ok: Json, piece: Schema, content_type: str) -> Json:
    """An answer that may also come as a stream of pieces."""
    return {**ok, "content": {**ok["content"], content_type: {"schema": piece}}}


def event_of(data: Schema) -> Schema:
    """A server-sent event whose data is JSON, in the form of OpenAPI 3.2; 3.1 has none."""
    text = {"type": "string", "contentMediaType": JSON, "contentSchema": data}
    return {"type": "object", "properties": {"data": any_of(text, {"const": "[DONE]"})}, "required": ["data"]}


def failures(kinds: Sequence[type[RequestError]], schema: Schema) -> dict[str, Json]:
    """The responses to what a request can fail with; ``schema`` is the API's error body."""
    found = {}
    for kind, description in ERRORS:
        if kind in kinds:
            found[str(kind.status)] = answer(schema, description, again=kind.retry_after is not None)
    return found


def question(
    name: str, summary: str, tag: str, ok: Json, *parameters: str, fails: Mapping[str, Json] | None = None
) -> Json:
    """A GET; ``parameters`` are names of components."""
    return {
        "get": {
            "operationId": name,
            "summary": summary,
            "tags": [tag],
            "parameters": [ref(one, "parameters") for one in parameters],
            "responses": {"200": ok, **(fails or {})},
        }
    }


def work(
    name: str, summary: str, tag: str, request: Json, ok: Json, *parameters: str, fails: Mapping[str, Json]
) -> Json:
    """A POST; ``parameters`` are names of components, beside the headers that all of them take."""
    headers = ("RequestId", "TraceParent")
    return {
        "post": {
            "operationId": name,
            "summary": summary,
            "tags": [tag],
            "parameters": [ref(one, "parameters") for one in (*parameters, *headers)],
            "requestBody": request,
            "responses": {"200": {**ok, "headers": {"X-Request-Id": ref("RequestId", "headers")}}, **fails},
        }
    }


def shared(about: Described) -> dict[str, Json]:
    """The components of all APIs but their schemas."""
    return {
        "parameters": {
            "Model": {
                "name": "model",
                "in": "path",
                "required": True,
                "description": "The model's name.",
                "schema": {"type": "string", "enum": list(about.models)},
            },
            "RequestId": _header("X-Request-Id", "Names the request in logs and at the predictor; made if not given."),
            "TraceParent": _header("traceparent", "Passed on to the predictor, as tracestate and x-b3-* are."),
        },
        "headers": {
            "RequestId": {"description": "The request's own, or the one made for it.", "schema": STRING},
            "RetryAfter": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}},
        },
    }


def _header(name: str, description: str) -> Json:
    return {"name": name, "in": "header", "description": description, "schema": STRING}
