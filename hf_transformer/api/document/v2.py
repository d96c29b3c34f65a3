"""Operations of V2 with its extensions, and of the generate extension."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta

from hf_transformer.api.call import TritonParameters
from hf_transformer.api.document.operation import BINARY, Maybe, Operation, versioned
from hf_transformer.api.document.schemas import ClosedAnswer, Schemas, distinct, events, nullable
from hf_transformer.api.document.service import ErrorAnswer
from hf_transformer.api.document.v1 import CONTEXT, parameters_schema, properties_of, task_examples
from hf_transformer.api.generate import BackendParameters, GenerateBody, GenerateResponse
from hf_transformer.api.nim_tensors import EMBEDDINGS, TOKEN_COUNT
from hf_transformer.api.v2 import LoadRequest, RepositoryIndexRequest, UnloadRequest
from hf_transformer.generation.task import GENERATIVE
from hf_transformer.tasks.declaration import array, closed
from hf_transformer.tasks.options import parameter_schemas
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.types.fields import about
from hf_transformer.types.request import Json

V2, GENERATE = ("V2",), ("Generate",)


# V2: the server, models and their states


class V2Server(ClosedAnswer):
    name: str
    version: str
    extensions: list[str]


class V2Live(ClosedAnswer):
    live: bool


class V2Ready(ClosedAnswer, kw_only=True):
    name: Maybe[str] = UNSET
    ready: bool
    error: Maybe[str] = UNSET


class V2Models(ClosedAnswer):
    models: list[str]


class V2Tensor(ClosedAnswer):
    name: str
    datatype: str
    shape: list[int]


class V2Metadata(ClosedAnswer, kw_only=True):
    name: str
    versions: Maybe[list[str]] = UNSET
    platform: str
    inputs: list[V2Tensor]
    outputs: list[V2Tensor]


class ConfigOutput(ClosedAnswer):
    name: str
    data_type: str
    dims: list[int]


class ConfigInput(ConfigOutput):
    optional: bool


class TransactionPolicy(ClosedAnswer):
    decoupled: bool


class V2Config(ClosedAnswer):
    name: str
    platform: str
    backend: str
    max_batch_size: int
    input: list[ConfigInput]
    output: list[ConfigOutput]
    model_transaction_policy: TransactionPolicy


class Duration(ClosedAnswer):
    count: int
    ns: int


class ModelStatistics(ClosedAnswer):
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


class V2Statistics(ClosedAnswer):
    model_stats: list[ModelStatistics]


class RepositoryModel(ClosedAnswer):
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
    returns="The inputs that a request needs, and the outputs, with datatype and shape.",
    not_ready=ErrorAnswer,
)
CONFIG = METADATA.at(
    "/v2/models/{model}/config",
    "v2Config",
    summary="The tensors of the model, in the form of Triton's configuration",
    answer=V2Config,
    returns="The model. max_batch_size is --max_instances, so the dims have no axis of instances.",
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
    returns="The model is ready, or 503 with the reason.",
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
    answer=list[RepositoryModel],
    returns="An entry for each model, alias and adapter: READY, or UNAVAILABLE with the reason.",
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
    "data": {"description": "Flat or nested.", **array({"anyOf": [{"type": "string"}, array({"type": "string"})]})},
    "parameters": nullable(
        {"type": "object", "properties": {**UNSUPPORTED, "content_type": {"const": "str"}, "binary_data_size": False}}
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
        common: dict[str, Json] = {
            **properties_of(TritonParameters),
            "binary_data_output": {"type": ["boolean", "null"], "description": "Whether all outputs are binary."},
            "parameters": {
                "description": "Further parameters, also as JSON text.",
                "anyOf": [parameters_schema(schemas), {"type": "string", "maxLength": 65536}],
            },
        }
        known = [parameter_schemas(task.options_type) for task in schemas.tasks]
        forms = [{"type": "object", "properties": {**common, **one}} for one in known]
        if schemas.generates:
            forms.append({"type": "object", "properties": {**properties_of(BackendParameters), **common}})
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
    examples: dict[str, Json] = {}
    for task, example in task_examples(schemas):
        first = task.fields[0].name
        names = {name for field in task.fields for name in (field.name, *field.other_names)}
        instances, parameters = example.value["instances"], example.value.get("parameters", {})
        rows = [{first: instance} if isinstance(instance, str) else instance for instance in instances]
        if "stream" not in parameters and all(row.keys() == rows[0].keys() <= names for row in rows):
            inputs = [tensor(name, [row[name] for row in rows]) for name in rows[0]]
            examples[schemas.title(task, example.summary)] = {
                "inputs": inputs,
                **({"parameters": parameters} if parameters else {}),
            }
        if task.switched_on_by and example is task.examples[0]:
            outputs = [{"name": "output-0"}, *({"name": name} for name in task.switched_on_by)]
            examples["with the characters of each token"] = {
                "inputs": [tensor(first, ["Anna lives in Berlin."])],
                "outputs": outputs,
            }
    if schemas.generates:
        examples["tensors of Triton's vLLM backend"] = {
            "inputs": [
                tensor("text_input", ["The capital of france is"]),
                tensor("sampling_parameters", ['{"max_tokens": 8}']),
            ]
        }
    return examples


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
OPERATIONS = (
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
