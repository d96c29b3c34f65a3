"""Clients that hold on to what they have: connections, bodies without end, answers that they do not read."""

from __future__ import annotations

import resource
import select
import socket
import struct
from contextlib import ExitStack, suppress

import pytest

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.loopback import HOST
from tests.integration.conftest import Serve
from tests.integration.hostile.conftest import MAX_GROWTH_BYTES, MEGABYTE, assert_served
from tests.support.polling import SECONDS
from tests.support.raw_http import (
    ANSWER,
    BODY,
    all_responses,
    connected,
    next_response,
    post,
    post_head,
    send,
    unfinished,
)
from tests.support.service import Service

IDLE = 2_000
AT_ONCE = 500
BESIDE = 1_000
"""Descriptors that this process needs for other things."""
CHUNKED = "transfer-encoding: chunked"
LONG_ANSWER = b'{"instances": ["[MASK]"], "parameters": {"output_format": "pipeline", "top_k": 100}}'
"""A short request with an answer of 7 kB."""
PIPELINED = 200_000
ANSWERED = 'hf_transformer_requests_total{api="v1",status="200"}'
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends RST and not FIN."""


WORDS = f'{{"instances": ["{"a " * 20_000}"], "parameters": {{"nonsense": 1}}}}'.encode()
LARGE: dict[str, tuple[list[bytes], int, str]] = {
    # More than the limit is sent although it was refused.
    "a gigabyte": ([unfinished(length=2**30), *[b"x" * MEGABYTE] * 128], 413, "--max_request_bytes"),
    "chunks without end": (
        [post_head(CHUNKED), *[b"100000\r\n" + b"x" * MEGABYTE + b"\r\n"] * 24],
        413,
        "--max_request_bytes",
    ),
    # Forty thousand chunks are one body.
    "chunks of a byte": (
        [post_head(CHUNKED), b"".join(b"1\r\n%c\r\n" % byte for byte in WORDS) + b"0\r\n\r\n"],
        400,
        "nonsense",
    ),
}


@pytest.mark.parametrize(("sent", "status", "says"), LARGE.values(), ids=LARGE)
def test_a_large_body_is_not_kept(service: Service, sent: list[bytes], status: int, says: str) -> None:
    before = service.resident_bytes
    with connected(service) as connection:
        send(connection, *sent)
        answer = next_response(connection)
        assert (answer.status, says in answer.error) == (status, True)
        assert service.resident_bytes - before < MAX_GROWTH_BYTES


def test_a_body_that_was_refused_may_still_come(service: Service) -> None:
    """All of it is read and forgotten, and the connection goes on with the next request. It is not asked for."""
    size = 20 * MEGABYTE
    with connected(service) as connection:
        assert next_response(connection, unfinished("expect: 100-continue", length=size)).status == 413
    with connected(service) as connection:
        assert next_response(connection, unfinished(length=size)).status == 413
        assert next_response(connection, b"x" * size, post()).body == ANSWER


def test_thousands_of_idle_connections_keep_nobody_from_an_answer(service: Service) -> None:
    """Some have sent nothing, some a part of a request; all of them get their answer when they go on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(hard, max(soft, IDLE + BESIDE))
    whole = post(BODY, "connection: close")
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        connections: list[socket.socket] = []
        while len(connections) < min(IDLE, most - BESIDE):  # fewer at a time than wait in the kernel to be accepted
            connections += [stack.enter_context(connected(service)) for _ in range(AT_ONCE)]
            assert_served(service)  # who came later: all these have been accepted
        for number, connection in enumerate(connections):
            connection.sendall(whole[: number % 3 * 60])
        assert_served(service)
        for number in range(0, len(connections), 50):
            connections[number].sendall(whole[number % 3 * 60 :])
            assert [answer.body for answer in all_responses(connections[number])] == [ANSWER]


@pytest.mark.parametrize("sent", [b"", b"POST", post()[: -len(BODY)], post()[: 9 - len(BODY)], post()])
def test_reset_and_half_closed_connections_end(service: Service, sent: bytes) -> None:
    """A half-closed connection looks abandoned to the service: it ends, with an answer or without."""
    for _ in range(50):
        with socket.create_connection((HOST, service.port), SECONDS) as connection:
            send(connection, sent)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    with connected(service) as connection:
        send(connection, sent)
        connection.shutdown(socket.SHUT_WR)
        assert [answer.body for answer in all_responses(connection)] in ([], [ANSWER])


def test_a_client_that_reads_nothing_is_not_read_either(service: Service) -> None:
    """Requests on one connection are not taken without end while their answers are not; memory stays bounded."""
    before, answered = service.resident_bytes, service.metric(ANSWERED)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(1.0)
        connection.connect((HOST, service.port))
        with suppress(TimeoutError):  # some kernels take all of it
            connection.sendall(post(LONG_ANSWER) * PIPELINED)
        assert poll(lambda: service.metric(ANSWERED) > answered and stands_still(service), SECONDS)
        assert service.metric(ANSWERED) - answered < PIPELINED
        assert_served(service)
        assert service.resident_bytes - before < MAX_GROWTH_BYTES


def test_requests_in_single_bytes_are_answered(service: Service) -> None:
    """A hundred clients whose requests come in single bytes, all at once: each gets its answer."""
    whole = post(BODY, "connection: close")
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(service)) for _ in range(100)]
        for byte in whole:
            for connection in connections:
                connection.sendall(bytes([byte]))
        for connection in connections:
            assert [answer.body for answer in all_responses(connection)] == [ANSWER]


def stands_still(service: Service) -> bool:
    """Whether no request is answered while fifty others look."""
    before = service.metric(ANSWERED)
    return all(service.metric(ANSWERED) == before for _ in range(50))


def test_slow_clients_time_out_while_a_normal_one_is_served(serve: Serve) -> None:
    """Two hundred send a byte now and then, until they are told that it took too long; the normal client is served."""
    service = serve("bert", "v2", "--client_timeout_seconds=1")
    normal = 0
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(service)) for _ in range(200)]
        for connection in slow:
            connection.sendall(unfinished(length=1000))
        while not select.select(slow, (), (), 0.05)[0]:
            assert_served(service)
            normal += 1
            for connection in slow:
                connection.sendall(b" ")
        for connection in slow:
            answer = next_response(connection)
            assert (answer.status, "--client_timeout_seconds" in answer.error) == (408, True)
    assert normal
    assert_served(service)
