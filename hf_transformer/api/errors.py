"""Error responses of the APIs, and checks of request fields."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import UnionType

import orjson

from hf_transformer.api.responses import JSON
from hf_transformer.errors import FieldError, InvalidInput, Path, RequestError, describe
from hf_transformer.observability.logging import names_of
from hf_transformer.types.http import Response
from hf_transformer.types.request import Context, Json

logger = logging.getLogger(__name__)

RenderError = Callable[[RequestError, int], bytes]
"""Renders an API's error body from an error and its HTTP status."""


def error_response(render: RenderError, error: RequestError, status: int, *headers: tuple[bytes, bytes]) -> Response:
    return Response(status, render(error, status), [(b"content-type", JSON), *headers])


def error_json(error: RequestError, status: int) -> bytes:
    """The error body of V1 and V2."""
    return orjson.dumps({"error": str(error)})


def to_request_error(error: Exception, context: Context) -> RequestError:
    """Converts an exception to the client's error, with the client's field name (``Context.field_names``).

    Logs an unexpected exception with its traceback. The client receives only the request id.
    """
    if isinstance(error, FieldError):
        return error if context.field_names is None else error.at(context.field_names(error.path))
    if isinstance(error, RequestError):
        return error
    names = names_of(context.request_id, context.headers.get("traceparent"))
    logger.error("request %s failed by a fault of the service", context.request_id, extra=names, exc_info=error)
    return RequestError(f"internal error; the log has it under {context.request_id}")


def expect(value: Json, kind: type | UnionType, path: Path | str, expected: str) -> Json:
    """Returns a value of type ``kind``. Raises InvalidInput for another type, with the field ``path``."""
    if not isinstance(value, kind):
        raise InvalidInput(path, expected, describe(value))
    return value
