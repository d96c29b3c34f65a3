"""GET /openapi.json: one OpenAPI 3.1 document of all HTTP routes, made of the served model. A file here per API.

Source: https://spec.openapis.org/oas/v3.1.1.html
"""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from hf_transformer import __version__
from hf_transformer.api.base import Service
from hf_transformer.api.openai.routes import errors_by_path, root_of
from hf_transformer.api.openapi import openai, openai_generation, ops, tokenization, v1, v2, v2_generate
from hf_transformer.api.openapi.keys import ask_for_keys
from hf_transformer.api.openapi.operations import Described, shared
from hf_transformer.tasks.schemas import schemas_of
from hf_transformer.types import Json

APIS = (v1, v2, v2_generate, openai_generation, openai, tokenization, ops)
DESCRIPTION = """Hugging Face models of a Triton Inference Server with text in and answers out.

Bodies are JSON, whatever the content type says; `Content-Encoding: gzip` is understood. With
--enable_grpc the V2 protocol is served over gRPC too."""


def routes(service: Service, openai_prefix: str, *, keys: bool = False) -> list[BaseRoute]:
    """The route of the document, which is made here, once; ``keys`` if requests need one (--api_keys_file)."""
    made = document(service, openai_prefix)
    if keys:
        ask_for_keys(made, errors_by_path(openai_prefix))
    written = orjson.dumps(made)

    async def show(request: Request) -> Response:
        return Response(written, media_type="application/json")

    return [Route("/openapi.json", show)]


def document(service: Service, openai_prefix: str) -> dict[str, Json]:
    """The document.

    Args:
        openai_prefix: what comes before /v1 in the OpenAI API, as --openai_route_prefix gives it.
    """
    names = service.models.names
    task = service.models[names[0]].task
    about = Described(names, task, schemas_of(task), root_of(openai_prefix), service.max_bytes)
    components = shared(about)
    components["parameters"] |= v2.parameters()
    return {
        "openapi": "3.1.0",
        "info": {"title": f"hf_transformer: {', '.join(names)}", "version": __version__, "description": DESCRIPTION},
        # Relative to this document, so that it holds behind a proxy that serves it under a path of its own.
        "servers": [{"url": "./"}],
        "tags": [{"name": name, "description": description} for name, description in _tags().items()],
        "paths": {path: item for api in APIS for path, item in api.paths(about).items()},
        "components": {
            "schemas": {name: schema for api in APIS for name, schema in api.schemas(about).items()},
            **components,
        },
    }


def _tags() -> dict[str, str]:
    """What each API is; where two files have one, the last of them says it."""
    return {api.TAG: (api.__doc__ or "").strip() for api in APIS}
