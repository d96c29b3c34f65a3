"""What is refused while it is being read, on its short way or behind another: nothing of it is begun."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.server.processes import status_of
from tests.server.test_short_requests import CHUNKED, TARGET, Ways, client_of, post


class Hasty(Ways):
    """Answers on the long way before it has read anything, as one does that refuses; ``begun`` counts that."""

    begun = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        self.begun += 1
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})


async def test_what_was_refused_does_not_go_the_long_way_either(caplog: pytest.LogCaptureFixture) -> None:
    app = Hasty()
    async with client_of(app) as client:
        client.send(CHUNKED + b"2\r\nte\r\nno size\r\n")
        answer = await client.rest()
        assert status_of(answer) == 400 and answer.count(b"HTTP/1.1") == 1
    assert not app.begun and not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("target", [TARGET, "/other"])
async def test_fields_behind_a_body_that_are_too_long_end_all_that_comes(
    caplog: pytest.LogCaptureFixture, target: str
) -> None:
    app = Hasty()
    fields = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 1000) for number in range(9))
    async with client_of(app) as client:
        client.send(CHUNKED + b"2\r\nte\r\n0\r\n" + fields + b"\r\n" + post(target=target))
        answer = await client.rest()
        assert status_of(answer) == 431 and answer.count(b"HTTP/1.1") == 1
    assert not app.taken and not app.begun
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_client_that_is_refused_is_not_asked_for_its_body_any_more(caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn would write behind the end of the answer, and the application would fail."""
    async with client_of(Ways()) as client:
        client.send(post(b"text", "Expect: 100-continue") + b"no HTTP\r\n\r\n")
        answer = await client.rest()
        assert status_of(answer) == 400 and answer.count(b"HTTP/1.1") == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_fields_behind_a_body_count_for_their_own_request_only() -> None:
    fields = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 1000) for number in range(5))
    ending = b"2\r\nte\r\n0\r\n" + fields + b"\r\n"
    async with client_of(Ways()) as client:
        client.send((CHUNKED + ending).replace(TARGET.encode(), b"/other", 1))
        assert (await client.answer())[1] == b"long:te"
        client.send(CHUNKED + ending)
        assert (await client.answer())[1] == b"short:te"
        client.send(3 * (CHUNKED + ending))
        assert [(await client.answer())[1][-2:] for _ in range(3)] == [b"te"] * 3
