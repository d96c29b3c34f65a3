"""Clients that take too much: heads without an end, requests that never come whole, connections without number."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hf_transformer.commands.child_process import poll
from tests.integration.server.processes import service_with
from tests.support.polling import SECONDS
from tests.support.raw_http import RawResponse, all_responses, connected, exchange, get, next_response, post, unfinished
from tests.support.service import Service

LIMIT = 8192
LEFT = 'hf_transformer_requests_total{api="v1",status="499"}'


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    flags = (f"--max_header_bytes={LIMIT}", "--client_timeout_seconds=1", "--timeout_keep_alive=2")
    with service_with(*flags) as running:
        yield running.wait_until("/")


def is_last(answer: RawResponse, status: int, says: str) -> bool:
    return (answer.status, answer.headers["connection"]) == (status, "close") and says in answer.error


@pytest.mark.parametrize(
    "lines",
    [
        [b"X-Large: " + b"a" * LIMIT],
        [b"X-Large: " + b"a" * 100 * LIMIT],
        [b"X-%05d: 1\r\n" % number for number in range(LIMIT // 10)],
    ],
    ids=["a line", "a long line", "many lines"],
)
def test_a_head_over_the_limit_is_431(service: Service, lines: list[bytes]) -> None:
    [answer] = exchange(service, get("/")[:-2], *lines)
    assert is_last(answer, 431, "--max_header_bytes")


def test_the_limit_of_heads_counts_each_request_alone(service: Service) -> None:
    whole = get("/", "X-Large: " + "a" * (LIMIT // 2))
    with connected(service) as client:
        for _ in range(3):  # on one connection: what one request has taken is not counted for the next
            assert (
                next_response(client, whole).status == next_response(client, whole[:2000], whole[2000:]).status == 200
            )


def test_incomplete_requests_are_408_and_keep_nobody_waiting(service: Service) -> None:
    """A byte, half a head, no body, half a body."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(service)) for _ in range(5)]
        beginnings = (b"G", get("/", "X-Slow: ")[:-4], unfinished(), unfinished() + b'{"in')
        for client, begin in zip(clients, beginnings, strict=False):
            client.sendall(begin)
        assert next_response(clients.pop(), get("/")).status == 200  # nobody waits for the slow ones
        for client in clients:
            [answer] = all_responses(client)
            assert is_last(answer, 408, "--client_timeout_seconds")
    assert service.metric("hf_transformer_requests_in_flight") == 0


def test_idle_connections_are_closed(service: Service) -> None:
    with ExitStack() as stack:
        clients = []
        for sent in (b"", b"\r\n", get("/"), get("/") + b"\r\n"):
            client = stack.enter_context(connected(service))
            client.sendall(sent)
            clients.append((sent, client))
        for sent, client in clients:
            assert [one.status for one in all_responses(client)] == ([200] if sent.strip() else [])


def test_clients_that_leave_are_counted(service: Service) -> None:
    """A request that never came whole counts as left too."""

    def left() -> float:
        return service.metric(LEFT, missing=0)

    before = left()
    with connected(service) as client:
        client.sendall(unfinished())
        time.sleep(0.2)
    assert poll(lambda: left() == before + 1, SECONDS)
    [answer] = exchange(service, unfinished())
    assert answer.status == 408
    assert poll(lambda: left() == before + 2, SECONDS)


def test_a_connection_over_the_limit_is_503() -> None:
    with service_with("--max_connections=2") as service:
        service.wait_until("/")
        with connected(service) as first:
            assert next_response(first, get("/")).status == 200
            with connected(service) as second:
                assert next_response(second, get("/")).status == 200
                [refused] = exchange(service)
                assert (refused.status, refused.headers["retry-after"]) == (503, "1")
                assert "--max_connections" in refused.error
                assert next_response(first, get("/")).status == 200
            assert poll(lambda: exchange(service, get("/", "Connection: close"))[0].status == 200, SECONDS)


def test_bodies_have_a_limit_alone_and_together() -> None:
    """A body that is too large alone is refused by its head."""

    def whole(size: int) -> bytes:
        return post(b" " * size)

    flags = ("--max_request_bytes=50000", "--max_bytes_in_flight=90000")
    with service_with(*flags) as service, connected(service.wait_until("/")) as first, connected(service) as second:
        first.sendall(whole(50_000)[:-1])
        # Once the first one's body was read:
        assert poll(lambda: next_response(second, whole(45_000)).status == 429, SECONDS)
        refused = next_response(second, whole(45_000))
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert "--max_bytes_in_flight" in refused.error
        assert service.metric('hf_transformer_refused_requests_total{limit="bytes"}') == 2
        assert next_response(second, whole(20_000)).status == 400  # there is room for a smaller one, which is no JSON
        assert next_response(first, b" ").status == 400
        assert next_response(second, whole(45_000)).status == 400
        assert next_response(second, unfinished(length=50_001)).status == 413
        [answer] = exchange(service, unfinished()[:-2], b"X: " + b"a" * 2**17)
        assert answer.status == 431  # by default
