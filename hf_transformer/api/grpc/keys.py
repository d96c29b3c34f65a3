"""API keys over gRPC; see api_keys.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from hf_transformer.api.auth import HEADERS, REFUSED, ApiKeys, count_refused
from hf_transformer.observability.metrics import Metrics
from hf_transformer.protocol.grpc import SERVICE

_NAMES = frozenset(name.decode() for name in HEADERS)
_QUESTIONS = ("ServerLive", "ServerReady", "ModelReady")
_OPEN = ("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", *(f"/{SERVICE}/{name}" for name in _QUESTIONS))
"""What everybody may ask, as over HTTP."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class KeyedCalls(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # it has parameters in the stubs only
    """Lets gRPC calls with a key through, without the key, and refuses others as UNAUTHENTICATED."""

    def __init__(self, keys: ApiKeys, metrics: Metrics) -> None:
        self._keys = keys
        self._metrics = metrics

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]], call: Any
    ) -> Handler:
        """What answers a call; None, which the type stubs don't know, where there is no such method."""
        handler = await continuation(call)
        if not handler or call.method in _OPEN:
            return handler
        sent = [(key.encode(), _as_bytes(value)) for key, value in call.invocation_metadata or ()]
        answer = self._without_key(handler) if self._keys.accept(sent) else self._refuse
        make: Any = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )
        found: Handler = make(answer, handler.request_deserializer, handler.response_serializer)
        return found

    async def _refuse(self, request: Any, rpc: Any) -> None:
        count_refused(self._metrics)
        await rpc.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSED)

    def _without_key(self, handler: Any) -> Any:
        answer = handler.stream_stream if handler.request_streaming else handler.unary_unary

        async def call(request: Any, rpc: Any) -> Any:
            return await answer(request, _Keyless(rpc))

        return call


class _Keyless:
    """A call's context whose metadata has no key."""

    def __init__(self, rpc: Any) -> None:
        self._rpc = rpc

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rpc, name)

    def invocation_metadata(self) -> list[tuple[str, str | bytes]]:
        return [pair for pair in self._rpc.invocation_metadata() or () if pair[0] not in _NAMES]


def _as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1", "replace")
