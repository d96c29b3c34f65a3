"""Operations about the service: liveness, /info, metrics, the document; and the types of all errors."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET

from hf_transformer import RELEASE
from hf_transformer.api.anthropic.answers import AnthropicErrorAnswer
from hf_transformer.api.document.operation import PREFIX, ErrorForm, Maybe, Operation
from hf_transformer.api.document.schemas import ClosedAnswer, Schemas
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.types.fields import about
from hf_transformer.types.request import Json

SAME = about("The same as in error, at paths that several APIs share.")


# Errors


class ErrorAnswer(ClosedAnswer):
    error: str


class OpenAIErrorDetails(ClosedAnswer):
    message: str
    type: str
    param: Annotated[str | None, about("The path of the field.")]
    code: str | None


class OpenAIErrorAnswer(ClosedAnswer):
    error: OpenAIErrorDetails
    message: Annotated[Maybe[str], SAME] = UNSET
    detail: Annotated[Maybe[str], SAME] = UNSET


class TeiErrorAnswer(ClosedAnswer):
    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Empty"]


class MessageErrorAnswer(ClosedAnswer):
    """An error of Cohere; of Jina, Voyage and NVIDIA NIM with further fields."""

    message: str
    detail: Maybe[str] = UNSET
    object: Maybe[Literal["error"]] = UNSET
    type: Maybe[str] = UNSET


ERROR_TYPES: dict[ErrorForm, Any] = {
    ErrorForm.SERVICE: ErrorAnswer,
    ErrorForm.OPENAI: OpenAIErrorAnswer,
    ErrorForm.ANTHROPIC: AnthropicErrorAnswer,
    ErrorForm.TEI: TeiErrorAnswer,
    ErrorForm.MESSAGE: MessageErrorAnswer,
    ErrorForm.PRESIDIO: ErrorAnswer,
    ErrorForm.SHARED: OpenAIErrorAnswer | TeiErrorAnswer,
}
FAILURES = {
    400: ("BadRequest", "The request is wrong; the message names the field and the expected values."),
    401: ("NoKey", "No known API key."),
    404: ("NotFound", "No such model, version or path."),
    408: ("TooSlow", "The body did not arrive within --client_timeout_seconds."),
    413: ("TooLarge", "The body, the batch or a text is over a limit, which the message names."),
    415: ("UnsupportedEncoding", "The body has an unknown compression, charset or form."),
    422: ("Unprocessable", "A wrong field or a long text, in text-embeddings-inference's or Presidio's form."),
    424: ("BackendError", "An error of the predictor or a model of another kind, in text-embeddings-inference's form."),
    429: (
        "TooManyRequests",
        "The requests in flight, their tokens or the bytes of their bodies have reached a limit, which the message "
        "names; retry after Retry-After seconds.",
    ),
    502: ("PredictorError", "The predictor's error, which the message quotes."),
    503: ("Unavailable", "Not ready, or the predictor is down; retry after Retry-After seconds."),
    504: ("PredictorTimeout", "The answer took too long."),
}
"""The name and description of each status."""
RETRIED = (429, 503)
"""The statuses with the header Retry-After."""


# Answers


class Alive(ClosedAnswer):
    status: Literal["alive"]


class Links(ClosedAnswer):
    """Pages of the service by path, and the address of its documentation."""

    health: str
    docs: Annotated[Maybe[str], about("With --enable_docs_url.")] = UNSET
    documentation: Maybe[str] = UNSET


class ModelState(ClosedAnswer, kw_only=True):
    name: str
    task: Annotated[Maybe[str], about("The task of a loaded model.")] = UNSET
    purpose: Annotated[Maybe[str], about("The task in a few words.")] = UNSET
    ready: bool
    reason: Annotated[Maybe[str], about("The reason why it is not ready.")] = UNSET
    since: Annotated[
        Maybe[str],
        about(
            "The time at which the service ceased to serve the model as declared. Also for a model whose change has "
            "an error.",
            schema={"format": "date-time"},
        ),
    ] = UNSET
    counts: Annotated[
        Maybe[bool],
        about(
            "The service is ready without it: it was added later, or unloaded, and has not been ready since.",
            schema={"const": False},
        ),
    ] = UNSET
    aliases: Maybe[list[str]] = UNSET
    adapters: Maybe[list[str]] = UNSET


class ModelStates(ClosedAnswer, kw_only=True):
    """The states of all models."""

    version: str
    models: list[ModelState]
    errors: Annotated[
        Maybe[dict[str, str]],
        about("Changes that failed, by model, or by the file of --models or the folder of --model_repository."),
    ] = UNSET
    links: Links


class EmbeddingType(ClosedAnswer):
    pooling: Maybe[Literal["cls", "mean", "last_token", "splade"]] = UNSET


class LabelsType(ClosedAnswer):
    id2label: dict[str, str]
    label2id: dict[str, int]


class ModelType(ClosedAnswer):
    embedding: Maybe[EmbeddingType] = UNSET
    reranker: Maybe[LabelsType] = UNSET
    classifier: Maybe[LabelsType] = UNSET


class TeiInfo(ModelStates, kw_only=True):
    """A model, and the states of all models."""

    model_id: str
    model_sha: str | None
    served_model_name: str
    model_type: Annotated[Maybe[ModelType], about(schema={"minProperties": 1, "maxProperties": 1})] = UNSET
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int


def text(schemas: Schemas) -> Json:
    return {"type": "string"}


def any_object(schemas: Schemas) -> Json:
    return {"type": "object"}


OPERATIONS_TAG = ("Operations",)
HEALTH = Operation(
    method="get",
    path="/health",
    id="health",
    summary="The readiness of the service, as in vLLM and text-embeddings-inference",
    tags=OPERATIONS_TAG,
    returns="The service is ready, without a body; 503 with the reason.",
    not_ready=ErrorAnswer,
    is_open=True,
)
INFO_EXAMPLES: dict[str, Json] = {
    "a model for text embedding": {
        "model_id": "sentence-transformers/all-MiniLM-L6-v2",
        "model_sha": None,
        "served_model_name": "minilm",
        "model_type": {"embedding": {"pooling": "mean"}},
        "max_concurrent_requests": 1024,
        "max_input_length": 256,
        "max_batch_tokens": 16384,
        "max_client_batch_size": 2048,
        "auto_truncate": True,
        "tokenization_workers": 6,
        "version": RELEASE,
        "models": [{"name": "minilm", "task": TextEmbedding.name, "ready": True, "aliases": [], "adapters": []}],
        "links": {"health": "/v2/health/ready", "docs": "/docs"},
    },
    "several models": {
        "version": RELEASE,
        "models": [
            {"name": "bert", "task": FillMask.name, "ready": True, "aliases": ["text"], "adapters": []},
            {
                "name": "e5",
                "ready": False,
                "reason": "it is being loaded",
                "since": "2026-11-28T14:05:00+00:00",
                "counts": False,
            },
        ],
        "errors": {"/models.yaml": "/models.yaml: models[1] (e5): unknown key 'max_len'"},
        "links": {"health": "/v2/health/ready"},
    },
}
OPERATIONS = (
    Operation(
        method="get",
        path="/",
        id="alive",
        summary="The liveness of the service",
        description="With --enable_playground a browser (Accept has text/html) is redirected to that page.",
        tags=OPERATIONS_TAG,
        answer=Alive,
        returns="The process is alive.",
        is_open=True,
    ),
    HEALTH,
    HEALTH.at("/ping", "ping", handler="health"),
    HEALTH.at(f"{PREFIX}/health", "openaiHealth", handler="health", errors=ErrorForm.OPENAI, only_with_prefix=True),
    Operation(
        method="get",
        path="/info",
        id="info",
        summary="The model under the names of text-embeddings-inference, and the states of all models",
        tags=OPERATIONS_TAG,
        parameters=("InfoModel",),
        answer=TeiInfo | ModelStates,
        returns="A model's fields, and model_type if that server has a word for the task. Of several models, without "
        "the query model, only version, models, links and errors.",
        examples=INFO_EXAMPLES,
        not_ready=ErrorAnswer,
    ),
    Operation(
        method="get",
        path="/metrics",
        id="metrics",
        summary="Metrics for Prometheus",
        tags=OPERATIONS_TAG,
        other_answers={"text/plain": text},
        returns="The metrics.",
        is_open=True,
    ),
    Operation(
        method="get",
        path="/openapi.json",
        id="openapi",
        summary="This document",
        tags=OPERATIONS_TAG,
        answer=any_object,
        returns="An OpenAPI 3.1 document.",
    ),
)
