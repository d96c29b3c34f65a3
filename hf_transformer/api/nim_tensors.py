"""NVIDIA NIM's form of V2 for embeddings, over gRPC and REST.

    text BYTES [n, 1], modality BYTES [n, 1] (optional)
    parameters: input_type "query" | "passage", truncate "NONE" | "START" | "END", dimensions, embedding_type
    -> token_count INT32 [n], embeddings [n, D] FP32, INT8 or UINT8

The outputs that a request names, or NIM's parameters, tell this form from V2's own, whose output is ``output-0``.

Source: https://docs.nvidia.com/nim/nemo-retriever/text-embedding/latest/reference-grpc.html
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from hf_transformer.api.retrieval import (
    TRUNCATES,
    Dimensions,
    Precision,
    Purpose,
    Truncate,
    read_precision,
    read_purpose,
    require_representation,
    unit_length,
)
from hf_transformer.api.service import Model
from hf_transformer.errors import InvalidInput
from hf_transformer.protocol.server_codec import InferRequest, note_ignored
from hf_transformer.tasks.base import Servable
from hf_transformer.tasks.tensors import read_instances
from hf_transformer.tasks.text_embedding import DENSE, TextEmbedding
from hf_transformer.types.fields import Form, OpenBody, about
from hf_transformer.types.request import Context, Query
from hf_transformer.types.tensors import Tensor, Texts

MODALITY, EMBEDDINGS, TOKEN_COUNT = "modality", "embeddings", "token_count"
TRUNCATE, EMBEDDING_TYPE = "truncate", "embedding_type"


class NimParameters(OpenBody):
    input_type: Purpose = None
    truncate: Annotated[Truncate, about("The end that is cut off a long text, or NONE to refuse it.")] = "NONE"
    dimensions: Dimensions = None
    embedding_type: Annotated[Precision | None, about("The type of a vector's numbers.")] = None


PARAMETERS = Form(NimParameters)


def is_for_nim(task: Servable, request: InferRequest) -> bool:
    """Whether a request for embeddings has NIM's outputs, or its parameters and no outputs of V2."""
    if task.name != TextEmbedding.name:
        return False
    if request.outputs:
        return EMBEDDINGS in request.outputs or TOKEN_COUNT in request.outputs
    return TRUNCATE in request.parameters or EMBEDDING_TYPE in request.parameters


async def embed_tensors(model: Model, request: InferRequest, context: Context) -> list[Tensor]:
    """Returns the requested outputs, by default both. Raises RequestError."""
    require_representation(model, DENSE)
    for name in request.outputs:
        if name not in (EMBEDDINGS, TOKEN_COUNT):
            raise InvalidInput("outputs", f"names of {TOKEN_COUNT}, {EMBEDDINGS}", repr(name[:100]))
    inputs = {name: tensor for name, tensor in request.inputs.items() if name != MODALITY}
    modality = request.inputs.get(MODALITY)
    if modality is not None and not (isinstance(modality, Texts) and set(modality.texts) <= {"text"}):
        raise InvalidInput(("inputs", MODALITY), "text in each row, since the model reads texts", "another modality")
    sent = dict(request.parameters)
    if isinstance(sent.get(TRUNCATE), str):  # the package's enumerations have these words in lower case
        sent[TRUNCATE] = sent[TRUNCATE].upper()
    unknown: list[str] = []
    parameters = PARAMETERS.read(sent, unknown, ("parameters",))
    for name in unknown:
        note_ignored(name, context.ignored)
    options = unit_length(model) | PARAMETERS.options(parameters) | TRUNCATES[parameters.truncate]
    options |= read_precision(parameters.embedding_type) | read_purpose(parameters.input_type, model, context)
    query = Query(read_instances(inputs, model.task.fields), options, tensors=True, counts=True)
    answers = await model.predict(query, context)
    if answers.tensor is None:
        raise AssertionError("the query asked for a tensor")
    outputs = {
        TOKEN_COUNT: Tensor(TOKEN_COUNT, "INT32", np.array(answers.token_counts, np.int32)),
        EMBEDDINGS: Tensor(EMBEDDINGS, answers.tensor.datatype, answers.tensor.data),
    }
    return [outputs[name] for name in request.outputs or outputs]
