"""Requests that are no HTTP, or that two readers would read in two ways: answered with 400, and nothing hidden in them
is ever taken for a request. tests/wire has what the application sees of such requests, cut at every byte."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from hf_transformer.commands.child_process import poll
from tests.integration.hostile.conftest import assert_served
from tests.support.raw_http import (
    ANSWER,
    BODY,
    HOST_LINE,
    PREDICT,
    RawResponse,
    all_responses,
    connected,
    exchange,
    get,
    post,
    post_head,
    request,
    send,
)
from tests.support.service import Service

LENGTH = f"content-length: {len(BODY)}"
CHUNKED = "transfer-encoding: chunked"
CLOSE = "connection: close"
HTTP2 = "http2-settings: AAMAAABkAAQAAP__"
SERVED = 'hf_transformer_requests_total{api="v1",status="200"}'
AS_A_CHUNK = f"{len(BODY):x}\r\n".encode() + BODY + b"\r\n0\r\n\r\n"
MODELS = b'{"models":["bert"]}'
"""The answer of /v2/models."""


def with_host(host: str) -> bytes:
    """A whole request with this value of Host."""
    return post().replace(HOST_LINE.encode(), f"Host: {host}".encode("latin-1"))


BROKEN = {
    "two lengths": post_head(LENGTH, "content-length: 5") + BODY,
    "a length twice": post_head(LENGTH, LENGTH) + BODY,
    "two lengths in one": post_head(f"content-length: {len(BODY)}, 5") + BODY,
    "a length and chunks": post_head(LENGTH, CHUNKED) + AS_A_CHUNK,
    "a length and no chunk": post_head(LENGTH, CHUNKED) + b"0\r\n\r\n",
    "chunks and a length": post_head(CHUNKED, "content-length: 4") + AS_A_CHUNK,
    "no chunk and a length": post_head(CHUNKED, "content-length: 4") + b"0\r\n\r\n",
    "chunked and more": post_head("transfer-encoding: chunked, identity") + AS_A_CHUNK,
    "chunked with a control character": post_head("transfer-encoding: \x0bchunked", LENGTH) + BODY,
    "a negative length": post_head("content-length: -1") + BODY,
    "a length with a sign": post_head(f"content-length: +{len(BODY)}") + BODY,
    "a length in hex": post_head("content-length: 0x10") + BODY,
    "an endless length": post_head("content-length: " + "9" * 40) + BODY,
    "a chunk size that is none": post_head(CHUNKED) + b"zz\r\n",
    "an endless chunk size": post_head(CHUNKED) + b"f" * 40 + b"\r\n",
    "a negative chunk size": post_head(CHUNKED) + b"-5\r\n",
    "a chunk that is longer": post_head(CHUNKED) + b"1\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a header without colon": post_head("nonsense", LENGTH) + BODY,
    "a blank before the colon": post_head(f"content-length : {len(BODY)}") + BODY,
    "a folded header": post_head("x-test: a\r\n folded: b", LENGTH) + BODY,
    "a NUL in a header": post_head("x-test: a\0b", LENGTH) + BODY,
    "a header without name": post_head(": value", LENGTH) + BODY,
    "no host": f"POST {PREDICT} HTTP/1.1\r\n{LENGTH}\r\n\r\n".encode() + BODY,
    "two hosts": post_head(LENGTH, "host: y") + BODY,
    "a host twice": post_head(LENGTH, HOST_LINE) + BODY,
    "two hosts of HTTP/1.0": post(BODY, "host: y", version="1.0"),
    "a host with a blank": with_host("a b"),
    "a host with a path": with_host("a/b"),
    "a host with a user": with_host("user@a"),
    "a host with two ports": with_host("a:1:2"),
    "a host with a port that is none": with_host("a:http"),
    "a host in half a bracket": with_host("[::1"),
    "a host in UTF-8": with_host("b\xc3\xbccher"),
    "an unknown method": request("MAKE / HTTP/1.1"),
    "version 9": request("GET / HTTP/9.9"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": bytes.fromhex("16030100a5010000a10303") + b"\0" * 64,
    "another protocol": b"EHLO test\r\n",
    "nothing but NUL": b"\0" * 1000,
}


def test_broken_http_is_400_and_the_rest_of_the_connection_is_not_read(service: Service) -> None:
    """One answer, 400, and the connection is closed: nothing that follows is read, as the count of requests says. All
    at once, since the service waits a second for clients that still send."""
    assert_served(service)
    before = service.metric(SERVED)
    found = at_once(service, {name: sent + post() * 2 for name, sent in BROKEN.items()})
    assert {name for name, answers in found.items() if [answer.status for answer in answers] != [400]} == set()
    assert all(answer.error for answers in found.values() for answer in answers)
    assert_served(service)
    assert poll(lambda: service.metric(SERVED) == before + 1, 5.0)


def at_once(service: Service, sent: dict[str, bytes]) -> dict[str, list[RawResponse]]:
    """The answers to each of them until the service closes its connection."""
    with ExitStack() as stack:
        connections = {name: stack.enter_context(connected(service)) for name in sent}
        for name, connection in connections.items():
            send(connection, sent[name])
        return {name: all_responses(connection) for name, connection in connections.items()}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/../../etc/passwd",
        "/v1/models/..",
        "/v1/models/bert/./x:predict",
        "/v2/models/../../etc/passwd",
        "/v2/models/bert/../config",
        "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd:predict",
        "/v1/models/bert%00:predict",
        "/v1/models/%ff%fe:predict",
        "/v1/models/%:predict",
        "//v1/models/bert:predict",
        "/v1/models/" + "x" * 8000 + ":predict",
        "/v2/models/bert/versions/" + "9" * 400 + "/infer",
        "*",
    ],
)
def test_paths_lead_nowhere_else(service: Service, path: str) -> None:
    [answer] = exchange(service, post(BODY, CLOSE, target=path))
    assert answer.status == 404 and len(answer.body) < 1000
    assert "of model" in answer.error or "a served model" in answer.error or "Not Found" in answer.error


ODD = {
    # As RFC 9112, 3.2.2, wants it; the host in it and Host are not looked at.
    "an absolute address": (
        post(BODY, CLOSE, target=f"http://elsewhere.test{PREDICT}"),
        ANSWER,
    ),
    "HTTP/1.0": (post(version="1.0"), ANSWER),
    "HTTP/1.0 without a host": (post(version="1.0").replace(f"{HOST_LINE}\r\n".encode(), b""), ANSWER),
    **{
        f"the host {host!r}": (with_host(host).replace(b"\r\n", f"\r\n{CLOSE}\r\n".encode(), 1), ANSWER)
        for host in ("", " \t", "x:8080", " x:8080 \t", "a_b.example.", "127.0.0.1:", "[::1]:8080", "[fe80::1%25eth0]")
    },
    # A request without a version, or of another time: one answer, and the connection is closed.
    "HTTP/0.9": (b"GET /v2/models\r\n\r\n" + get("/hidden"), MODELS),
    "an upgrade that is not made": (
        get("/v2/models", "connection: upgrade, http2-settings", "upgrade: websocket", HTTP2)
        + get("/v2/models", CLOSE),
        MODELS,
    ),
}


@pytest.mark.parametrize(("sent", "body"), ODD.values(), ids=ODD)
def test_unusual_but_valid_requests_are_answered(service: Service, sent: bytes, body: bytes) -> None:
    assert {(answer.status, answer.body) for answer in exchange(service, sent)} == {(200, body)}


def test_pipelined_requests_are_answered_in_order(service: Service) -> None:
    """Good and bad ones; each is one answer, and what is wrong with one does not end the others."""
    requests = [post(), post(b"{"), post(b'{"instances": []}'), post()] * 50
    answers = exchange(service, b"".join(requests) + post(BODY, CLOSE))
    assert [answer.status for answer in answers] == [200, 400, 400, 200] * 50 + [200]
    assert {answer.body for answer in answers if answer.status == 200} == {ANSWER}


def test_broken_bytes_behind_good_requests_get_no_answer_of_theirs(service: Service) -> None:
    """It may cost those that are not answered yet their answers, but it is never taken for one of theirs."""
    found = at_once(service, {str(good): post() * good + b"nonsense\r\n\r\n" for good in range(5)})
    assert [answer.status for answer in found["0"]] == [400]
    for good, answers in found.items():
        statuses = [answer.status for answer in answers]
        assert statuses[-1:] == [400] or not statuses, (good, statuses)
        assert set(statuses[:-1]) <= {200}


def test_fields_behind_a_chunked_body_are_forgotten(service: Service) -> None:
    """They are no headers: an id there does not go back, as one in front of the body would. They have a limit too."""
    sent = AS_A_CHUNK.removesuffix(b"\r\n")
    [answer] = exchange(service, post_head(CHUNKED, CLOSE) + sent + b"x-request-id: late\r\n\r\n")
    assert answer.body == ANSWER and answer.headers["x-request-id"] != "late"
    answers = exchange(service, post_head(CHUNKED) + sent, *[b"a: " + b"b" * 1000 + b"\r\n"] * 100)
    assert 431 in [answer.status for answer in answers]
