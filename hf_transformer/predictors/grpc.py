"""gRPC: the V2 protocol over one HTTP/2 channel, tensors as raw contents."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from hf_transformer.errors import (
    PredictorDenied,
    PredictorError,
    PredictorTimeout,
    PredictorUnavailable,
    RequestError,
)
from hf_transformer.predictors import kinds
from hf_transformer.predictors.address import parse_address
from hf_transformer.predictors.answers import TIMEOUT_FLAG, quoted, verified
from hf_transformer.predictors.base import Destination, PlacingPredictor, PredictorSettings, UnknownRegion
from hf_transformer.predictors.certificates import own_certificate, root_certificates, ssl_context
from hf_transformer.predictors.grpc_stream import ERROR_STATUS, responses
from hf_transformer.predictors.headers import forwarded
from hf_transformer.types import ModelSpec, Tensor
from hf_transformer.wire import v2_grpc
from hf_transformer.wire.v2_grpc_stream import encode_stream_request

ERRORS: Mapping[grpc.StatusCode, type[RequestError]] = {
    grpc.StatusCode.UNAVAILABLE: PredictorUnavailable,
    grpc.StatusCode.NOT_FOUND: PredictorUnavailable,
    grpc.StatusCode.CANCELLED: PredictorUnavailable,  # by the server, which is going away
    grpc.StatusCode.DEADLINE_EXCEEDED: PredictorTimeout,
    grpc.StatusCode.RESOURCE_EXHAUSTED: PredictorError,
    grpc.StatusCode.UNKNOWN: PredictorError,
    grpc.StatusCode.INVALID_ARGUMENT: PredictorError,
    grpc.StatusCode.ALREADY_EXISTS: PredictorError,
    grpc.StatusCode.PERMISSION_DENIED: PredictorDenied,
    grpc.StatusCode.UNAUTHENTICATED: PredictorDenied,
    grpc.StatusCode.FAILED_PRECONDITION: PredictorError,
    grpc.StatusCode.ABORTED: PredictorError,
    grpc.StatusCode.OUT_OF_RANGE: PredictorError,
    grpc.StatusCode.UNIMPLEMENTED: PredictorError,
    grpc.StatusCode.INTERNAL: PredictorError,
    grpc.StatusCode.DATA_LOSS: PredictorError,
}
"""Every status a call can end with, except OK."""

_SAID: Mapping[grpc.StatusCode, str] = {
    grpc.StatusCode.UNAVAILABLE: "is unavailable",
    grpc.StatusCode.DEADLINE_EXCEEDED: "gave no answer in time",
}
"""Statuses that gRPC itself sets more often than a server does."""

_METHODS = (
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "ModelInfer",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
)

_ENDED = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,  # gRPC's own: a request that was not sent, a response that has come
    }
)
"""Statuses after which the predictor certainly does nothing more for a call."""

_CONNECTION_FAULTS = ("RST_STREAM", "HTTP2", "http2")
"""In gRPC's own messages with the status INTERNAL, which is also what Triton says when a model fails."""

_REFUSALS = ("queue size", "Request timeout expired", "stopped accepting", "unknown model", "failed to connect")
"""In messages with the status UNAVAILABLE: Triton's own, and gRPC's where a call was not even sent. The rest of gRPC's
are about connections that were lost during a call."""

_CHANNEL_OPTIONS = (
    # A predictor that hangs answers no ping: its calls end within 20 s instead of after the whole timeout. Without
    # ping_timeout_ms that does not happen. A long inference is not disturbed; idle channels are left alone.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    # A predictor that has restarted is found again within about a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # which is, in spite of its name, what one attempt may take
    # Predictors of one process share no connection, backoff or proxy settings of the environment.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


@contextmanager
def map_errors(where: str, seconds: float) -> Iterator[None]:
    """gRPC's errors as ours; ``where`` names the predictor in the message, ``seconds`` the timeout."""
    try:
        yield
    except grpc.aio.AioRpcError as exc:
        code = exc.code()
        details = quoted(exc.details() or "")
        message = f"the predictor at {where} {_SAID.get(code, f'answered {code.name}')}: {details}"
        if code is grpc.StatusCode.UNAVAILABLE and "Socket closed" in details and "Stream removed" not in details:
            message += " (if that is its REST port, use --predictor_protocol=v2)"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            message += f" (the timeout is {seconds:g} s, {TIMEOUT_FLAG})"
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            message += (
                " (a message may be too large: see --grpc_max_send_message_length,"
                " --grpc_max_receive_message_length, --max_predictor_response_bytes and the predictor's own limits)"
            )
        error = ERRORS.get(code, PredictorError)(message)
        if isinstance(error, PredictorUnavailable):
            error.kind = _kind(code, details)
        raise error from exc
    except grpc.aio.UsageError as exc:  # the channel was closed while the call was under way
        raise PredictorUnavailable(f"the channel to the predictor at {where} is closed: {exc}", kinds.LOST) from exc
    except (grpc.RpcError, grpc.aio.BaseError) as exc:
        raise PredictorError(f"the call to the predictor at {where} failed: {quoted(str(exc))}") from exc


def _kind(code: grpc.StatusCode, details: str) -> str:
    """Which kind of unavailability a status is; UNAVAILABLE is both gRPC's own and Triton's."""
    if code is grpc.StatusCode.CANCELLED:
        return kinds.LOST
    return kinds.CONNECTION if "failed to connect" in details else kinds.refusal(details)


class GrpcPredictor(PlacingPredictor):
    """A predictor behind gRPC, with a channel of its own.

    Messages go in and come out as bytes, serialized by the codec in wire.v2_grpc: a deserializer that raises
    inside grpc is logged there and lost. A call whose caller goes away is cancelled, at the predictor too.
    """

    def __init__(self, settings: PredictorSettings) -> None:
        self._address = parse_address(settings)
        self._where = str(self._address)
        self._model_name = settings.model_name
        self._timeout = settings.timeout
        self._credentials = _credentials(settings) if self._address.use_ssl else None
        longest = settings.max_receive_message_length
        longest = settings.max_response_bytes if longest == -1 else min(longest, settings.max_response_bytes)
        self._options = [
            *_CHANNEL_OPTIONS,
            ("grpc.max_send_message_length", settings.max_send_message_length),
            ("grpc.max_receive_message_length", min(longest, 2**31 - 1)),
        ]
        self._channel: grpc.aio.Channel
        self._methods: dict[str, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]]
        self._stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]

    async def __aenter__(self) -> Self:
        if self._credentials is None:
            self._channel = grpc.aio.insecure_channel(self._where, self._options)
        else:
            self._channel = grpc.aio.secure_channel(self._where, self._credentials, self._options)
        self._methods = {name: self._channel.unary_unary(f"/{v2_grpc.SERVICE}/{name}", None, None) for name in _METHODS}
        # One request each. On the wire it looks the same, and costs less than a stream of requests.
        self._stream = self._channel.unary_stream(f"/{v2_grpc.SERVICE}/ModelStreamInfer", None, None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close(None)

    def stops_when_cancelled(self, sizes: Mapping[str, int]) -> bool:
        return True

    async def model_spec(self) -> ModelSpec:
        metadata = await self._ask("ModelMetadata")
        try:
            config = await self._ask("ModelConfig")
        except PredictorError as exc:
            if _code(exc) is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            return v2_grpc.parse_model_spec(metadata, None)
        return v2_grpc.parse_model_spec(metadata, config)

    async def model_ready(self) -> bool:
        try:
            return v2_grpc.decode_model_ready(await self._ask("ModelReady"))
        except PredictorUnavailable as exc:
            if _code(exc) is grpc.StatusCode.NOT_FOUND:
                return False
            raise

    @asynccontextmanager
    async def infer(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        *,
        sizes: Mapping[str, int] | None = None,
        destination: Destination | None = None,
    ) -> AsyncIterator[Mapping[str, Tensor]]:
        if destination is None:
            request = v2_grpc.encode_infer_request(self._model_name, inputs, outputs)
            response = await self._call("ModelInfer", request, metadata_of(headers))
            yield verified(outputs, v2_grpc.decode_infer_response(response))
            return
        placements = destination.placements
        request = v2_grpc.encode_infer_request(self._model_name, inputs, outputs, placements)
        try:
            response = await self._call("ModelInfer", request, metadata_of(headers))
        except RequestError as error:
            destination.settled = _has_ended(error)
            if _code(error) is grpc.StatusCode.NOT_FOUND and destination.region in str(error):
                raise UnknownRegion(str(error)) from error
            raise
        destination.settled = True
        yield verified(outputs, v2_grpc.decode_infer_response(response, placements))

    async def stream(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]
    ) -> AsyncGenerator[Mapping[str, Tensor], None]:
        request = encode_stream_request(self._model_name, inputs, outputs)
        metadata = (*metadata_of(headers), ERROR_STATUS)
        with map_errors(self._where, self._timeout):
            call = self._stream(request, timeout=self._timeout, metadata=metadata)
            async with aclosing(responses(call, frozenset(outputs), self._where)) as stream:
                async for tensors in stream:
                    yield tensors

    async def register_region(self, name: str, key: str, byte_size: int) -> None:
        await self._call("SystemSharedMemoryRegister", v2_grpc.encode_registration(name, key, byte_size), ())

    async def unregister_region(self, name: str) -> None:
        await self._call("SystemSharedMemoryUnregister", v2_grpc.encode_unregistration(name), ())

    async def region_names(self) -> Sequence[str]:
        return v2_grpc.parse_region_names(await self._call("SystemSharedMemoryStatus", b"", ()))

    async def _ask(self, method: str) -> bytes:
        return await self._call(method, v2_grpc.encode_model_request(method, self._model_name), ())

    async def _call(self, method: str, request: bytes, metadata: Sequence[tuple[str, str]]) -> bytes:
        with map_errors(self._where, self._timeout):
            return await self._methods[method](request, timeout=self._timeout, metadata=tuple(metadata))


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


def _code(error: RequestError) -> Any:
    """The status behind an error that map_errors made, None where it came from elsewhere."""
    return error.__cause__.code() if isinstance(error.__cause__, grpc.aio.AioRpcError) else None


def _has_ended(error: RequestError) -> bool:
    """Whether a failed call has certainly ended at the predictor too; not sure is no."""
    code, text = _code(error), str(error)
    if any(part in text for part in _CONNECTION_FAULTS):
        return False
    if code is grpc.StatusCode.INTERNAL:
        return True
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return "larger than max" in text
    if code is grpc.StatusCode.UNAVAILABLE:
        return any(part in text for part in _REFUSALS)
    return code in _ENDED


def _credentials(settings: PredictorSettings) -> grpc.ChannelCredentials:
    """Without certificates of its own gRPC trusts the bundle in its wheel; the system's is what is meant."""
    ssl_context(settings)  # gRPC takes any bytes, and fails with every call
    pem = root_certificates(settings)
    if pem is not None:
        roots: bytes | None = pem.encode("ascii", "replace")
    else:
        system = ssl.get_default_verify_paths().cafile
        roots = Path(system).read_bytes() if system else None
    own = own_certificate(settings)
    if own is None:
        return grpc.ssl_channel_credentials(roots)
    return grpc.ssl_channel_credentials(roots, own.key, own.chain)
