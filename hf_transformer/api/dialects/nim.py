"""NVIDIA NIM's ranking. Its form of V2 for embeddings is in api/nim_tensors.py, its other embeddings share OpenAI's
route (api/openai).

Source: https://docs.nvidia.com/nim/nemo-retriever/text-reranking/latest/reference.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from hf_transformer.api.bodies import ModelBody, Unused, Usage, rename_fields, usage
from hf_transformer.api.call import Call
from hf_transformer.api.dialects.routes import typed_route
from hf_transformer.api.documents import TextObject
from hf_transformer.api.error_forms import render_detail
from hf_transformer.api.errors import expect
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.retrieval import TRUNCATES, Truncate
from hf_transformer.api.service import Model, Service
from hf_transformer.errors import InvalidInput, Path, describe
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.types.fields import Form, NonEmpty, about
from hf_transformer.types.http import Response
from hf_transformer.types.paths import EACH
from hf_transformer.types.request import Json, Query

TEXT = '{"text": string}, since the model reads texts'
INSTANCE: Mapping[Path, Path] = {
    ("instances", 0): ("passages",),
    ("instances", 0, "query"): ("query", "text"),
    ("instances", 0, "texts"): ("passages",),
    ("instances", 0, "texts", EACH): ("passages", EACH, "text"),
}
"""The names of fields: the task has a single instance with all passages."""


class RankingRequest(ModelBody):
    query: Annotated[Json, about("The text to compare the passages with.", expected=TEXT, shown=(TextObject,))]
    passages: Annotated[
        NonEmpty[Json], about("The texts to rank.", expected=f"a list of {TEXT}", shown=(NonEmpty[TextObject],))
    ]
    truncate: Annotated[Truncate | None, about("The end that is cut off a long text, or NONE to refuse it.")] = None
    user: Unused = None


class LogitRank(Struct):
    index: int
    logit: float


class Rankings(Struct):
    rankings: list[LogitRank]
    usage: Usage


RANKING = Form(RankingRequest)


async def ranking(service: Service, call: Call, model: Model, body: RankingRequest) -> Response:
    """Returns the logits of passages for a query."""
    query = read_text(body.query, ("query",))
    call.budget.few("passages", body.passages)
    texts = [read_text(passage, ("passages", index)) for index, passage in enumerate(body.passages)]
    options: dict[str, Json] = {"output_format": "kserve", "raw_scores": True}
    if body.truncate is not None:
        options |= TRUNCATES[body.truncate]
    rename_fields(call.context, INSTANCE)
    answers = await model.predict(Query([{"query": query, "texts": texts}], options), call.context)
    rankings = [{"index": one["index"], "logit": one["score"]} for one in answers.predictions[0]]
    return await reply_arrays({"rankings": rankings, "usage": usage(answers)}, call.context, service.executor)


def read_text(value: Json, path: Path) -> str:
    """Returns the text of an object {"text"}. Raises InvalidInput for any other value, such as one with an image."""
    if not isinstance(value, dict) or value.keys() != {"text"}:
        raise InvalidInput(path, TEXT, describe(value))
    return str(expect(value["text"], str, (*path, "text"), "a string"))


ROUTES = (typed_route("/v1/ranking", "nim", RANKING, (Rerank.name,), ranking, render_detail, Rankings),)
