"""Connections over gRPC: a channel for the calls of any number of models, its supervision, and errors of its calls.

**Unary calls are never cancelled on the wire and carry no deadline there**, since either can crash Triton before 25.06
(issues 7368 and 8034). After a cancelled call, the predictor continues, and the result is dropped. Once more than
MAX_ABANDONED such calls are open, new calls use another channel, and the old one closes after the timeout, when its
calls have ended, too. There are two exceptions: calls of generations (``cancellable``) are cancelled after
LINGER_SECONDS, and calls that never end with their channel, after RETIRED_SECONDS.

Streams have connections of their own (grpc_streams.py). One that is closed early is cancelled in a pause of its
messages, PAUSE_SECONDS long, and after LINGER_SECONDS at the latest.

A channel has one TCP connection at a time. A second one is no faster with 32 small calls in flight.

After SILENT_SECONDS without a response, ServerLive probes a channel, and without a response another channel replaces
it. After a malformed frame from a proxy, gRPC can mistake all later responses for the rest of that frame. Its keepalive
does not detect that, since bytes keep arriving.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import grpc
import grpc.aio
from grpc import StatusCode

from hf_transformer.credentials import ReloadableFile, keep_renewing
from hf_transformer.errors import PredictorDenied, PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.predictor import failures
from hf_transformer.predictor.base import Address, PredictorSettings, SharedConnections, parse_address
from hf_transformer.predictor.failures import TIMEOUT_FLAG, TLS_FLAGS, quoted
from hf_transformer.predictor.grpc_status import CallFailed
from hf_transformer.predictor.grpc_stream_connection import MAX_METADATA_BYTES, StreamSettings
from hf_transformer.predictor.grpc_streams import CONNECT_SECONDS, StreamConnections
from hf_transformer.predictor.tls import client_certificate, root_certificates, ssl_context, system_certificates
from hf_transformer.protocol import grpc as codec

logger = logging.getLogger(__name__)

MAX_ABANDONED: Final = 64
"""The most abandoned calls of one channel. Beyond it, new calls use another channel."""

LINGER_SECONDS = 1.0
"""The delay before a ``cancellable`` call is cancelled on the wire; see docs/reliability.md for measurements."""

PAUSE_SECONDS = 0.005
"""The pause after a stream's message in which it is cancelled. A model that sends 50 tokens a second makes pauses of
20 ms, and one that is ending sends its last responses within less than 1 ms."""

RETIRED_SECONDS = 60.0
"""The time, or the timeout if longer, after which a replaced channel closes although calls on it are open. Calls of a
predictor that hangs end when it goes on; those after a malformed frame never do."""

PING_SECONDS, PONG_SECONDS = 10.0, 10.0
"""The interval of keepalive pings during a call, and the timeout of a ping."""

MAX_UNANSWERED: Final = 3
SILENT_SECONDS = PING_SECONDS + PONG_SECONDS
"""A channel counts as silent if MAX_UNANSWERED calls have had no response for this time, or for the calls' timeout if
shorter."""

_IDLE_SECONDS = 240.0
"""The idle time before a connection is closed. A firewall or NAT drops idle connections silently."""


@dataclass(frozen=True, slots=True)
class TlsCredentials:
    """The same certificates for grpc.aio's channels and for the connections of streams."""

    channel: grpc.ChannelCredentials
    context: ssl.SSLContext


_Credentials: TypeAlias = ReloadableFile[TlsCredentials]


class GrpcConnections(SharedConnections):
    """The channel to one server, with its replacements. The last user's ``close`` ends open calls, which raise
    PredictorUnavailable."""

    def __init__(self, settings: PredictorSettings) -> None:
        super().__init__()
        address = parse_address(settings)
        host = f"[{address.host}]" if ":" in address.host else address.name
        self.address = str(address)
        self.timeout = settings.timeout
        self._settings = settings
        self._texts: GrpcConnections | None = None
        self._target = f"dns:///{quote(host, safe='[]:')}:{address.port}"
        self._options = _options(settings, address)
        self._address, self._stream_settings = address, _stream_settings(settings, address)
        self._credentials: _Credentials | None = None
        if address.use_ssl:
            files = [settings.ca_file, settings.ca_path, settings.cert_file, settings.key_file]
            paths = [path for path in files if path is not None]
            self._credentials = ReloadableFile("certificates for the predictor", paths, lambda: _credentials(settings))
        self._channel: Channel | None = None
        self.streams: StreamConnections
        self._retired: set[Channel] = set()
        self._background: set[asyncio.Task[Any]] = set()
        """Background tasks: renewal of certificates, closing channels, abandoned calls."""

    def open(self) -> None:
        self._channel = Channel(self._target, self._options, self._credentials)
        self.streams = StreamConnections(self._address, self._tls_context, self._stream_settings)
        if self._credentials is not None:
            self._keep(asyncio.create_task(keep_renewing(self._credentials, lambda _: self._renew())))

    def _tls_context(self) -> ssl.SSLContext | None:
        return None if self._credentials is None else self._credentials.value.context

    def _renew(self) -> None:
        """Uses the new certificates for new calls."""
        self._replace_channel()
        self.streams.replace()

    def for_texts(self) -> GrpcConnections:
        """The connections for generated texts, with the limit of a stream's responses. gRPC has one limit for all
        responses of a method, and other models answer ModelInfer with large tensors."""
        if self._texts is None:
            limit = min(self._settings.max_response_bytes, self._settings.max_event_bytes)
            self._texts = GrpcConnections(replace(self._settings, max_response_bytes=limit))
            self._texts.open()
        return self._texts

    async def close(self) -> None:
        if self._texts is not None:
            await self._texts.close()
            self._texts = None
        channels = [self._current_channel(), *self._retired]
        self._channel = None
        self._retired.clear()
        for task in self._background:
            task.cancel()
        await self.streams.close()
        for channel in channels:
            await channel.grpc_channel.close(None)
        if self._background:
            await asyncio.wait(self._background)

    async def call(
        self, method: str, request: bytes, metadata: Sequence[tuple[str, str]] = (), cancellable: bool = False
    ) -> bytes:
        """The serialized response of a unary call. See the module's docstring for its cancellation."""
        channel = self.channel_for_call()
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
                channel.abandon(call)
                if len(channel.abandoned) > MAX_ABANDONED and channel is self._channel:
                    self._replace_channel()
            raise
        if call.cancelled():  # by closing the channel
            raise self.closed()
        channel.unanswered = 0
        try:
            return call.result()
        except grpc.aio.AioRpcError as error:
            raise self.failed(error, channel, connection, failures.NO_ANSWER) from error

    def _keep(self, task: asyncio.Task[Any]) -> None:
        """Keeps a reference to a background task until it ends."""
        self._background.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # otherwise asyncio would log an exception that was never retrieved

    def _current_channel(self) -> Channel:
        """The channel for new calls. Raises PredictorUnavailable after ``close``."""
        if self._channel is None:
            raise self.closed()
        return self._channel

    def channel_for_call(self) -> Channel:
        """The channel for a new call; starts a liveness check if the channel is silent."""
        channel, now = self._current_channel(), asyncio.get_running_loop().time()
        if not channel.unanswered:
            channel.silent_since = now
        elif channel.unanswered >= MAX_UNANSWERED and now - channel.silent_since > min(SILENT_SECONDS, self.timeout):
            channel.unanswered, channel.silent_since = 0, now
            self._keep(asyncio.create_task(self._probe_channel(channel)))
        channel.unanswered += 1
        return channel

    async def _probe_channel(self, channel: Channel) -> None:
        """Replaces a channel without a response to ServerLive, which Triton answers even while a model is slow."""
        call = asyncio.ensure_future(channel.method("ServerLive")(codec.encode_request("ServerLive"), metadata=()))
        channel.abandon(call)  # if there is no response, it ends with the channel
        self._keep(call)
        answered, _ = await asyncio.wait([call], timeout=min(PONG_SECONDS, self.timeout))
        if not answered and channel is self._channel:
            logger.warning(
                "the predictor at %s does not answer on an open connection; new calls get another one", self.address
            )
            self._replace_channel()

    def _replace_channel(self) -> None:
        """Uses another channel for new calls. The old one closes when its calls have ended."""
        old, self._channel = self._current_channel(), Channel(self._target, self._options, self._credentials)
        self._retired.add(old)
        self._keep(asyncio.create_task(self._retire(old)))

    async def _retire(self, channel: Channel) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time() + RETIRED_SECONDS
        while True:
            await asyncio.sleep(self.timeout)
            if not channel.abandoned or loop.time() >= last:
                break
        self._retired.discard(channel)
        await channel.grpc_channel.close(None)

    def closed(self) -> PredictorUnavailable:
        return PredictorUnavailable(f"the connections to the predictor at {self.address} are closed", failures.LOST)

    def failed(
        self, error: grpc.aio.AioRpcError | CallFailed, channel: Channel | None, connection: object, lost: str
    ) -> RequestError:
        """The service's error for gRPC's; ``lost`` is the failure code for a lost connection.

        ``connection`` identifies the call's connection, and ``channel`` is None for a stream.
        """
        status, details, tls = error.code(), _reason(error), self._credentials is not None
        if status is StatusCode.UNKNOWN and details.startswith(_BROKEN_FRAMES):
            status = StatusCode.UNAVAILABLE
        kind, advice = _kind(status, details, lost), ""
        if status is StatusCode.DEADLINE_EXCEEDED:
            advice = f" (the timeout is {self.timeout:g} s, {TIMEOUT_FLAG})"
        elif status is StatusCode.RESOURCE_EXHAUSTED:
            advice = (
                " (a message may be too large: see --grpc_max_send_message_length, --grpc_max_receive_message_length, "
                "--max_predictor_response_bytes, --max_predictor_event_bytes and the predictor's own limits)"
            )
        elif kind == failures.CONNECTION and not tls and any(words in details for words in _NOT_GRPC):
            advice = " (if that is its REST port, use --predictor_protocol=v2)"
        elif kind == failures.CONNECTION and tls and "handshake" in details.lower():
            advice = f" ({TLS_FLAGS} ask for TLS)"
        problem = _PROBLEMS.get(status, f"answered {status.name}")
        message = f"the predictor at {self.address} {problem}: {quoted(details)}{advice}"
        failure = _ERRORS.get(status, PredictorError)(message)
        if isinstance(failure, PredictorUnavailable):
            failure.kind = kind
            if kind in (failures.LOST, failures.NO_ANSWER):
                failure.connection = connection
                if channel is not None and channel.connection is connection:
                    channel.connection = ChannelConnection()
        return failure


class ChannelConnection:
    """An identifier of a channel's present connection, which gRPC does not expose. A new one follows each lost
    connection."""


class Channel:
    """A gRPC channel with its methods and the state of its calls."""

    def __init__(self, target: str, options: Sequence[tuple[str, Any]], credentials: _Credentials | None) -> None:
        if credentials is None:
            self.grpc_channel = grpc.aio.insecure_channel(target, options)
        else:
            self.grpc_channel = grpc.aio.secure_channel(target, credentials.value.channel, options)
        self.connection = ChannelConnection()
        self.abandoned: set[asyncio.Task[bytes]] = set()
        self.unanswered = 0  # calls started since the last response to any call
        self.silent_since = 0.0  # the start of the first of them, in the loop's time
        # Unary methods by name, with bytes in and out.
        self.method: Callable[[str], Callable[..., Awaitable[bytes]]] = cache(
            lambda name: self.grpc_channel.unary_unary(f"/{codec.SERVICE}/{name}", None, None)
        )

    def abandon(self, call: asyncio.Task[bytes]) -> None:
        """Counts a call without a caller until it ends."""
        self.abandoned.add(call)
        call.add_done_callback(self.abandoned.discard)


def _authority(address: Address) -> str:
    """The equivalent of Host, always with the port. TLS expects this host in the certificate."""
    return f"{address.name.rstrip('.') if address.use_ssl else address.name}:{address.port}"


def _max_receive(settings: PredictorSettings) -> int:
    if settings.max_receive_message_length == -1:
        return settings.max_response_bytes
    return min(settings.max_response_bytes, settings.max_receive_message_length)


def _stream_settings(settings: PredictorSettings, address: Address) -> StreamSettings:
    return StreamSettings(
        authority=_authority(address),
        timeout=settings.timeout,
        max_send=settings.max_send_message_length,
        max_receive=min(_max_receive(settings), settings.max_event_bytes),
        ping_seconds=PING_SECONDS,
        pong_seconds=PONG_SECONDS,
        idle_seconds=_IDLE_SECONDS,
        max_unanswered=MAX_UNANSWERED,
        silent_seconds=SILENT_SECONDS,
        pause_seconds=PAUSE_SECONDS,
        linger_seconds=LINGER_SECONDS,
    )


def _options(settings: PredictorSettings, address: Address) -> list[tuple[str, Any]]:
    return [
        ("grpc.default_authority", _authority(address)),
        ("grpc.max_send_message_length", settings.max_send_message_length),
        ("grpc.max_receive_message_length", _max_receive(settings)),
        ("grpc.service_config", _service_config(_max_receive(settings), settings.max_event_bytes)),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
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


def _service_config(max_response: int, max_event: int) -> str:
    """Limits of responses by method, as gRPC's service config: ``max_event`` for all but ModelInfer."""
    limits = {codec.SERVICE: max_event, f"{codec.SERVICE}/ModelInfer": max_response}
    methods = []
    for path, limit in limits.items():
        service, _, method = path.partition("/")
        name = {"service": service, "method": method} if method else {"service": service}
        methods.append({"name": [name], "maxResponseMessageBytes": limit})
    return json.dumps({"methodConfig": methods})


def _credentials(settings: PredictorSettings) -> TlsCredentials:
    """Reads the trusted and the client certificates. Raises ConfigError if they can't be used."""
    context = ssl_context(settings)  # validates the files, which gRPC does only in a handshake
    context.set_alpn_protocols(["h2"])
    roots, client = root_certificates(settings), client_certificate(settings)
    if roots is None:  # gRPC would use its own list
        roots = system_certificates()
    pem = None if roots is None else roots.encode("ascii", "replace")
    pair = (client.key, client.chain) if client is not None else ()
    return TlsCredentials(grpc.ssl_channel_credentials(pem, *pair), context)


# gRPC statuses and messages as errors

_ERRORS: Mapping[StatusCode, type[RequestError]] = {
    StatusCode.UNAVAILABLE: PredictorUnavailable,
    StatusCode.NOT_FOUND: PredictorUnavailable,
    StatusCode.CANCELLED: PredictorUnavailable,  # by a server that is shutting down
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
"""Parts of gRPC's UNAVAILABLE messages without a connection, after a lost one, from a server of another protocol, and
after broken HTTP/2 frames (UNKNOWN too)."""

_CONNECTION_FAULTS = ("RST_STREAM", "HTTP2", "http2", "HTTP/2")
"""Parts of INTERNAL messages about a lost connection. Triton also reports a failed model as INTERNAL."""

_REFUSALS = (*failures.BUSY_WORDS, "stopped accepting", "unknown model")
"""Parts of Triton's UNAVAILABLE messages. A proxy's messages are about lost connections."""

_ENDED = frozenset(
    {StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND, StatusCode.ALREADY_EXISTS, StatusCode.UNIMPLEMENTED}
)
"""Statuses after which the predictor has certainly ended a call."""


def _reason(error: grpc.aio.AioRpcError | CallFailed) -> str:
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


def status_of(error: RequestError) -> StatusCode | None:
    """The gRPC status that caused an error, None for another cause."""
    return error.__cause__.code() if isinstance(error.__cause__, grpc.aio.AioRpcError | CallFailed) else None


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
