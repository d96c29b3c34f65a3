"""Errors in the answers of the HTTP APIs, and checks of a request's fields."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import UnionType

import orjson

from hf_transformer.api.responses import JSON
from hf_transformer.errors import FieldError, InvalidInput, RequestError, TooLarge, describe
from hf_transformer.observability.logging import names_of
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json

logger = logging.getLogger(__name__)


RenderError = Callable[[str, int], bytes]
"""An API's error body for a message and its HTTP status."""


def error_response(render: RenderError, message: str, status: int, *headers: tuple[bytes, bytes]) -> Response:
    """The answer to a request that has failed."""
    return Response(status, render(message, status), [(b"content-type", JSON), *headers])


def error_json(message: str, status: int) -> bytes:
    """The error body of V1 and V2."""
    return orjson.dumps({"error": message})


def as_request_error(error: Exception, request_id: str, traceparent: str | None = None) -> RequestError:
    """The error that a client is told. An unexpected one is a fault of the service: the log has all of it, and the
    client learns where to look."""
    if isinstance(error, RequestError):
        return error
    named = names_of(request_id, traceparent)
    logger.error("request %s failed by a fault of the service", request_id, extra=named, exc_info=error)
    return RequestError(f"internal error; the log has it under {request_id}")


@contextmanager
def renamed(rename: Callable[[str], str]) -> Iterator[None]:
    """Lets errors name fields as the client sent them: ``rename`` gives the new message."""
    try:
        yield
    except FieldError as error:
        raise error.of(rename(str(error))) from error


def expect(value: Json, kind: type | UnionType, where: str, expected: str) -> Json:
    """The same value. Raises InvalidInput, which names the field ``where``, for a value of another type."""
    if not isinstance(value, kind):
        raise InvalidInput.of(f"{where}: expected {expected}, got {describe(value)}")
    return value


def require_few(name: str, given: Sequence[Json], most: int) -> None:
    """Raises TooLarge for a list that is over every limit, before its elements are looked at one by one."""
    if len(given) > most:
        raise TooLarge.of(
            f"{name}: {len(given)} in a request, at most {most} are taken (--max_instances, --max_sequences)"
        )
