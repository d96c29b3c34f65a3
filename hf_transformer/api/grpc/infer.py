"""ModelInfer: a serialized request -> a serialized response, counted, traced and within the limits.

Also the answers to the requests of a stream, one or in pieces; stream.py reads and writes them.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING

import grpc

from hf_transformer.api.base import Model, Service
from hf_transformer.api.endpoint import CLIENT_GONE, server_timing
from hf_transformer.api.grpc.calls import Caller, our_fault, shutting_down
from hf_transformer.api.tensors import check_version, clients_fault
from hf_transformer.api.triton_tensors import infer
from hf_transformer.core.limits import Place
from hf_transformer.errors import RequestError, TooLarge
from hf_transformer.protocol import grpc_inbound as wire
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.inbound import InferRequest
from hf_transformer.types import Budget, Context

if TYPE_CHECKING:
    from hf_transformer.observability.tracing import Trace  # OpenTelemetry is an extra

API = "grpc"
"""The name of this API in the metrics."""


class Counted:
    """Counts and traces one request; a context manager around it. Raises RequestError for an unexpected exception."""

    __slots__ = ("_caller", "_method", "_service", "_trace")

    def __init__(self, service: Service, caller: Caller, method: str) -> None:
        self._service = service
        self._caller = caller
        self._method = method
        self._trace: Trace | None = None

    def __enter__(self) -> None:
        if self._service.tracing is not None:
            self._caller.headers, self._trace = self._service.tracing.begin(self._caller.headers)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status, code = 500, grpc.StatusCode.INTERNAL
        if error is None:
            status, code = 200, grpc.StatusCode.OK
        elif isinstance(error, RequestError):
            status, code = error.status, grpc.StatusCode[error.grpc_code]
        elif isinstance(error, asyncio.CancelledError):
            status, code = CLIENT_GONE, grpc.StatusCode.CANCELLED
        self._service.metrics.count_request(API, status)
        if self._trace is not None and self._service.tracing is not None:
            self._service.tracing.end_grpc(self._trace, SERVICE, self._method, code.value[0], self._caller.served)
        if status == 500 and isinstance(error, Exception) and not isinstance(error, RequestError):
            raise our_fault(self._caller) from None


class Inference:
    """Answers serialized ModelInferRequests.

    Args:
        closing: once it is set, calls are refused.
        max_send: how many bytes an answer may have; -1 is unlimited. gRPC itself would end a whole stream.
    """

    def __init__(self, service: Service, closing: asyncio.Event, max_send: int = -1) -> None:
        self.service = service
        self._closing = closing
        self._max_send = max_send

    async def one(self, body: bytes, caller: Caller) -> bytes:
        """The serialized ModelInferResponse.

        Raises:
            RequestError: it can't be answered.
        """
        if self._closing.is_set():
            raise shutting_down()
        service = self.service
        with Counted(service, caller, "ModelInfer"), Place(service.admission) as place:
            place.hold(len(body))
            place.enter()
            answer = self.checked(await self.answer(body, caller, place))
        if service.server_timing and caller.served is not None:
            caller.trailers = (("server-timing", server_timing(caller.served).decode()),)
        return answer

    async def answer(self, body: bytes, caller: Caller, place: Budget, *, final: bool = False) -> bytes:
        """The serialized ModelInferResponse, of whatever size; ``final`` marks it as the last one of a stream.

        Raises:
            RequestError: it can't be answered.
        """
        model, request, context = self.read(body, caller, place)
        return wire.encode_infer_response(await infer(model, request, context), request, final=final)

    def read(self, body: bytes, caller: Caller, place: Budget) -> tuple[Model, InferRequest, Context]:
        """The request in a message, its model and its context. Raises RequestError."""
        with clients_fault():
            request = wire.decode_infer_request(body, self.service.max_texts)
        context = caller.context(request.id)
        context.place = place
        model = self.service.models[request.model_name]
        check_version(model, request.model_version)
        return model, request, context

    def fits(self, answer: bytes) -> bool:
        """Whether gRPC will send the message."""
        return self._max_send == -1 or len(answer) <= self._max_send

    def checked(self, answer: bytes) -> bytes:
        """The same message. Raises TooLarge if gRPC would not send it."""
        if not self.fits(answer):
            raise TooLarge(
                f"the answer has {len(answer)} bytes, --grpc_max_send_message_length allows {self._max_send}; ask for "
                "fewer instances or less about each"
            )
        return answer
