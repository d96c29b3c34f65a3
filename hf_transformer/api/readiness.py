"""Readiness of served models, as every API answers it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hf_transformer.api.responses import JsonResponse
from hf_transformer.api.service import Model
from hf_transformer.errors import NotReady
from hf_transformer.types.request import Json


async def find_not_ready(models: Iterable[Model]) -> NotReady | None:
    """Why one of the models can't predict now; None if all of them can."""
    try:
        for model in models:
            await model.require_ready()
    except NotReady as error:
        return error
    return None


async def readiness(models: Iterable[Model], about: Mapping[str, Json]) -> JsonResponse:
    """The answer to whether models are ready; ``about`` stands in it too."""
    error = await find_not_ready(models)
    if error is None:
        return JsonResponse({**about, "ready": True})
    body = {**about, "ready": False, "error": str(error)}
    return JsonResponse(body, error.status, {"Retry-After": str(error.retry_after)})
