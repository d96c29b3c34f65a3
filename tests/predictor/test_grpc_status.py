"""How calls end: in trailers, by HTTP's status, by a reset."""

from __future__ import annotations

import pytest

from hf_transformer.errors import RequestError
from hf_transformer.predictor import kinds
from hf_transformer.predictor.grpc_errors import has_ended, mapped
from hf_transformer.predictor.grpc_status import (
    RpcError,
    Status,
    end_of_call,
    not_connected,
    of_fault,
    refusal_of_head,
)
from hf_transformer.predictor.http2_errors import (
    ConnectTimeout,
    Disconnected,
    Malformed,
    NoAnswer,
    NotProcessed,
    StreamReset,
)


@pytest.mark.parametrize(
    ("trailers", "status", "details"),
    [
        ({"grpc-status": "14", "grpc-message": "going away"}, Status.UNAVAILABLE, "going away"),
        ({"grpc-status": "13", "grpc-message": "a%20b %C3%A9 100%"}, Status.INTERNAL, "a b é 100%"),
        ({"grpc-status": "13", "grpc-message": "%E2%82"}, Status.INTERNAL, "\ufffd"),
        ({"grpc-status": "13", "grpc-message": "\xc3\xa9"}, Status.INTERNAL, "é"),
        ({"grpc-status": "5"}, Status.NOT_FOUND, ""),
        ({"grpc-status": "17", "grpc-message": "new"}, Status.UNKNOWN, "new"),
        ({"grpc-status": "x"}, Status.UNKNOWN, ""),
        ({"grpc-status": "00"}, Status.UNKNOWN, ""),
        ({}, Status.UNKNOWN, "the answer ended without a status"),
        ({":status": "200"}, Status.UNKNOWN, "the answer ended without a status"),
        ({":status": "503"}, Status.UNAVAILABLE, "Received http2 header with status: 503"),
        ({":status": "503", "grpc-status": "9", "grpc-message": "said"}, Status.FAILED_PRECONDITION, "said"),
    ],
)
def test_the_end_of_a_call(trailers: dict[str, str], status: Status, details: str) -> None:
    error = end_of_call(trailers)
    assert error is not None
    assert (error.status, error.details) == (status, details)


def test_a_good_end() -> None:
    assert end_of_call({"grpc-status": "0", "grpc-message": "fine"}) is None


@pytest.mark.parametrize(
    ("http", "status"),
    [
        ("400", Status.INTERNAL),
        ("401", Status.UNAUTHENTICATED),
        ("403", Status.PERMISSION_DENIED),
        ("404", Status.UNIMPLEMENTED),
        ("429", Status.UNAVAILABLE),
        ("502", Status.UNAVAILABLE),
        ("503", Status.UNAVAILABLE),
        ("504", Status.UNAVAILABLE),
        ("500", Status.UNKNOWN),
        ("204", Status.UNKNOWN),
        ("", Status.UNKNOWN),
    ],
)
def test_other_statuses_of_http(http: str, status: Status) -> None:
    error = refusal_of_head({":status": http, "content-type": "application/grpc"})
    assert error is not None and error.status is status


def test_other_content_types() -> None:
    for good in ("application/grpc", "application/grpc+proto", "application/grpc;charset=x"):
        assert refusal_of_head({":status": "200", "content-type": good}) is None
    for bad in ({}, {"content-type": "text/html"}):
        error = refusal_of_head({":status": "200", **bad})
        assert error is not None and error.status is Status.UNKNOWN and "content type" in error.details


@pytest.mark.parametrize(
    ("code", "status"),
    [(code, "INTERNAL") for code in (0, 1, 2, 3, 4, 5, 6, 9, 10, 13, 99)]
    + [(8, "CANCELLED"), (11, "RESOURCE_EXHAUSTED"), (12, "PERMISSION_DENIED")],
)
def test_resets(code: int, status: str) -> None:
    error = of_fault(StreamReset(code))
    assert (error.status.name, error.details) == (status, f"Received RST_STREAM with error code {code}")
    assert error.settled is False


@pytest.mark.parametrize(
    ("error", "kind", "settled"),
    [
        (of_fault(NoAnswer("it closed the connection")), kinds.NO_ANSWER, False),
        (of_fault(Disconnected("it closed the connection")), kinds.LOST, False),
        (of_fault(NotProcessed("GOAWAY")), kinds.UNAVAILABLE, True),
        (of_fault(StreamReset(8)), kinds.LOST, False),
        (of_fault(Malformed("a window")), kinds.ERROR, False),
        (of_fault(RuntimeError("a mistake here")), kinds.ERROR, False),
        (not_connected(ConnectionRefusedError(111, "Connection refused")), kinds.CONNECTION, True),
        (not_connected(ConnectTimeout("no connection within 10 s")), kinds.CONNECTION, True),
        (RpcError(Status.UNAVAILABLE, "failed to connect to all addresses", settled=None), kinds.CONNECTION, True),
        (RpcError(Status.UNAVAILABLE, "Exceeds maximum queue size", settled=None), kinds.BUSY, True),
        (RpcError(Status.UNAVAILABLE, "upstream connect error", settled=None), kinds.UNAVAILABLE, False),
        (RpcError(Status.RESOURCE_EXHAUSTED, "message larger than max", settled=None), kinds.ERROR, True),
        (RpcError(Status.RESOURCE_EXHAUSTED, "out of memory", settled=None), kinds.ERROR, False),
        (RpcError(Status.DEADLINE_EXCEEDED, "Deadline Exceeded", settled=None), kinds.TIMEOUT, False),
    ],
    ids=lambda value: str(value),
)
def test_what_they_are_for_the_service(error: RpcError, kind: str, settled: bool) -> None:
    with pytest.raises(RequestError, match="here:1") as caught:
        raise mapped(error, "here:1", 1.0) from error
    assert kinds.kind_of(caught.value) == kind
    assert has_ended(caught.value) is settled
