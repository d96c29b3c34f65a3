"""Rerank, an extension of OpenAI's API by vLLM and Jina: sorts documents by relevance to a query.

    {"model": "m", "query": "...", "documents": ["..." | {"text": "..."}], "top_n": 3, "return_documents": true}
    -> {"id": "rerank-...", "model": "m", "usage": {"prompt_tokens": 30, "total_tokens": 30},
        "results": [{"index": 1, "document": {"text": "..."}, "relevance_score": 0.98}]}

The API also accepts the task's parameters: truncation (or truncate), raw_scores, prompt, prompt_name.

Sources: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#re-rank-api,
https://api.jina.ai/redoc#tag/rerank
"""

from __future__ import annotations

import orjson

from hf_transformer.api.call import Call
from hf_transformer.api.errors import expect, require_few
from hf_transformer.api.openai.fields import TRUNCATE, field_name, ignored_fields, read_request, read_truncation, usage
from hf_transformer.api.responses import reply
from hf_transformer.api.service import Service
from hf_transformer.errors import InvalidInput, describe
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.http import Response
from hf_transformer.types.request import Query

PARAMETERS = ("top_n", "return_documents", "truncation", "raw_scores", "prompt", "prompt_name")
"""Fields that are parameters of the task."""
FIELDS = ("model", "query", "documents", *ignored_fields("rerank"), "max_tokens_per_doc", TRUNCATE, *PARAMETERS)

INSTANCE = "documents[0]"


async def create(service: Service, call: Call) -> Response:
    """Answers one request. Raises RequestError."""
    model, parameters = read_request(service, call, "rerank", FIELDS)
    if "max_tokens_per_doc" in parameters:  # Cohere's field; it can't lower the model's limit
        parameters.integer("max_tokens_per_doc", 0, model.task.settings.max_length)
    query = read_query(parameters, service.max_texts)
    call.context.field_names = _field_of_instance
    answers = await model.predict(query, call.context)
    results = []
    for result in answers.predictions[0]:
        document = {"document": {"text": result["text"]}} if "text" in result else {}
        results.append({"index": result["index"], **document, "relevance_score": result["score"]})
    answer = {"id": f"rerank-{call.context.request_id}", "model": call.context.model_name, "usage": usage(answers)}
    return reply(orjson.dumps({**answer, "results": results}))


def _field_of_instance(path: str) -> str:
    """Converts a canonical path to the client's field name. The task has a single instance with all documents."""
    if not path.startswith(INSTANCE):
        return field_name(path)
    field = path.removeprefix(INSTANCE).removeprefix(".")
    return f"documents{field.removeprefix('texts')}" if field[:5] in ("", "texts") else field


def read_query(parameters: Parameters, max_texts: int) -> Query:
    """Returns the query of a request: one instance with all documents. The task validates its own parameters.

    Raises:
        InvalidInput: a field is missing or has another type.
        TooLarge: the request has more than ``max_texts`` documents.
    """
    query, documents = parameters.string("query"), parameters.get("documents")
    if query is None:
        raise InvalidInput("query", "a string", "nothing")
    if not isinstance(documents, list) or not documents:
        got = "nothing" if documents is None else "an empty list" if documents == [] else describe(documents)
        raise InvalidInput("documents", "a list of texts", got)
    require_few("documents", documents, max_texts)
    texts: list[str] = []
    for index, document in enumerate(documents):
        text = document["text"] if isinstance(document, dict) and document.keys() == {"text"} else document
        texts.append(expect(text, str, f"documents[{index}]", 'a string or {"text": string}'))
    # Return documents by default, as vLLM and Jina do. This API ignores --output_format.
    options = {"return_documents": True, "output_format": "kserve"}
    options |= {name: parameters.get(name) for name in PARAMETERS if name in parameters}
    return Query([{"query": query, "texts": texts}], options | read_truncation(parameters), name="documents")
