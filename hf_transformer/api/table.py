"""The table of all dialects' routes.

It also has the OpenAI API's embeddings and rerank at the paths of other servers, for any --openai_route_prefix:

    POST /embeddings, /v1/embeddings    text-embeddings-inference, vLLM, Jina, Voyage, NVIDIA NIM
    POST /rerank, /v1/rerank            vLLM, Jina, Voyage, Cohere v1; a body with ``documents``
    POST /infinity/embeddings, /infinity/rerank     Infinity

vLLM's routes for Responses and Messages are in openai/ and anthropic/, which read their bodies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from hf_transformer.api.anthropic import rendering as messages
from hf_transformer.api.anthropic.bodies import MESSAGES_FORM
from hf_transformer.api.bodies import TASKS
from hf_transformer.api.call import Call
from hf_transformer.api.dialects import cohere, derender, jina, nim, presidio, render, tei, vllm, voyage
from hf_transformer.api.dialects.routes import DialectRoute, Table, by_path, vllm_route
from hf_transformer.api.error_forms import render_for_all
from hf_transformer.api.openai import embeddings, rerank
from hf_transformer.api.openai import rendering as responses
from hf_transformer.api.rendered import RenderedRequest, TokenizeResponse
from hf_transformer.api.service import Service
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json

Create = Callable[[Service, Call], Awaitable[Response]]


def _embeddings(path: str, dialect: str = "openai") -> DialectRoute:
    return _openai(path, dialect, "embeddings", embeddings.create, embeddings.EmbeddingsResponse)


def _rerank(path: str) -> DialectRoute:
    return _openai(path, "openai", "rerank", partial(rerank.create, shared=True), rerank.RerankResponse)


def _openai(path: str, dialect: str, endpoint: str, create: Create, answer: Any) -> DialectRoute:
    async def handle(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
        return await create(service, call)

    return DialectRoute(
        path=path,
        dialect=dialect,
        handle=handle,
        render_error=render_for_all,
        form=embeddings.EMBEDDINGS if endpoint == "embeddings" else rerank.RERANK,
        tasks=TASKS[endpoint],
        answers=(answer,),
    )


INFINITY_RERANK = partial(rerank.create, infinity=True)
"""Infinity's form of a rerank answer differs from vLLM's for the same body, so it has a path of its own."""
OPENAI = (
    *[_embeddings(path) for path in ("/embeddings", "/v1/embeddings")],
    *[_rerank(path) for path in ("/rerank", "/v1/rerank")],
    _embeddings("/infinity/embeddings", "infinity"),
    _openai("/infinity/rerank", "infinity", "rerank", INFINITY_RERANK, rerank.InfinityRerankResponse),
)


RENDERED = (
    vllm_route("/v1/messages/render", MESSAGES_FORM, messages.render, RenderedRequest),
    vllm_route("/v1/responses/render", responses.RENDER_FORM, responses.render, RenderedRequest),
    vllm_route("/tokenize", responses.TOKENIZE_FORM, responses.tokenize, TokenizeResponse),
    vllm_route(
        "/tokenize", messages.TOKENIZE_FORM, messages.tokenize, TokenizeResponse, prefers=messages.is_conversation
    ),
)
ROUTES: Table = by_path(
    (
        *(*OPENAI, *tei.ROUTES, *cohere.ROUTES, *jina.ROUTES, *voyage.ROUTES),
        *(*vllm.ROUTES, *render.ROUTES, *RENDERED, *derender.ROUTES, *nim.ROUTES, *presidio.ROUTES),
    )
)
"""Each path with its dialects. Errors of a body that can't be read have the form of the first."""
