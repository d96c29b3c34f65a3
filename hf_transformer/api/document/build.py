"""The OpenAPI 3.1 document of a service, from the table of operations and the types of bodies and answers.

Source: https://spec.openapis.org/oas/v3.1.1.html
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_transformer import __version__
from hf_transformer.api.document.operation import JSON, MODEL, ErrorForm, Operation
from hf_transformer.api.document.schemas import Schemas
from hf_transformer.api.document.service import ERROR_TYPES, FAILURES, RETRIED
from hf_transformer.api.document.table import served
from hf_transformer.generation.task import TASK_CLASSES
from hf_transformer.tasks.base import Servable
from hf_transformer.tasks.declaration import MASK, with_mask
from hf_transformer.types.request import Json

DESCRIPTION = """\
Hugging Face models of a Triton Inference Server with text in and answers out.

Bodies are JSON, whatever the content type says; `Content-Encoding: gzip` and `deflate` are understood.
With --enable_grpc the service also speaks the V2 protocol over gRPC."""
TAGS = {
    "V1": "KServe's V1 protocol.",
    "V2": "The open inference protocol (V2) over REST.",
    "Generate": "Triton's generate extension. Needs a model that generates text.",
    "OpenAI": "The OpenAI API.",
    "Anthropic": "Anthropic's Messages API.",
    "Tokenization": "The tokenizer and the chat template of the served model.",
    "TEI": "text-embeddings-inference's API. Unknown fields have no effect; a header lists them.",
    "vLLM": "vLLM's routes of pooling models, of the tokenizer and of generative scoring.",
    "Presidio": "Presidio's analyzer and anonymizer.",
    "Retrieval": "Cohere, Jina, Voyage and NVIDIA NIM.",
    "Operations": "For the cluster: liveness, metrics, and this document.",
}
KEYS: dict[str, Json] = {
    "Bearer": {"type": "http", "scheme": "bearer"},
    "XApiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "ApiKey": {"type": "apiKey", "in": "header", "name": "api-key"},
}
HEADERS: dict[str, Json] = {
    "X-Request-Id": {"description": "The id of the request, or a new one.", "schema": {"type": "string"}},
    "X-Ignored-Parameters": {
        "description": "The unknown keys and parameters of the request, if it has any; at most 10.",
        "schema": {"type": "string"},
        "example": "top_kk",
    },
    "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}},
}
TEXT: Json = {"type": "string"}


@dataclass(frozen=True, slots=True)
class Served:
    """The models and settings on which a document depends.

    Attributes:
        names: the names of the models; ``all_names`` with aliases and adapters.
        tasks: the classes of their tasks.
        mask: a mask token of their tokenizers.
        root: the path of the OpenAI API.
        runs: whether a predictor runs the models.
        keys: whether requests need an API key.
    """

    names: Sequence[str]
    all_names: Sequence[str]
    tasks: Sequence[type[Servable]]
    mask: str
    root: str
    runs: bool
    keys: bool


EVERYTHING = Served((), (), tuple(TASK_CLASSES.values()), MASK, "/openai", runs=True, keys=True)
"""Models of all tasks, without their names."""


def build(about: Served) -> dict[str, Json]:
    """The document of a service."""
    return _Builder(about).document()


class _Builder:
    """Collects the named parts to which operations refer."""

    def __init__(self, about: Served) -> None:
        self._about = about
        self._schemas = Schemas(about.tasks, about.all_names)
        self._parameters: dict[str, Json] = {}
        self._responses: dict[str, Json] = {}
        self._headers: dict[str, Json] = {}
        self._single = about.names[0] if len(about.names) == 1 else None

    def document(self) -> dict[str, Json]:
        about = self._about
        paths: dict[str, dict[str, Json]] = {}
        for one in served(about.root):
            if about.runs or not (one.method == "post" and one.runs_model and not _tokenizes(one)):
                path = one.path if self._single is None else one.path.replace(MODEL, self._single)
                paths.setdefault(path, {})[one.method] = self._operation(one)
        title = f"hf_transformer: {', '.join(about.names)}" if about.names else "hf_transformer"
        parts = {
            "securitySchemes": KEYS if about.keys else {},
            "parameters": self._parameters,
            "headers": self._headers,
            "responses": self._responses,
            "schemas": self._schemas.named,
        }
        document = {
            "openapi": "3.1.0",
            "info": {"title": title, "version": __version__, "description": DESCRIPTION},
            "servers": [{"url": "./"}],  # relative to the document, so that it holds behind a proxy with a path
            "security": [{name: []} for name in KEYS] if about.keys else [],
            "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
            "paths": paths,
            "components": {name: part for name, part in parts.items() if part},
        }
        named: dict[str, Json] = self._named(document)
        return named

    def _operation(self, operation: Operation) -> dict[str, Json]:
        examples = operation.examples(self._schemas) if callable(operation.examples) else operation.examples
        body: dict[str, Json] = {}
        if operation.method == "post":
            contents = {JSON: operation.body, **operation.other_bodies}
            body["requestBody"] = {
                **({"description": operation.body_description} if operation.body_description else {}),
                "required": operation.body_is_required,
                "content": {kind: self._content(shape, examples, kind) for kind, shape in contents.items()},
            }
        needs = f"Needs a model for {_either(operation.tasks)}; another one is a 400." if operation.tasks else ""
        description = " ".join(filter(None, (needs, operation.description)))
        return {
            "operationId": operation.id,
            "summary": operation.summary,
            **({"description": description} if description else {}),
            "tags": [*operation.tags],
            **({"security": []} if operation.is_open else {}),
            "parameters": [self._parameter(name) for name in self._parameters_of(operation)],
            **body,
            "responses": self._responses_of(operation, {} if body else examples),
        }

    def _parameters_of(self, one: Operation) -> list[str]:
        path = ["PathModel"] if MODEL in one.path and self._single is None else []
        return [*path, *(["Version"] if "{version}" in one.path else []), *one.parameters]

    def _parameter(self, name: str) -> Json:
        self._parameters[name] = self._parameter_of(name)
        return {"$ref": f"#/components/parameters/{name}"}

    def _parameter_of(self, name: str) -> Json:
        names = {**TEXT, **({"enum": [*self._about.all_names]} if self._about.all_names else {})}
        known: dict[str, Json] = {
            "PathModel": {"name": "model", "in": "path", "required": True, "schema": names},
            "Model": {
                "name": "model",
                "in": "query",
                "description": "The model, for a request whose body has no field model.",
                "schema": names,
            },
            "InfoModel": {
                "name": "model",
                "in": "query",
                "description": "The model to describe; the only one of the service by default.",
                "schema": names,
            },
            "Version": {
                "name": "version",
                "in": "path",
                "required": True,
                "description": "The version that the predictor serves; others are not found.",
                "schema": {**TEXT, "minLength": 1},
                "example": "1",
            },
            "RequestId": {
                "name": "X-Request-Id",
                "in": "header",
                "description": "The request's id in logs and at the predictor; the service makes one by default.",
                "schema": TEXT,
            },
            "TraceParent": {
                "name": "traceparent",
                "in": "header",
                "description": "The service forwards it to the predictor, as tracestate and x-b3-*.",
                "schema": TEXT,
            },
        }
        return known[name]

    def _responses_of(self, operation: Operation, examples: Mapping[str, Json]) -> dict[str, Json]:
        contents = {} if operation.answer is None else {JSON: operation.answer}
        more_contents = {kind: shape for kind, shape in operation.other_answers.items() if self._answers(kind)}
        headers = [*(["X-Request-Id"] if operation.parameters and operation.method == "post" else [])]
        headers += ["X-Ignored-Parameters"] if operation.notes_ignored else []
        responses: dict[str, Json] = {"200": {"description": operation.returns, **self._headed(headers)}}
        if contents or more_contents:
            responses["200"]["content"] = {
                kind: self._content(shape, examples, kind, closed=True)
                for kind, shape in {**contents, **more_contents}.items()
            }
        statuses = set(operation.statuses) - (set() if self._about.keys else {401})
        for status in sorted(statuses):
            responses[str(status)] = self._failure(operation.errors, status)
        if operation.not_ready is not None and operation.not_ready is ERROR_TYPES[ErrorForm.SERVICE]:
            responses["503"] = self._failure(operation.errors, 503)
        elif operation.not_ready is not None:
            responses["503"] = {
                "description": "Not ready, with the reason.",
                **self._headed(["Retry-After"]),
                "content": {JSON: {"schema": self._schemas.of(operation.not_ready)}},
            }
        return responses

    def _answers(self, kind: str) -> bool:
        """Whether the served tasks have answers of a content type."""
        return kind != "application/jsonl" or self._schemas.generates

    def _failure(self, form: ErrorForm, status: int) -> Json:
        name, description = FAILURES[status]
        name = f"{'' if form is ErrorForm.SERVICE else form.value.removesuffix('Error')}{name}"
        if name not in self._responses:
            self._responses[name] = {
                "description": description,
                **self._headed(["Retry-After"] if status in RETRIED else []),
                "content": {JSON: {"schema": self._schemas.of(ERROR_TYPES[form])}},
            }
        return {"$ref": f"#/components/responses/{name}"}

    def _headed(self, names: Collection[str]) -> dict[str, Json]:
        self._headers |= {name: HEADERS[name] for name in names}
        return {"headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names}} if names else {}

    def _content(self, shape: Any, examples: Mapping[str, Json], kind: str, *, closed: bool = False) -> dict[str, Json]:
        content: dict[str, Json] = {"schema": self._schemas.of(shape, closed=closed)}
        if examples and kind == JSON:
            content["examples"] = {
                key_of(title): {"summary": title, "value": with_mask(value, self._about.mask)}
                for title, value in examples.items()
            }
        return content

    def _named(self, value: Any) -> Any:
        """Names the model in examples, and all names in the values of a field."""
        if value == MODEL:
            return next(iter(self._about.names), MODEL)
        if isinstance(value, Mapping):
            if value.get("enum") == [MODEL]:
                names = [*self._about.all_names]
                return {**value, "enum": names} if names else {k: v for k, v in value.items() if k != "enum"}
            return {key: self._named(part) for key, part in value.items()}
        return [self._named(part) for part in value] if isinstance(value, list | tuple) else value


def key_of(title: str) -> str:
    """The key of an example."""
    return re.sub(r"[^\w-]+", "_", title)


def _tokenizes(operation: Operation) -> bool:
    """Whether an operation needs only the tokenizer."""
    return operation.id in (
        "teiTokenize",
        "teiDecode",
        "detokenizeIds",
        "renderCompletions",
        "renderChat",
        "renderMessages",
        "renderResponses",
        "derenderCompletions",
        "derenderChat",
        "anthropicCountTokens",
    )


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
