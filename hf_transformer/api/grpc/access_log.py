"""A line per gRPC call, in the format of --access_log_format.

The status is gRPC's number (0 is OK) and its phrase gRPC's name of it, the method POST, the path the full name of the
gRPC method, the headers are the metadata, and the bytes those of the answer's message; a stream's are not counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import grpc
import grpc.aio

from hf_transformer.observability.access_format import Exchange, check_format
from hf_transformer.observability.access_format import write_line as write
from hf_transformer.protocol.grpc import SERVICE

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]
    Interceptor = grpc.aio.ServerInterceptor[Any, Any]
else:  # the library's own classes are not generic
    Interceptor = grpc.aio.ServerInterceptor
PREFIX = f"/{SERVICE}/"
Pairs = Iterable[tuple[str, str | bytes]]
NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
UNKNOWN, CANCELLED = (code.value[0] for code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED))


class GrpcExchange(Exchange):
    """One call and its answer.

    Args:
        method: its full name, such as /inference.GRPCInferenceService/ModelInfer.
        metadata: what the client sent.
        peer: the client as gRPC names it, such as ipv4:127.0.0.1:4711.
    """

    def __init__(self, method: str, metadata: Pairs, peer: str) -> None:
        super().__init__({"method": "POST", "path": method, "http_version": "2", "headers": as_headers(metadata)})
        self.status = UNKNOWN
        self._peer = unquote(peer.partition(":")[2]) or "-"

    @property
    def client(self) -> str:
        return self._peer

    @property
    def status_phrase(self) -> str:
        return NAMES.get(self.status, "-")


class LoggedCalls(Interceptor):
    """Logs every call of the V2 protocol when it is over, at level INFO; not those of health checks and reflection.

    Raises ConfigError where ``format`` has an atom that is not known.
    """

    def __init__(self, format: str, logger: logging.Logger) -> None:
        check_format(format)
        self._format = format
        self._logger = logger

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]], call: Any
    ) -> Handler:
        """What answers a call."""
        handler = await continuation(call)
        if handler is None or not call.method.startswith(PREFIX):  # None: there is no such method
            return handler
        make: Any = grpc.unary_unary_rpc_method_handler
        answer: Any = handler.unary_unary
        if handler.request_streaming:
            make, answer = grpc.stream_stream_rpc_method_handler, handler.stream_stream
        logged: Handler = make(
            self._logged(call.method, answer), handler.request_deserializer, handler.response_serializer
        )
        return logged

    def _logged(self, method: str, answer: Any) -> Any:
        async def call(request: Any, rpc: Any) -> Any:
            exchange = GrpcExchange(method, rpc.invocation_metadata() or (), rpc.peer())
            try:
                response = await answer(request, rpc)
                exchange.status = number_of(rpc.code())
                if isinstance(response, bytes):
                    exchange.body_bytes = len(response)
                return response
            except asyncio.CancelledError:
                exchange.status = CANCELLED
                raise
            except BaseException:
                # gRPC's way to end a call that was aborted, or a fault of the service.
                exchange.status = number_of(rpc.code()) or UNKNOWN
                raise
            finally:
                exchange.sent_headers = as_headers(rpc.trailing_metadata() or ())
                exchange.finish()
                write(self._logger, self._format, exchange)

        return call


def as_headers(metadata: Pairs) -> list[tuple[bytes, bytes]]:
    """Metadata as ASGI has headers."""
    return [
        (name.encode(), value if isinstance(value, bytes) else value.encode(errors="replace"))
        for name, value in metadata
    ]


def number_of(code: Any) -> int:
    """A status as a number, however gRPC has it; none yet is OK."""
    if code is None:
        return 0
    number: int = code if isinstance(code, int) else code.value[0]
    return number
