"""Cohere's embed and rerank, versions 1 and 2. POST /v1/rerank is in api/openai/rerank.py: other APIs share it.

Vectors have a length of 1 at every ``output_dimension``. All types of a request are those of the same vector, from one
pass of the model: a bit of binary and ubinary is set for x >= 0, as in vLLM's route of this API, and int8 and uint8
divide the range [-1, 1].

Sources: https://docs.cohere.com/reference/embed, https://docs.cohere.com/v1/reference/embed and
https://docs.cohere.com/reference/rerank
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from hf_transformer.api.bodies import ModelBody, Unused, rename_fields
from hf_transformer.api.call import Call
from hf_transformer.api.dialects.routes import typed_route
from hf_transformer.api.documents import (
    INSTANCE,
    Content,
    Documents,
    Ranked,
    RankQuery,
    read_content,
    read_ranking,
    render_meta,
    render_results,
    to_base64,
)
from hf_transformer.api.error_forms import render_message
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.retrieval import (
    TRUNCATES,
    Dimensions,
    MaxTokens,
    Purpose,
    Truncate,
    read_purpose,
    require_representation,
    unit_length,
)
from hf_transformer.api.service import Model, Service
from hf_transformer.api.tokenize import VALUES_PER_TOKEN, off_loop
from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.quantization import BYTES, quantize
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tasks.text_embedding import DENSE, NUMBER_BYTES, TextEmbedding
from hf_transformer.types.fields import NO_EFFECT, Form, Natural, NonEmpty, Positive, about, only, read_value
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json, Query, RequestBudget
from hf_transformer.types.tensors import Array

VectorType: TypeAlias = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
PriorityNumber: TypeAlias = Annotated[Annotated[float, Meta(ge=0, le=999)] | None, NO_EFFECT]
BITS = 8
"""Components in a byte of binary and ubinary."""


class CohereEmbedRequest(ModelBody, kw_only=True):
    texts: Annotated[NonEmpty[Json] | None, about("The texts.", expected="a list of texts", shown=(NonEmpty[str],))] = (
        None
    )
    input_type: Purpose = None
    embedding_types: Annotated[
        VectorType | NonEmpty[VectorType] | None, about("Types of vectors in the answer; floats by default.")
    ] = None
    truncate: Annotated[Truncate, about("The end that is cut off a long text, or NONE to refuse it.")] = "END"
    images: Annotated[Json, only([], because="the model reads texts")] = None
    priority: PriorityNumber = None


class CohereEmbedV2Request(CohereEmbedRequest):
    inputs: Annotated[
        list[Json] | None,
        about("Texts in parts.", expected="a list of objects", instead_of="texts", shown=(list[Content],)),
    ] = None
    output_dimension: Dimensions = None
    max_tokens: MaxTokens = None


class CohereRerankRequest(ModelBody):
    query: RankQuery
    documents: Documents
    top_n: Annotated[Positive | None, about("Documents in the answer; all by default.", parameter="top_n")] = None
    max_tokens_per_doc: Annotated[Natural | None, about("Maximum length of a document; 0 for no limit.")] = None
    return_documents: Annotated[
        bool | None, about("The documents in the answer; without by default.", parameter="return_documents")
    ] = None
    user: Unused = None
    priority: PriorityNumber = None


EMBED, EMBED_V2, RERANK = Form(CohereEmbedRequest), Form(CohereEmbedV2Request), Form(CohereRerankRequest)


async def embed(service: Service, call: Call, model: Model, body: CohereEmbedRequest) -> Response:
    """Answers with vectors by type; in version 1 with bare vectors unless the request has ``embedding_types``."""
    version = "2" if isinstance(body, CohereEmbedV2Request) else "1"
    require_representation(model, DENSE)
    field, texts = _read_texts(body, call.budget)
    types = _read_types(body.embedding_types)
    options = unit_length(model) | TRUNCATES[body.truncate]
    options |= EMBED_V2.options(body) if isinstance(body, CohereEmbedV2Request) else {}
    options |= read_purpose(body.input_type, model, call.context)
    answers = await model.predict(Query(texts, options, name=field), call.context)
    vectors, floats = answers.predictions, version == "1" and body.embedding_types is None
    call.budget.hold(sum(vector.size for vector in vectors) * (len(types) - 1) * NUMBER_BYTES, "embedding_types")
    cost = len(vectors) * len(vectors[0]) * len(types) // VALUES_PER_TOKEN
    answer = {
        "id": call.context.request_id,
        "response_type": "embeddings_floats" if floats else "embeddings_by_type",
        "texts": texts,
        "embeddings": vectors if floats else await off_loop(service.executor, cost, lambda: by_type(vectors, types)),
    }
    call.context.values *= len(types)
    return await reply_arrays({**answer, "meta": render_meta(answers, version)}, call.context, service.executor)


def _read_texts(body: CohereEmbedRequest, budget: RequestBudget) -> tuple[str, list[str]]:
    """Returns the field of the texts, and the texts: ``texts``, or the parts of ``inputs``. Raises InvalidInput."""
    if isinstance(body, CohereEmbedV2Request) and body.inputs is not None:
        budget.few("inputs", body.inputs)
        return "inputs", [read_content(item, ("inputs", index)) for index, item in enumerate(body.inputs)]
    if body.texts is None:
        raise InvalidInput("texts", "a list of texts", "nothing")
    budget.few("texts", body.texts)
    return "texts", read_value(body.texts, list[str], ("texts",))


def _read_types(types: VectorType | list[VectorType] | None) -> list[str]:
    """Returns ``embedding_types``, each once, floats by default."""
    return list(dict.fromkeys([types] if isinstance(types, str) else types or ["float"]))


def by_type(vectors: Sequence[Array], types: Sequence[str]) -> dict[str, list[Json]]:
    """Renders unit vectors, float32 [D], in each of ``types``.

    Raises InvalidInput for bits of a vector whose size is not a multiple of 8, as vLLM does.
    """
    embeddings: dict[str, list[Json]] = {}
    for name in types:
        if name == "float":
            embeddings[name] = list(vectors)
        elif name == "base64":
            embeddings[name] = [to_base64(vector) for vector in vectors]
        elif name in BYTES:
            embeddings[name] = [quantize(vector, name) for vector in vectors]
        else:
            if size := len(vectors[0]) % BITS:
                expected = f"another type for vectors of {len(vectors[0])} components"
                raise InvalidInput("embedding_types", expected, name, f"{size} of them would be the last byte's")
            embeddings[name] = [quantize(vector, name, zero=True) for vector in vectors]
    return embeddings


async def rerank_v2(service: Service, call: Call, model: Model, body: CohereRerankRequest) -> Response:
    """Answers /v2/rerank, without the documents unless the request asks for them. Only documents are truncated."""
    options: dict[str, Json] = {"output_format": "kserve", "truncate_document": True, **RERANK.options(body)}
    if model.task.settings.on_overflow == "error":
        options["truncation"] = True
    if body.max_tokens_per_doc:
        options["max_tokens_per_doc"] = body.max_tokens_per_doc
    query = Query([read_ranking(body.query, body.documents, call.budget)], options, name="documents")
    rename_fields(call.context, INSTANCE)
    answers = await model.predict(query, call.context)
    results = render_results(answers, body.documents)
    answer = {"id": call.context.request_id, "results": results, "meta": render_meta(answers, "2", searches=1)}
    return await reply_arrays(answer, call.context, service.executor)


# Answers


class CohereEmbeddings(Struct):
    id: str
    response_type: Literal["embeddings_floats", "embeddings_by_type"]
    texts: list[str]
    embeddings: Annotated[
        Json, about("Vectors, or lists of them by type.", shown=(list[list[float]], dict[str, list[Json]]))
    ]
    meta: dict[str, Json]


class CohereRanking(Struct):
    id: str
    results: list[Ranked]
    meta: dict[str, Json]


ROUTES = (
    typed_route("/v1/embed", "cohere", EMBED, (TextEmbedding.name,), embed, render_message, CohereEmbeddings),
    typed_route("/v2/embed", "cohere", EMBED_V2, (TextEmbedding.name,), embed, render_message, CohereEmbeddings),
    typed_route("/v2/rerank", "cohere", RERANK, (Rerank.name,), rerank_v2, render_message, CohereRanking),
)
