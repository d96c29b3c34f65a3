"""Operations of V1: models, their descriptions and predictions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct

from hf_transformer import RELEASE
from hf_transformer.api.call import TritonParameters
from hf_transformer.api.document.operation import CLOUD_EVENT, JSON_LINES, Maybe, Operation
from hf_transformer.api.document.schemas import ClosedAnswer, Schemas, distinct, nullable
from hf_transformer.api.document.service import ErrorAnswer, Links
from hf_transformer.api.v1 import CloudEvent
from hf_transformer.generation.task import TASK_CLASSES
from hf_transformer.tasks.base import Servable
from hf_transformer.tasks.declaration import Example, array, closed, takes_strings
from hf_transformer.tasks.options import parameter_schemas
from hf_transformer.tasks.token_classification import TokenClassification
from hf_transformer.types.fields import Positive, about, json_schemas
from hf_transformer.types.request import Json

V1 = ("V1",)
CONTEXT = ("RequestId", "TraceParent")
Some = Meta(min_length=1)
Span = Annotated[list[int], Meta(min_length=2, max_length=2)]


# Models


class OpenAIModel(ClosedAnswer):
    """A model in OpenAI's form."""

    id: str
    object: Literal["model"]
    created: Annotated[int, about("The start of the service, in seconds since 1970.")]
    owned_by: str
    root: Annotated[Maybe[str], about("The model of an alias, or the adapter itself.")] = UNSET
    parent: Annotated[Maybe[str], about("The model of an adapter.")] = UNSET


class V1Models(ClosedAnswer):
    models: list[str]
    object: Maybe[Literal["list"]] = UNSET
    data: Maybe[list[OpenAIModel]] = UNSET


class V1Model(ClosedAnswer):
    name: str
    ready: bool
    error: Maybe[str] = UNSET
    id: Maybe[str] = UNSET
    object: Maybe[Literal["model"]] = UNSET
    created: Maybe[int] = UNSET
    owned_by: Maybe[str] = UNSET
    root: Maybe[str] = UNSET
    parent: Maybe[str] = UNSET


# A model's description


class ServerAbout(ClosedAnswer):
    name: str
    version: str


class GenerationAbout(ClosedAnswer):
    """The abilities of a model that generates text."""

    interface: Literal["tokens", "text", "logits"]
    parameters: Annotated[list[str], about("The parameters that the model can honour.")]
    chat: Annotated[bool, about("Whether the model has a chat template.")]
    tools: Annotated[bool, about("Whether the chat template knows tools.")]
    full_text: Annotated[bool, about("Whether a prompt and the text that continues it are one text.")]
    max_new_tokens: Positive | None


class Protocols(ClosedAnswer):
    v1: str
    v2: str
    grpc_port: Annotated[Positive | None, about("null without gRPC, and for a port that the system chose.")]
    openai: Annotated[list[str], about("The OpenAI routes for the task.")]
    anthropic: Annotated[Maybe[list[str]], about("Anthropic's routes, of a model with a chat template.")] = UNSET
    generate: Maybe[str] = UNSET


class InfoExample(ClosedAnswer):
    summary: str
    value: dict[str, Any]


class V1Info(ClosedAnswer, kw_only=True):
    """A model's description. The tasks add their fields."""

    name: str
    version: Annotated[str, about("The version that the predictor serves.")]
    task: str
    server: ServerAbout
    max_length: Annotated[int, about("The tokens of the longest text, special ones included.")]
    output_format: Literal["kserve", "pipeline"]
    on_overflow: Literal["truncate", "error", "window"]
    generation: Maybe[GenerationAbout] = UNSET
    limits: Annotated[dict[str, int], about("Flags by name.")]
    protocols: Protocols
    examples: Annotated[
        list[InfoExample],
        about(
            "Bodies of V1's predict route, or chats with messages: the ones under playground in the model's "
            "config.json that the task can read, or the ones of /openapi.json."
        ),
    ]
    note: Annotated[Maybe[str], about("A note about the model, from playground in its config.json.")] = UNSET
    links: Links


def info_schema(schemas: Schemas) -> Json:
    reference = schemas.of(V1Info)
    info = schemas.named[V1Info.__name__]
    more = {name: schema for task in TASK_CLASSES.values() for name, schema in task.info_schemas.items()}
    schemas.named[V1Info.__name__] = {**info, "properties": info["properties"] | more}
    return reference


INFO_EXAMPLE: Json = {
    "name": "ner",
    "version": "1",
    "task": TokenClassification.name,
    "server": {"name": "hf_transformer", "version": RELEASE},
    "max_length": 128,
    "output_format": "kserve",
    "on_overflow": "truncate",
    "labels": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
    "aggregation_strategy": "none",
    "limits": {
        "max_instances": 2048,
        "max_sequences": 2048,
        "max_text_length": 1000000,
        "max_total_length": 4000000,
        "max_answer_values": 1000000,
        "max_request_bytes": 16777216,
        "max_concurrent_requests": 1024,
        "max_queued_tokens": 262144,
        "max_batch_tokens": 16384,
    },
    "protocols": {"v1": "/v1/models/ner:predict", "v2": "/v2/models/ner/infer", "grpc_port": 8081, "openai": []},
    "examples": [{"summary": "as KServe", "value": {"instances": ["Anna Smith lives in Berlin."]}}],
    "note": "A model for news in English.",
    "links": {"health": "/v2/health/ready", "docs": "/docs"},
}


# V1's predict


def properties_of(kind: type[Struct]) -> dict[str, Json]:
    """The schemas of a type's fields."""
    properties: dict[str, Json] = json_schemas([kind])[1][kind.__name__]["properties"]
    return {name: {k: v for k, v in one.items() if k != "default"} for name, one in properties.items()}


def instance_schema(schemas: Schemas) -> Json:
    return schemas.reference(
        "Instance", lambda: {"anyOf": distinct(form for task in schemas.tasks for form in task.instance_schemas)}
    )


def prediction_schema(schemas: Schemas) -> Json:
    return schemas.reference(
        "Prediction", lambda: {"anyOf": distinct(form for task in schemas.tasks for form in task.prediction_schemas)}
    )


def parameters_schema(schemas: Schemas) -> Json:
    """The parameters of the served tasks."""
    common = properties_of(TritonParameters)
    return schemas.reference(
        "Parameters",
        lambda: {
            "description": "Parameters of the task, in place of the service's defaults. A null counts as absent.",
            "anyOf": [
                {"title": task.name, **closed((), **common, **parameter_schemas(task.options_type))}
                for task in schemas.tasks
            ],
        },
    )


def instances_body(items: Json, parameters: Json, *, single: bool) -> Json:
    """The schema of a body with instances, by either of their names."""
    listed = array(items, minItems=1)
    forms = [listed, {"type": "string", "description": "A list of one."}] if single else [listed]
    instances: Json = {"anyOf": forms} if single else listed
    return {
        "type": "object",
        "properties": {
            "instances": instances,
            "inputs": {**instances, "description": "Another name of instances."},
            "parameters": nullable(parameters),
        },
        "oneOf": [{"required": ["instances"]}, {"required": ["inputs"]}],
    }


def v1_request(schemas: Schemas) -> Json:
    single = any(takes_strings(form) for task in schemas.tasks for form in task.instance_schemas)

    def make() -> Json:
        body = instances_body(instance_schema(schemas), parameters_schema(schemas), single=single)
        return {"description": "Other fields, such as signature_name, have no effect, as in KServe.", **body}

    return schemas.reference("V1Request", make)


def v1_event(schemas: Schemas) -> Json:
    """A request as a CloudEvent."""
    reference = schemas.of(CloudEvent)
    properties = schemas.named[CloudEvent.__name__]["properties"]
    properties["data"] |= nullable(v1_request(schemas))
    return reference


class OffsetTensor(ClosedAnswer):
    name: Literal["offset_mapping"]
    datatype: Literal["INT64"]
    shape: list[int]
    data: list[int]


def v1_response(schemas: Schemas) -> Json:
    def make() -> Json:
        body = closed(["predictions"], predictions=array(prediction_schema(schemas), minItems=1))
        if any(task.switched_on_by for task in schemas.tasks):
            help = "Tensors beside the predictions, flat with their shapes."
            body["properties"]["outputs"] = {"description": help, **array(schemas.of(OffsetTensor))}
        return body

    return schemas.reference("V1Response", make)


def v1_event_answer(schemas: Schemas) -> Json:
    return schemas.reference(
        "V1EventAnswer",
        lambda: closed(
            ["specversion", "id", "source", "type", "time", "data"],
            specversion={"const": "1.0"},
            id={"type": "string"},
            source={"type": "string"},
            type={"const": "io.kserve.inference.response"},
            time={"type": "string", "format": "date-time"},
            data=v1_response(schemas),
        ),
    )


class V1Line(ClosedAnswer, kw_only=True):
    """A piece of a text. The last one has the whole text."""

    instance: int
    choice: Maybe[int] = UNSET
    text: str
    finish_reason: Maybe[Literal["stop", "length"]] = UNSET
    generated_text: Maybe[str] = UNSET


def v1_examples(schemas: Schemas) -> dict[str, Json]:
    """The examples of the served tasks."""
    return {schemas.title(task, one.summary): one.value for task, one in task_examples(schemas)}


def task_examples(schemas: Schemas) -> Iterator[tuple[type[Servable], Example]]:
    return ((task, example) for task in schemas.tasks for example in task.examples)


OPERATIONS = (
    Operation(
        method="get",
        path="/v1/models",
        id="v1Models",
        summary="The served models",
        tags=V1,
        answer=V1Models,
        returns="The names, aliases and adapters included, and OpenAI's list for clients with the base URL /v1.",
    ),
    Operation(
        method="get",
        path="/v1/models/{model}/info",  # before the model's own route, since a name may have slashes
        id="v1ModelInfo",
        summary="A description of the model, for pages and generic clients",
        tags=V1,
        answer=info_schema,
        returns="The task, its labels or prompts, limits, protocols, and requests to try.",
        not_ready=ErrorAnswer,
        examples={"a model for token classification": INFO_EXAMPLE},
    ),
    Operation(
        method="get",
        path="/v1/models/{model}",
        id="v1Model",
        summary="The readiness of a model",
        description="With --enable_predictor_health_check, a predictor that is not ready counts, too.",
        tags=V1,
        answer=V1Model,
        returns="The model is ready, with OpenAI's fields; 503 with the reason until a model that fits is found.",
        not_ready=V1Model | ErrorAnswer,
        is_open=True,
    ),
    Operation(
        path="/v1/models/{model}:predict",
        id="v1Predict",
        summary="Predictions for instances",
        tags=V1,
        body=v1_request,
        body_description="At most --max_request_bytes, also after decompression.",
        other_bodies={CLOUD_EVENT: v1_event},
        examples=v1_examples,
        answer=v1_response,
        other_answers={CLOUD_EVENT: v1_event_answer, JSON_LINES: V1Line | ErrorAnswer},
        returns="A prediction for each instance, in their order; for a CloudEvent as a CloudEvent.",
        parameters=CONTEXT,
    ),
)
