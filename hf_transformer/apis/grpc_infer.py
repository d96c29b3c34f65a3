"""Inference over gRPC: a serialized request -> a serialized response, counted and within the limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

from hf_transformer.apis.base import CLIENT_GONE, Admission, Service
from hf_transformer.apis.grpc_calls import Caller, details_of, our_fault
from hf_transformer.apis.tensors import check_version, clients_fault, infer
from hf_transformer.errors import RequestError, TooLarge, TooManyRequests
from hf_transformer.wire import v2_grpc_inbound as wire

API = "grpc"
"""The name of this API in the metrics."""


class Places:
    """The places that the requests of one stream take: one that finds none waits for another one of its stream."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._taken = 0
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for one request.

        Raises:
            TooManyRequests: all are taken, and none by this stream.
        """
        with ExitStack() as place:
            while True:
                try:
                    place.enter_context(self._admission.place())
                    break
                except TooManyRequests:
                    if not self._taken:
                        raise
                    self._freed.clear()
                    await self._freed.wait()
            self._taken += 1
            try:
                yield
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
        with self._counted(caller), self._service.admission.place():
            return self._checked(await self._answer(body, caller, streamed=False))

    async def streamed(self, body: bytes, caller: Caller, places: Places) -> bytes:
        """The serialized ModelStreamInferResponse, which is also what says why there is no answer."""
        try:
            with self._counted(caller):
                async with places.place():
                    return self._checked(wire.encode_stream_response(await self._answer(body, caller, streamed=True)))
        except RequestError as error:
            said = wire.encode_stream_error(details_of(error), wire.request_id(body))
            # The id is the client's, and may be as long as a message.
            return said if self._fits(said) else wire.encode_stream_error(details_of(error), "")

    @contextmanager
    def _counted(self, caller: Caller) -> Iterator[None]:
        status = 500
        try:
            yield
            status = 200
        except RequestError as error:
            status = error.status
            raise
        except asyncio.CancelledError:
            status = CLIENT_GONE
            raise
        except Exception:
            raise our_fault(caller) from None
        finally:
            self._service.metrics.count_request(API, status)

    async def _answer(self, body: bytes, caller: Caller, *, streamed: bool) -> bytes:
        with clients_fault():
            name, version, request = wire.decode_infer_request(body, self._service.max_texts)
        context = caller.context(request.id)
        model = self._service.models[name]
        check_version(model, version)
        return wire.encode_infer_response(await infer(model, request, context), request, final=streamed)

    def _fits(self, answer: bytes) -> bool:
        return self._max_send == -1 or len(answer) <= self._max_send

    def _checked(self, answer: bytes) -> bytes:
        if not self._fits(answer):
            raise TooLarge(
                f"the answer has {len(answer)} bytes, --grpc_max_send_message_length allows {self._max_send}; ask for "
                "fewer instances or less about each"
            )
        return answer
