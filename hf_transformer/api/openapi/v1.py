"""KServe's V1 protocol."""

from __future__ import annotations

from hf_transformer.api.openai.bodies import GENERATION
from hf_transformer.api.openapi.openai import CARD, MODEL_LIST
from hf_transformer.api.openapi.operations import (
    LINES,
    QUESTION,
    WORK,
    Described,
    answer,
    body,
    failures,
    question,
    ref,
    streamed,
    work,
)
from hf_transformer.tasks.schema_forms import BOOLEAN, INTEGER, STRING, Schema, any_of, array, record
from hf_transformer.types import Json

TAG = "V1"
ERROR = ref("Error")


def paths(about: Described) -> dict[str, Json]:
    """By path."""
    ok = answer(ref("V1Response"), "A prediction per instance, in their order.")
    if about.task.name in GENERATION:
        ok = streamed(ok, ref("V1Line"), LINES)
    example = {"instances": [about.schemas.example]}
    if about.schemas.example_parameters is not None:
        example["parameters"] = about.schemas.example_parameters
    fails = failures(QUESTION, ERROR)
    fails["503"] = answer(ref("V1Model"), "It can't be asked; why not.", again=True)
    return {
        "/v1/models": question("v1Models", "The models", TAG, answer(ref("V1Models"), "Their names.")),
        "/v1/models/{model}": question(
            "v1Model", "Whether a model can be asked", TAG, answer(ref("V1Model"), "It can."), "Model", fails=fails
        ),
        "/v1/models/{model}:predict": work(
            "v1Predict",
            f"Predict: {about.task.name}",
            TAG,
            body(ref("V1Request"), example, f"At most {about.max_bytes} bytes, also after decompression."),
            ok,
            "Model",
            fails=failures(WORK, ERROR),
        ),
    }


def schemas(about: Described) -> dict[str, Schema]:
    """Components."""
    tensor = record(
        {"name": STRING, "datatype": STRING, "shape": array(INTEGER), "data": array({"type": "number"})},
        description="A tensor beside the predictions, flat with its shape.",
    )
    # Without a prefix, OpenAI's routes of these two are V1's: the answers have the fields of both.
    shares = not about.root
    return {
        **({"V1Line": _line()} if about.task.name in GENERATION else {}),
        "Error": record({"error": STRING}),
        "Instance": about.schemas.instance,
        "Parameters": {
            **about.schemas.parameters,
            "description": "Change the service's defaults for this request; null is as if not given.",
        },
        "Prediction": about.schemas.prediction,
        "V1Models": record({"models": array(STRING), **(MODEL_LIST if shares else {})}),
        "V1Model": record({"name": STRING, "ready": BOOLEAN, "error": STRING, **(CARD if shares else {})}, "error"),
        "V1Request": request(ref("Instance"), ref("Parameters"), *strings(about.schemas.instance)),
        "V1Response": record(
            {"predictions": array(ref("Prediction"), minItems=1), "outputs": array(tensor)}, "outputs"
        ),
    }


def _line() -> Schema:
    """A line of a stream."""
    last = {"finish_reason": {"enum": ["stop", "length"]}, "generated_text": STRING}
    piece = record({"instance": INTEGER, "choice": INTEGER, "text": STRING, **last}, "choice", *last)
    return any_of(piece, ref("Error"), description="A piece of a text, of which the last has the whole text.")


def request(instance: Schema, parameters: Schema, *alone: Schema) -> Schema:
    """A body of this API; ``alone`` are the forms of an instance that may stand for a list of one."""
    forms = [array(instance, minItems=1), *alone]
    instances = any_of(*forms, description="Also a string, for a list of one.") if alone else forms[0]
    return {
        "type": "object",
        # Other keys are not looked at, as in KServe (signature_name, ...).
        "properties": {
            "instances": instances,
            "inputs": {**instances, "description": "Another name of instances."},
            "parameters": any_of(parameters, {"type": "null"}),
        },
        "oneOf": [{"required": ["instances"]}, {"required": ["inputs"]}],
    }


def strings(instance: Schema) -> list[Schema]:
    """The forms of an instance that are strings."""
    return [form for form in instance.get("anyOf", ()) if form.get("type") == "string"]
