"""Voyage's contextualized chunk embeddings: chunks of a document are embedded in one pass of the model (late chunking).

Voyage's embeddings and rerank share their routes with OpenAI's (api/openai).

Sources: https://docs.voyageai.com/reference/contextualized-embeddings-api and the package voyageai
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from hf_transformer.api.bodies import ModelBody, Unused, rename_fields
from hf_transformer.api.call import Call
from hf_transformer.api.dialects.routes import typed_route
from hf_transformer.api.documents import VectorList, to_base64
from hf_transformer.api.error_forms import render_detail
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.retrieval import (
    Dimensions,
    EncodingFormat,
    Precision,
    Purpose,
    read_precision,
    read_purpose,
    require_representation,
    unit_length,
)
from hf_transformer.api.service import Model, Service
from hf_transformer.errors import Path
from hf_transformer.tasks.text_embedding import DENSE, TextEmbedding
from hf_transformer.types.fields import Form, NonEmpty, about, only, read_value
from hf_transformer.types.http import Response
from hf_transformer.types.paths import EACH
from hf_transformer.types.request import Json, Query

Chunks = Annotated[NonEmpty[Json], about(expected="a list of texts")]
CHUNKS: Mapping[Path, Path] = {("inputs", EACH, "chunks"): ("inputs", EACH)}
"""The names of fields: a document is the list of its chunks."""


class ContextualizedRequest(ModelBody):
    inputs: Annotated[
        NonEmpty[Json],
        about("Documents in chunks.", expected="a list of lists of texts", shown=(NonEmpty[NonEmpty[str]],)),
    ]
    input_type: Purpose = None
    output_dimension: Dimensions = None
    output_dtype: Annotated[
        Precision | None, about("The type of a vector's numbers; binary and ubinary have a bit each.")
    ] = None
    encoding_format: EncodingFormat = "float"
    enable_auto_chunking: Annotated[Json, only(False, because="the client divides a document")] = None
    user: Unused = None


CONTEXTUALIZED = Form(ContextualizedRequest)


async def contextualized(service: Service, call: Call, model: Model, body: ContextualizedRequest) -> Response:
    """Returns a vector of each chunk, by document."""
    require_representation(model, DENSE)
    call.budget.few("inputs", body.inputs)
    documents = []
    for index, chunks in enumerate(body.inputs):  # the task reads them one by one, until the answer has too many values
        call.budget.few(("inputs", index), read_value(chunks, Chunks, ("inputs", index)))
        documents.append({"chunks": chunks})
    options = unit_length(model) | CONTEXTUALIZED.options(body) | read_precision(body.output_dtype)
    options |= read_purpose(body.input_type, model, call.context)
    rename_fields(call.context, {**CHUNKS, ("precision",): ("output_dtype",)})
    answers = await model.predict(Query(documents, options, name="inputs"), call.context)
    base64 = body.encoding_format == "base64"
    data = [
        {"object": "list", "index": index, "data": [_embedding(*one, base64) for one in enumerate(vectors)]}
        for index, vectors in enumerate(answers.predictions)
    ]
    answer = {"object": "list", "data": data, "model": call.context.model_name}
    return await reply_arrays({**answer, "usage": {"total_tokens": answers.tokens}}, call.context, service.executor)


def _embedding(index: int, vector: Any, base64: bool) -> dict[str, Json]:
    return {"object": "embedding", "embedding": to_base64(vector) if base64 else vector, "index": index}


ROUTES = (
    typed_route(
        "/v1/contextualizedembeddings",
        "voyage",
        CONTEXTUALIZED,
        (TextEmbedding.name,),
        contextualized,
        render_detail,
        VectorList,
    ),
)
