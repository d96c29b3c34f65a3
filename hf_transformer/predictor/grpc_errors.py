"""What became of a gRPC call, as the service's own errors."""

from __future__ import annotations

from collections.abc import Mapping

from hf_transformer.errors import (
    PredictorDenied,
    PredictorError,
    PredictorTimeout,
    PredictorUnavailable,
    RequestError,
)
from hf_transformer.predictor import kinds
from hf_transformer.predictor.answers import TIMEOUT_FLAG, quoted, tls_hint
from hf_transformer.predictor.grpc_status import RpcError, Status
from hf_transformer.predictor.http2_errors import NoAnswer, NotHttp2

ERRORS: Mapping[Status, type[RequestError]] = {
    Status.UNAVAILABLE: PredictorUnavailable,
    Status.NOT_FOUND: PredictorUnavailable,
    Status.CANCELLED: PredictorUnavailable,  # by the server, which is going away
    Status.DEADLINE_EXCEEDED: PredictorTimeout,
    Status.RESOURCE_EXHAUSTED: PredictorError,
    Status.UNKNOWN: PredictorError,
    Status.INVALID_ARGUMENT: PredictorError,
    Status.ALREADY_EXISTS: PredictorError,
    Status.PERMISSION_DENIED: PredictorDenied,
    Status.UNAUTHENTICATED: PredictorDenied,
    Status.FAILED_PRECONDITION: PredictorError,
    Status.ABORTED: PredictorError,
    Status.OUT_OF_RANGE: PredictorError,
    Status.UNIMPLEMENTED: PredictorError,
    Status.INTERNAL: PredictorError,
    Status.DATA_LOSS: PredictorError,
}
"""Every status a call can end with, except OK."""

_SAID: Mapping[Status, str] = {
    Status.UNAVAILABLE: "is unavailable",
    Status.DEADLINE_EXCEEDED: "gave no answer in time",
}
"""Statuses that are found here more often than a server says them."""

_ENDED = frozenset({Status.INVALID_ARGUMENT, Status.NOT_FOUND, Status.ALREADY_EXISTS, Status.UNIMPLEMENTED})
"""Statuses after which the predictor certainly does nothing more for a call."""

_CONNECTION_FAULTS = ("RST_STREAM", "HTTP2", "http2")
"""In messages with the status INTERNAL of a proxy whose own connection was lost; Triton says INTERNAL too when a model
fails."""

_REFUSALS = ("queue size", "Request timeout expired", "stopped accepting", "unknown model", "failed to connect")
"""In messages with the status UNAVAILABLE: Triton's own, and those of a proxy that did not even send the call. The rest
of a proxy's are about connections that were lost during a call."""


def mapped(error: RpcError, where: str, seconds: float) -> RequestError:
    """The service's error; ``where`` names the predictor in the message, ``seconds`` the timeout."""
    status = error.status
    details = quoted(error.details)
    message = f"the predictor at {where} {_SAID.get(status, f'answered {status.name}')}: {details}"
    if error.kind == kinds.CONNECTION and isinstance(error.__cause__, NotHttp2 | NoAnswer):
        message += " (if that is its REST port, use --predictor_protocol=v2)"
    if error.kind == kinds.CONNECTION:
        message += tls_hint(error.__cause__)
    if status is Status.DEADLINE_EXCEEDED:
        message += f" (the timeout is {seconds:g} s, {TIMEOUT_FLAG})"
    if status is Status.RESOURCE_EXHAUSTED:
        message += (
            " (a message may be too large: see --grpc_max_send_message_length,"
            " --grpc_max_receive_message_length, --max_predictor_response_bytes and the predictor's own limits)"
        )
    found = ERRORS[status](message)
    if isinstance(found, PredictorUnavailable):
        found.kind = error.kind or _kind(status, details)
        found.connection = error.connection
    return found


def _kind(status: Status, details: str) -> str:
    """Which kind of unavailability a status is that the server, or a proxy, has sent."""
    if status is Status.CANCELLED:
        return kinds.LOST
    return kinds.CONNECTION if "failed to connect" in details else kinds.refusal(details)


def status_of(error: RequestError) -> Status | None:
    """The status behind an error that ``mapped`` made, None where it came from elsewhere."""
    return error.__cause__.status if isinstance(error.__cause__, RpcError) else None


def has_ended(error: RequestError) -> bool:
    """Whether a failed call has certainly ended at the predictor too; not sure is no."""
    cause, text = error.__cause__, str(error)
    if not isinstance(cause, RpcError):
        return False
    if cause.settled is not None:
        return cause.settled
    if any(part in text for part in _CONNECTION_FAULTS):
        return False
    if cause.status is Status.INTERNAL:
        return True
    if cause.status is Status.RESOURCE_EXHAUSTED:
        return "larger than max" in text
    if cause.status is Status.UNAVAILABLE:
        return any(part in text for part in _REFUSALS)
    return cause.status in _ENDED
