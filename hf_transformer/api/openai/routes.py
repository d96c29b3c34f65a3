"""Routes of the OpenAI API, under the prefix in --openai_route_prefix, which may be empty.

    POST {prefix}/v1/completions        completions.py
    POST {prefix}/v1/chat/completions   api/chat_completions.py
    POST {prefix}/v1/responses          responses.py
    POST {prefix}/v1/embeddings         embeddings.py
    POST {prefix}/v1/rerank             rerank.py
    POST {prefix}/v1/moderations        moderations.py
    GET  {prefix}/v1/models             {"object": "list", "data": [{"id", "object": "model", "created", "owned_by"}]}
    GET  {prefix}/v1/models/{m}         {"id", "object": "model", "created", "owned_by"}

V1 has the last two routes without the prefix, with the fields of both APIs.

Source: https://platform.openai.com/docs/api-reference
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from hf_transformer.api import chat_completions
from hf_transformer.api.endpoint import Endpoint, Handle
from hf_transformer.api.error_forms import render_error, status_of
from hf_transformer.api.errors import RenderError, error_json
from hf_transformer.api.openai import completions, embeddings, moderations, rerank, responses
from hf_transformer.api.responses import View, json_view
from hf_transformer.api.service import Models, Service
from hf_transformer.types.request import Json

Cards = Callable[[], dict[str, dict[str, Json]]]
"""Returns OpenAI's model objects by name."""


def endpoints(service: Service) -> dict[str, Endpoint]:
    """Returns the endpoints of this API."""
    handlers: dict[str, Handle] = {
        "openaiCompletions": partial(completions.create, service),
        "openaiChat": partial(chat_completions.create, service),
        "openaiResponses": partial(responses.create, service),
        "openaiEmbeddings": partial(embeddings.create, service),
        "openaiRerank": partial(rerank.create, service),
        "openaiModerations": partial(moderations.create, service),
    }
    return {
        name: Endpoint("openai", handle, render_error, service, status=status_of) for name, handle in handlers.items()
    }


def views(service: Service) -> dict[str, View]:
    """Returns the views of this API. Without a prefix, V1 serves their paths."""
    models, cards = service.models, model_cards(service.models)

    def card(model: str) -> Json:
        models.find(model, path="model")  # raises for an unknown name
        return cards()[model]

    return {
        "openaiModels": json_view(lambda: {"object": "list", "data": list(cards().values())}),
        "openaiModel": json_view(card),
    }


def errors_by_path(prefix: str) -> Callable[[str], RenderError]:
    """Returns a function that maps a path to its API's RenderError."""
    root = root_of(prefix)
    base = f"{root or '/v1'}/"

    def renderer(path: str) -> RenderError:
        shared = not root and f"{path}/".startswith("/v1/models/")  # V1 serves these routes
        return render_error if f"{path}/".startswith(base) and not shared else error_json

    return renderer


def root_of(prefix: str) -> str:
    """Normalizes the prefix: empty, or with a leading slash and without a trailing slash."""
    bare = prefix.strip("/")
    return f"/{bare}" if bare else ""


def model_cards(models: Models) -> Cards:
    """Returns a function that returns OpenAI's model objects by name; ``created`` is the start time of the service.

    As in vLLM, ``root`` of an alias is its model, and ``parent`` of an adapter is its base model.
    """
    shared = {"object": "model", "created": int(time.time()), "owned_by": "hf_transformer"}

    def cards() -> dict[str, dict[str, Json]]:
        made: dict[str, dict[str, Json]] = {}
        for model in models.served:
            made[model.name] = {"id": model.name, **shared}
            for name in model.identity.aliases:
                made[name] = {"id": name, **shared, "root": model.name}
            for name in model.identity.adapters:
                made[name] = {"id": name, **shared, "root": name, "parent": model.name}
        return made | {name: {"id": name, **shared} for name in models.absent}

    return cards
