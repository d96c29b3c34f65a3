"""The OpenAI API's embeddings and rerank at the paths of other servers, whatever --openai_route_prefix is.

    POST /embeddings, /v1/embeddings    text-embeddings-inference, vLLM, Jina, Voyage, NVIDIA NIM
    POST /rerank, /v1/rerank            vLLM, Jina, Voyage, Cohere v1; a body with ``documents``

Sources: https://huggingface.github.io/text-embeddings-inference/ and
https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from hf_transformer.api.call import Call
from hf_transformer.api.dialects.bodies import render_for_all
from hf_transformer.api.dialects.routes import DialectRoute
from hf_transformer.api.openai import embeddings, rerank
from hf_transformer.api.service import Service
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json

Create = Callable[[Service, Call], Awaitable[Response]]


def _route(path: str, create: Create, *fields: str) -> DialectRoute:
    async def handle(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
        return await create(service, call)

    return DialectRoute(
        path=path,
        dialect="openai",
        handle=handle,
        render_error=render_for_all,
        fields=frozenset(fields),
    )


ROUTES = (
    _route("/embeddings", embeddings.create, "input"),
    _route("/v1/embeddings", embeddings.create, "input"),
    _route("/rerank", partial(rerank.create, shared=True), "query", "documents"),
    _route("/v1/rerank", partial(rerank.create, shared=True), "query", "documents"),
)
