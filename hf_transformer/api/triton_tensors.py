"""One prompt as tensors, named as those of Triton's backends for language models: their clients work as they are.

    text_input BYTES [1], stream BOOL [1], sampling_parameters BYTES [1], exclude_input_in_output BOOL [1], ...
    -> text_output BYTES [n], finish_reason BYTES [n], num_input_tokens UINT32 [1], num_output_tokens UINT32 [n]

Inputs mean what the fields of the generate extension do (generate_request.py), and may be [1, 1] too. The request's own
parameters may stand in their place. Pieces are told as grpc_pieces tells them.
"""

from __future__ import annotations

from collections.abc import Awaitable

import numpy as np

from hf_transformer.api import tensors
from hf_transformer.api.base import Model
from hf_transformer.api.generate_request import (
    ABOUT,
    ANSWER,
    BAD_WORDS,
    FURTHER,
    PROMPT,
    Asked,
    Outputs,
    read_body,
    whole,
)
from hf_transformer.api.generation import generating, one_answer
from hf_transformer.errors import InvalidInput
from hf_transformer.generation.task import STOP, TextGeneration
from hf_transformer.protocol.inbound import InferRequest, InferResponse
from hf_transformer.types import Context, Json, Tensor, Texts

LISTS = ("stop_token_ids",)
"""Inputs that are lists, also of one element."""
SEVERAL = (*STOP, BAD_WORDS, *LISTS)
"""Inputs that may have any number of elements."""
NO_INPUTS = (*ABOUT, "parameters")


def infer(model: Model, request: InferRequest, context: Context) -> Awaitable[InferResponse]:
    """One request's answer, in the form that it has itself. Raises RequestError."""
    return _infer(model, request, context) if has_form(model, request) else tensors.infer(model, request, context)


def has_form(model: Model, request: InferRequest) -> bool:
    """Whether a request has this form: ``text_input`` alone is a name of V2's own input, too."""
    if PROMPT not in request.inputs or not isinstance(model.task, TextGeneration):
        return False
    outputs = (ANSWER, *FURTHER.values())
    return len(request.inputs) > 1 or any(wanted.name in outputs for wanted in request.outputs)


def read(model: Model, request: InferRequest) -> Asked:
    """What a request of this form asks for.

    Raises:
        RequestError: an input, an output or a parameter is not what is expected.
    """
    body: dict[str, Json] = {name: _value(tensor) for name, tensor in request.inputs.items()}
    switches = {name: switch for switch, name in FURTHER.items()}
    for wanted in request.outputs:
        switch = switches.get(wanted.name)
        if switch is not None:
            if body.setdefault(switch, True) is not True:
                raise InvalidInput(f"outputs: {wanted.name!r} is asked for, and {switch} switches it off")
        elif wanted.name != ANSWER:
            known = ", ".join((ANSWER, *switches))
            raise InvalidInput(f"outputs: {wanted.name[:100]!r} is unknown, expected one of {known}")
    body["parameters"] = tensors.all_parameters(request.parameters)
    return read_body(generating(model, "a text"), body)


def tensors_of(outputs: Outputs, request: InferRequest) -> list[Tensor]:
    """All outputs, or those that the request names, in its order."""
    found = {name: _tensor(name, values) for name, values in outputs.items()}
    return [found[wanted.name] for wanted in request.outputs] if request.outputs else list(found.values())


async def _infer(model: Model, request: InferRequest, context: Context) -> InferResponse:
    asked = read(model, request)
    if asked.stream:
        raise one_answer("stream")
    version = model.describe().version  # before the answer: the model may be bound to another one meanwhile
    outputs = await whole(model, asked, context)
    return InferResponse(model.name, version, tensors_of(outputs, request), request.id)


def _value(tensor: Tensor | Texts) -> Json:
    """What an input says as JSON has it."""
    name = tensor.name
    if name in NO_INPUTS:
        raise InvalidInput(f"inputs: {name!r} is unknown, expected {PROMPT!r} and parameters of it")
    count = len(tensor.texts) if isinstance(tensor, Texts) else tensor.data.size
    if count != 1 and name not in SEVERAL:
        raise InvalidInput(f"inputs: {name!r} has the shape {list(tensor.shape)}, expected one element: [1] or [1, 1]")
    values = tensor.texts if isinstance(tensor, Texts) else _numbers(tensor)
    return values[0] if count == 1 and name not in LISTS else values


def _numbers(tensor: Tensor) -> list[Json]:
    # A float as it is written: float32's 0.1 is to be the 0.1 of JSON.
    return [float(str(one)) if isinstance(one, np.floating) else one.item() for one in tensor.data.reshape(-1)]


def _tensor(name: str, values: list[str] | list[int]) -> Tensor:
    texts = [one.encode() for one in values if isinstance(one, str)]
    if not texts:
        return Tensor(name, "UINT32", np.array(values, np.uint32))
    data = np.empty(len(texts), np.object_)
    data[:] = texts
    return Tensor(name, "BYTES", data)
