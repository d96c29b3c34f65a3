"""The table of all dialects' routes.

It also has the OpenAI API's embeddings and rerank at the paths of other servers, for any --openai_route_prefix:

    POST /embeddings, /v1/embeddings    text-embeddings-inference, vLLM, Jina, Voyage, NVIDIA NIM
    POST /rerank, /v1/rerank            vLLM, Jina, Voyage, Cohere v1; a body with ``documents``
    POST /infinity/embeddings, /infinity/rerank     Infinity
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from hf_transformer.api.call import Call
from hf_transformer.api.dialects import cohere, jina, nim, render, tei, vllm, voyage
from hf_transformer.api.dialects.routes import DialectRoute, Table, by_path
from hf_transformer.api.error_forms import render_for_all
from hf_transformer.api.openai import embeddings, rerank
from hf_transformer.api.service import Service
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json

Create = Callable[[Service, Call], Awaitable[Response]]


def _openai(path: str, create: Create, *fields: str, dialect: str = "openai") -> DialectRoute:
    async def handle(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
        return await create(service, call)

    return DialectRoute(
        path=path,
        dialect=dialect,
        handle=handle,
        render_error=render_for_all,
        fields=frozenset(fields),
    )


OPENAI = (
    *[_openai(path, embeddings.create, "input") for path in ("/embeddings", "/v1/embeddings")],
    *[_openai(path, partial(rerank.create, shared=True), "query", "documents") for path in ("/rerank", "/v1/rerank")],
)
INFINITY = (
    _openai("/infinity/embeddings", embeddings.create, dialect="infinity"),
    _openai("/infinity/rerank", partial(rerank.create, infinity=True), dialect="infinity"),
)
"""Infinity's form of a rerank answer differs from vLLM's for the same body, so it has a path of its own."""
ROUTES: Table = by_path(
    (
        *(*OPENAI, *INFINITY, *tei.ROUTES, *cohere.ROUTES, *jina.ROUTES, *voyage.ROUTES),
        *(*vllm.ROUTES, *render.ROUTES, *nim.ROUTES),
    )
)
"""Each path with its dialects. Errors of a body that can't be read have the form of the first."""
