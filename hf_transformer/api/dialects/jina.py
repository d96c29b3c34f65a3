"""Jina's vectors of tokens. Its embeddings and rerank share their routes with OpenAI's (api/openai).

Source: https://api.jina.ai/redoc#tag/multi-vector
"""

from __future__ import annotations

from typing import Annotated, Literal

from hf_transformer.api.bodies import TEXTS_OR_IDS, Unused, read_texts, refuse_ids, usage
from hf_transformer.api.call import Call
from hf_transformer.api.dialects.routes import typed_route
from hf_transformer.api.documents import TextObject, VectorList, plain_texts, to_base64
from hf_transformer.api.error_forms import render_detail
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.retrieval import (
    Dimensions,
    LongTextBody,
    Precision,
    read_precision,
    read_purpose,
    read_truncation,
    require_representation,
)
from hf_transformer.api.service import Model, Service
from hf_transformer.errors import Path
from hf_transformer.tasks.text_embedding import MULTI_VECTOR, TextEmbedding
from hf_transformer.types.fields import Form, NonEmpty, about
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json, Query


class MultiVectorRequest(LongTextBody):
    input: Annotated[
        str | NonEmpty[Json],
        about("A text or a list of texts.", expected=TEXTS_OR_IDS, shown=(str, NonEmpty[str | TextObject])),
    ]
    input_type: Annotated[
        str | None,
        about("The purpose of the texts, which chooses the prompt: query, document, passage, ...", also=("task",)),
    ] = None
    embedding_type: Annotated[Precision | Literal["base64"] | None, about("The type of a vector's numbers.")] = None
    dimensions: Dimensions = None
    user: Unused = None


MULTI_VECTORS = Form(MultiVectorRequest)


async def multi_vector(service: Service, call: Call, model: Model, body: MultiVectorRequest) -> Response:
    """Returns the vectors of each text's tokens."""
    require_representation(model, MULTI_VECTOR)
    texts, _ = read_texts(("input",), plain_texts(body.input, call.budget), call.budget, _refuse_ids)
    options: dict[str, Json] = {"representations": MULTI_VECTOR, **MULTI_VECTORS.options(body), **read_truncation(body)}
    options |= read_purpose(body.input_type, model, call.context)
    base64 = body.embedding_type == "base64"
    if not base64:
        options |= read_precision(body.embedding_type)
    answers = await model.predict(Query(texts, options, name="input"), call.context)
    data = []
    for index, prediction in enumerate(answers.predictions):
        vectors = prediction[MULTI_VECTOR]
        shown = [to_base64(vector) for vector in vectors] if base64 else vectors
        data.append({"object": "embeddings", "index": index, "embeddings": shown})
    answer = {"object": "list", "data": data, "model": call.context.model_name}
    return await reply_arrays({**answer, "usage": usage(answers)}, call.context, service.executor)


def _refuse_ids(ids: list[Json], path: Path) -> Json:
    raise refuse_ids(path)


ROUTES = (
    typed_route(
        "/v1/multi-vector", "jina", MULTI_VECTORS, (TextEmbedding.name,), multi_vector, render_detail, VectorList
    ),
)
