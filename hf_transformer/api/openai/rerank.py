"""Rerank, which OpenAI does not have, as vLLM and Jina do: a query and documents in, the best documents first out.

    {"model": "m", "query": "...", "documents": ["..." | {"text": "..."}], "top_n": 3, "return_documents": true}
    -> {"id": "rerank-...", "model": "m", "usage": {"prompt_tokens": 30, "total_tokens": 30},
        "results": [{"index": 1, "document": {"text": "..."}, "relevance_score": 0.98}]}

Beside these fields there are the parameters of the task: truncation (also truncate), raw_scores, prompt, prompt_name.

Sources: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#re-rank-api,
https://api.jina.ai/redoc#tag/rerank
"""

from __future__ import annotations

import orjson

from hf_transformer.api.call import Call
from hf_transformer.api.errors import expect, renamed, require_few
from hf_transformer.api.openai.fields import TRUNCATE, as_sent, read_request, read_truncation, unused, usage
from hf_transformer.api.responses import reply
from hf_transformer.api.service import Service
from hf_transformer.errors import InvalidInput, describe
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.http import Response
from hf_transformer.types.request import Query

PARAMETERS = ("top_n", "return_documents", "truncation", "raw_scores", "prompt", "prompt_name")
"""Fields that the task reads."""
FIELDS = ("model", "query", "documents", *unused("rerank"), "max_tokens_per_doc", TRUNCATE, *PARAMETERS)


async def create(service: Service, call: Call) -> Response:
    """Answers one request."""
    with renamed(as_sent):
        model, given = read_request(service, call, "rerank", FIELDS)
        if "max_tokens_per_doc" in given:  # Cohere's; documents are cut at the model's length in any case
            given.integer("max_tokens_per_doc", 0, model.task.settings.max_length)
        query = read_query(given, service.max_texts)
    with renamed(lambda message: as_sent(message, "documents[0].texts", "documents[0]")):
        answers = await model.predict(query, call.context)
    results = []
    for one in answers.predictions[0]:
        document = {"document": {"text": one["text"]}} if "text" in one else {}
        results.append({"index": one["index"], **document, "relevance_score": one["score"]})
    answer = {"id": f"rerank-{call.context.request_id}", "model": model.name, "usage": usage(answers)}
    return reply(orjson.dumps({**answer, "results": results}))


def read_query(given: Parameters, max_texts: int) -> Query:
    """The query with its documents, as the task's only instance; the task checks its own parameters.

    Raises InvalidInput for a field that is missing or wrong, and TooLarge for more than ``max_texts`` documents.
    """
    query, documents = given.string("query"), given.get("documents")
    if query is None:
        raise InvalidInput.of("query: expected a string, got nothing")
    if not isinstance(documents, list) or not documents:
        found = "nothing" if documents is None else "an empty one" if documents == [] else describe(documents)
        raise InvalidInput.of(f"documents: expected a list of texts, got {found}")
    require_few("documents", documents, max_texts)
    texts: list[str] = []
    for index, one in enumerate(documents):
        text = one["text"] if isinstance(one, dict) and one.keys() == {"text"} else one
        texts.append(expect(text, str, f"documents[{index}]", 'a string or {"text": string}'))
    # vLLM and Jina send the documents back; the form is this API's, whatever the service's own is.
    parameters = {"return_documents": True, "output_format": "kserve"}
    parameters |= {name: given.get(name) for name in PARAMETERS if name in given}
    return Query([{"query": query, "texts": texts}], parameters | read_truncation(given), name="documents")
