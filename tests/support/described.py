"""Compares the answers that tests get with /openapi.json, by operation, status and content type."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from hf_transformer.api.call import path_pattern
from hf_transformer.api.document.build import EVERYTHING, build
from hf_transformer.api.document.table import served

MAX_BYTES = 50_000
"""Larger answers are not compared, since that takes seconds."""
LONG_LIST = 20
"""A longer list is compared by its first and last items: a vector has hundreds of numbers of one kind."""
OF_THE_SERVER = {405, 431, 500, 501}
"""Statuses that the document leaves out: of other methods, of headers, of faults, and of services without a predictor.
"""


@cache
def _document() -> Any:
    return build(EVERYTHING)


@cache
def _operations() -> list[tuple[re.Pattern[str], str, str]]:
    """The pattern, method and id of each operation; paths without parameters first."""
    paths = {(one.path, one.method): one.id for root in ("", "/openai") for one in served(root)}
    ordered = sorted(paths.items(), key=lambda item: "{" in item[0][0])
    return [(path_pattern(path), method, name) for (path, method), name in ordered]


@cache
def _validator(name: str, status: str, kind: str) -> Draft202012Validator | None:
    """The validator of an operation's answer; None if the document has no such answer."""
    operation = next(
        one for item in _document()["paths"].values() for one in item.values() if one["operationId"] == name
    )
    response = operation["responses"].get(status)
    if response is not None and "$ref" in response:
        response = _document()["components"]["responses"][response["$ref"].rpartition("/")[2]]
    if response is None:
        return None
    contents = response.get("content", {})
    if contents and kind not in contents:
        return None
    schema = contents[kind].get("schema", {}) if contents else {"maxLength": 0}
    return Draft202012Validator({**schema, "components": _document()["components"]})


def _shortened(value: Any) -> Any:
    """The value with at most LONG_LIST items in each list."""
    if isinstance(value, dict):
        return {name: _shortened(item) for name, item in value.items()}
    if isinstance(value, list):
        half = LONG_LIST // 2
        return [_shortened(item) for item in (value if len(value) <= LONG_LIST else [*value[:half], *value[-half:]])]
    return value


def check_answer(response: httpx.Response) -> None:
    """Raises AssertionError for an answer that the document does not describe. Skips unknown paths and streams."""
    request, status = response.request, response.status_code
    path = request.url.path
    method = request.method.lower()
    name = next((one for pattern, of, one in _operations() if of == method and pattern.match(path)), None)
    if name is None or status in OF_THE_SERVER or status in range(300, 400):
        return
    kind = response.headers.get("content-type", "").partition(";")[0]
    validator = _validator(name, str(status), kind)
    about = f"{method} {path}: {status} {kind!r}"
    assert validator is not None, f"{about} is not in /openapi.json: {response.read()[:300]!r}"
    if kind in ("", "application/json") and len(response.read()) <= MAX_BYTES:
        error = next(validator.iter_errors(_shortened(response.json()) if response.content else ""), None)
        assert error is None, f"{about} is not as in /openapi.json: {error}"[:2000]
