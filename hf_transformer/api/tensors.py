"""V2 inference over REST and gRPC. Converts tensors to a Query, and Answers to tensors.

Generative models also accept the tensors of Triton's vLLM and TensorRT-LLM backends, so that clients of these backends
work unchanged. The inputs match the generate extension's fields (generate.py). The shape [1, 1] is also valid for [1]:

    text_input BYTES [1], stream BOOL [1], sampling_parameters BYTES [1], exclude_input_in_output BOOL [1], ...
    -> text_output BYTES [n], finish_reason BYTES [n], num_input_tokens UINT32 [1], num_output_tokens UINT32 [n]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from hf_transformer.api.generate import (
    ABOUT,
    ANSWER,
    BAD_WORDS,
    EXTRA_OUTPUTS,
    PARAMETERS,
    PROMPT,
    GenerateRequest,
    Outputs,
    json_parameters,
    read_body,
    whole,
)
from hf_transformer.api.nim_tensors import embed_tensors, is_for_nim
from hf_transformer.api.service import Model
from hf_transformer.api.streaming import not_streamed, wants_stream
from hf_transformer.errors import InvalidInput
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.parameters import STOP
from hf_transformer.protocol.server_codec import InferRequest, InferResponse, note_unknown
from hf_transformer.tasks.base import Servable
from hf_transformer.tasks.tensors import OUTPUT, read_instances
from hf_transformer.types.request import Context, Json, Query
from hf_transformer.types.tensors import Tensor, Texts

JSON_PARAMETERS = "parameters"
"""The parameter for additional parameters as JSON text. gRPC has no list parameters, but some tasks need lists."""
LISTS = ("stop_token_ids",)
"""Backend inputs that are always lists, even with one element."""
SEVERAL = (*STOP, BAD_WORDS, *LISTS)
"""Backend inputs with any number of elements."""


async def infer(model: Model, request: InferRequest, context: Context) -> InferResponse:
    """Answers a request with the requested tensors. Raises RequestError."""
    if isinstance(model, GenerativeModel) and is_for_backend(request):
        asked = read_as_backend(model, request, context)
        if asked.stream:
            raise not_streamed()
        version = model.describe().version  # read before generation: the predictor may reload the model
        outputs = backend_tensors(await whole(model, asked, context), request)
    elif (request.parameters or request.outputs) and (
        has_unknown_names(model.task, request) and is_for_nim(model.task, request)
    ):
        version = model.describe().version
        outputs = await embed_tensors(model, request, context)
    else:
        query = to_query(model.task, request, context)
        if query.parameters and wants_stream(model.task, query.parameters):
            raise not_streamed()
        version = model.describe().version
        answers = await model.predict(query, context)
        if answers.tensor is None:
            raise AssertionError("the query asked for a tensor")
        outputs = _requested(request, [answers.tensor, *answers.outputs])
    return InferResponse(context.model_name, version, outputs, request.id)


def to_query(task: Servable, request: InferRequest, context: Context) -> Query:
    """Converts a request's tensors to a query. Raises InvalidInput for an unknown tensor or an invalid value."""
    parameters = _known(all_parameters(request.parameters), task.parameters, context)
    if request.outputs:
        _switch_on(request, parameters, OUTPUT, task.switched_on_by, "parameters.")
    return Query(read_instances(request.inputs, task.fields), parameters, True)


def has_unknown_names(task: Servable, request: InferRequest) -> bool:
    """Whether a request has names that the task does not know: then it may be another server's form of V2."""
    return any(name not in task.parameters for name in request.parameters) or any(
        name != OUTPUT and name not in task.switched_on_by for name in request.outputs
    )


def all_parameters(parameters: Mapping[str, Json]) -> dict[str, Json]:
    """Merges a request's parameters with its JSON_PARAMETERS. Raises InvalidInput or TooLarge."""
    merged = dict(parameters)
    if JSON_PARAMETERS not in merged:
        return merged
    parsed = json_parameters(merged.pop(JSON_PARAMETERS), ("parameters", JSON_PARAMETERS))
    duplicates = sorted(merged.keys() & parsed.keys())
    if duplicates:
        raise InvalidInput(("parameters", duplicates[0][:40]), "one value", f"one in parameters.{JSON_PARAMETERS} too")
    return merged | parsed


def _known(parameters: dict[str, Json], known: Collection[str], context: Context) -> dict[str, Json]:
    """Removes unknown parameters. KServe and Triton also ignore them. The response lists their names."""
    note_unknown(parameters, known, context.ignored)
    return {name: value for name, value in parameters.items() if name in known}


def _switch_on(
    request: InferRequest, parameters: dict[str, Json], output: str, switches: Mapping[str, str], prefix: str
) -> None:
    """Sets the parameters that enable the requested outputs. ``output`` needs no parameter.

    Raises InvalidInput for an unknown output, or for an output that a parameter disables.
    """
    for name in request.outputs:
        switch = switches.get(name)
        if switch is not None:
            if parameters.setdefault(switch, True) is not True:
                raise InvalidInput("outputs", f"no {name!r}, since {prefix}{switch} switches it off", repr(name))
        elif name != output:
            raise InvalidInput("outputs", f"names of {', '.join((output, *switches))}", repr(name[:100]))


def _requested(request: InferRequest, outputs: list[Tensor]) -> list[Tensor]:
    """Selects the requested outputs in the order of the request, or all outputs by default."""
    if not request.outputs:
        return outputs
    by_name = {tensor.name: tensor for tensor in outputs}
    return [by_name[name] for name in request.outputs]


# Tensors of Triton's backends


def is_for_backend(request: InferRequest) -> bool:
    """Whether a request has the tensors of Triton's backends. ``text_input`` without other inputs may be V2's input."""
    if PROMPT not in request.inputs:
        return False
    return len(request.inputs) > 1 or any(name == ANSWER or name in EXTRA_OUTPUTS for name in request.outputs)


def read_as_backend(model: GenerativeModel, request: InferRequest, context: Context) -> GenerateRequest:
    """Parses a request with tensors of Triton's backends. Raises RequestError for an invalid input or parameter."""
    body = {name: _value(tensor) for name, tensor in request.inputs.items()}
    _switch_on(request, body, ANSWER, EXTRA_OUTPUTS, "")
    known = (*model.task.parameters, *PARAMETERS)
    body["parameters"] = _known(all_parameters(request.parameters), known, context)
    return read_body(model.task, body, context)


def backend_tensors(outputs: Outputs, request: InferRequest) -> list[Tensor]:
    """Converts the requested outputs, by default all outputs, to tensors."""
    return _requested(request, [_tensor(name, values) for name, values in outputs.items()])


def _value(tensor: Tensor | Texts) -> Json:
    """Converts an input to JSON. Raises InvalidInput for an unknown input or an invalid shape."""
    name = tensor.name
    if name in ABOUT or name == "parameters":
        raise InvalidInput("inputs", f"{PROMPT!r} and its parameters", repr(name))
    count = len(tensor.texts) if isinstance(tensor, Texts) else tensor.data.size
    if count != 1 and name not in SEVERAL:
        raise InvalidInput("inputs", f"one element for {name!r}, the shape [1] or [1, 1]", str(list(tensor.shape)))
    if isinstance(tensor, Texts):
        values: list[Json] = list(tensor.texts)
    else:  # str gives the shortest digits: float32's 0.1 becomes JSON's 0.1
        elements = tensor.data.reshape(-1)
        values = [float(str(item)) if isinstance(item, np.floating) else item.item() for item in elements]
    return values[0] if count == 1 and name not in LISTS else values


def _tensor(name: str, values: list[str] | list[int]) -> Tensor:
    texts = [value.encode() for value in values if isinstance(value, str)]
    if not texts:
        return Tensor(name, "UINT32", np.array(values, np.uint32))
    data = np.empty(len(texts), np.object_)
    data[:] = texts
    return Tensor(name, "BYTES", data)
