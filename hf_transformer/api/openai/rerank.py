"""Rerank, an extension of OpenAI's API by vLLM and Jina: sorts documents by relevance to a query.

The API also accepts the task's parameters, and the fields of Cohere, Jina, Voyage and vLLM, which have the same body.
At the paths that they share, the answer has Jina's ``object``, Cohere's ``meta``, and the results as Voyage's ``data``.

Sources: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#re-rank-api,
https://api.jina.ai/redoc#tag/rerank, https://docs.cohere.com/v1/reference/rerank and
https://docs.voyageai.com/reference/reranker-api
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Struct, UnsetType

from hf_transformer.api.bodies import TASKS, Usage, read_body, rename_fields, usage
from hf_transformer.api.call import Call
from hf_transformer.api.documents import (
    INSTANCE,
    Documents,
    Ranked,
    RankedText,
    RankQuery,
    read_ranking,
    render_meta,
    render_results,
)
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.retrieval import PairBody, PromptName, read_pair_options
from hf_transformer.api.service import Model, Service
from hf_transformer.errors import InvalidInput
from hf_transformer.protocol.server_codec import note_ignored
from hf_transformer.tasks.options import MAX_PROMPT_LENGTH
from hf_transformer.types.fields import Form, Natural, NonEmpty, Positive, about
from hf_transformer.types.http import Response
from hf_transformer.types.request import Context, Json, Query

MAX_CHUNKS = "max_chunks_per_doc"


class RerankRequest(PairBody):
    query: RankQuery
    documents: Documents
    top_n: Annotated[
        Positive | None, about("Documents in the answer; all by default.", also=("top_k",), parameter="top_n")
    ] = None
    return_documents: Annotated[
        bool | None, about("The documents in the answer; with text by default.", parameter="return_documents")
    ] = None
    rank_fields: Annotated[str | NonEmpty[str] | None, about("Fields of an object that are its text.")] = None
    raw_scores: Annotated[bool | None, about("Logits as scores.", parameter="raw_scores")] = None
    prompt: Annotated[
        str | None, about("A text before the query.", parameter="prompt", schema={"maxLength": MAX_PROMPT_LENGTH})
    ] = None
    prompt_name: PromptName = None
    max_tokens: Annotated[Positive | None, about("A length of pairs below the model's.", parameter="max_tokens")] = None
    truncate_document: Annotated[
        bool | None, about("Truncation of documents alone.", parameter="truncate_document")
    ] = None
    window_score: Annotated[
        Literal["max", "mean"] | None,
        about("The score of a document: its best or mean window.", parameter="window_score"),
    ] = None
    stride: Annotated[Natural | None, about("Tokens that neighbouring windows share.", parameter="stride")] = None
    max_chunks_per_doc: Annotated[
        Positive | None, about("Maximum windows of a document; without effect on a service without windows.")
    ] = None


RERANK = Form(RerankRequest)


async def create(service: Service, call: Call, *, shared: bool = False, infinity: bool = False) -> Response:
    """Answers one request. At a path that other APIs share, the answer has the fields of all. In Infinity's API a
    document is a string, and absent by default. Raises RequestError."""
    model, body = read_body(service, call, RERANK, TASKS["rerank"])
    options = {"output_format": "kserve", "return_documents": not infinity}  # True as vLLM and Jina do
    options |= _max_chunks(body.max_chunks_per_doc, model, call.context)
    options |= RERANK.options(body) | read_pair_options(body)
    fields = [body.rank_fields] if isinstance(body.rank_fields, str) else body.rank_fields
    if fields is not None and len(set(fields)) < len(fields):
        raise InvalidInput("rank_fields", "different fields", "the same field twice")
    query = Query([read_ranking(body.query, body.documents, call.budget, fields)], options, name="documents")
    rename_fields(call.context, INSTANCE)
    answers = await model.predict(query, call.context)
    results = render_results(answers, body.documents)
    answer = {"id": f"rerank-{call.context.request_id}", "model": call.context.model_name, "usage": usage(answers)}
    if shared:
        answer |= {"object": "list", "meta": render_meta(answers, "1", searches=1)}
        answer["data"] = with_texts(results, body.return_documents is True)
    if infinity:
        answer["object"] = "rerank"
        results = with_texts(results, body.return_documents is True)
    return await reply_arrays({**answer, "results": results}, call.context, service.executor)


def _max_chunks(count: int | None, model: Model, context: Context) -> dict[str, Json]:
    """Returns the parameter for an upper bound of windows, which has no effect on a service without windows."""
    if count is None:
        return {}
    if model.task.settings.on_overflow == "window" and MAX_CHUNKS in model.task.parameters:
        return {MAX_CHUNKS: count}
    note_ignored(MAX_CHUNKS, context.ignored)
    return {}


def with_texts(results: Sequence[Json], with_documents: bool) -> list[Json]:
    """Renders results as Voyage and Infinity do: a document is its text, and absent by default."""
    names = ("relevance_score", "index")
    return [
        {name: one[name] for name in names} | ({"document": one["document"]["text"]} if with_documents else {})
        for one in results
    ]


# Answers


class RerankResponse(Struct):
    """Best document first. ``object``, ``meta`` and ``data`` are fields of paths that several APIs share."""

    id: str
    model: str
    usage: Usage
    results: list[Ranked]
    object: Literal["list"] | UnsetType = UNSET
    meta: dict[str, Json] | UnsetType = UNSET
    data: list[RankedText] | UnsetType = UNSET


class InfinityRerankResponse(Struct):
    id: str
    object: Literal["rerank"]
    model: str
    usage: Usage
    results: list[RankedText]
