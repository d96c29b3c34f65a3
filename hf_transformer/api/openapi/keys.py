"""API keys in the document: how they are sent, and which operations take none.

Source: https://spec.openapis.org/oas/v3.1.1.html#security-scheme-object
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from hf_transformer.api.auth import open_paths
from hf_transformer.api.base import RenderError
from hf_transformer.api.openapi.operations import answer, ref

_SCHEMES = {
    "Bearer": {"type": "http", "scheme": "bearer"},
    "XApiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "ApiKey": {"type": "apiKey", "in": "header", "name": "api-key"},
}


def ask_for_keys(document: dict[str, Any], errors_by_path: Callable[[str], RenderError]) -> None:
    """Adds to a document that all operations but the open ones take one of the keys, and answer 401 without."""
    document["components"]["securitySchemes"] = _SCHEMES
    document["security"] = [{name: []} for name in _SCHEMES]
    without = open_paths(["{model}"])
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if path in without and method == "get":
                operation["security"] = []
                continue
            body = orjson.loads(errors_by_path(path)("", 401))
            schema = ref("OpenAIError" if isinstance(body["error"], dict) else "Error")
            operation["responses"]["401"] = answer(schema, "No API key that is known here.")
