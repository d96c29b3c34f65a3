"""Rerank, an extension of OpenAI's API by vLLM and Jina: sorts documents by relevance to a query.

    {"model": "m", "query": "...", "documents": ["..." | {"text": "..."}], "top_n": 3, "return_documents": true}
    -> {"id": "rerank-...", "model": "m", "usage": {"prompt_tokens": 30, "total_tokens": 30},
        "results": [{"index": 1, "document": {"text": "..."}, "relevance_score": 0.98}]}

The API also accepts the task's parameters, and the fields of the APIs that have the same body (dialects/fields.py):

    Cohere  max_tokens_per_doc, max_chunks_per_doc, rank_fields; ``meta`` in the answer
    Jina    ``object`` in the answer
    Voyage  top_k, truncation; the results as ``data`` too
    vLLM    max_tokens_per_query, truncate_prompt_tokens, truncation_side, use_activation, instruction; content parts

Sources: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#re-rank-api,
https://api.jina.ai/redoc#tag/rerank, https://docs.cohere.com/v1/reference/rerank and
https://docs.voyageai.com/reference/reranker-api
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hf_transformer.api.bodies import usage
from hf_transformer.api.call import Call
from hf_transformer.api.dialects.fields import (
    PER_TEXT,
    TRUNCATE_PROMPT_TOKENS,
    TRUNCATION_FIELDS,
    aliased,
    move_if_present,
    read_content,
    read_documents,
    read_token_limits,
    read_truncation,
)
from hf_transformer.api.errors import expect
from hf_transformer.api.openai.fields import ignored_fields, read_request
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.service import Service
from hf_transformer.errors import InvalidInput
from hf_transformer.protocol.server_codec import note_ignored
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.http import Response
from hf_transformer.types.paths import TOP_LEVEL
from hf_transformer.types.request import Answers, Json, Query, RequestBudget

PARAMETERS = (
    *("return_documents", "prompt", "prompt_name", "instruction"),
    *("window_score", "stride", "max_tokens", "truncate_document"),
)
"""Fields that are parameters of the task."""
TOP, SCORES = ("top_n", "top_k"), ("raw_scores", "use_activation")
ALIASES: Mapping[str, Sequence[str]] = {"top_n": TOP, "max_tokens": ("max_tokens", TRUNCATE_PROMPT_TOKENS)}
"""The fields for each of the task's parameters that several APIs name differently."""
MAX_CHUNKS = "max_chunks_per_doc"
"""An upper bound of windows, which has no effect on a service without windows."""
FIELDS = (
    *("model", "query", "documents", "rank_fields", *ignored_fields("rerank")),
    *(*PER_TEXT, *TOP, *SCORES, *TRUNCATION_FIELDS, *PARAMETERS, MAX_CHUNKS),
)
INSTANCE = TOP_LEVEL.then(
    {
        ("documents", 0): ("documents",),
        ("documents", 0, "texts"): ("documents",),
        ("documents", 0, "query"): ("query",),
    }
)
"""The names of fields: the task has a single instance with all documents."""


async def create(service: Service, call: Call, *, shared: bool = False, infinity: bool = False) -> Response:
    """Answers one request. At a path that other APIs share, the answer has the fields of all. In Infinity's API a
    document is a string, and absent by default. Raises RequestError."""
    model, parameters = read_request(service, call, "rerank", FIELDS)
    defaults: dict[str, Json] = {"return_documents": not infinity}  # True as vLLM and Jina do
    if MAX_CHUNKS in parameters:
        count, task = parameters.integer(MAX_CHUNKS, 1, 1), model.task
        if task.settings.on_overflow == "window" and MAX_CHUNKS in task.parameters:
            defaults[MAX_CHUNKS] = count
        else:
            note_ignored(MAX_CHUNKS, call.context.ignored)
    query = read_query(parameters, call.budget, **defaults)
    call.context.field_names = INSTANCE.then(aliased(parameters, ALIASES))
    answers = await model.predict(query, call.context)
    results = render_results(answers, parameters)
    answer = {"id": f"rerank-{call.context.request_id}", "model": call.context.model_name, "usage": usage(answers)}
    if shared:
        answer |= {"object": "list", "meta": render_meta(answers, "1", searches=1)}
        answer["data"] = with_texts(results, parameters.flag("return_documents", False))
    if infinity:
        answer["object"] = "rerank"
        results = with_texts(results, parameters.flag("return_documents", False))
    return await reply_arrays({**answer, "results": results}, call.context, service.executor)


def render_results(answers: Answers, parameters: Parameters) -> list[Json]:
    """Renders the scores of the request's only instance, best first. An object keeps its fields, as in Cohere."""
    results, documents = [], parameters.get("documents")
    for result in answers.predictions[0]:
        original = documents[result["index"]]
        fields = original if isinstance(original, dict) else {}
        document = {"document": {"text": result["text"], **fields}} if "text" in result else {}
        results.append({"index": result["index"], **document, "relevance_score": result["score"]})
    return results


def render_meta(answers: Answers, version: str, searches: int = 0) -> dict[str, Json]:
    """Renders Cohere's ``meta``: the version of the API and the numbers of tokens and searches."""
    units: dict[str, Json] = {"search_units": searches} if searches else {"input_tokens": answers.tokens}
    return {
        "api_version": {"version": version},
        "billed_units": units,
        "tokens": {"input_tokens": answers.tokens},
    }


def with_texts(results: Sequence[Json], with_documents: bool) -> list[Json]:
    """Renders results as Voyage and Infinity do: a document is its text, and absent by default."""
    names = ("relevance_score", "index")
    return [
        {name: one[name] for name in names} | ({"document": one["document"]["text"]} if with_documents else {})
        for one in results
    ]


def read_query(parameters: Parameters, budget: RequestBudget, **defaults: Json) -> Query:
    """Returns the query of a request: one instance with all documents. The task validates its own parameters, which
    are ``defaults`` if absent.

    Raises:
        InvalidInput: a field is missing or has another type.
        TooLarge: the request has too many documents.
    """
    query, rank_fields = parameters.get("query"), parameters.strings("rank_fields")
    if rank_fields is not None and len(set(rank_fields)) < len(rank_fields):
        raise InvalidInput("rank_fields", "different fields", "the same field twice")
    if query is None:
        raise InvalidInput("query", "a string", "nothing")
    query = read_content(query, ("query",)) if isinstance(query, dict) else expect(query, str, "query", "a string")
    texts = read_documents(parameters.get("documents"), budget, rank_fields)
    options = {"output_format": "kserve", **defaults, **read_options(parameters)}  # this API ignores --output_format
    return Query([{"query": query, "texts": texts}], options, name="documents")


def read_options(parameters: Parameters) -> dict[str, Json]:
    """Returns the parameters of the task. Raises InvalidInput for two fields that mean the same."""
    options = move_if_present(parameters, *PARAMETERS)
    options |= read_truncation(parameters) | read_token_limits(parameters)
    top, scores = parameters.one_of(*TOP), parameters.one_of(*SCORES)
    if top is not None:
        options["top_n"] = parameters.get(top)
    if scores is not None:
        options["raw_scores"] = parameters.flag(scores, False) == (scores == "raw_scores")
    return options
