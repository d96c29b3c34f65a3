"""ModelInfer: a serialized request -> a serialized response, counted, traced and within the limits.

Also the answers to the requests of a stream, one or in pieces; stream.py reads and writes them.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from types import TracebackType

import grpc

from hf_transformer.api.base import Model, Service
from hf_transformer.api.endpoint import CLIENT_GONE
from hf_transformer.api.grpc.calls import Caller, our_fault, shutting_down
from hf_transformer.api.server_timing import NAME, server_timing
from hf_transformer.api.tensors import check_version, clients_fault
from hf_transformer.api.triton_tensors import infer
from hf_transformer.errors import RequestError, TooLarge
from hf_transformer.observability.tracing.spans import Trace
from hf_transformer.protocol import grpc_inbound as wire
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.inbound import InferRequest
from hf_transformer.types import Budget, Context

API = "grpc"
"""The name of this API in the metrics."""
QUIET_SECONDS = 0.002
"""A group of calls begins once no call has joined it for so long."""
LONGEST_SECONDS = 0.01
"""A group begins so long after its first call, even if more calls join it."""
BURST_SECONDS = 0.0006
"""Between two calls of a burst, on average. Calls that wait within gRPC come every 0.1 to 0.4 ms."""
RAREST_TRIAL = 256
"""Groups between two trials of a larger one, at most."""


class Gathering:
    """Lets calls that come in a burst begin together, so that they share a batch.

    grpc.aio accepts one call at a time, several turns of the event loop and two changes of threads apart, while the
    others wait within gRPC. Without this each would leave for the predictor alone: with 32 calls in flight that costs
    half of the calls per second (benchmarks/grpc_calls.py).

    After a burst the next group waits for as many calls; otherwise each call begins at once. Only waiting can show that
    more calls would come, so now and then a group waits until there are no more. The pause between such trials doubles
    with each one in vain, so that a client that is alone waits in one of RAREST_TRIAL calls.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._group: list[asyncio.Future[None]] = []
        self._first = self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._wanted = 1
        self._pause = 1
        self._until_trial = 1

    async def join(self) -> None:
        """Waits until the call may begin."""
        begins = self._loop.create_future()
        self._last = perf_counter()
        if not self._group:
            self._first = self._last
        self._group.append(begins)
        if self._until_trial and len(self._group) >= self._wanted:
            self._begin()
        elif self._timer is None:
            self._timer = self._loop.call_later(QUIET_SECONDS, self._look, 1)
        await begins

    def _look(self, before: int) -> None:
        """Looks again while calls come; ``before`` is how many there were at the last look."""
        count = len(self._group)
        if count == before or perf_counter() - self._first >= LONGEST_SECONDS:
            self._begin()
        else:
            self._timer = self._loop.call_later(QUIET_SECONDS, self._look, count)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        group, self._group = self._group, []
        for begins in group:
            if not begins.done():
                begins.set_result(None)
        count = len(group)
        is_burst = self._last - self._first <= (count - 1) * BURST_SECONDS
        if not self._until_trial:
            in_vain = count <= self._wanted or not is_burst
            self._pause = min(self._pause * 2, RAREST_TRIAL) if in_vain else max(self._pause // 2, 1)
            self._until_trial = self._pause + 1
        self._until_trial -= 1
        self._wanted = count if is_burst else 1


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
        # Texts are generated step by step, with all others: there is nothing to gather.
        self._gathering = None if service.models.generate else Gathering()

    async def one(self, body: bytes, caller: Caller) -> bytes:
        """The serialized ModelInferResponse.

        Raises:
            RequestError: it can't be answered.
        """
        if self._closing.is_set():
            raise shutting_down()
        service, size = self.service, len(body)
        with Counted(service, caller, "ModelInfer"), service.bodies.portion(size):
            place = service.admission.enter(size)
            try:
                answer = self.checked(await self.answer(body, caller, place))
            finally:
                place.leave()
        if service.server_timing and caller.served is not None:
            caller.trailers = ((NAME, server_timing(caller.served.timings).decode()),)
        return answer

    async def answer(self, body: bytes, caller: Caller, place: Budget, *, final: bool = False) -> bytes:
        """The serialized ModelInferResponse, of whatever size; ``final`` marks it as the last one of a stream.

        Raises:
            RequestError: it can't be answered.
        """
        if self._gathering is not None:
            await self._gathering.join()
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
