"""The V2 protocol over gRPC, with raw tensor contents. grpc_connections.py has the channel for unary calls (grpc.aio)
and the handling of cancelled ones, grpc_streams.py the connections for streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

from grpc import StatusCode

from hf_transformer.errors import PredictorError, PredictorUnavailable, RequestError
from hf_transformer.predictor import failures
from hf_transformer.predictor.base import (
    Destination,
    ModelCall,
    Outputs,
    PredictorSettings,
    Reply,
    Transport,
    UnknownRegion,
    forwarded,
)
from hf_transformer.predictor.failures import call_codec, verified
from hf_transformer.predictor.grpc_connections import GrpcConnections, has_ended, status_of
from hf_transformer.predictor.grpc_status import CallFailed, ClosedHere
from hf_transformer.predictor.grpc_stream_connection import StreamCall
from hf_transformer.protocol import grpc as codec
from hf_transformer.protocol.descriptions import model_spec, repository_entries, server_description
from hf_transformer.protocol.tensors import NO_PLACEMENTS, Malformed
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import ModelSpec, RepositoryEntry, ServerDescription

_STREAM_PATH: Final = f"/{codec.SERVICE}/ModelStreamInfer"


class GrpcPredictor(Transport):
    """The transport over gRPC. ``connections`` may be shared with other models; None for a channel of its own."""

    def __init__(self, settings: PredictorSettings, connections: GrpcConnections | None = None) -> None:
        self._connections = connections or GrpcConnections(settings)
        self._model_name = settings.model_name
        self._open = False

    async def open(self) -> None:
        await self._connections.__aenter__()
        self._open = True

    async def close(self) -> None:
        self._open = False
        await self._connections.__aexit__(None, None, None)

    def _opened(self) -> GrpcConnections:
        """The connections, for a new call. Raises PredictorUnavailable after ``close``."""
        if not self._open:
            raise self._connections.closed()
        return self._connections

    async def model_spec(self) -> ModelSpec:
        metadata = await self._ask("ModelMetadata", name=self._model_name)
        try:
            config = (await self._ask("ModelConfig", name=self._model_name)).config
        except PredictorError as exc:
            if status_of(exc) is not StatusCode.UNIMPLEMENTED:
                raise
            config = None
        return call_codec(model_spec, metadata, config)

    async def model_ready(self) -> bool:
        try:
            return bool((await self._ask("ModelReady", name=self._model_name)).ready)
        except PredictorUnavailable as exc:
            if status_of(exc) is StatusCode.NOT_FOUND:
                return False
            raise

    async def infer(self, call: ModelCall, destination: Destination | None = None) -> Reply:
        placements = NO_PLACEMENTS if destination is None else destination.placements
        model = self._model_name
        request = call_codec(codec.encode_infer_request, model, call.inputs, call.outputs, placements)
        connections = self._opened().for_texts() if call.max_bytes else self._opened()
        try:
            response = await connections.call("ModelInfer", request, metadata_of(call.headers), call.cancellable)
        except RequestError as error:
            if destination is not None:
                destination.settled = has_ended(error)
                if status_of(error) is StatusCode.NOT_FOUND and destination.region in str(error):
                    raise UnknownRegion(str(error)) from error
            raise
        if destination is not None:
            destination.settled = True
        return Reply(verified(call.outputs, call_codec(codec.decode_infer_response, response, placements)))

    async def stream(self, call: ModelCall) -> AsyncGenerator[Outputs, None]:
        model = self._model_name
        request = call_codec(codec.encode_infer_request, model, call.inputs, call.outputs, streamed=True)
        # Not triton_grpc_error, for statuses instead of messages: Triton before 26.04 can then crash after any error.
        metadata = metadata_of(call.headers)
        connections = self._opened()
        stream: StreamCall | None = None
        decoder = codec.StreamDecoder()
        answered = final = False
        try:
            stream = await connections.streams.start(_STREAM_PATH, metadata, request)
            while (body := await stream.read()) is not None:
                if final:  # read on to the end of the call, which Triton ends itself; don't cancel it
                    continue
                error, tensors, final = decoder.decode(body)
                if error:
                    raise failures.error_from_message(error, connections.address)
                answered = True
                if verified(call.outputs, tensors, some=True):
                    yield tensors
        except Malformed as exc:
            raise failures.codec_error(exc) from exc
        except ClosedHere:
            raise connections.closed() from None
        except CallFailed as error:
            lost = failures.LOST if answered else failures.NO_ANSWER
            raise connections.failed(error, None, stream and stream.connection, lost) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise connections.closed() from None  # while the connection was being opened
        finally:
            if stream is not None:
                stream.cancel()

    async def register_region(self, name: str, byte_size: int) -> None:
        await self._ask("SystemSharedMemoryRegister", name=name, key=f"/{name}", byte_size=byte_size)

    async def unregister_region(self, name: str) -> None:
        await self._ask("SystemSharedMemoryUnregister", name=name)

    async def region_names(self) -> Sequence[str]:
        return list((await self._ask("SystemSharedMemoryStatus")).regions)

    async def server_live(self) -> bool:
        return bool((await self._ask("ServerLive")).live)

    async def server_ready(self) -> bool:
        return bool((await self._ask("ServerReady")).ready)

    async def describe_server(self) -> ServerDescription:
        return call_codec(server_description, await self._ask("ServerMetadata"))

    async def repository_index(self) -> Sequence[RepositoryEntry] | None:
        try:
            index = await self._ask("RepositoryIndex")
        except PredictorError as exc:
            if status_of(exc) is None:
                raise
            return None  # the server has no such method, or it is disabled
        return call_codec(repository_entries, index)

    async def load_model(self, name: str, parameters: Mapping[str, Json]) -> None:
        await self._change_model("RepositoryModelLoad", name, parameters)

    async def unload_model(self, name: str, parameters: Mapping[str, Json]) -> None:
        await self._change_model("RepositoryModelUnload", name, parameters)

    async def _change_model(self, method: str, name: str, parameters: Mapping[str, Json]) -> None:
        with failures.refusals_as_errors():
            await self._ask(method, model_name=name, parameters=call_codec(codec.repository_parameters, parameters))

    async def _ask(self, method: str, **fields: Any) -> Any:
        """The response of a method other than inference, within the timeout."""
        connections = self._opened()
        try:
            async with asyncio.timeout(connections.timeout):
                body = await connections.call(method, codec.encode_request(method, **fields))
        except TimeoutError as exc:
            raise failures.timeout_error(connections.address, connections.timeout) from exc
        return call_codec(codec.decode_response, method, body)


def metadata_of(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """The forwarded headers as gRPC metadata.

    Leaves out headers for which gRPC would fail the call: binary keys (``-bin``), reserved keys (``grpc-``), and values
    that are not ASCII.
    """
    metadata = []
    for header in forwarded(headers):
        key, _, value = header.removesuffix("\r\n").partition(": ")
        if value.isascii() and not key.endswith("-bin") and not key.startswith("grpc-"):
            metadata.append((key, value))
    return metadata
