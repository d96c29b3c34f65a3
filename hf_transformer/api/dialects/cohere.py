"""Cohere's embed and rerank, versions 1 and 2. POST /v1/rerank is in api/openai/rerank.py: other APIs share it.

    POST /v1/embed   {"texts", "model", "input_type", "embedding_types", "truncate"}
                     -> {"id", "response_type": "embeddings_floats", "texts", "embeddings": [[...]], "meta"}, or
                        "embeddings_by_type" with an object of the requested types
    POST /v2/embed   the same and "inputs", "output_dimension", "max_tokens" -> always by type
    POST /v2/rerank  {"query", "documents", "top_n", "max_tokens_per_doc"} -> {"id", "results", "meta"}

Vectors have a length of 1 at every ``output_dimension``. All types of a request are those of the same vector, from one
pass of the model: a bit of binary and ubinary is set for x >= 0, as in vLLM's route of this API, and int8 and uint8
divide the range [-1, 1].

Sources: https://docs.cohere.com/reference/embed, https://docs.cohere.com/v1/reference/embed and
https://docs.cohere.com/reference/rerank
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from hf_transformer.api.call import Call
from hf_transformer.api.dialects.fields import (
    aliased,
    move_if_present,
    read_content,
    read_purpose,
    read_strings,
    read_truncation,
    require_representation,
    unit_length,
)
from hf_transformer.api.dialects.routes import DialectRoute, read_body
from hf_transformer.api.error_forms import render_message
from hf_transformer.api.errors import expect
from hf_transformer.api.openai.embeddings import to_base64
from hf_transformer.api.openai.fields import IgnoredField
from hf_transformer.api.openai.rerank import INSTANCE, read_query, render_meta, render_results
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.service import Service
from hf_transformer.api.tokenize import VALUES_PER_TOKEN, off_loop
from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.tasks.quantization import BYTES, quantize
from hf_transformer.tasks.text_embedding import DENSE, NUMBER_BYTES
from hf_transformer.types.http import Response
from hf_transformer.types.paths import TOP_LEVEL
from hf_transformer.types.request import Json, Query, RequestBudget
from hf_transformer.types.tensors import Array

TYPES = ("float", "int8", "uint8", "binary", "ubinary", "base64")
"""The values of ``embedding_types``."""
PRIORITY, MOST = "priority", 999
"""A field without effect, since the service has no priorities, and its highest value."""
EMBED = ("texts", "input_type", "embedding_types", "truncate", PRIORITY)
EMBED_V2 = (*EMBED, "inputs", "output_dimension", "max_tokens")
RERANK = ("query", "documents", "top_n", "max_tokens_per_doc", "return_documents", PRIORITY)
BITS = 8
"""Components in a byte of binary and ubinary."""


async def embed(service: Service, call: Call, payload: Mapping[str, Json], *, version: str) -> Response:
    """Answers with vectors by type; in version 1 with bare vectors unless the request has ``embedding_types``."""
    known = EMBED if version == "1" else EMBED_V2
    tasks, ignored = ("text_embedding",), (IgnoredField("images", (), ([],), "the model reads texts"),)
    model, parameters = read_body(service, call, payload, tasks=tasks, known=known, ignored=ignored)
    parameters.number(PRIORITY, 0, 0, MOST)
    require_representation(model, DENSE)
    field, texts = _read_texts(parameters, call.budget)
    types = _read_types(parameters)
    options = unit_length(model) | move_if_present(parameters, "max_tokens", output_dimension="dimensions")
    options |= read_truncation(parameters, default="END")
    options |= read_purpose(parameters, "input_type", model)
    call.context.field_names = TOP_LEVEL.then(aliased(parameters, ALIASES))
    answers = await model.predict(Query(texts, options, name=field), call.context)
    vectors, floats = answers.predictions, version == "1" and "embedding_types" not in parameters
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


ALIASES = {"dimensions": ("output_dimension",), "prompt_name": ("input_type",)}
"""Cohere's fields for the task's parameters."""


def _read_texts(parameters: Parameters, budget: RequestBudget) -> tuple[str, list[str]]:
    """Returns the field of the texts, and the texts: ``texts``, or the parts of ``inputs``. Raises InvalidInput."""
    if parameters.one_of("texts", "inputs") != "inputs":
        return "texts", read_strings("texts", parameters.get("texts"), budget)
    inputs = expect(parameters.get("inputs"), list, "inputs", "a list of objects")
    budget.few("inputs", inputs)
    return "inputs", [read_content(item, ("inputs", index)) for index, item in enumerate(inputs)]


def _read_types(parameters: Parameters) -> list[str]:
    """Returns ``embedding_types``, floats by default. Raises InvalidInput for an unknown one."""
    types = parameters.strings("embedding_types") or ["float"]
    for name in types:
        if name not in TYPES:
            raise InvalidInput("embedding_types", f"a list of {', '.join(TYPES)}", repr(name[:40]))
    return list(dict.fromkeys(types))


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


async def rerank_v2(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Answers /v2/rerank, without the documents unless the request asks for them. Only documents are truncated."""
    tasks, ignored = ("rerank",), (IgnoredField("user", ()),)
    model, parameters = read_body(service, call, payload, tasks=tasks, known=RERANK, ignored=ignored)
    parameters.number(PRIORITY, 0, 0, MOST)
    defaults: dict[str, Json] = {"truncation": True} if model.task.settings.on_overflow == "error" else {}
    query = read_query(parameters, call.budget, truncate_document=True, **defaults)
    call.context.field_names = INSTANCE
    answers = await model.predict(query, call.context)
    results = render_results(answers, parameters)
    answer = {"id": call.context.request_id, "results": results, "meta": render_meta(answers, "2", searches=1)}
    return await reply_arrays(answer, call.context, service.executor)


ROUTES = tuple(
    DialectRoute(path=path, dialect="cohere", handle=handle, render_error=render_message)
    for path, handle in (
        ("/v1/embed", partial(embed, version="1")),
        ("/v2/embed", partial(embed, version="2")),
        ("/v2/rerank", rerank_v2),
    )
)
