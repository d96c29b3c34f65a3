"""Which ids of requests are taken from clients, over HTTP."""

from __future__ import annotations

import re

import pytest

from hf_transformer.api.base import request_context


@pytest.mark.parametrize("request_id", ["caller-17", "a b", "x" * 256, "\xe9", "<script>", "~"])
def test_ids_that_are_kept(request_id: str) -> None:
    context = request_context({b"x-request-id": request_id.encode("latin-1"), b"accept": b"*/*"})
    assert (context.request_id, context.headers) == (request_id, {"x-request-id": request_id})


@pytest.mark.parametrize("request_id", ["", "x" * 257, "a\tb", "a\x7f", "a\x85b", "\x9b31m"])
def test_ids_that_are_replaced(request_id: str) -> None:
    context = request_context({b"x-request-id": request_id.encode("latin-1")})
    assert re.fullmatch("[0-9a-f]{32}", context.request_id)
    assert context.headers == {"x-request-id": context.request_id}
