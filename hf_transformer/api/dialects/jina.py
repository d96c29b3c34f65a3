"""Jina's vectors of tokens. Its embeddings and rerank share their routes with OpenAI's (api/openai).

    POST /v1/multi-vector {"input": [text | {"text"}], "input_type": "document", "embedding_type", "dimensions"}
    -> {"object": "list", "data": [{"object": "embeddings", "index", "embeddings": [[...], ...]}], "model", "usage"}

Source: https://api.jina.ai/redoc#tag/multi-vector
"""

from __future__ import annotations

from collections.abc import Mapping

from hf_transformer.api.bodies import read_texts, usage
from hf_transformer.api.call import Call
from hf_transformer.api.dialects.fields import (
    TRUNCATION_FIELDS,
    move_if_present,
    read_precision,
    read_purpose,
    read_truncation,
    require_representation,
)
from hf_transformer.api.dialects.routes import DialectRoute, read_body
from hf_transformer.api.error_forms import render_detail
from hf_transformer.api.openai.embeddings import plain_texts, to_base64
from hf_transformer.api.openai.fields import IgnoredField
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.service import Service
from hf_transformer.errors import InvalidInput, Path
from hf_transformer.tasks.text_embedding import MULTI_VECTOR
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json, Query

FIELDS = ("input", "input_type", "embedding_type", "dimensions", *TRUNCATION_FIELDS)


async def multi_vector(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns the vectors of each text's tokens."""
    tasks, ignored = ("text_embedding",), (IgnoredField("user", ()),)
    model, parameters = read_body(service, call, payload, tasks=tasks, known=FIELDS, ignored=ignored)
    require_representation(model, MULTI_VECTOR)
    texts, _ = read_texts(("input",), plain_texts(parameters.get("input"), call.budget), call.budget, _refuse_ids)
    options: dict[str, Json] = {"representations": MULTI_VECTOR, **read_truncation(parameters)}
    options |= move_if_present(parameters, "dimensions")
    options |= read_purpose(parameters, "input_type", model)
    base64 = parameters.get("embedding_type") == "base64"
    if not base64:
        options |= read_precision(parameters, "embedding_type")
    answers = await model.predict(Query(texts, options, name="input"), call.context)
    data = []
    for index, prediction in enumerate(answers.predictions):
        vectors = prediction[MULTI_VECTOR]
        shown = [to_base64(vector) for vector in vectors] if base64 else vectors
        data.append({"object": "embeddings", "index": index, "embeddings": shown})
    answer = {"object": "list", "data": data, "model": call.context.model_name}
    return await reply_arrays({**answer, "usage": usage(answers)}, call.context, service.executor)


def _refuse_ids(ids: list[Json], path: Path) -> Json:
    raise InvalidInput(path, "text", "token ids")


ROUTES = (DialectRoute(path="/v1/multi-vector", dialect="jina", handle=multi_vector, render_error=render_detail),)
