"""The open inference protocol (V2) over REST."""

from __future__ import annotations

from hf_transformer.api.openapi.operations import (
    BYTES,
    READINESS,
    WORK,
    Described,
    answer,
    body,
    failures,
    question,
    ref,
    work,
)
from hf_transformer.api.tensors import MORE_PARAMETERS
from hf_transformer.protocol.inbound import CONTENT_TYPE, MOST_TENSORS, TEXT
from hf_transformer.protocol.json_text import SMALL
from hf_transformer.protocol.rest import HEADER_LENGTH
from hf_transformer.tasks.schema_forms import BOOLEAN, INTEGER, STRING, Schema, any_of, array, nullable, record, text
from hf_transformer.tasks.tensors import OUTPUT, Field
from hf_transformer.types import Json

TAG = "V2"
ERROR = ref("Error")
BINARY = (
    f"Tensors may come raw: the JSON says binary_data_size instead of data, its own length stands in the header "
    f"{HEADER_LENGTH}, and the elements follow behind it, each string behind its length as an unsigned 32-bit integer "
    "in little endian. binary_data (of an output) or binary_data_output (of the request) asks for such an answer."
)


def paths(about: Described) -> dict[str, Json]:
    """By path."""
    found = {
        "/v2": question("v2Server", "The server", TAG, answer(ref("V2Server"), "Its name and version.")),
        "/v2/health/live": question(
            "v2Live", "Whether the process runs", TAG, answer(record({"live": BOOLEAN}), "It does.")
        ),
        "/v2/health/ready": question(
            "v2Ready",
            "Whether the models can be asked",
            TAG,
            answer(ref("V2Ready"), "They can."),
            fails={"503": answer(ref("V2Ready"), "One can't; why not.", again=True)},
        ),
        "/v2/models": question(
            "v2Models", "The models", TAG, answer(record({"models": array(STRING)}), "Their names.")
        ),
    }
    versions = (("", "", ()), ("/versions/{version}", "Version", ("Version",)))
    for path, suffix, more in versions:
        found |= _of_model(f"/v2/models/{{model}}{path}", suffix, ("Model", *more), about)
    return found


def _of_model(path: str, suffix: str, parameters: tuple[str, ...], about: Described) -> dict[str, Json]:
    fails = failures(READINESS, ERROR)
    not_ready = {**fails, "503": answer(any_of(ref("V2Ready"), ERROR), "It can't be asked; why not.", again=True)}
    ready = question(
        f"v2Ready{suffix or 'Model'}",
        "Whether a model can be asked",
        TAG,
        answer(ref("V2Ready"), "It can."),
        *parameters,
        fails=not_ready,
    )
    metadata = question(
        f"v2Metadata{suffix}",
        "What tensors a model takes and gives",
        TAG,
        answer(ref("V2Metadata"), "The model."),
        *parameters,
        fails=fails,
    )
    config = question(
        f"v2Config{suffix}",
        "The same as Triton's configuration has it",
        TAG,
        answer(ref("V2Config"), "The model; max_batch_size 0 says that dims have all axes."),
        *parameters,
        fails=fails,
    )
    return {
        path: metadata,
        f"{path}/config": config,
        f"{path}/ready": ready,
        f"{path}/infer": work(
            f"v2Infer{suffix}",
            f"Predict with tensors: {about.task.name}",
            TAG,
            body(ref("V2Request"), example(about), BINARY, **{BYTES: _binary("The same, raw elements behind it.")}),
            _response(),
            *parameters,
            fails=failures(WORK, ERROR),
        ),
    }


def _response() -> Json:
    found = answer(ref("V2Response"), "The predictions as tensors.")
    found["content"][BYTES] = _binary("The same, raw elements behind it.")
    return found


def _config() -> Schema:
    tensor: dict[str, Json] = {"name": STRING, "data_type": STRING, "dims": array(INTEGER)}
    return record(
        {
            "name": STRING,
            "platform": STRING,
            "backend": STRING,
            "max_batch_size": INTEGER,
            "input": array(record({**tensor, "optional": BOOLEAN})),
            "output": array(record(tensor)),
            "model_transaction_policy": record({"decoupled": BOOLEAN}),
        }
    )


def _binary(description: str) -> Json:
    return {"schema": {"description": description}}


def example(about: Described) -> Json:
    """A request that works."""
    whole = about.schemas.example if isinstance(about.schemas.example, dict) else {"text": about.schemas.example}
    inputs = []
    for name, value in whole.items():
        many = isinstance(value, list)
        shape, data = ([1, len(value)], value) if many else ([1], [value])
        inputs.append({"name": name, "datatype": "BYTES", "shape": shape, "data": data})
    parameters = about.schemas.example_parameters
    return {"id": "1", "inputs": inputs, **({"parameters": parameters} if parameters else {})}


def parameters() -> dict[str, Json]:
    """Components."""
    return {
        "Version": {
            "name": "version",
            "in": "path",
            "required": True,
            "description": "The predictor's version; another one is not found.",
            "schema": {"type": "string", "minLength": 1},
            "example": "1",
        },
    }


def schemas(about: Described) -> dict[str, Schema]:
    """Components."""
    spec = record({"name": STRING, "datatype": STRING, "shape": array(INTEGER)})
    about_model = {"name": STRING, "versions": array(STRING), "platform": STRING}
    tensors = {"inputs": array(spec), "outputs": array(spec)}
    return {
        "V2Server": record({"name": STRING, "version": STRING, "extensions": array(STRING)}),
        "V2Config": _config(),
        "V2Ready": record({"name": STRING, "ready": BOOLEAN, "error": STRING}, "name", "error"),
        "V2Metadata": record(about_model | tensors, "versions"),
        "V2Request": _infer_request(about),
        "V2Response": _infer_response(about),
    }


def _output_names(about: Described) -> Schema:
    return {"type": "string", "enum": [OUTPUT, *about.task.switched_on_by]}


def _infer_request(about: Described) -> Schema:
    flag = {"type": ["boolean", "null"]}
    binary = _optional(record({"binary_data": flag}, "binary_data"))
    wanted = record({"name": _output_names(about), "parameters": binary}, "parameters")
    inputs = any_of(*(_input(field, about) for field in about.task.fields))
    optional = {
        "outputs": _optional(array(wanted, maxItems=MOST_TENSORS)),
        "parameters": _optional(_parameters(about)),
        "id": text("Comes back with the answer."),
        "model_name": nullable({**STRING, "enum": [*about.models, ""]}, "The model that the path names."),
        "model_version": nullable(STRING, "The version that is served; another one is refused."),
    }
    return record({"inputs": array(inputs, minItems=1, maxItems=MOST_TENSORS), **optional}, *optional)


def _infer_response(about: Described) -> Schema:
    tensor = {
        "name": _output_names(about),
        "datatype": STRING,
        "shape": array({**INTEGER, "minimum": 0}),
        "data": array({"type": ["string", "number", "null"]}),
        "parameters": record({"binary_data_size": INTEGER}),
    }
    outputs = array(record(tensor, "data", "parameters"))
    return record(
        {"model_name": STRING, "model_version": STRING, "id": STRING, "outputs": outputs}, "model_version", "id"
    )


def _optional(schema: Schema) -> Schema:
    return any_of(schema, {"type": "null"})


def _parameters(about: Described) -> Schema:
    """The task's parameters, and those of the protocol."""
    of_task = about.schemas.parameters
    more = any_of(
        ref("Parameters"), {"type": "string", "maxLength": SMALL}, description="Further parameters, also as JSON text."
    )
    own = {"binary_data_output": nullable(BOOLEAN, "Whether all outputs are to come raw."), MORE_PARAMETERS: more}
    return record({**of_task["properties"], **own}, *of_task["properties"], *own)


def _input(field: Field, about: Described) -> Schema:
    """One input tensor; a list's first axis may be left out."""
    names = {"type": "string", "enum": [field.name, *field.other_names]}
    forms = "[instances, strings] or [strings]" if field.many else "[instances] or [instances, 1]"
    element = _element(field, about.schemas.instance)
    return record(
        {
            "name": names,
            "datatype": {"const": "BYTES"},
            "shape": array({**INTEGER, "minimum": 0}, maxItems=2, description=forms),
            "data": array(any_of(element, array(element)), description="Flat or nested."),
            "parameters": _optional(record({CONTENT_TYPE: {"const": TEXT}}, CONTENT_TYPE)),
        },
        "parameters",
        description=f"Strings in UTF-8, {forms}" + (", optional." if field.optional else "."),
    )


def _element(field: Field, instance: Schema) -> Schema:
    """The schema of one string of a field, as it is in instances: some have to hold something."""
    for form in (instance, *instance.get("anyOf", ())):
        schema = form.get("properties", {}).get(field.name, {})
        for one in (schema, schema.get("items", {})):
            if one.get("type") == "string":
                return dict(one)
    return STRING
