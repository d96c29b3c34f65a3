"""Failures of streamed gRPC calls: from trailers, from a status of HTTP, and from an error code of RST_STREAM.

Sources: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md and http-grpc-status-mapping.md beside it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

import h2.errors
from grpc import StatusCode

HTTP_STATUSES: Final[Mapping[bytes, StatusCode]] = {
    b"400": StatusCode.INTERNAL,
    b"401": StatusCode.UNAUTHENTICATED,
    b"403": StatusCode.PERMISSION_DENIED,
    b"404": StatusCode.UNIMPLEMENTED,
    **dict.fromkeys((b"429", b"502", b"503", b"504"), StatusCode.UNAVAILABLE),
}
"""gRPC's statuses for those of HTTP, UNKNOWN for all others. Source: grpc/doc/http-grpc-status-mapping.md"""
RESETS: Final[Mapping[int, StatusCode]] = {
    h2.errors.ErrorCodes.REFUSED_STREAM: StatusCode.UNAVAILABLE,
    h2.errors.ErrorCodes.CANCEL: StatusCode.CANCELLED,
    h2.errors.ErrorCodes.ENHANCE_YOUR_CALM: StatusCode.RESOURCE_EXHAUSTED,
    h2.errors.ErrorCodes.INADEQUATE_SECURITY: StatusCode.PERMISSION_DENIED,
}
"""gRPC's statuses for error codes of RST_STREAM, INTERNAL for all others. Source: PROTOCOL-HTTP2.md"""
CODES: Final[Mapping[bytes, StatusCode]] = {b"%d" % code.value[0]: code for code in StatusCode}


class CallFailed(Exception):
    """The end of a call with a status other than OK; ``code`` and ``details`` as of grpc.aio.AioRpcError."""

    def __init__(self, status: StatusCode, details: str) -> None:
        super().__init__(details)
        self._status = status

    def code(self) -> StatusCode:
        return self._status

    def details(self) -> str:
        return str(self)


class ClosedHere(CallFailed):
    """The end of a call by ``StreamConnections.close``."""

    def __init__(self) -> None:
        super().__init__(StatusCode.CANCELLED, "the connection was closed here")


def status_of(metadata: Mapping[bytes, bytes]) -> CallFailed | None:
    """The failure in trailers, None for OK."""
    number = metadata.get(b"grpc-status")
    if number is None:
        return CallFailed(StatusCode.UNKNOWN, "the response ended without a grpc-status")
    status = CODES.get(number, StatusCode.UNKNOWN)
    if status is StatusCode.OK:
        return None
    return CallFailed(status, unquote(metadata.get(b"grpc-message", b"").decode("latin-1"), errors="replace"))
