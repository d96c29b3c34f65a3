"""Operations of V1, of V2 with its extensions, and of tokenization."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct

from hf_transformer.api.document.operation import (
    BINARY,
    CLOUD_EVENT,
    JSON_LINES,
    Maybe,
    Operation,
    versioned,
)
from hf_transformer.api.document.schemas import Answer, Schemas, distinct, events, nullable
from hf_transformer.api.document.service import ErrorAnswer, Links
from hf_transformer.api.generate import BackendParameters, GenerateBody, GenerateResponse
from hf_transformer.api.nim_tensors import EMBEDDINGS, TOKEN_COUNT
from hf_transformer.api.tokenize import PromptedTokenizeParameters, TokenizeParameters
from hf_transformer.api.v1_tokenize import DetokenizeParameters
from hf_transformer.api.v2 import LoadRequest, RepositoryIndexRequest, UnloadRequest
from hf_transformer.generation.task import GENERATIVE, TASK_CLASSES
from hf_transformer.tasks.base import Servable
from hf_transformer.tasks.declaration import Example, array, closed, takes_strings
from hf_transformer.tasks.options import parameter_schemas
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.tasks.token_classification import TokenClassification
from hf_transformer.types.fields import NO_EFFECT, Body, Natural, OpenBody, Positive, about, json_schemas
from hf_transformer.types.request import Json

BY_NAME = "#/components/schemas/"
V1, V2, GENERATE, TOKENS = ("V1",), ("V2",), ("Generate",), ("Tokenization",)
CONTEXT = ("RequestId", "TraceParent")
LISTED = about("Another name of instances.")
Some = Meta(min_length=1)
NonEmptyText = Annotated[str, Some]
Span = Annotated[list[int], Meta(min_length=2, max_length=2)]


# Models


class OpenAIModel(Answer):
    """A model in OpenAI's form."""

    id: str
    object: Literal["model"]
    created: Annotated[int, about("The start of the service, in seconds since 1970.")]
    owned_by: str
    root: Annotated[Maybe[str], about("The model of an alias, or the adapter itself.")] = UNSET
    parent: Annotated[Maybe[str], about("The model of an adapter.")] = UNSET


class V1Models(Answer):
    models: list[str]
    object: Maybe[Literal["list"]] = UNSET
    data: Maybe[list[OpenAIModel]] = UNSET


class V1Model(Answer):
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


class ServerAbout(Answer):
    name: str
    version: str


class GenerationAbout(Answer):
    """The abilities of a model that generates text."""

    interface: Literal["tokens", "text", "logits"]
    parameters: Annotated[list[str], about("The parameters that the model can honour.")]
    chat: Annotated[bool, about("Whether the model has a chat template.")]
    tools: Annotated[bool, about("Whether the chat template knows tools.")]
    full_text: Annotated[bool, about("Whether a prompt and the text that continues it are one text.")]
    max_new_tokens: Positive | None


class Protocols(Answer):
    v1: str
    v2: str
    grpc_port: Annotated[Positive | None, about("null without gRPC, and for a port that the system chose.")]
    openai: Annotated[list[str], about("The OpenAI routes for the task.")]
    generate: Maybe[str] = UNSET


class InfoExample(Answer):
    summary: str
    value: dict[str, Any]


class V1Info(Answer, kw_only=True):
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
    "server": {"name": "hf_transformer", "version": "0.16.0"},
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


class TritonParameters(OpenBody):
    """Parameters that Triton's clients send to any model."""

    timeout: Annotated[Natural | None, about("Microseconds until the answer is 504; 0 for no limit.")] = None
    priority: Annotated[Any, NO_EFFECT] = None
    sequence_id: Annotated[Any, NO_EFFECT] = None
    sequence_start: Annotated[Any, NO_EFFECT] = None
    sequence_end: Annotated[Any, NO_EFFECT] = None
    binary_data_output: Annotated[Any, NO_EFFECT] = None


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
    return schemas.reference(
        "V1Event",
        lambda: {
            "type": "object",
            "description": "A CloudEvent in structured mode. In place of data it may have data_base64, JSON in base64. "
            "Other attributes have no effect.",
            "required": ["specversion", "id", "source", "type", "data"],
            "properties": {
                "specversion": {"const": "1.0"},
                **{name: {"type": "string", "minLength": 1} for name in ("id", "source", "type")},
                "data": v1_request(schemas),
                "data_base64": {"type": "null"},
            },
        },
    )


class OffsetTensor(Answer):
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


class V1Line(Answer, kw_only=True):
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


V1_OPERATIONS = (
    Operation(
        method="get",
        path="/v1/models",
        id="v1Models",
        summary="The served models",
        tags=V1,
        answer=V1Models,
        returns="The names, and OpenAI's list of models.",
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
        tags=V1,
        answer=V1Model,
        returns="The model is ready.",
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


# Tokenization


class TextPair(Body):
    text: str
    text_pair: str | None = None


class TokenIds(Body):
    token_ids: list[Natural]


class Tokens(Answer, kw_only=True):
    """The tokens of an instance."""

    ids: Maybe[list[int]] = UNSET
    tokens: Maybe[list[str]] = UNSET
    offsets: Annotated[
        Maybe[list[Span] | None], about("The first character of each token, and the one after its last.")
    ] = UNSET
    special_tokens_mask: Annotated[Maybe[list[int] | None], about("1 for a special token, else 0.")] = UNSET
    type_ids: Maybe[list[int] | None] = UNSET
    sequence_ids: Annotated[
        Maybe[list[int | None] | None],
        about("For a pair: 0 for its first text, 1 for its second, null for special tokens."),
    ] = UNSET
    count: Annotated[int, about("All tokens.")]
    max_length: Annotated[int, about("The model's length.")]
    kept: Annotated[int, about("The tokens that the model would get.")]
    truncated: Annotated[int, about("The tokens that truncation would remove.")]
    truncated_text: Annotated[
        list[Span | None] | None, about("The characters of each text that truncation would remove.")
    ]


class V1TokenizeResponse(Answer):
    predictions: Annotated[list[Tokens], Some]


class V1DetokenizeResponse(Answer):
    predictions: Annotated[list[str], Some]


def tokenize_request(schemas: Schemas) -> Json:
    prompts = any(task is TextEmbedding for task in schemas.tasks)
    options = schemas.of(PromptedTokenizeParameters if prompts else TokenizeParameters)
    return schemas.reference(
        "V1TokenizeRequest",
        lambda: instances_body({"anyOf": [{"type": "string"}, schemas.of(TextPair)]}, options, single=True),
    )


def detokenize_request(schemas: Schemas) -> Json:
    items = schemas.of(list[Natural] | TokenIds)
    return schemas.reference(
        "V1DetokenizeRequest", lambda: instances_body(items, schemas.of(DetokenizeParameters), single=False)
    )


FINE = "What a fine day."
TOKEN_OPERATIONS = (
    Operation(
        path="/v1/models/{model}:tokenize",
        id="tokenize",
        summary="Tokens of texts, and the part that truncation removes",
        tags=TOKENS,
        body=tokenize_request,
        examples={
            "a text": {"instances": [FINE]},
            "a pair": {"instances": [{"text": FINE, "text_pair": "Rain is falling."}]},
            "the number of tokens": {"instances": [FINE], "parameters": {"return_tokens": False}},
        },
        answer=V1TokenizeResponse,
        returns="The tokens of each instance, in their order.",
        parameters=CONTEXT,
        runs_model=False,
    ),
    Operation(
        path="/v1/models/{model}:detokenize",
        id="detokenize",
        summary="Texts of tokens",
        tags=TOKENS,
        body=detokenize_request,
        examples={
            "token ids": {"instances": [[1, 2, 3]]},
            "without special tokens": {
                "instances": [{"token_ids": [1, 2, 3]}],
                "parameters": {"skip_special_tokens": True},
            },
        },
        answer=V1DetokenizeResponse,
        returns="A text for each instance, in their order.",
        parameters=CONTEXT,
        runs_model=False,
    ),
)


# V2: the server, models and their states


class V2Server(Answer):
    name: str
    version: str
    extensions: list[str]


class V2Live(Answer):
    live: bool


class V2Ready(Answer, kw_only=True):
    name: Maybe[str] = UNSET
    ready: bool
    error: Maybe[str] = UNSET


class V2Models(Answer):
    models: list[str]


class V2Tensor(Answer):
    name: str
    datatype: str
    shape: list[int]


class V2Metadata(Answer, kw_only=True):
    name: str
    versions: Maybe[list[str]] = UNSET
    platform: str
    inputs: list[V2Tensor]
    outputs: list[V2Tensor]


class ConfigOutput(Answer):
    name: str
    data_type: str
    dims: list[int]


class ConfigInput(ConfigOutput):
    optional: bool


class TransactionPolicy(Answer):
    decoupled: bool


class V2Config(Answer):
    name: str
    platform: str
    backend: str
    max_batch_size: int
    input: list[ConfigInput]
    output: list[ConfigOutput]
    model_transaction_policy: TransactionPolicy


class Duration(Answer):
    count: int
    ns: int


class ModelStatistics(Answer):
    name: str
    version: str
    last_inference: Annotated[
        int, about("The time of the last answer, in milliseconds since 1970; 0 before the first one.")
    ]
    inference_count: Annotated[int, about("Texts sent to the predictor; for a generative model, finished texts.")]
    execution_count: Annotated[int, about("Calls of the model.")]
    inference_stats: Annotated[
        dict[str, Duration], about("success and fail are requests; the others are parts of successful requests.")
    ]
    batch_stats: Maybe[Annotated[list[Any], Meta(max_length=0)]] = UNSET


class V2Statistics(Answer):
    model_stats: list[ModelStatistics]


class RepositoryEntry(Answer):
    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


METADATA = Operation(
    method="get",
    path="/v2/models/{model}",
    id="v2Metadata",
    summary="The tensors of the model",
    tags=V2,
    answer=V2Metadata,
    returns="The inputs and outputs.",
    not_ready=ErrorAnswer,
)
CONFIG = METADATA.at(
    "/v2/models/{model}/config",
    "v2Config",
    summary="The tensors of the model, in the form of Triton's configuration",
    answer=V2Config,
    returns="The model. The dims have no axis of instances, since max_batch_size is not 0.",
)
STATISTICS = METADATA.at(
    "/v2/models/{model}/stats",
    "v2Statistics",
    summary="Counts and durations of requests",
    answer=V2Statistics,
    returns="Counts and nanoseconds of all workers, in the form of Triton's statistics extension.",
)
READY = Operation(
    method="get",
    path="/v2/models/{model}/ready",
    id="v2ReadyModel",
    summary="The readiness of a model",
    tags=V2,
    answer=V2Ready,
    returns="The model is ready.",
    not_ready=V2Ready | ErrorAnswer,
    is_open=True,
)
SERVER = Operation(
    method="get",
    path="/v2",
    id="v2Server",
    summary="The server",
    tags=V2,
    answer=V2Server,
    returns="The name, version and extensions.",
)
REPOSITORY = Operation(
    path="/v2/repository/index",
    id="v2RepositoryIndex",
    summary="The served models and their states",
    tags=V2,
    body=RepositoryIndexRequest,
    body_is_required=False,
    examples={"ready models": {"ready": True}},
    answer=list[RepositoryEntry],
    returns="An entry for each model, alias and adapter.",
    parameters=CONTEXT,
    runs_model=False,
)
LOAD = Operation(
    path="/v2/repository/models/{model}/load",
    id="v2RepositoryLoad",
    summary="Loads a model at the predictor, and serves it",
    description="Needs --enable_model_control, a key of --model_control_keys_file, and Triton with "
    "--model-control-mode=explicit. Loads a loaded model again. The answer comes when the model is ready.",
    tags=V2,
    body=LoadRequest,
    body_is_required=False,
    examples={"from the predictor's repository": {}},
    returns="The model is loaded.",
    parameters=CONTEXT,
)
UNLOAD = LOAD.at(
    "/v2/repository/models/{model}/unload",
    "v2RepositoryUnload",
    summary="Ends the service of a model, and unloads it at the predictor",
    description="Needs what load needs. Requests in flight are answered first. Later ones get 503 until the model is "
    "loaded again.",
    body=UnloadRequest,
    examples={"this model only": {}},
    returns="The model is unloaded.",
)


# V2: tensors


UNSUPPORTED: Json = dict.fromkeys(
    ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset", "classification"), False
)
TENSOR_PROPERTIES: Json = {
    "datatype": {"const": "BYTES"},
    "shape": array({"type": "integer", "minimum": 0}, maxItems=2),
    "data": {
        "description": "Flat or nested.",
        **array({"anyOf": [{"type": "string"}, array({"type": "string"})]}),
    },
    "parameters": nullable(
        {
            "type": "object",
            "properties": {**UNSUPPORTED, "content_type": {"const": "str"}, "binary_data_size": False},
        }
    ),
}
TENSOR_FORM: Json = {"type": "object", "required": ["name", "datatype", "shape", "data"]}
DATATYPES = "BYTES BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 FP16 FP32 FP64".split()
BACKEND_TENSOR: Json = {
    **TENSOR_FORM,
    "description": "Beside text_input, a parameter of generate, as clients of Triton's vLLM and TensorRT-LLM backends "
    "send it.",
    "properties": {
        "name": {"type": "string"},
        "datatype": {"enum": DATATYPES},
        "shape": array({"type": "integer", "minimum": 0}),
        "data": {"type": "array"},
        "parameters": {"type": ["object", "null"]},
    },
}
BACKEND_OUTPUTS: Json = {
    "description": "Beside text_input, the outputs of Triton's backends.",
    "enum": ["text_output", "finish_reason", "num_input_tokens", "num_output_tokens"],
}


NIM_OUTPUTS: Json = {"description": "In NVIDIA NIM's form.", "enum": [EMBEDDINGS, TOKEN_COUNT]}


def input_schema(schemas: Schemas) -> Json:
    def make() -> Json:
        names = [[field.name, *field.other_names] for task in schemas.tasks for field in task.fields]
        forms = [{**TENSOR_FORM, "properties": {**TENSOR_PROPERTIES, "name": {"enum": one}}} for one in names]
        return {
            "description": "Strings in UTF-8, of shape [instances] or [instances, 1]; lists [instances, strings] or "
            "[strings]. Where one input is needed, a request's only input may have any other name too.",
            "anyOf": distinct(forms) + ([BACKEND_TENSOR] if schemas.generates else []),
        }

    return schemas.reference("V2Input", make)


def output_name(schemas: Schemas) -> Json:
    def make() -> Json:
        optional = distinct({"const": name} for task in schemas.tasks for name in task.switched_on_by)
        embeds = any(task is TextEmbedding for task in schemas.tasks)
        more = [*([NIM_OUTPUTS] if embeds else []), *([BACKEND_OUTPUTS] if schemas.generates else [])]
        return {"anyOf": [*optional, {"const": "output-0"}, *more]}

    return schemas.reference("V2OutputName", make)


def v2_parameters(schemas: Schemas) -> Json:
    def make() -> Json:
        own: dict[str, Json] = {
            **properties_of(TritonParameters),
            "binary_data_output": {"type": ["boolean", "null"], "description": "Whether all outputs are binary."},
            "parameters": {
                "description": "Further parameters, also as JSON text.",
                "anyOf": [parameters_schema(schemas), {"type": "string", "maxLength": 65536}],
            },
        }
        known = [parameter_schemas(task.options_type) for task in schemas.tasks]
        forms = [{"type": "object", "properties": {**own, **one}} for one in known]
        if schemas.generates:
            forms.append({"type": "object", "properties": {**properties_of(BackendParameters), **own}})
        return {
            "description": "Parameters of the task and of the protocol. Others have no effect, and stand in "
            "X-Ignored-Parameters.",
            "anyOf": distinct(forms),
        }

    return schemas.reference("V2Parameters", make)


def v2_request(schemas: Schemas) -> Json:
    optional = {"type": ["string", "null"]}
    asked = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": output_name(schemas),
            "parameters": {
                "type": ["object", "null"],
                "properties": {**UNSUPPORTED, "binary_data": {"type": ["boolean", "null"]}},
            },
        },
    }
    return schemas.reference(
        "V2Request",
        lambda: {
            "description": "Other keys have no effect, and stand in X-Ignored-Parameters.",
            "type": "object",
            "required": ["inputs"],
            "properties": {
                "inputs": array(input_schema(schemas), minItems=1, maxItems=16),
                "outputs": {**array(asked, maxItems=16), "type": ["array", "null"]},
                "parameters": nullable(v2_parameters(schemas)),
                "id": {**optional, "description": "An id that the answer repeats."},
                "model_name": {
                    **optional,
                    **({"enum": [*schemas.names, "", None]} if schemas.names else {}),
                    "description": "The model of the path.",
                },
                "model_version": {**optional, "description": "The version that is served; another one is refused."},
            },
        },
    )


def v2_response(schemas: Schemas) -> Json:
    def make() -> Json:
        output = closed(
            ["name", "datatype", "shape"],
            name=output_name(schemas),
            datatype={"type": "string"},
            shape=array({"type": "integer", "minimum": 0}),
            data=array({"type": ["string", "number", "null"]}),
            parameters=closed(["binary_data_size"], binary_data_size={"type": "integer"}),
        )
        text = {"type": "string"}
        more = {"parameters": {"type": "object"}} if schemas.generates else {}
        return closed(
            ["model_name", "outputs"], model_name=text, model_version=text, id=text, **more, outputs=array(output)
        )

    return schemas.reference("V2Response", make)


def raw(schemas: Schemas) -> Json:
    return {"description": "The same, with binary elements after it."}


def v2_examples(schemas: Schemas) -> dict[str, Json]:
    """The examples whose instances the task's tensors can have."""
    found: dict[str, Json] = {}
    for task, example in task_examples(schemas):
        first = task.fields[0].name
        names = {name for field in task.fields for name in (field.name, *field.other_names)}
        instances, parameters = example.value["instances"], example.value.get("parameters", {})
        rows = [{first: instance} if isinstance(instance, str) else instance for instance in instances]
        if "stream" not in parameters and all(row.keys() == rows[0].keys() <= names for row in rows):
            inputs = [tensor(name, [row[name] for row in rows]) for name in rows[0]]
            found[schemas.title(task, example.summary)] = {
                "inputs": inputs,
                **({"parameters": parameters} if parameters else {}),
            }
        if task.switched_on_by and example is task.examples[0]:
            outputs = [{"name": "output-0"}, *({"name": name} for name in task.switched_on_by)]
            found["with the characters of each token"] = {
                "inputs": [tensor(first, ["Anna lives in Berlin."])],
                "outputs": outputs,
            }
    if schemas.generates:
        found["tensors of Triton's vLLM backend"] = {
            "inputs": [
                tensor("text_input", ["The capital of france is"]),
                tensor("sampling_parameters", ['{"max_tokens": 8}']),
            ]
        }
    return found


def tensor(name: str, column: list[Json]) -> dict[str, Json]:
    """A field of all instances as a tensor of V2: texts, or lists of texts."""
    if isinstance(column[0], str):
        return {"name": name, "datatype": "BYTES", "shape": [len(column)], "data": column}
    data = [text for texts in column for text in texts]
    return {"name": name, "datatype": "BYTES", "shape": [len(column), len(column[0])], "data": data}


INFER = Operation(
    path="/v2/models/{model}/infer",
    id="v2Infer",
    summary="Predictions for tensors",
    tags=V2,
    body=v2_request,
    body_description="Tensors may be binary: the JSON has binary_data_size in place of data, the header "
    "Inference-Header-Content-Length has the length of the JSON, and the elements follow it, each string after its "
    "length as an unsigned 32-bit integer in little endian. binary_data of an output, or binary_data_output of the "
    "request, asks for such an answer.",
    other_bodies={BINARY: raw},
    examples=v2_examples,
    answer=v2_response,
    other_answers={BINARY: raw},
    returns="The predictions as tensors.",
    parameters=CONTEXT,
    notes_ignored=True,
)
GENERATE_WHOLE = Operation(
    path="/v2/models/{model}/generate",
    id="generate",
    summary="The text of a prompt",
    tags=GENERATE,
    tasks=GENERATIVE,
    body=GenerateBody,
    examples={
        "the text of a prompt": {"text_input": "The capital of france is", "max_tokens": 8, "temperature": 0},
        "as clients of the vLLM backend": {
            "text_input": "The capital of france is",
            "sampling_parameters": '{"max_tokens": 8}',
            "exclude_input_in_output": True,
            "return_finish_reason": True,
            "return_num_output_tokens": True,
        },
    },
    answer=GenerateResponse,
    returns="The text.",
    parameters=CONTEXT,
)
GENERATE_STREAM = GENERATE_WHOLE.at(
    "/v2/models/{model}/generate_stream",
    "generateStream",
    summary="The text of a prompt in pieces",
    examples={"streamed": {"text_input": "The capital of france is", "parameters": {"max_tokens": 8}}},
    answer=None,
    other_answers={"text/event-stream": events(GenerateResponse)},
    returns="Server-sent events, each with a piece of the text.",
)
V2_OPERATIONS = (
    SERVER,
    SERVER.at("/v2/", "v2ServerSlash", handler="v2Server"),
    SERVER.at(
        "/v2/health/live",
        "v2Live",
        summary="The liveness of the service",
        answer=V2Live,
        returns="The process is alive.",
        is_open=True,
    ),
    SERVER.at(
        "/v2/health/ready",
        "v2Ready",
        summary="The readiness of the service",
        answer=V2Ready,
        returns="The service is ready.",
        not_ready=V2Ready,
        is_open=True,
    ),
    SERVER.at("/v2/models", "v2Models", summary="The served models", answer=V2Models, returns="The names."),
    SERVER.at(
        "/v2/models/stats",
        "v2StatisticsOfAll",
        summary="Counts and durations of requests, of all models",
        answer=V2Statistics,
        returns="The statistics of each ready model.",
    ),
    REPOSITORY,
    LOAD,
    UNLOAD,
    # Paths with a version are first, since a name may have slashes.
    *versioned(READY, CONFIG, STATISTICS, METADATA, INFER, GENERATE_WHOLE, GENERATE_STREAM),
)
OPERATIONS = (*V1_OPERATIONS, *TOKEN_OPERATIONS, *V2_OPERATIONS)
