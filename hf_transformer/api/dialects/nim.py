"""NVIDIA NIM's ranking. Its embeddings share OpenAI's route (api/openai/embeddings.py).

    POST /v1/ranking {"model", "query": {"text"}, "passages": [{"text"}, ...], "truncate": "NONE" | "END"}
    -> {"rankings": [{"index": 1, "logit": 4.5}, ...], "usage"}, best first

Source: https://docs.nvidia.com/nim/nemo-retriever/text-reranking/latest/reference.html
"""

from __future__ import annotations

from collections.abc import Mapping

from hf_transformer.api.call import Call
from hf_transformer.api.dialects.bodies import read_body, render_detail, reply_json, top_level
from hf_transformer.api.dialects.fields import read_truncation
from hf_transformer.api.dialects.routes import DialectRoute
from hf_transformer.api.errors import expect, expect_items, require_few
from hf_transformer.api.openai.fields import IgnoredField, usage
from hf_transformer.api.service import Service
from hf_transformer.errors import InvalidInput, describe
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json, Query

TEXT = '{"text": string}, since the model reads texts'


async def ranking(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns the logits of passages for a query."""
    tasks, known, ignored = ("rerank",), ("query", "passages", "truncate"), (IgnoredField("user", ()),)
    model, parameters = read_body(service, call, payload, tasks=tasks, known=known, ignored=ignored)
    query = read_text(parameters.get("query"), "query")
    passages = expect_items(parameters.get("passages"), "passages", f"a list of {TEXT}")
    require_few("passages", passages, service.max_texts)
    texts = [read_text(passage, f"passages[{index}]") for index, passage in enumerate(passages)]
    call.context.field_names = _field
    options = {"output_format": "kserve", "raw_scores": True, **read_truncation(parameters)}
    answers = await model.predict(Query([{"query": query, "texts": texts}], options), call.context)
    rankings = [{"index": one["index"], "logit": one["score"]} for one in answers.predictions[0]]
    return reply_json({"rankings": rankings, "usage": usage(answers)})


def read_text(value: Json, path: str) -> str:
    """Returns the text of an object {"text"}. Raises InvalidInput for any other value, such as one with an image."""
    if not isinstance(value, dict) or value.keys() != {"text"}:
        raise InvalidInput(path, TEXT, "nothing" if value is None else describe(value))
    return str(expect(value["text"], str, f"{path}.text", "a string"))


def _field(path: str) -> str:
    """Converts a path of the only instance to a field of the body."""
    rest = path.removeprefix("instances[0]")
    if rest.startswith(".texts"):
        return f"passages{rest.removeprefix('.texts')}.text"
    return "query.text" if rest == ".query" else "passages" if rest == "" else top_level(path)


ROUTES = (DialectRoute(path="/v1/ranking", dialect="nim", handle=ranking, render_error=render_detail),)
