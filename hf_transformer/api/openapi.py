"""GET /openapi.json: the OpenAPI 3.1 document of the HTTP APIs.

The template openapi.yaml describes every task and every setting. Source: https://spec.openapis.org/oas/v3.1.1.html
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import orjson
import yaml
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hf_transformer import __version__
from hf_transformer.api.openai.routes import root_of
from hf_transformer.api.service import Service
from hf_transformer.types.request import Json

FILE = Path(__file__).with_suffix(".yaml")
CONDITION = "x-for"
"""The key for the tasks and settings of an object. The document omits objects of other tasks and settings."""
OPENAI = "/openai/"
"""The path prefix of the OpenAI API in the template."""
_OMITTED = object()


def route(document: Mapping[str, Json]) -> Route:
    """Creates the route of a document, and serializes the document once."""
    body = orjson.dumps(document)

    async def show(request: Request) -> Response:
        return Response(body, media_type="application/json")

    return Route("/openapi.json", show)


def document(service: Service, openai_prefix: str, *, keys: bool = False) -> dict[str, Json]:
    """Builds the document of a service. ``keys`` is true if requests need an API key (--api_keys_file)."""
    name = service.models.names[0]
    task = service.models[name].task
    root = root_of(openai_prefix)
    words = {"{model}": name, "[MASK]": task.settings.vocabulary.mask_token or "[MASK]"}
    conditions = {task.name, "openai_prefix" if root else "no_openai_prefix", *(["api_keys"] if keys else ())}
    # libyaml is eight times as fast as the Python parser, but some PyYAML builds lack libyaml.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    source = yaml.load(FILE.read_text("utf-8"), loader)  # noqa: S506  # a safe loader
    tailored: dict[str, Json] = _tailor(source, conditions, words)
    tailored["info"]["version"] = __version__
    tailored["paths"] = {
        f"{root}/{path.removeprefix(OPENAI)}" if path.startswith(OPENAI) else path: item
        for path, item in tailored["paths"].items()
    }
    return tailored


def predict_examples(document: Mapping[str, Json], model: str) -> list[Json]:
    """The examples of V1's predict route, as {"summary", "value"} with a request body as the value."""
    operation = document["paths"][f"/v1/models/{model}:predict"]["post"]
    return list(operation["requestBody"]["content"]["application/json"]["examples"].values())


def _tailor(value: Any, conditions: Set[str], words: Mapping[str, str]) -> Any:
    """Replaces words in a template value, and omits the objects of other tasks and settings."""
    if isinstance(value, str):
        for word, replacement in words.items():
            value = value.replace(word, replacement)
        return value
    if isinstance(value, list):
        items = (_tailor(item, conditions, words) for item in value)
        return [item for item in items if item is not _OMITTED]
    if not isinstance(value, dict):
        return value
    if CONDITION in value and not conditions & set(value[CONDITION]):
        return _OMITTED
    members = ((key, _tailor(member, conditions, words)) for key, member in value.items() if key != CONDITION)
    return {_tailor(key, conditions, words): member for key, member in members if member is not _OMITTED}
