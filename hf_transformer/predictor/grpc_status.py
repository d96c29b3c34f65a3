"""How a gRPC call ends, whoever says so: the server in its trailers, HTTP, or the connection.

https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md and doc/http-grpc-status-mapping.md there.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final
from urllib.parse import unquote_to_bytes

from hf_transformer.predictor import kinds
from hf_transformer.predictor.answers import reason
from hf_transformer.predictor.http2_errors import (
    Disconnected,
    Http2Error,
    Malformed,
    NoAnswer,
    NotProcessed,
    StreamReset,
)
from hf_transformer.predictor.http2_frames import ErrorCode


class Status(IntEnum):
    """gRPC's status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """A call that ended with another status than OK.

    settled: whether the server certainly does nothing more for the call; None where the status is its own, or that of a
        proxy.
    kind: what happened, one of ``kinds``, where it is known from more than the status.
    refused: whether the server says that it has not begun with the call.
    """

    connection: object = None
    """The one whose end is all that went wrong; it has taken every call on it along."""

    def __init__(
        self,
        status: Status,
        details: str,
        *,
        settled: bool | None = False,
        kind: str | None = None,
        refused: bool = False,
    ) -> None:
        super().__init__(f"{status.name}: {details}")
        self.status = status
        self.details = details
        self.settled = settled
        self.kind = kind
        self.refused = refused


_OF_HTTP: Final[Mapping[str, Status]] = {
    "400": Status.INTERNAL,
    "401": Status.UNAUTHENTICATED,
    "403": Status.PERMISSION_DENIED,
    "404": Status.UNIMPLEMENTED,
    "429": Status.UNAVAILABLE,
    "502": Status.UNAVAILABLE,
    "503": Status.UNAVAILABLE,
    "504": Status.UNAVAILABLE,
}

_OF_RESETS: Final[Mapping[int, Status]] = {
    ErrorCode.CANCEL: Status.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: Status.PERMISSION_DENIED,
}
"""Of RST_STREAM; any other code is INTERNAL."""

_CODES: Final = {str(int(status)): status for status in Status}


def refusal_of_head(fields: Mapping[str, str]) -> RpcError | None:
    """What is wrong with the header fields before an answer's messages."""
    status = fields.get(":status", "")
    if status != "200":
        return _of_http(status)
    content_type = fields.get("content-type", "")
    if not content_type.startswith("application/grpc"):
        return RpcError(
            Status.UNKNOWN, f"the content type is {content_type[:80]!r}, expected application/grpc", settled=None
        )
    return None


def end_of_call(trailers: Mapping[str, str]) -> RpcError | None:
    """What the last header fields of an answer say; None is OK."""
    code = trailers.get("grpc-status")
    if code is None:
        status = trailers.get(":status", "200")
        return _of_http(status) if status != "200" else ended_without_status()
    if code == "0":
        return None
    message = unquote_to_bytes(trailers.get("grpc-message", "").encode("latin-1")).decode("utf-8", "replace")
    return RpcError(_CODES.get(code, Status.UNKNOWN), message, settled=None)


def ended_without_status() -> RpcError:
    """The error for an answer that ends without trailers."""
    return RpcError(Status.UNKNOWN, "the answer ended without a status")


def _of_http(status: str) -> RpcError:
    return RpcError(
        _OF_HTTP.get(status, Status.UNKNOWN), f"Received http2 header with status: {status[:80]}", settled=None
    )


def of_fault(fault: Exception) -> RpcError:
    """The error for a call that HTTP/2 has ended: ``fault`` is an Http2Error."""
    match fault:
        case StreamReset(code=code):
            error = RpcError(_OF_RESETS.get(code, Status.INTERNAL), str(fault))
        case NotProcessed():
            error = RpcError(Status.UNAVAILABLE, str(fault), settled=True, kind=kinds.UNAVAILABLE, refused=True)
        case NoAnswer():
            error = RpcError(Status.UNAVAILABLE, str(fault), kind=kinds.NO_ANSWER)
        case Disconnected():
            error = RpcError(Status.UNAVAILABLE, str(fault), kind=kinds.LOST)
        case Malformed():
            error = RpcError(Status.INTERNAL, f"the answer breaks the rules of HTTP/2: {fault}")
        case _:
            error = RpcError(Status.UNKNOWN, f"{type(fault).__name__}: {fault}")
    error.__cause__ = fault
    return error


def not_connected(fault: OSError | Http2Error) -> RpcError:
    """The error for a call that was not sent, since there is no connection."""
    error = RpcError(
        Status.UNAVAILABLE,
        f"failed to connect: {reason(fault)}",
        settled=True,
        kind=kinds.CONNECTION,
    )
    error.__cause__ = fault
    return error
