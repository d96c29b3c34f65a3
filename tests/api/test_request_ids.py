"""Which ids of requests are taken from clients, over HTTP."""

from __future__ import annotations

import re

import pytest

from hf_transformer.api.base import error_json
from hf_transformer.api.gateway import Gateway, GatewaySettings, Router
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types import Request, Response
from tests.api.plain_request import PlainRequest


async def answered(request: Request) -> Response:
    """Its body is the request's id."""
    return Response(200, request.id.encode(), [])


async def ids(given: str | None) -> tuple[str, str]:
    """The id that an endpoint is told, and the one that the client is."""
    gateway = Gateway(Router([], []), answered, (), lambda path: error_json, Metrics("m"), GatewaySettings())
    answer = await gateway.handle(
        PlainRequest(fields=[] if given is None else [(b"x-request-id", given.encode("latin-1"))])
    )
    assert isinstance(answer, Response)
    [(name, told)] = answer.headers
    assert name == b"x-request-id"
    return answer.body.decode(), told.decode("latin-1")


@pytest.mark.parametrize("request_id", ["caller-17", "a b", "x" * 256, "\xe9", "<script>", "~"])
async def test_ids_that_are_kept(request_id: str) -> None:
    assert await ids(request_id) == (request_id, request_id)


@pytest.mark.parametrize("request_id", ["", "x" * 257, "a\tb", "a\x7f", "a\x85b", "\x9b31m", None])
async def test_ids_that_are_replaced(request_id: str | None) -> None:
    (inside, told), (another, _) = await ids(request_id), await ids(request_id)
    assert re.fullmatch("[0-9a-f]{32}", inside) and told == inside
    assert another != inside


async def test_a_request_that_the_server_refuses_has_its_id_too() -> None:
    gateway = Gateway(Router([], []), answered, (), lambda path: error_json, Metrics("m"), GatewaySettings())
    answer = gateway.refuse(PlainRequest(fields=[(b"x-request-id", b"caller-17")]), 431, "too long")
    assert (b"x-request-id", b"caller-17") in answer.headers and answer.body == b'{"error":"too long"}'
