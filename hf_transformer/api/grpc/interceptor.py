"""Server interceptor: checks API keys (see api/auth.py), and writes the access log for calls of the V2 protocol.

Log lines have the format in --access_log_format. They contain gRPC's status number (0 for OK) and name, the method
POST, the full method name as the path, and metadata as headers. A stream has a response size of 0 bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import grpc
import grpc.aio

from hf_transformer.api.auth import API, CONTROL_METHODS, ApiKeys
from hf_transformer.observability.access_log import AccessRecord, check_format, write_line
from hf_transformer.observability.logging import ACCESS_LOGGER
from hf_transformer.observability.metrics import Metrics
from hf_transformer.protocol.grpc import SERVICE

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]
    Interceptor = grpc.aio.ServerInterceptor[Any, Any]
else:  # gRPC's own classes are not generic
    Interceptor = grpc.aio.ServerInterceptor

LOGGED_PREFIX = f"/{SERVICE}/"
PROBES = ("ServerLive", "ServerReady", "ModelReady")
PUBLIC_METHODS = (
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    *(f"{LOGGED_PREFIX}{name}" for name in PROBES),
)
"""Methods that require no API key, like their HTTP equivalents."""
HANDLER_KINDS: dict[tuple[bool, bool], tuple[str, Any]] = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}
"""Name of the handler's attribute, and its constructor, by (request_streaming, response_streaming)."""
STATUS_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
UNKNOWN, CANCELLED = (code.value[0] for code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED))
Metadata = Iterable[tuple[str, str | bytes]]


class CallGuard(Interceptor):
    """Ends calls without a valid API key as UNAUTHENTICATED, and logs each finished call at level INFO.

    If ``keys`` is None, calls need no key; those of model control need one of ``control_keys`` instead. If
    ``log_format`` is None, there is no log. Raises ConfigError for an unknown atom in the format.
    """

    def __init__(
        self, metrics: Metrics, keys: ApiKeys | None, log_format: str | None, control_keys: ApiKeys | None = None
    ) -> None:
        if log_format is not None:
            check_format(log_format)
        self._metrics = metrics
        self._keys = keys
        self._control_keys = dict.fromkeys((f"{LOGGED_PREFIX}{name}" for name in CONTROL_METHODS), control_keys or keys)
        self._log_format = log_format
        self._logger = logging.getLogger(ACCESS_LOGGER)

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]], call: Any
    ) -> Handler:
        """Wraps the handler of a call. Returns None for an unknown method, contrary to the type stubs."""
        handler = await continuation(call)
        if not handler:
            return handler
        attribute, constructor = HANDLER_KINDS[handler.request_streaming, handler.response_streaming]
        behavior = getattr(handler, attribute)
        keys = self._control_keys.get(call.method, self._keys)
        if keys is not None and call.method not in PUBLIC_METHODS:
            if not keys.accept(_as_headers(call.invocation_metadata or ())):
                # A stream handler ends the call before gRPC reads the message.
                (_, constructor), behavior = HANDLER_KINDS[True, True], partial(self._refuse, keys)
        if self._log_format is not None and call.method.startswith(LOGGED_PREFIX):
            behavior = self._logged(call.method, behavior, self._log_format)
        wrapped: Handler = constructor(behavior, handler.request_deserializer, handler.response_serializer)
        return wrapped

    async def _refuse(self, keys: ApiKeys, messages: Any, rpc: Any) -> None:
        self._metrics.count_request(API, 401)
        await rpc.abort(grpc.StatusCode.UNAUTHENTICATED, keys.refused)

    def _logged(self, method: str, behavior: Any, log_format: str) -> Any:
        async def call(request: Any, rpc: Any) -> Any:
            record = GrpcAccessRecord(method, rpc.invocation_metadata() or (), rpc.peer())
            try:
                response = await behavior(request, rpc)
                record.status = _status_number(rpc.code())
                record.body_bytes = len(response or b"")
                return response
            except asyncio.CancelledError:
                record.status = CANCELLED
                raise
            except BaseException:  # an abort, or an unexpected error
                record.status = _status_number(rpc.code()) or UNKNOWN
                raise
            finally:
                record.sent_headers = _as_headers(rpc.trailing_metadata() or ())
                write_line(self._logger, log_format, record)

        return call


class GrpcAccessRecord(AccessRecord):
    """A call for the access log. ``method`` is the full name; ``peer`` has gRPC's form (ipv4:127.0.0.1:4711)."""

    def __init__(self, method: str, metadata: Metadata, peer: str) -> None:
        super().__init__({"method": "POST", "path": method, "http_version": "2", "headers": _as_headers(metadata)})
        self.status = UNKNOWN
        self._peer = unquote(peer.partition(":")[2]) or "-"

    @property
    def client(self) -> str:
        return self._peer

    @property
    def status_phrase(self) -> str:
        return STATUS_NAMES.get(self.status, "-")


def _as_headers(metadata: Metadata) -> list[tuple[bytes, bytes]]:
    """Converts metadata to ASGI headers."""
    return [
        (name.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for name, value in metadata
    ]


def _status_number(code: Any) -> int:
    """Returns the number of a status, which gRPC represents as a number, a StatusCode, or None for OK."""
    if code is None:
        return 0
    number: int = code if isinstance(code, int) else code.value[0]
    return number
