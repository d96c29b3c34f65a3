"""grpc.health.v1: is a service, or a model, being served? The whole server's name is empty.

Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import SERVICE_NAME
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from hf_transformer.api.base import Models
from hf_transformer.api.grpc.calls import Rpc
from hf_transformer.errors import NotReady

__all__ = ["SERVICE_NAME", "Health"]

PERIOD = 1.0
"""Seconds between two looks at what is watched."""

SERVING: int = HealthCheckResponse.SERVING
NOT_SERVING: int = HealthCheckResponse.NOT_SERVING
UNKNOWN: int = HealthCheckResponse.SERVICE_UNKNOWN

LISTED: Final[Any] = getattr(health_pb2, "HealthListResponse", None)
"""What ``List`` answers with, where grpcio-health-checking knows it (1.85)."""


class Health:
    """The servicer; each call asks the models themselves.

    Args:
        services: names that stand for all models together; each model's own name stands for that one.
        closing: once it is set nothing is served any more, and watches end.
    """

    def __init__(self, models: Models, services: Sequence[str], closing: asyncio.Event) -> None:
        self._models = models
        self._names = {name: models.names for name in ("", *services)} | {name: [name] for name in models.names}
        self._closing = closing

    @property
    def methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handlers by name. The package's own function to add a servicer asks for whatever methods its version has,
        and a service that lacks one would not start."""
        asked, answered = HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
        found: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Check": grpc.unary_unary_rpc_method_handler(self.Check, asked, answered),
            "Watch": grpc.unary_stream_rpc_method_handler(self.Watch, asked, answered),
        }
        if LISTED is not None:
            found["List"] = grpc.unary_unary_rpc_method_handler(self.List, None, LISTED.SerializeToString)
        return found

    async def List(self, request: bytes, rpc: Rpc) -> Any:
        """The status of each service; the request says nothing."""
        return LISTED(statuses={name: HealthCheckResponse(status=await self._status(name)) for name in self._names})

    async def Check(self, request: HealthCheckRequest, rpc: Rpc) -> HealthCheckResponse:
        """NOT_FOUND for a name that is none."""
        status = await self._status(request.service)
        if status == UNKNOWN:
            known = ", ".join(filter(None, self._names))
            await rpc.abort(grpc.StatusCode.NOT_FOUND, f"service {request.service[:200]!r} is unknown, known: {known}")
        return HealthCheckResponse(status=status)

    async def Watch(self, request: HealthCheckRequest, rpc: Rpc) -> AsyncIterator[HealthCheckResponse]:
        """The status now, and each time that it has changed; SERVICE_UNKNOWN for a name that is none."""
        last: int | None = None
        while True:
            closing = self._closing.is_set()
            status = await self._status(request.service)
            if status != last:
                yield HealthCheckResponse(status=status)
                last = status
            if closing:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD):
                    await self._closing.wait()

    async def _status(self, service: str) -> int:
        names = self._names.get(service)
        if names is None:
            return UNKNOWN
        if self._closing.is_set():
            return NOT_SERVING
        try:
            for name in names:
                await self._models[name].require_ready()
        except NotReady:
            return NOT_SERVING
        return SERVING
