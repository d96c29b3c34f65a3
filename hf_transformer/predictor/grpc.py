"""The V2 protocol over gRPC (grpc.aio), tensors as raw contents.

**Unary calls are never cancelled on the wire and carry no deadline there**, since either can crash a Triton before
25.06 (its issues 7368 and 8034). After a cancelled ``infer``, its call ends by itself, and the result is dropped. Once
more than MAX_ABANDONED such calls are open, new calls use another channel, and the old one closes after the timeout.
Two kinds of calls are cancelled on the wire: those of generations (``cancellable``), after LINGER_SECONDS, and streams
that are closed early.

A channel has one TCP connection at a time. A second one is no faster with 32 small calls in flight.

After SILENT_SECONDS without a response, a channel is probed with ServerLive, and replaced if there is no response.
After a malformed frame from a proxy, gRPC can mistake all later responses for the rest of that frame. Its keepalive
does not notice, since bytes keep arriving.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import grpc
import grpc.aio
from grpc import StatusCode

from hf_transformer.credentials import ReloadableFile, keep_renewing
from hf_transformer.errors import PredictorDenied, PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.predictor import failures
from hf_transformer.predictor.base import (
    Address,
    Destination,
    ModelCall,
    Outputs,
    PredictorSettings,
    Reply,
    Transport,
    UnknownRegion,
    forwarded,
    parse_address,
)
from hf_transformer.predictor.failures import TIMEOUT_FLAG, TLS_FLAGS, call_codec, quoted, verified
from hf_transformer.predictor.tls import client_certificate, root_certificates, ssl_context, system_certificates
from hf_transformer.protocol import grpc as codec
from hf_transformer.protocol.descriptions import model_spec, repository_entries, server_description
from hf_transformer.protocol.tensors import NO_PLACEMENTS
from hf_transformer.types.tensors import ModelSpec, RepositoryEntry, ServerDescription

logger = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 10.0
"""The time limit for opening a connection, TLS included."""

MAX_ABANDONED: Final = 64
"""Abandoned calls of one channel beyond which new calls use another channel."""

LINGER_SECONDS = 1.0
"""The delay before a ``cancellable`` call is cancelled on the wire; docs/reliability.md has measurements."""

PING_SECONDS, PONG_SECONDS = 10.0, 10.0
"""The interval of keepalive pings during a call, and the timeout of one."""

MAX_UNANSWERED: Final = 3
SILENT_SECONDS = PING_SECONDS + PONG_SECONDS
"""A channel counts as silent if MAX_UNANSWERED calls have had no response for this time, or for the timeout of calls if
that is shorter."""

_IDLE_SECONDS = 240.0
"""The idle time before a connection is closed. A firewall or NAT drops idle connections silently."""

_MAX_METADATA_BYTES = 2**16
"""The largest metadata of a response. gRPC's default of 16 KiB would hide a backend's traceback."""

_Credentials: TypeAlias = ReloadableFile[grpc.ChannelCredentials]

_EOF: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined] # the stubs lack it

_STREAM_METADATA = ("triton_grpc_error", "true")
"""Request metadata: Triton (24.08 and newer) then ends a failed stream with a status, not only with a message."""


class GrpcPredictor(Transport):
    """The transport over gRPC, with its own channel."""

    def __init__(self, settings: PredictorSettings) -> None:
        address = parse_address(settings)
        host = f"[{address.host}]" if ":" in address.host else address.name
        self._target = f"dns:///{quote(host, safe='[]:')}:{address.port}"
        self._options = _options(settings, address)
        self._address = str(address)
        self._model_name = settings.model_name
        self._timeout = settings.timeout
        self._credentials: _Credentials | None = None
        if address.use_ssl:
            files = [settings.ca_file, settings.ca_path, settings.cert_file, settings.key_file]
            paths = [path for path in files if path is not None]
            self._credentials = ReloadableFile("certificates for the predictor", paths, lambda: _credentials(settings))
        self._channel: _Channel | None = None
        self._retired: set[_Channel] = set()
        self._background: set[asyncio.Task[Any]] = set()
        """Background tasks: renewal of certificates, closing channels, abandoned calls."""

    async def open(self) -> None:
        self._channel = _Channel(self._target, self._options, self._credentials)
        if self._credentials is not None:
            self._keep(asyncio.create_task(keep_renewing(self._credentials, lambda _: self._replace_channel())))

    async def close(self) -> None:
        channels = [self._current_channel(), *self._retired]
        self._channel = None
        for task in self._background:
            task.cancel()
        for channel in channels:
            await channel.grpc_channel.close(None)
        if self._background:
            await asyncio.wait(self._background)

    async def model_spec(self) -> ModelSpec:
        metadata = await self._ask("ModelMetadata", name=self._model_name)
        try:
            config = (await self._ask("ModelConfig", name=self._model_name)).config
        except PredictorError as exc:
            if _status_of(exc) is not StatusCode.UNIMPLEMENTED:
                raise
            config = None
        return call_codec(model_spec, metadata, config)

    async def model_ready(self) -> bool:
        try:
            return bool((await self._ask("ModelReady", name=self._model_name)).ready)
        except PredictorUnavailable as exc:
            if _status_of(exc) is StatusCode.NOT_FOUND:
                return False
            raise

    async def infer(self, call: ModelCall, destination: Destination | None = None) -> Reply:
        placements = NO_PLACEMENTS if destination is None else destination.placements
        model = self._model_name
        request = call_codec(codec.encode_infer_request, model, call.inputs, call.outputs, placements)
        try:
            response = await self._call("ModelInfer", request, metadata_of(call.headers), call.cancellable)
        except RequestError as error:
            if destination is not None:
                destination.settled = has_ended(error)
                if _status_of(error) is StatusCode.NOT_FOUND and destination.region in str(error):
                    raise UnknownRegion(str(error)) from error
            raise
        if destination is not None:
            destination.settled = True
        return Reply(verified(call.outputs, call_codec(codec.decode_infer_response, response, placements)))

    async def stream(self, call: ModelCall) -> AsyncGenerator[Outputs, None]:
        model = self._model_name
        request = call_codec(codec.encode_infer_request, model, call.inputs, call.outputs, streamed=True)
        channel = self._channel_for_call()
        connection = channel.connection
        stream = channel.stream(request, metadata=[_STREAM_METADATA, *metadata_of(call.headers)])
        answered = final = False
        try:
            while (body := await stream.read()) is not _EOF:
                channel.unanswered = 0
                if final:  # read on to the end of the call, which Triton ends itself; don't cancel it
                    continue
                error, tensors, final = call_codec(codec.decode_stream_response, body)
                if error:
                    raise failures.error_from_message(error, self._address)
                answered = True
                if verified(call.outputs, tensors, some=True):
                    yield tensors
        except grpc.aio.AioRpcError as error:
            channel.unanswered = 0
            raise self._failed(error, channel, connection, failures.LOST if answered else failures.NO_ANSWER) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._closed() from None  # closing the channel cancels its calls
        finally:
            stream.cancel()  # does nothing to a call that has ended

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
            if _status_of(exc) is None:
                raise
            return None  # the server has no such method, or it is disabled
        return call_codec(repository_entries, index)

    async def _ask(self, method: str, **fields: str | int) -> Any:
        """The response of a method other than inference, within the timeout."""
        try:
            async with asyncio.timeout(self._timeout):
                body = await self._call(method, codec.encode_request(method, **fields))
        except TimeoutError as exc:
            raise failures.timeout_error(self._address, self._timeout) from exc
        return call_codec(codec.decode_response, method, body)

    async def _call(
        self, method: str, request: bytes, metadata: Sequence[tuple[str, str]] = (), cancellable: bool = False
    ) -> bytes:
        """The serialized response of a unary call. See the module's docstring for its cancellation."""
        channel = self._channel_for_call()
        connection = channel.connection
        loop = asyncio.get_running_loop()
        call = asyncio.ensure_future(channel.method(method)(request, metadata=metadata))
        ended = asyncio.Event()
        call.add_done_callback(lambda _: ended.set())
        try:
            await ended.wait()  # cancelling this does not cancel the call
        except asyncio.CancelledError:
            self._keep(call)
            if cancellable:
                loop.call_later(LINGER_SECONDS, call.cancel)  # does nothing to a call that has ended
            else:
                channel.abandoned.add(call)
                call.add_done_callback(channel.abandoned.discard)
                if len(channel.abandoned) > MAX_ABANDONED and channel is self._channel:
                    self._replace_channel()
            raise
        if call.cancelled():  # by closing the channel
            raise self._closed()
        channel.unanswered = 0
        try:
            return call.result()
        except grpc.aio.AioRpcError as error:
            raise self._failed(error, channel, connection, failures.NO_ANSWER) from error

    def _keep(self, task: asyncio.Task[Any]) -> None:
        """Keeps a reference to a background task until it ends."""
        self._background.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # or asyncio would log an exception that was never retrieved

    def _current_channel(self) -> _Channel:
        """The channel for new calls. Raises PredictorUnavailable after ``close``."""
        if self._channel is None:
            raise self._closed()
        return self._channel

    def _channel_for_call(self) -> _Channel:
        """The channel for a new call; starts a liveness check if the channel is silent."""
        channel, now = self._current_channel(), asyncio.get_running_loop().time()
        if not channel.unanswered:
            channel.silent_since = now
        elif channel.unanswered >= MAX_UNANSWERED and now - channel.silent_since > min(SILENT_SECONDS, self._timeout):
            channel.unanswered, channel.silent_since = 0, now
            self._keep(asyncio.create_task(self._probe_channel(channel)))
        channel.unanswered += 1
        return channel

    async def _probe_channel(self, channel: _Channel) -> None:
        """Replaces a channel without a response to ServerLive, which Triton answers even while a model is slow."""
        call = asyncio.ensure_future(channel.method("ServerLive")(codec.encode_request("ServerLive"), metadata=()))
        self._keep(call)  # after the timeout it ends with the channel
        answered, _ = await asyncio.wait([call], timeout=min(PONG_SECONDS, self._timeout))
        if not answered and channel is self._channel:
            logger.warning(
                "the predictor at %s does not answer on an open connection; new calls get another one", self._address
            )
            self._replace_channel()

    def _replace_channel(self) -> None:
        """Uses another channel for new calls. The old one closes after the timeout, when its calls have ended."""
        old, self._channel = self._current_channel(), _Channel(self._target, self._options, self._credentials)
        self._retired.add(old)
        self._keep(asyncio.create_task(self._retire(old)))

    async def _retire(self, channel: _Channel) -> None:
        await asyncio.sleep(self._timeout)
        self._retired.discard(channel)
        await channel.grpc_channel.close(None)

    def _closed(self) -> PredictorUnavailable:
        return PredictorUnavailable(f"the connections to the predictor at {self._address} are closed", failures.LOST)

    def _failed(
        self, error: grpc.aio.AioRpcError, channel: _Channel, connection: _Connection, lost: str
    ) -> RequestError:
        """The service's error for gRPC's; ``lost`` is the failure code for a lost connection."""
        status, details, tls = error.code(), _reason(error), self._credentials is not None
        if status is StatusCode.UNKNOWN and details.startswith(_BROKEN_FRAMES):
            status = StatusCode.UNAVAILABLE
        kind, advice = _kind(status, details, lost), ""
        if status is StatusCode.DEADLINE_EXCEEDED:
            advice = f" (the timeout is {self._timeout:g} s, {TIMEOUT_FLAG})"
        elif status is StatusCode.RESOURCE_EXHAUSTED:
            advice = (
                " (a message may be too large: see --grpc_max_send_message_length, --grpc_max_receive_message_length, "
                "--max_predictor_response_bytes and the predictor's own limits)"
            )
        elif kind == failures.CONNECTION and not tls and any(words in details for words in _NOT_GRPC):
            advice = " (if that is its REST port, use --predictor_protocol=v2)"
        elif kind == failures.CONNECTION and tls and "handshake" in details.lower():
            advice = f" ({TLS_FLAGS} ask for TLS)"
        problem = _PROBLEMS.get(status, f"answered {status.name}")
        message = f"the predictor at {self._address} {problem}: {quoted(details)}{advice}"
        failure = _ERRORS.get(status, PredictorError)(message)
        if isinstance(failure, PredictorUnavailable):
            failure.kind = kind
            if kind in (failures.LOST, failures.NO_ANSWER):
                failure.connection = connection
                if channel.connection is connection:
                    channel.connection = _Connection()
        return failure


class _Connection:
    """The identity of a channel's present connection, which gRPC hides. All calls between two losses share it."""


class _Channel:
    """A gRPC channel with its methods and the state of its calls."""

    def __init__(self, target: str, options: Sequence[tuple[str, Any]], credentials: _Credentials | None) -> None:
        if credentials is None:
            self.grpc_channel = grpc.aio.insecure_channel(target, options)
        else:
            self.grpc_channel = grpc.aio.secure_channel(target, credentials.value, options)
        self.connection = _Connection()
        self.abandoned: set[asyncio.Task[bytes]] = set()
        self.unanswered = 0  # calls started since the last response to any call
        self.silent_since = 0.0  # the start of the first of them, in the loop's time
        self.stream: Any = self.grpc_channel.unary_stream(f"/{codec.SERVICE}/ModelStreamInfer", None, None)
        # Unary methods by name, with bytes in and out.
        self.method: Callable[[str], Callable[..., Awaitable[bytes]]] = cache(
            lambda name: self.grpc_channel.unary_unary(f"/{codec.SERVICE}/{name}", None, None)
        )


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


def _options(settings: PredictorSettings, address: Address) -> list[tuple[str, Any]]:
    # The equivalent of Host, always with the port. TLS expects this host in the certificate.
    authority = f"{address.name.rstrip('.') if address.use_ssl else address.name}:{address.port}"
    max_receive = settings.max_response_bytes
    if settings.max_receive_message_length != -1:
        max_receive = min(max_receive, settings.max_receive_message_length)
    return [
        ("grpc.default_authority", authority),
        ("grpc.max_send_message_length", settings.max_send_message_length),
        ("grpc.max_receive_message_length", max_receive),
        ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
        # By default, channels with the same arguments share a connection, even a broken one that is being replaced.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.service_config_disable_resolution", 1),
        # A bit per algorithm: only identity. Compressing logits costs Triton far more time than it saves.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # Reconnects to a restarted predictor within 0.3 s. The minimum is the timeout of one attempt, not a pause.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
        ("grpc.dns_min_time_between_resolutions_ms", 500),
        ("grpc.dns_ares_query_timeout", int(CONNECT_SECONDS * 1000)),
        ("grpc.client_idle_timeout_ms", int(_IDLE_SECONDS * 1000)),
        # At most two pings after each request, and none without a call. gRPC servers such as Triton close a connection
        # with too_many_pings at the fourth ping within five minutes in which they send nothing.
        ("grpc.keepalive_time_ms", int(PING_SECONDS * 1000)),
        ("grpc.keepalive_timeout_ms", int(PONG_SECONDS * 1000)),
        ("grpc.http2.ping_timeout_ms", int(PONG_SECONDS * 1000)),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 2),
    ]


def _credentials(settings: PredictorSettings) -> grpc.ChannelCredentials:
    """Reads the trusted and the client certificates. Raises ConfigError if they can't be used."""
    ssl_context(settings)  # validates the files, which gRPC does only in a handshake
    roots, client = root_certificates(settings), client_certificate(settings)
    if roots is None:  # gRPC would use its own list
        roots = system_certificates()
    pem = None if roots is None else roots.encode("ascii", "replace")
    return grpc.ssl_channel_credentials(pem, *((client.key, client.chain) if client is not None else ()))


# gRPC statuses and messages as errors

_ERRORS: Mapping[StatusCode, type[RequestError]] = {
    StatusCode.UNAVAILABLE: PredictorUnavailable,
    StatusCode.NOT_FOUND: PredictorUnavailable,
    StatusCode.CANCELLED: PredictorUnavailable,  # by a server that shuts down
    StatusCode.DEADLINE_EXCEEDED: PredictorTimeout,
    StatusCode.PERMISSION_DENIED: PredictorDenied,
    StatusCode.UNAUTHENTICATED: PredictorDenied,
}
"""The errors for statuses; PredictorError for all others."""

_PROBLEMS = {StatusCode.UNAVAILABLE: "is unavailable", StatusCode.DEADLINE_EXCEEDED: "gave no answer in time"}
_STREAM_REMOVED = re.compile(r"Stream removed \((.*)\)", re.DOTALL)
"""gRPC's wrapper around the reason when it ends a call itself."""

_NOT_CONNECTED = ("failed to connect", "errors resolving", "DNS resolution failed", "name resolution failure")
_BROKEN_FRAMES = "Failed parsing HTTP/2"
_LOST = (
    "Socket closed",
    "recvmsg",
    "Connection reset",
    "Broken pipe",
    "ping timeout",
    "GOAWAY received",
    _BROKEN_FRAMES,
)
_NOT_GRPC = ("http1.x server", "Expected SETTINGS frame", "Socket closed")
"""Parts of gRPC's messages with the status UNAVAILABLE: without a connection, after broken HTTP/2 frames (UNKNOWN too),
after a lost connection, and from a server of another protocol."""

_CONNECTION_FAULTS = ("RST_STREAM", "HTTP2", "http2", "HTTP/2")
"""Parts of messages with the status INTERNAL about a lost connection. A failed model of Triton is INTERNAL, too."""

_REFUSALS = (*failures.BUSY_WORDS, "stopped accepting", "unknown model")
"""Parts of Triton's messages with the status UNAVAILABLE. A proxy's messages are about lost connections."""

_ENDED = frozenset(
    {StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND, StatusCode.ALREADY_EXISTS, StatusCode.UNIMPLEMENTED}
)
"""Statuses after which the predictor has certainly ended a call."""


def _reason(error: grpc.aio.AioRpcError) -> str:
    details = error.details() or ""
    match = _STREAM_REMOVED.fullmatch(details)
    return match[1] if match is not None else details


def _kind(status: StatusCode, details: str, lost: str) -> str:
    """The failure code for a status and its message."""
    if status is StatusCode.CANCELLED:
        return failures.LOST
    if status is StatusCode.UNAVAILABLE and any(words in details for words in _NOT_CONNECTED):
        return failures.CONNECTION
    if status is StatusCode.UNAVAILABLE and any(words in details for words in _LOST):
        return lost
    return failures.refusal_kind(details)


def _status_of(error: RequestError) -> StatusCode | None:
    """The gRPC status that caused an error, None for another cause."""
    return error.__cause__.code() if isinstance(error.__cause__, grpc.aio.AioRpcError) else None


def has_ended(error: RequestError) -> bool:
    """Whether a failed call has certainly ended at the predictor, too."""
    cause = error.__cause__
    if not isinstance(cause, grpc.aio.AioRpcError):
        return False
    status, details = cause.code(), _reason(cause)
    if status is StatusCode.INTERNAL:
        return not any(words in details for words in _CONNECTION_FAULTS)
    if status is StatusCode.UNAVAILABLE:
        return any(words in details for words in (*_REFUSALS, *_NOT_CONNECTED))
    return status in _ENDED or (status is StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details)
