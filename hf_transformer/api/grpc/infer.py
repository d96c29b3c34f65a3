"""Inference over gRPC: a serialized request -> a serialized response, counted and within the limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import grpc

from hf_transformer.api.base import Service
from hf_transformer.api.endpoint import CLIENT_GONE, server_timing
from hf_transformer.api.grpc.calls import Caller, details_of, our_fault
from hf_transformer.api.grpc.pieces import Emit, form_of_pieces, pieces
from hf_transformer.api.tensors import check_version, clients_fault
from hf_transformer.api.triton_tensors import infer
from hf_transformer.core.limits import Admission, Admitted
from hf_transformer.errors import RequestError, TooLarge
from hf_transformer.protocol import grpc_inbound as wire
from hf_transformer.protocol.grpc import SERVICE

API = "grpc"
"""The name of this API in the metrics."""


class Places:
    """The places that the requests of one stream take: one that finds none waits for another one of its stream."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._taken = 0
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def place(self, size: int) -> AsyncIterator[Admitted]:
        """A place for one request of ``size`` bytes.

        Raises:
            TooManyRequests: all are taken, and none by this stream.
        """
        while self._taken and not self._admission.has_room:
            self._freed.clear()
            await self._freed.wait()
        with self._admission.place(size) as place:
            self._taken += 1
            try:
                yield place
            finally:
                self._taken -= 1
                self._freed.set()


class Inference:
    """Answers serialized ModelInferRequests.

    Args:
        max_send: how many bytes an answer may have; -1 is unlimited. What gRPC itself finds too long ends a whole
            stream.
    """

    def __init__(self, service: Service, max_send: int = -1) -> None:
        self._service = service
        self._max_send = max_send

    async def one(self, body: bytes, caller: Caller) -> bytes:
        """The serialized ModelInferResponse.

        Raises:
            RequestError: it can't be answered.
        """
        service = self._service
        with (
            self._counted(caller, "ModelInfer"),
            service.bodies.portion(len(body)),
            service.admission.place(len(body)) as place,
        ):
            answer = self._checked(await self._answer(body, caller, place))
        if self._service.server_timing and caller.served is not None:
            caller.trailers = (("server-timing", server_timing(caller.served.timings).decode()),)
        return answer

    async def streamed(self, body: bytes, caller: Caller, places: Places, emit: Emit) -> bytes:
        """The last, mostly the only serialized ModelStreamInferResponse, which is also what says why there is no
        answer, or none any more; ``emit`` sends those before it."""
        try:
            with self._counted(caller, "ModelStreamInfer"), self._service.bodies.portion(len(body)):
                async with places.place(len(body)) as place:
                    answer = await self._answer(body, caller, place, emit)
                    return self._checked(wire.encode_stream_response(answer))
        except RequestError as error:
            said = wire.encode_stream_error(details_of(error), wire.request_id(body))
            # The id is the client's, and may be as long as a message.
            return said if self._fits(said) else wire.encode_stream_error(details_of(error), "")

    @contextmanager
    def _counted(self, caller: Caller, method: str) -> Iterator[None]:
        status, code = 500, grpc.StatusCode.INTERNAL
        trace, tracing = None, self._service.tracing
        if tracing is not None:
            caller.headers, trace = tracing.begin(caller.headers)
        try:
            yield
            status, code = 200, grpc.StatusCode.OK
        except RequestError as error:
            status, code = error.status, grpc.StatusCode[error.grpc_code]
            raise
        except asyncio.CancelledError:
            status, code = CLIENT_GONE, grpc.StatusCode.CANCELLED
            raise
        except Exception:
            raise our_fault(caller) from None
        finally:
            self._service.metrics.count_request(API, status)
            if tracing is not None and trace is not None:
                tracing.end_grpc(trace, SERVICE, method, code.value[0], caller.served)

    async def _answer(self, body: bytes, caller: Caller, place: Admitted, emit: Emit | None = None) -> bytes:
        """The serialized ModelInferResponse; in a stream, where ``emit`` sends more of them, the last one."""
        with clients_fault():
            request = wire.decode_infer_request(body, self._service.max_texts)
        context = caller.context(request.id)
        context.place = place
        model = self._service.models[request.model_name]
        check_version(model, request.model_version)
        form = None if emit is None else form_of_pieces(model, request)
        if emit is not None and form is not None:
            send = emit

            async def checked(message: bytes) -> None:
                await send(self._checked(wire.encode_stream_response(message)))

            return await pieces(model, request, form, context, self._service.streams, checked)
        return wire.encode_infer_response(await infer(model, request, context), request, final=emit is not None)

    def _fits(self, answer: bytes) -> bool:
        return self._max_send == -1 or len(answer) <= self._max_send

    def _checked(self, answer: bytes) -> bytes:
        if not self._fits(answer):
            raise TooLarge(
                f"the answer has {len(answer)} bytes, --grpc_max_send_message_length allows {self._max_send}; ask for "
                "fewer instances or less about each"
            )
        return answer
