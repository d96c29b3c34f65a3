"""GET /openapi.json: one OpenAPI 3.1 document of all HTTP routes, from openapi.yaml beside this file.

The file describes every task and every setting. Source: https://spec.openapis.org/oas/v3.1.1.html
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
ABOUT = "x-for"
"""The key with the tasks and settings that an object of the file is about."""
OPENAI = "/openai/"  # how the OpenAI API's paths begin in the file
_LEFT_OUT = object()


def route(made: Mapping[str, Json]) -> Route:
    """The route of a document, which is written here, once."""
    written = orjson.dumps(made)

    async def show(request: Request) -> Response:
        return Response(written, media_type="application/json")

    return Route("/openapi.json", show)


def document(service: Service, openai_prefix: str, *, keys: bool = False) -> dict[str, Json]:
    """The document of one service; ``keys`` says whether requests need one (--api_keys_file)."""
    name = service.models.names[0]
    task = service.models[name].task
    root = root_of(openai_prefix)
    words = {"{model}": name, "[MASK]": task.settings.vocabulary.mask_token or "[MASK]"}
    about = {task.name, "openai_prefix" if root else "no_openai_prefix", *(["api_keys"] if keys else ())}
    # libyaml is eight times as fast as the parser in Python, and PyYAML can be without it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    made: dict[str, Json] = _fit(yaml.load(FILE.read_text("utf-8"), loader), about, words)  # noqa: S506  # is safe
    made["info"]["version"] = __version__
    made["paths"] = {
        f"{root}/{path.removeprefix(OPENAI)}" if path.startswith(OPENAI) else path: item
        for path, item in made["paths"].items()
    }
    return made


def predict_examples(made: Mapping[str, Json], model: str) -> list[Json]:
    """The examples in a document of V1's predict route: {"summary", "value"}, where the value is a body."""
    operation = made["paths"][f"/v1/models/{model}:predict"]["post"]
    return list(operation["requestBody"]["content"]["application/json"]["examples"].values())


def _fit(value: Any, about: Set[str], words: Mapping[str, str]) -> Any:
    """A value of the file without the objects that are about something else, its words replaced."""
    if isinstance(value, str):
        for word, own in words.items():
            value = value.replace(word, own)
        return value
    if isinstance(value, list):
        return [one for one in (_fit(one, about, words) for one in value) if one is not _LEFT_OUT]
    if not isinstance(value, dict):
        return value
    if ABOUT in value and not about & set(value[ABOUT]):
        return _LEFT_OUT
    fitted = ((key, _fit(one, about, words)) for key, one in value.items() if key != ABOUT)
    return {_fit(key, about, words): one for key, one in fitted if one is not _LEFT_OUT}
