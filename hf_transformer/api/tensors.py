"""The V2 protocol over REST and over gRPC: tensors -> Query, Answers -> tensors.

A model that generates text also takes the tensors of Triton's backends for language models, so that their clients work
as they are. Inputs mean the same as the fields of the generate extension (generate.py), and may be [1, 1] too:

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
    FURTHER,
    PARAMETERS,
    PROMPT,
    GenerateRequest,
    Outputs,
    json_parameters,
    read_body,
    whole,
)
from hf_transformer.api.service import Model
from hf_transformer.api.streaming import STREAM, one_answer, wants_stream
from hf_transformer.errors import InvalidInput
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.sampling import STOP
from hf_transformer.protocol.server_codec import InferRequest, InferResponse, note_unknown
from hf_transformer.tasks.base import Servable
from hf_transformer.tasks.tensors import OUTPUT, read_instances
from hf_transformer.types.request import Context, Json, Query
from hf_transformer.types.tensors import Tensor, Texts

MORE_PARAMETERS = "parameters"
"""A request's parameter with further ones as JSON text: over gRPC a parameter is a string, a number or a boolean, and
some tasks have lists."""
LISTS = ("stop_token_ids",)
"""Inputs of the backends that are lists, also of one element."""
SEVERAL = (*STOP, BAD_WORDS, *LISTS)
"""Inputs of the backends that may have any number of elements."""


async def infer(model: Model, request: InferRequest, context: Context) -> InferResponse:
    """One request's answer, as the tensors that it asks for. Raises RequestError, InvalidInput where an input or an
    output is unknown, or a value is not what the task takes."""
    if isinstance(model, GenerativeModel) and is_for_backend(request):
        asked = read_as_backend(model, request, context)
        if asked.stream:
            raise one_answer(STREAM)
        version = model.describe().version  # before the answer: another model may take its place meanwhile
        outputs = backend_tensors(await whole(model, asked, context), request)
    else:
        query = to_query(model.task, request, context)
        if query.parameters and wants_stream(model.task, query.parameters):
            raise one_answer(f"parameters.{STREAM}")
        version = model.describe().version
        answers = await model.predict(query, context)
        if answers.tensor is None:
            raise AssertionError("the query asked for a tensor")
        outputs = _wanted(request, [answers.tensor, *answers.outputs])
    return InferResponse(model.name, version, outputs, request.id)


def to_query(task: Servable, request: InferRequest, context: Context) -> Query:
    """The query in a request's tensors. Raises InvalidInput for an unknown tensor or a wrong value."""
    parameters = _known(all_parameters(request.parameters), task.parameters, context)
    if request.outputs:
        _switch_on(request, parameters, OUTPUT, task.switched_on_by, "parameters.")
    return Query(read_instances(request.inputs, task.fields), parameters, True)


def all_parameters(given: Mapping[str, Json]) -> dict[str, Json]:
    """A request's parameters, also those that stand in one as JSON text. Raises InvalidInput or TooLarge."""
    found = dict(given)
    if MORE_PARAMETERS not in found:
        return found
    more = json_parameters(found.pop(MORE_PARAMETERS), f"parameters.{MORE_PARAMETERS}")
    twice = sorted(found.keys() & more.keys())
    if twice:
        raise InvalidInput.of(f"parameters.{twice[0][:40]}: given twice, once in parameters.{MORE_PARAMETERS}")
    return found | more


def _known(given: dict[str, Json], known: Collection[str], context: Context) -> dict[str, Json]:
    """The parameters that the task knows. KServe and Triton ignore the others; here the answer names them, too."""
    note_unknown(given, known, context.ignored)
    return {name: value for name, value in given.items() if name in known}


def _switch_on(
    request: InferRequest, parameters: dict[str, Json], output: str, switches: Mapping[str, str], where: str
) -> None:
    """Sets the parameters (``switches``) that ask for the outputs which a request names; ``output`` always comes.

    Raises InvalidInput for an unknown output, or one that the request's own parameter switches off.
    """
    for wanted in request.outputs:
        switch = switches.get(wanted)
        if switch is not None:
            if parameters.setdefault(switch, True) is not True:
                raise InvalidInput.of(f"outputs: {wanted!r} is asked for, and {where}{switch} switches it off")
        elif wanted != output:
            known = ", ".join((output, *switches))
            raise InvalidInput.of(f"outputs: {wanted[:100]!r} is unknown, expected one of {known}")


def _wanted(request: InferRequest, outputs: list[Tensor]) -> list[Tensor]:
    """All outputs, or those that the request names, in its order."""
    if not request.outputs:
        return outputs
    by_name = {tensor.name: tensor for tensor in outputs}
    return [by_name[name] for name in request.outputs]


# The tensors of Triton's backends


def is_for_backend(request: InferRequest) -> bool:
    """Whether a request is in the form of Triton's backends; ``text_input`` alone is a name of V2's own input, too."""
    if PROMPT not in request.inputs:
        return False
    return len(request.inputs) > 1 or any(name == ANSWER or name in FURTHER for name in request.outputs)


def read_as_backend(model: GenerativeModel, request: InferRequest, context: Context) -> GenerateRequest:
    """A request in the form of Triton's backends. Raises RequestError where something in it is not as expected."""
    body = {name: _value(tensor) for name, tensor in request.inputs.items()}
    _switch_on(request, body, ANSWER, FURTHER, "")
    known = (*model.task.parameters, *PARAMETERS)
    body["parameters"] = _known(all_parameters(request.parameters), known, context)
    return read_body(model.task, body)


def backend_tensors(outputs: Outputs, request: InferRequest) -> list[Tensor]:
    """The tensors of all outputs, or of those that the request names."""
    return _wanted(request, [_tensor(name, values) for name, values in outputs.items()])


def _value(tensor: Tensor | Texts) -> Json:
    """An input as JSON has it."""
    name = tensor.name
    if name in ABOUT or name == "parameters":
        raise InvalidInput.of(f"inputs: {name!r} is unknown, expected {PROMPT!r} and parameters of it")
    count = len(tensor.texts) if isinstance(tensor, Texts) else tensor.data.size
    if count != 1 and name not in SEVERAL:
        raise InvalidInput.of(
            f"inputs: {name!r} has the shape {list(tensor.shape)}, expected one element: [1] or [1, 1]"
        )
    if isinstance(tensor, Texts):
        values: list[Json] = list(tensor.texts)
    else:  # a float as it is written: float32's 0.1 becomes the 0.1 of JSON
        values = [float(str(one)) if isinstance(one, np.floating) else one.item() for one in tensor.data.reshape(-1)]
    return values[0] if count == 1 and name not in LISTS else values


def _tensor(name: str, values: list[str] | list[int]) -> Tensor:
    texts = [one.encode() for one in values if isinstance(one, str)]
    if not texts:
        return Tensor(name, "UINT32", np.array(values, np.uint32))
    data = np.empty(len(texts), np.object_)
    data[:] = texts
    return Tensor(name, "BYTES", data)
