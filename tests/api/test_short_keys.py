"""Keys in front of a short way, whose headers are looked at once: whether a key counts is asked for each request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.api.api_keys import ApiKeys, KeyedApp
from hf_transformer.api.openai import routes as openai
from hf_transformer.observability.metrics import Metrics
from hf_transformer.short_way import Begin, Headers, Response
from tests.api.short_response import Answers

TARGET = b"/v1/models/model:predict"


class Inner:
    """An application with one short way, which keeps the headers that it was asked with and answers at once."""

    def __init__(self) -> None:
        self.short_ways = {TARGET: self.way}
        self.headers: list[Headers] = []

    def way(self, headers: Headers) -> Begin:
        self.headers.append(headers)

        def begin(body: bytes, scheme: str, response: Response) -> Callable[[], object]:
            response.whole(200, b"", scheme.encode() + body)
            return bool

        return begin

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError(scope)


class Keyed:
    """The keys of ``file`` before ``Inner``; ``answers`` are the statuses and bodies."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.inner = Inner()
        self.keys = ApiKeys(str(file))
        self.metrics = Metrics("model")
        app = KeyedApp(self.inner, self.keys, ["model"], openai.errors_by_path("/openai"), self.metrics)
        self.way = app.short_ways[TARGET]
        self.response = Answers()
        self.answers = self.response.all

    def status(self, begin: Begin) -> int:
        begin(b"text", "https", self.response)
        return self.answers[-1][0]

    def renew(self, *keys: str) -> None:
        self.file.write_text("\n".join(keys))
        assert self.keys.file.renew()


@pytest.fixture
def keyed(tmp_path: Path) -> Keyed:
    file = tmp_path / "keys"
    file.write_text("alpha-key")
    return Keyed(file)


def test_a_key_goes_no_further(keyed: Keyed) -> None:
    begin = keyed.way([(b"host", b"x"), (b"x-api-key", b"alpha-key"), (b"authorization", b"Basic a")])
    assert keyed.status(begin) == 200 and keyed.answers[-1][2] == b"httpstext"
    assert keyed.inner.headers == [[(b"host", b"x")]]


def test_keys_that_change_between_two_requests_of_one_head(keyed: Keyed) -> None:
    old, new = (keyed.way([(b"authorization", b"Bearer " + key)]) for key in (b"alpha-key", b"another-key"))
    none = keyed.way([(b"host", b"x")])

    def statuses() -> list[int]:
        return [keyed.status(begin) for begin in (old, new, none)]

    assert statuses() == [200, 401, 401]
    assert statuses() == [200, 401, 401]
    keyed.renew("another-key")
    assert statuses() == [401, 200, 401]
    keyed.renew("another-key", "alpha-key")
    assert statuses() == [200, 200, 401]


def test_what_is_refused_is_told_and_counted_each_time(keyed: Keyed) -> None:
    begin = keyed.way([(b"x-request-id", b"mine"), (b"x-api-key", b"wrong")])
    assert [keyed.status(begin) for _ in range(2)] == [401, 401]
    (status, lines, body), second = keyed.answers
    assert (status, lines, body) == second and body.startswith(b'{"error":')
    assert lines == b"content-type: application/json\r\nx-request-id: mine\r\nwww-authenticate: Bearer\r\n"
    assert 'requests_total{api="keys",status="401"} 2.0' in keyed.metrics.render().decode()
