"""Rerank, which OpenAI does not have, as vLLM and Jina do: a query and documents in, the best documents first out.

    {"model": "m", "query": "...", "documents": ["..." | {"text": "..."}], "top_n": 3, "return_documents": true}
    -> {"id": "rerank-...", "model": "m", "usage": {"prompt_tokens": 30, "total_tokens": 30},
        "results": [{"index": 1, "document": {"text": "..."}, "relevance_score": 0.98}]}

Beside these fields there are the parameters of the task, truncation and raw_scores.

Sources: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#re-rank-api,
https://api.jina.ai/redoc#tag/rerank
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from hf_transformer.api.base import Call, Service, reply
from hf_transformer.api.openai.bodies import ask, find_model, named_as_sent, read_fields, require_few, usage
from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.base import describe
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types import Answers, Json, Query, Response

PARAMETERS = ("top_n", "return_documents", "truncation", "raw_scores")
"""Fields that the task reads."""
FIELDS = ("model", "query", "documents", "user", *PARAMETERS)


async def create(service: Service, call: Call) -> Response:
    """Answers one request."""
    with named_as_sent():
        fields = read_fields(call, FIELDS)
        model = find_model(service.models, fields, "rerank")
        query = parse(fields, service.max_texts)
    answers = await ask(model, query, call.context, single=True)
    return reply(render(answers, model.name, call.context.request_id))


def parse(fields: Mapping[str, Json], max_texts: int) -> Query:
    """A request's fields.

    Raises:
        InvalidInput: one is missing or not of its type; those that the task reads are left to it.
        TooLarge: more documents than ``max_texts``.
    """
    given = Parameters(fields, FIELDS)
    given.string("user")  # as with OpenAI, to find abuse; there is nothing to do with it here
    query = given.string("query")
    if query is None:
        raise InvalidInput("query: expected a string, got nothing")
    documents = fields.get("documents")
    if not isinstance(documents, list) or not documents:
        found = "nothing" if documents is None else "an empty one" if documents == [] else describe(documents)
        raise InvalidInput(f"documents: expected a list of texts, got {found}")
    require_few("documents", documents, max_texts)
    texts = [read_document(one, index) for index, one in enumerate(documents)]
    # The form is ours to choose, whatever the service's own is, and both that we follow send the documents back.
    parameters = {"return_documents": True, "output_format": "kserve"}
    parameters |= {name: fields[name] for name in PARAMETERS if name in fields}
    return Query([{"query": query, "texts": texts}], parameters, name="documents")


def read_document(given: Json, index: int) -> str:
    """One document's text. Raises InvalidInput."""
    if isinstance(given, dict) and given.keys() == {"text"}:
        given = given["text"]
    if not isinstance(given, str):
        raise InvalidInput(f'documents[{index}]: expected a string or {{"text": string}}, got {describe(given)}')
    return given


def render(answers: Answers, model: str, request_id: str) -> bytes:
    """A response's JSON."""
    results = [_result(one) for one in answers.predictions[0]]
    return orjson.dumps({"id": f"rerank-{request_id}", "model": model, "usage": usage(answers), "results": results})


def _result(answer: Json) -> Json:
    document = {"document": {"text": answer["text"]}} if "text" in answer else {}
    return {"index": answer["index"], **document, "relevance_score": answer["score"]}
