"""Inference over gRPC: one request at a time, or a stream of them."""

from __future__ import annotations

import asyncio

import grpc

from hf_transformer.apis.base import CLIENT_GONE, Service
from hf_transformer.apis.grpc_calls import REQUEST_ID, Caller, Rpc, caller_of, details_of, our_fault, refuse
from hf_transformer.apis.tensors import check_version, clients_fault, infer
from hf_transformer.errors import RequestError, Unavailable
from hf_transformer.wire import v2_grpc_inbound as wire

API = "grpc"
"""The name of this API in the metrics."""
STREAM_IN_FLIGHT = 32
"""Requests of one stream that are read and not answered yet; the rest waits at the client, by HTTP/2's flow control."""


class Inference:
    """Answers serialized ModelInferRequests, counted and within the limit of requests in flight."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def one(self, body: bytes, caller: Caller) -> bytes:
        """The serialized ModelInferResponse.

        Raises:
            RequestError: it can't be answered.
        """
        return await self._counted(body, caller, streamed=False)

    async def streamed(self, body: bytes, caller: Caller) -> bytes:
        """The serialized ModelStreamInferResponse, which is also what says why there is no answer."""
        try:
            return wire.encode_stream_response(await self._counted(body, caller, streamed=True))
        except RequestError as error:
            return wire.encode_stream_error(details_of(error), wire.request_id(body))

    async def _counted(self, body: bytes, caller: Caller, *, streamed: bool) -> bytes:
        status = 500
        try:
            with self._service.admission.place():
                response = await self._answer(body, caller, streamed)
            status = 200
            return response
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

    async def _answer(self, body: bytes, caller: Caller, streamed: bool) -> bytes:
        with clients_fault():
            name, version, request = wire.decode_infer_request(body, self._service.max_texts)
        context = caller.context(request.id)
        model = self._service.models[name]
        check_version(model, version)
        return wire.encode_infer_response(await infer(model, request, context), request, final=streamed)


class Streams:
    """ModelStreamInfer: answers in the order of the requests, several of which are worked on at a time.

    Once ``closing`` is set no more requests are read; what was read is answered, and the stream ends as unavailable.
    """

    def __init__(self, inference: Inference, closing: asyncio.Event) -> None:
        self._inference = inference
        self._closing = closing

    @property
    def handler(self) -> grpc.RpcMethodHandler[bytes, bytes]:
        return grpc.stream_stream_rpc_method_handler(self._serve)

    async def _serve(self, requests: object, rpc: Rpc) -> None:
        """One stream; a request that fails does not end it."""
        caller = caller_of(rpc)
        places = asyncio.Semaphore(STREAM_IN_FLIGHT)
        answers: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read(rpc, caller, group, places, answers))
            waiting = group.create_task(self._end_reading(reading, answers))
            while (answer := await answers.get()) is not None:
                await rpc.write(await answer)
                places.release()
            reading.cancel()
            waiting.cancel()
        if self._closing.is_set():
            await refuse(rpc, Unavailable("the service is shutting down"), caller)
        rpc.set_trailing_metadata(((REQUEST_ID, caller.identify()),))

    async def _read(
        self,
        rpc: Rpc,
        caller: Caller,
        group: asyncio.TaskGroup,
        places: asyncio.Semaphore,
        answers: asyncio.Queue[asyncio.Task[bytes] | None],
    ) -> None:
        """Begins a task for each request; None follows the last one."""
        while True:
            await places.acquire()
            body = await rpc.read()
            if not isinstance(body, bytes):  # grpc.aio.EOF, which the type stubs don't know
                answers.put_nowait(None)
                return
            answers.put_nowait(group.create_task(self._inference.streamed(body, caller.fork())))

    async def _end_reading(
        self, reading: asyncio.Task[None], answers: asyncio.Queue[asyncio.Task[bytes] | None]
    ) -> None:
        await self._closing.wait()
        reading.cancel()
        answers.put_nowait(None)
