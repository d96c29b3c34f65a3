"""GET /openapi.json: the OpenAPI document of the served models."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

import orjson
from starlette.requests import Request
from starlette.responses import Response

from hf_transformer.api.document.build import Served, build
from hf_transformer.api.openai.routes import root_of
from hf_transformer.api.responses import View
from hf_transformer.api.service import Model, Service
from hf_transformer.generation.task import TASK_CLASSES
from hf_transformer.tasks.declaration import MASK

Key: TypeAlias = tuple[tuple[tuple[str, ...], str, str | None, bool], ...]


class Documents:
    """The document of the service, built at its first request after a change of the models.

    The document of several models keeps ``{model}`` as a parameter of its paths, and describes all their tasks.

    Args:
        openai_prefix: --openai_route_prefix.
        keys: whether requests need an API key (--api_keys_file).
    """

    def __init__(self, service: Service, openai_prefix: str, *, keys: bool = False) -> None:
        self._models = service.models
        self._root = root_of(openai_prefix)
        self._keys = keys
        self._bodies: dict[Key, bytes] = {}

    def views(self) -> dict[str, View]:
        """The view of this module."""

        async def show(request: Request) -> Response:
            return Response(await self.body(), media_type="application/json")

        return {"openapi": show}

    async def body(self) -> bytes:
        """The serialized document of all served models. It is built in a thread, since that takes 0.1 s."""
        models = self._models.served
        if (body := self._bodies.get(key := key_of(models))) is None:
            about = self._about(models)
            body = await asyncio.to_thread(lambda: orjson.dumps(build(about)))
            self._bodies = {key: body}
        return body

    def _about(self, models: Sequence[Model]) -> Served:
        tasks = {model.task.name for model in models}
        masks = [model.task.settings.vocabulary.mask_token for model in models]
        return Served(
            names=[model.name for model in models],
            all_names=[name for model in models for name in model.names],
            tasks=[kind for name, kind in TASK_CLASSES.items() if name in tasks],
            mask=next(filter(None, masks), MASK),
            root=self._root,
            runs=not models or any(model.has_predictor for model in models),
            keys=self._keys,
        )


def key_of(models: Sequence[Model]) -> Key:
    """The names, task, mask token and predictor of each model, on which a document depends. A reference to the model
    would keep its tokenizer in memory after its removal."""
    return tuple(
        (model.names, model.task.name, model.task.settings.vocabulary.mask_token, model.has_predictor)
        for model in models
    )
