"""Clients that take too much: heads without an end, requests that never come whole, connections without number."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hf_transformer.commands.local_triton import poll
from tests.integration.server.processes import (
    SECONDS,
    all_of,
    answer_of,
    connected,
    get,
    service_with,
    status_of,
    unfinished,
)
from tests.service import Service

LIMIT = 8192


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    flags = (f"--max_header_bytes={LIMIT}", "--client_timeout_seconds=0.5", "--timeout_keep_alive=1")
    with service_with(*flags) as running:
        yield running.wait_until("/")


def message_of(answer: bytes) -> str:
    message: str = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    return message


@pytest.mark.parametrize("size", [LIMIT, 100 * LIMIT])
def test_a_head_that_is_too_large(service: Service, size: int) -> None:
    with connected(service) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Large: " + b"a" * size)
        answer = all_of(client)
    assert status_of(answer) == 431
    assert b"connection: close" in answer
    assert "--max_header_bytes" in message_of(answer)


def test_a_head_that_grows_by_small_headers(service: Service) -> None:
    with connected(service) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        for number in range(LIMIT // 10):
            client.sendall(b"X-%05d: 1\r\n" % number)
        assert status_of(all_of(client)) == 431


def test_a_head_within_the_limit(service: Service) -> None:
    with connected(service) as client:
        for _ in range(3):  # on one connection: what one request has taken is not counted for the next
            client.sendall(get("/", "X-Large: " + "a" * (LIMIT // 2)))
            assert answer_of(client)[0] == 200
            whole = get("/", "X-Large: " + "a" * (LIMIT // 2))
            client.sendall(whole[:2000])
            client.sendall(whole[2000:])
            assert answer_of(client)[0] == 200


def test_requests_that_do_not_come_whole(service: Service) -> None:
    """A byte, half a head, no body, half a body."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(service)) for _ in range(4)]
        half = b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "
        for client, begin in zip(clients, (b"G", half, unfinished(), unfinished() + b'{"in'), strict=True):
            client.sendall(begin)
        other = stack.enter_context(connected(service))
        other.sendall(get("/"))
        assert answer_of(other)[0] == 200  # nobody waits for the slow ones
        for client in clients:
            answer = all_of(client)
            assert status_of(answer) == 408
            assert b"connection: close" in answer
            assert "--client_timeout_seconds" in message_of(answer)
    assert service.metric("hf_transformer_requests_in_flight") == 0


def test_idle_connections_are_closed(service: Service) -> None:
    with ExitStack() as stack:
        clients = []
        for sent in (b"", b"\r\n", get("/"), get("/") + b"\r\n"):
            client = stack.enter_context(connected(service))
            client.sendall(sent)
            clients.append((sent, client))
        for sent, client in clients:
            answer = all_of(client)
            assert answer == b"" if not sent.strip() else status_of(answer) == 200


def test_more_connections_than_are_taken() -> None:
    with service_with("--max_connections=2") as service:
        service.wait_until("/")
        with connected(service) as first:
            first.sendall(get("/"))
            assert answer_of(first)[0] == 200
            with connected(service) as second:
                second.sendall(get("/"))
                assert answer_of(second)[0] == 200
                with connected(service) as third:
                    answer = all_of(third)
                assert status_of(answer) == 503
                assert b"retry-after: 1" in answer and "--max_connections" in message_of(answer)
                first.sendall(get("/"))
                assert answer_of(first)[0] == 200

            def one_more() -> bool:
                with connected(service) as fourth:
                    fourth.sendall(get("/", "Connection: close"))
                    return status_of(all_of(fourth)) == 200

            assert poll(one_more, SECONDS)


def test_bodies_that_are_on_their_way_have_a_limit_together() -> None:
    def whole(size: int) -> bytes:
        head = b"POST /v1/models/bert:predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
        return head + b" " * size

    flags = ("--max_request_bytes=50000", "--max_bytes_in_flight=90000")
    with service_with(*flags) as service, connected(service.wait_until("/")) as first, connected(service) as second:
        first.sendall(whole(50_000)[:-1])
        answers: list[bytes] = []

        def refused() -> bool:
            second.sendall(whole(45_000))
            status, answer = answer_of(second)
            answers.append(answer)
            return status == 429

        assert poll(refused, SECONDS)  # once the first one's body was read
        assert b"retry-after: 1" in answers[-1] and "--max_bytes_in_flight" in message_of(answers[-1])
        assert service.metric('hf_transformer_refused_requests_total{limit="bytes"}') == 1
        second.sendall(whole(20_000))
        assert answer_of(second)[0] == 400  # there is room for a smaller one, which is no JSON
        first.sendall(b" ")
        assert answer_of(first)[0] == 400
        second.sendall(whole(45_000))
        assert answer_of(second)[0] == 400


def test_who_leaves_is_counted_and_too_large_a_body_is_refused_by_its_head() -> None:
    with service_with("--max_request_bytes=100", "--client_timeout_seconds=1") as service:
        service.wait_until("/")
        left = 'hf_transformer_requests_total{api="v1",status="499"}'
        with connected(service) as client:
            client.sendall(unfinished())
            time.sleep(0.2)
        assert poll(lambda: f"{left} 1" in service.client.get("/metrics").text, SECONDS)
        with connected(service) as client:
            client.sendall(unfinished())
            assert status_of(all_of(client)) == 408
        assert poll(lambda: service.metric(left) == 2, SECONDS)
        with connected(service) as client:
            client.sendall(unfinished())
            time.sleep(0.2)
            client.sendall(b"0123456789")
            assert answer_of(client)[0] == 400  # no JSON
            client.sendall(unfinished().replace(b": 10", b": 101"))
            assert answer_of(client)[0] == 413
        with connected(service) as client:
            client.sendall(unfinished()[:-2] + b"X: " + b"a" * 2**17)
            assert status_of(all_of(client)) == 431
