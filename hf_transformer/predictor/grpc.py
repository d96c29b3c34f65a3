"""gRPC: the V2 protocol over one HTTP/2 connection, tensors as raw contents."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from hf_transformer.errors import ConfigError, PredictorError, PredictorUnavailable, RequestError
from hf_transformer.predictor import kinds
from hf_transformer.predictor.address import parse_address
from hf_transformer.predictor.answers import verified
from hf_transformer.predictor.base import Destination, HeldCall, PlacingPredictor, PredictorSettings, UnknownRegion
from hf_transformer.predictor.certificates import ssl_context
from hf_transformer.predictor.grpc_call import StreamingCall
from hf_transformer.predictor.grpc_client import GrpcClient, authority
from hf_transformer.predictor.grpc_errors import has_ended, mapped, status_of
from hf_transformer.predictor.grpc_messages import Message
from hf_transformer.predictor.grpc_status import RpcError, Status
from hf_transformer.predictor.grpc_stream import ERROR_STATUS, GrpcResponses, StreamInfers
from hf_transformer.predictor.headers import forwarded
from hf_transformer.predictor.responses import Watch
from hf_transformer.protocol import grpc as v2_grpc
from hf_transformer.protocol.grpc import StreamEncoder
from hf_transformer.types import ModelSpec, Tensor

_LARGEST = 2**32 - 1
"""Bytes of a message: its length is told in 32 bits."""


class GrpcPredictor(PlacingPredictor):
    """A predictor behind gRPC, with connections of its own.

    Messages go in and come out as bytes, written and read by the codec in wire.v2_grpc. A stream whose caller goes away
    is cancelled, at the predictor too; any other call a moment later, unless it has ended by then.
    """

    def __init__(self, settings: PredictorSettings) -> None:
        self._address = parse_address(settings)
        try:
            authority(self._address)
        except UnicodeError as exc:
            raise ConfigError(f"predictor_host is {settings.host!r}: that is no host name: {exc}") from exc
        self._where = str(self._address)
        self._model_name = settings.model_name
        self._timeout = settings.timeout
        self._ssl: ssl.SSLContext | None = ssl_context(settings) if self._address.use_ssl else None
        longest = settings.max_receive_message_length
        self._largest_response = (
            settings.max_response_bytes if longest == -1 else min(longest, settings.max_response_bytes)
        )
        self._largest_request = _LARGEST if settings.max_send_message_length == -1 else settings.max_send_message_length
        self._client: GrpcClient
        self._methods: dict[str, bytes] = {}
        self._stream: bytes
        self._encoder = StreamEncoder(settings.model_name)
        self._streams = StreamInfers(self._begin, self._where, self._timeout)

    async def __aenter__(self) -> Self:
        self._client = GrpcClient(
            self._address, self._ssl, self._timeout, self._largest_response, self._largest_request
        )
        self._methods = {}
        self._stream = self._client.method(f"/{v2_grpc.SERVICE}/ModelStreamInfer", [ERROR_STATUS])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def model_spec(self) -> ModelSpec:
        metadata = await self._ask("ModelMetadata")
        try:
            config = await self._ask("ModelConfig")
        except PredictorError as exc:
            if status_of(exc) is not Status.UNIMPLEMENTED:
                raise
            return v2_grpc.parse_model_spec(metadata, None)
        return v2_grpc.parse_model_spec(metadata, config)

    async def model_ready(self) -> bool:
        try:
            return v2_grpc.decode_model_ready(await self._ask("ModelReady"))
        except PredictorUnavailable as exc:
            if status_of(exc) is Status.NOT_FOUND:
                return False
            raise

    def infer(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        *,
        sizes: Mapping[str, int] | None = None,
        destination: Destination | None = None,
    ) -> HeldCall:
        return _Inference(self.run, inputs, outputs, headers, destination)

    async def run(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        destination: Destination | None,
        held: float | None,
    ) -> Mapping[str, Tensor]:
        """The outputs of one call of ``infer``, and raises what that does. ``held`` is what HeldCall.hold was told."""
        if destination is None:
            request = v2_grpc.encode_infer_request(self._model_name, inputs, outputs)
            response = await self._exchange("ModelInfer", request, metadata_of(headers), held)
            return verified(outputs, v2_grpc.decode_infer_response(response))
        placements = destination.placements
        request = v2_grpc.encode_infer_request(self._model_name, inputs, outputs, placements)
        try:
            response = await self._exchange("ModelInfer", request, metadata_of(headers), held)
        except RequestError as error:
            destination.settled = has_ended(error)
            if status_of(error) is Status.NOT_FOUND and destination.region in str(error):
                raise UnknownRegion(str(error)) from error
            raise
        destination.settled = True
        return verified(outputs, v2_grpc.decode_infer_response(response, placements))

    def stream(self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]) -> GrpcResponses:
        return GrpcResponses(self._streams, inputs, outputs, headers)

    def watches_streams(self, watch: Watch) -> bool:
        self._streams.watch = watch
        return True

    def _begin(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]
    ) -> Coroutine[Any, Any, StreamingCall]:
        """Makes the call of a stream."""
        self._check_open()
        request = self._encoder.encode(inputs, outputs)
        return self._client.stream(self._stream, request, metadata_of(headers))

    async def register_region(self, name: str, key: str, byte_size: int) -> None:
        await self._call("SystemSharedMemoryRegister", v2_grpc.encode_registration(name, key, byte_size))

    async def unregister_region(self, name: str) -> None:
        await self._call("SystemSharedMemoryUnregister", v2_grpc.encode_unregistration(name))

    async def region_names(self) -> Sequence[str]:
        return v2_grpc.parse_region_names(await self._call("SystemSharedMemoryStatus", b""))

    async def _ask(self, method: str) -> bytes:
        return await self._call(method, v2_grpc.encode_model_request(method, self._model_name))

    async def _call(self, method: str, request: bytes) -> bytes:
        return bytes(await self._exchange(method, request))

    async def _exchange(
        self, method: str, request: bytes, metadata: Sequence[tuple[str, str]] = (), held: float | None = None
    ) -> Message:
        self._check_open()
        head = self._methods.get(method)
        if head is None:
            head = self._methods[method] = self._client.method(f"/{v2_grpc.SERVICE}/{method}")
        try:
            return await self._client.unary(head, request, metadata, held)
        except RpcError as error:
            raise mapped(error, self._where, self._timeout) from error

    def _check_open(self) -> None:
        if self._client.closed:
            raise PredictorUnavailable(f"the connections to the predictor at {self._where} are closed", kinds.LOST)


class _Inference(HeldCall):
    """One call of ``infer``. A generator in its place costs 3 us more, of 36 for a small call among many."""

    __slots__ = ("_asked", "_held", "_run")

    def __init__(self, run: Callable[..., Awaitable[Mapping[str, Tensor]]], *asked: object) -> None:
        self._run = run
        self._asked = asked
        self._held: float | None = None

    def hold(self, deadline: float) -> None:
        self._held = deadline

    async def __aenter__(self) -> Mapping[str, Tensor]:
        return await self._run(*self._asked, self._held)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The response's memory lives as long as the tensors do."""


def metadata_of(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """The headers as gRPC metadata.

    What gRPC refuses, and would fail the call for, is left out: binary keys (``-bin``), its own (``grpc-``)
    and values that are not ASCII.
    """
    return [
        (key, value)
        for key, value in forwarded(headers)
        if value.isascii() and not key.endswith("-bin") and not key.startswith("grpc-")
    ]
