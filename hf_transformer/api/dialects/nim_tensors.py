"""NVIDIA NIM's form of V2 inference for embeddings, over gRPC and REST.

    text BYTES [n, 1], modality BYTES [n, 1] (optional)
    parameters: input_type "query" | "passage", truncate "NONE" | "START" | "END", dimensions, embedding_type
    -> token_count INT32 [n], embeddings [n, D] FP32, INT8 or UINT8

The outputs that a request names, or NIM's parameters, tell this form from V2's own, whose output is ``output-0``.

Source: https://docs.nvidia.com/nim/nemo-retriever/text-embedding/latest/reference-grpc.html
"""

from __future__ import annotations

import numpy as np

from hf_transformer.api.dialects.fields import (
    move_if_present,
    read_precision,
    read_purpose,
    read_truncation,
    require_representation,
)
from hf_transformer.api.service import Model
from hf_transformer.errors import InvalidInput
from hf_transformer.protocol.server_codec import InferRequest, note_unknown
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.tasks.tensors import read_instances
from hf_transformer.tasks.text_embedding import DENSE
from hf_transformer.types.request import Context, Query
from hf_transformer.types.tensors import Tensor, Texts

TASK = "text_embedding"
MODALITY, EMBEDDINGS, TOKEN_COUNT = "modality", "embeddings", "token_count"
TRUNCATE, EMBEDDING_TYPE = "truncate", "embedding_type"
PARAMETERS = ("input_type", TRUNCATE, "dimensions", EMBEDDING_TYPE)
DEFAULT_TRUNCATE = "NONE"


def is_for_nim(model: Model, request: InferRequest) -> bool:
    """Whether a request for embeddings has NIM's outputs, or its parameters and no outputs of V2."""
    if model.task.name != TASK:
        return False
    if request.outputs:
        return EMBEDDINGS in request.outputs or TOKEN_COUNT in request.outputs
    return TRUNCATE in request.parameters or EMBEDDING_TYPE in request.parameters


async def embed(model: Model, request: InferRequest, context: Context) -> list[Tensor]:
    """Returns the requested outputs, by default both. Raises RequestError."""
    require_representation(model, DENSE)
    for name in request.outputs:
        if name not in (EMBEDDINGS, TOKEN_COUNT):
            raise InvalidInput("outputs", f"names of {TOKEN_COUNT}, {EMBEDDINGS}", repr(name[:100]))
    inputs = {name: tensor for name, tensor in request.inputs.items() if name != MODALITY}
    modality = request.inputs.get(MODALITY)
    if modality is not None and not (isinstance(modality, Texts) and set(modality.texts) <= {"text"}):
        raise InvalidInput(f"inputs.{MODALITY}", "text in each row, since the model reads texts", "another modality")
    note_unknown(request.parameters, PARAMETERS, context.ignored)
    known = {name: value for name, value in request.parameters.items() if name in PARAMETERS}
    # The package's enumerations have these words in lower case.
    truncate = known.get(TRUNCATE, DEFAULT_TRUNCATE)
    known[TRUNCATE] = truncate.upper() if isinstance(truncate, str) else truncate
    parameters = Parameters(known, PARAMETERS)
    options = move_if_present(parameters, {"dimensions": "dimensions"}) | read_truncation(parameters)
    options |= read_purpose(parameters, "input_type", model)
    precision = read_precision(parameters, EMBEDDING_TYPE)
    if precision != "float32":
        options["precision"] = precision
    query = Query(read_instances(inputs, model.task.fields), options, tensors=True, counts=True)
    answers = await model.predict(query, context)
    if answers.tensor is None:
        raise AssertionError("the query asked for a tensor")
    outputs = {
        TOKEN_COUNT: Tensor(TOKEN_COUNT, "INT32", np.array(answers.token_counts, np.int32)),
        EMBEDDINGS: Tensor(EMBEDDINGS, answers.tensor.datatype, answers.tensor.data),
    }
    return [outputs[name] for name in request.outputs or outputs]
