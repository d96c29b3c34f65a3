"""Readiness of the served models, for all APIs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hf_transformer.api.responses import JsonResponse
from hf_transformer.api.service import Model
from hf_transformer.errors import NotReady
from hf_transformer.types.request import Json


async def find_not_ready(models: Iterable[Model]) -> NotReady | None:
    """The error of the first model that is not ready; None if all models are ready."""
    try:
        for model in models:
            await model.require_ready()
    except NotReady as error:
        return error
    return None


async def readiness(models: Iterable[Model], about: Mapping[str, Json]) -> JsonResponse:
    """The response to a readiness probe of the models, with the fields of ``about``."""
    error = await find_not_ready(models)
    if error is None:
        return JsonResponse({**about, "ready": True})
    body = {**about, "ready": False, "error": str(error)}
    return JsonResponse(body, error.status, {"Retry-After": str(error.retry_after)})
