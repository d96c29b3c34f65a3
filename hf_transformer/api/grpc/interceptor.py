"""What sees each call first: API keys (see api/auth.py), and a line of the access log for calls of the V2 protocol.

The access log has the format of --access_log_format. The status is gRPC's number (0 is OK) and its phrase gRPC's name
of it, the method POST, the path the full name of the gRPC method, the headers are the metadata, and the bytes those of
the answer's message; a stream's are not counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import grpc
import grpc.aio

from hf_transformer.api.auth import API, REFUSED, ApiKeys
from hf_transformer.observability.access_log import AccessRecord, check_format, write_line
from hf_transformer.observability.logging import ACCESS_LOGGER
from hf_transformer.observability.metrics import Metrics
from hf_transformer.protocol.grpc import SERVICE

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]
    Interceptor = grpc.aio.ServerInterceptor[Any, Any]
else:  # the library's own classes are not generic
    Interceptor = grpc.aio.ServerInterceptor

LOGGED = f"/{SERVICE}/"
QUESTIONS = ("ServerLive", "ServerReady", "ModelReady")
OPEN = ("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", *(f"{LOGGED}{name}" for name in QUESTIONS))
"""Methods that take no key, as over HTTP."""
KINDS: dict[tuple[bool, bool], tuple[str, Any]] = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}
"""By what a method streams, requests and responses: the attribute of its handler, and the function that makes one."""
NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
UNKNOWN, CANCELLED = (code.value[0] for code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED))
Pairs = Iterable[tuple[str, str | bytes]]


class CallGuard(Interceptor):
    """Refuses calls without a key as UNAUTHENTICATED, and logs each call when it is over, at level INFO.

    Without ``keys`` everybody may call; without ``log_format`` nothing is logged. Raises ConfigError for an atom that
    is not known.
    """

    def __init__(self, metrics: Metrics, keys: ApiKeys | None, log_format: str | None) -> None:
        if log_format is not None:
            check_format(log_format)
        self._metrics = metrics
        self._keys = keys
        self._log_format = log_format
        self._logger = logging.getLogger(ACCESS_LOGGER)

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]], call: Any
    ) -> Handler:
        """The handler of a call; None, which the type stubs don't know, where there is no such method."""
        handler = await continuation(call)
        if not handler:
            return handler
        streams = handler.request_streaming, handler.response_streaming
        kind, make = KINDS[streams]
        answer = getattr(handler, kind)
        if self._keys is not None and call.method not in OPEN:
            if not self._keys.accept(_as_headers(call.invocation_metadata or ())):
                # As a stream it is refused without its message, which gRPC reads for any other call first.
                (_, make), answer = KINDS[True, True], self._refuse
        if self._log_format is not None and call.method.startswith(LOGGED):
            answer = self._logged(call.method, answer, self._log_format)
        found: Handler = make(answer, handler.request_deserializer, handler.response_serializer)
        return found

    async def _refuse(self, messages: Any, rpc: Any) -> None:
        self._metrics.count_request(API, 401)
        await rpc.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSED)

    def _logged(self, method: str, answer: Any, log_format: str) -> Any:
        async def call(request: Any, rpc: Any) -> Any:
            exchange = GrpcExchange(method, rpc.invocation_metadata() or (), rpc.peer())
            try:
                response = await answer(request, rpc)
                exchange.status = _number(rpc.code())
                exchange.body_bytes = len(response or b"")
                return response
            except asyncio.CancelledError:
                exchange.status = CANCELLED
                raise
            except BaseException:  # gRPC's way to end a call that was aborted, or a fault of the service
                exchange.status = _number(rpc.code()) or UNKNOWN
                raise
            finally:
                exchange.sent_headers = _as_headers(rpc.trailing_metadata() or ())
                write_line(self._logger, log_format, exchange)

        return call


class GrpcExchange(AccessRecord):
    """One call and its answer: the method by its full name, the peer as gRPC names it (ipv4:127.0.0.1:4711)."""

    def __init__(self, method: str, metadata: Pairs, peer: str) -> None:
        super().__init__({"method": "POST", "path": method, "http_version": "2", "headers": _as_headers(metadata)})
        self.status = UNKNOWN
        self._peer = unquote(peer.partition(":")[2]) or "-"

    @property
    def client(self) -> str:
        return self._peer

    @property
    def status_phrase(self) -> str:
        return NAMES.get(self.status, "-")


def _as_headers(metadata: Pairs) -> list[tuple[bytes, bytes]]:
    """Metadata as ASGI has headers."""
    return [
        (name.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for name, value in metadata
    ]


def _number(code: Any) -> int:
    """A status as a number, however gRPC has it; none yet is OK."""
    if code is None:
        return 0
    number: int = code if isinstance(code, int) else code.value[0]
    return number
