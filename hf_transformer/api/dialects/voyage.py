"""Voyage's contextualized chunk embeddings: chunks of a document are embedded in one pass of the model (late chunking).

    POST /v1/contextualizedembeddings
    {"inputs": [[chunk, ...], ...], "model", "input_type", "output_dimension", "output_dtype", "encoding_format"}
    -> {"object": "list", "data": [{"object": "list", "index": 0, "data": [{"object": "embedding", "embedding",
        "index"}]}], "model", "usage": {"total_tokens"}}

Voyage's embeddings and rerank share their routes with OpenAI's (api/openai).

Sources: https://docs.voyageai.com/reference/contextualized-embeddings-api and the package voyageai
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_transformer.api.call import Call
from hf_transformer.api.dialects.fields import (
    aliased,
    move_if_present,
    read_precision,
    read_purpose,
    require_representation,
    unit_length,
)
from hf_transformer.api.dialects.routes import DialectRoute, read_body
from hf_transformer.api.error_forms import render_detail
from hf_transformer.api.errors import expect, expect_items
from hf_transformer.api.openai.embeddings import to_base64
from hf_transformer.api.openai.fields import IgnoredField
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.service import Service
from hf_transformer.tasks.text_embedding import DENSE
from hf_transformer.types.http import Response
from hf_transformer.types.paths import EACH, TOP_LEVEL
from hf_transformer.types.request import Json, Query

FIELDS = ("inputs", "input_type", "output_dimension", "output_dtype", "encoding_format")
IGNORED = (
    IgnoredField("enable_auto_chunking", (), (False,), "the client divides a document"),
    IgnoredField("user", ()),
)
ALIASES = {"dimensions": ("output_dimension",), "precision": ("output_dtype",), "prompt_name": ("input_type",)}
"""Voyage's fields for the task's parameters."""
CHUNKS = TOP_LEVEL.then({("inputs", EACH, "chunks"): ("inputs", EACH)})
"""The names of fields: a document is the list of its chunks."""


async def contextualized(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns a vector of each chunk, by document."""
    tasks = ("text_embedding",)
    model, parameters = read_body(service, call, payload, tasks=tasks, known=FIELDS, ignored=IGNORED)
    require_representation(model, DENSE)
    base64 = parameters.choice("encoding_format", "float", ("float", "base64")) == "base64"
    inputs = expect(parameters.get("inputs"), list, "inputs", "a list of lists of texts")
    call.budget.few("inputs", inputs)
    documents = []
    for index, chunks in enumerate(inputs):  # the task reads them one by one, until the answer has too many values
        call.budget.few(("inputs", index), expect_items(chunks, ("inputs", index), "a list of texts"))
        documents.append({"chunks": chunks})
    options = unit_length(model) | move_if_present(parameters, output_dimension="dimensions")
    options |= read_precision(parameters, "output_dtype") | read_purpose(parameters, "input_type", model)
    call.context.field_names = CHUNKS.then(aliased(parameters, ALIASES))
    answers = await model.predict(Query(documents, options, name="inputs"), call.context)
    data = [
        {"object": "list", "index": index, "data": [_embedding(*one, base64) for one in enumerate(vectors)]}
        for index, vectors in enumerate(answers.predictions)
    ]
    answer = {"object": "list", "data": data, "model": call.context.model_name}
    return await reply_arrays({**answer, "usage": {"total_tokens": answers.tokens}}, call.context, service.executor)


def _embedding(index: int, vector: Any, base64: bool) -> dict[str, Json]:
    return {"object": "embedding", "embedding": to_base64(vector) if base64 else vector, "index": index}


ROUTES = (
    DialectRoute(
        path="/v1/contextualizedembeddings",
        dialect="voyage",
        handle=contextualized,
        render_error=render_detail,
    ),
)
