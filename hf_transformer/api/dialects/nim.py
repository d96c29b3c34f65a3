"""NVIDIA NIM's ranking, and its form of V2 for embeddings. Its other embeddings share OpenAI's route (api/openai).

    POST /v1/ranking {"model", "query": {"text"}, "passages": [{"text"}, ...], "truncate": "NONE" | "END"}
    -> {"rankings": [{"index": 1, "logit": 4.5}, ...], "usage"}, best first

    V2 over gRPC and REST: text BYTES [n, 1], modality BYTES [n, 1] (optional)
    parameters: input_type "query" | "passage", truncate "NONE" | "START" | "END", dimensions, embedding_type
    -> token_count INT32 [n], embeddings [n, D] FP32, INT8 or UINT8

The outputs that a request names, or NIM's parameters, tell this form from V2's own, whose output is ``output-0``.

Sources: https://docs.nvidia.com/nim/nemo-retriever/text-reranking/latest/reference.html and
https://docs.nvidia.com/nim/nemo-retriever/text-embedding/latest/reference-grpc.html
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hf_transformer.api.bodies import usage
from hf_transformer.api.call import Call
from hf_transformer.api.dialects.fields import (
    move_if_present,
    read_precision,
    read_purpose,
    read_truncation,
    require_representation,
    unit_length,
)
from hf_transformer.api.dialects.routes import DialectRoute, read_body
from hf_transformer.api.error_forms import render_detail
from hf_transformer.api.errors import expect, expect_items
from hf_transformer.api.openai.fields import IgnoredField
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.service import Model, Service
from hf_transformer.errors import InvalidInput, Path, describe
from hf_transformer.protocol.server_codec import InferRequest, note_unknown
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.tasks.tensors import read_instances
from hf_transformer.tasks.text_embedding import DENSE
from hf_transformer.types.http import Response
from hf_transformer.types.paths import EACH, TOP_LEVEL
from hf_transformer.types.request import Context, Json, Query
from hf_transformer.types.tensors import Tensor, Texts

TEXT = '{"text": string}, since the model reads texts'
MODALITY, EMBEDDINGS, TOKEN_COUNT = "modality", "embeddings", "token_count"
TRUNCATE, EMBEDDING_TYPE = "truncate", "embedding_type"
INSTANCE = TOP_LEVEL.then(
    {
        ("instances", 0): ("passages",),
        ("instances", 0, "query"): ("query", "text"),
        ("instances", 0, "texts"): ("passages",),
        ("instances", 0, "texts", EACH): ("passages", EACH, "text"),
    }
)
"""The names of fields: the task has a single instance with all passages."""
PARAMETERS = ("input_type", TRUNCATE, "dimensions", EMBEDDING_TYPE)


async def ranking(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns the logits of passages for a query."""
    tasks, known, ignored = ("rerank",), ("query", "passages", "truncate"), (IgnoredField("user", ()),)
    model, parameters = read_body(service, call, payload, tasks=tasks, known=known, ignored=ignored)
    query = read_text(parameters.get("query"), ("query",))
    passages = expect_items(parameters.get("passages"), "passages", f"a list of {TEXT}")
    call.budget.few("passages", passages)
    texts = [read_text(passage, ("passages", index)) for index, passage in enumerate(passages)]
    call.context.field_names = INSTANCE
    options = {"output_format": "kserve", "raw_scores": True, **read_truncation(parameters)}
    answers = await model.predict(Query([{"query": query, "texts": texts}], options), call.context)
    rankings = [{"index": one["index"], "logit": one["score"]} for one in answers.predictions[0]]
    return await reply_arrays({"rankings": rankings, "usage": usage(answers)}, call.context, service.executor)


def read_text(value: Json, path: Path) -> str:
    """Returns the text of an object {"text"}. Raises InvalidInput for any other value, such as one with an image."""
    if not isinstance(value, dict) or value.keys() != {"text"}:
        raise InvalidInput(path, TEXT, "nothing" if value is None else describe(value))
    return str(expect(value["text"], str, (*path, "text"), "a string"))


def is_for_nim(model: Model, request: InferRequest) -> bool:
    """Whether a request for embeddings has NIM's outputs, or its parameters and no outputs of V2."""
    if model.task.name != "text_embedding":
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
    note_unknown(request.parameters, PARAMETERS, context.ignored)
    known = {name: value for name, value in request.parameters.items() if name in PARAMETERS}
    if isinstance(known.get(TRUNCATE), str):  # the package's enumerations have these words in lower case
        known[TRUNCATE] = known[TRUNCATE].upper()
    parameters = Parameters(known, PARAMETERS)
    options = unit_length(model) | move_if_present(parameters, "dimensions")
    options |= read_truncation(parameters, default="NONE")
    options |= read_precision(parameters, EMBEDDING_TYPE) | read_purpose(parameters, "input_type", model)
    query = Query(read_instances(inputs, model.task.fields), options, tensors=True, counts=True)
    answers = await model.predict(query, context)
    if answers.tensor is None:
        raise AssertionError("the query asked for a tensor")
    outputs = {
        TOKEN_COUNT: Tensor(TOKEN_COUNT, "INT32", np.array(answers.token_counts, np.int32)),
        EMBEDDINGS: Tensor(EMBEDDINGS, answers.tensor.datatype, answers.tensor.data),
    }
    return [outputs[name] for name in request.outputs or outputs]


ROUTES = (DialectRoute(path="/v1/ranking", dialect="nim", handle=ranking, render_error=render_detail),)
