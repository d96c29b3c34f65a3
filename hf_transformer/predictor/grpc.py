"""The V2 protocol over gRPC (grpc.aio), tensors as raw contents.

**Unary calls are never cancelled on the wire and carry no deadline there**, since either can crash a Triton before
25.06 (its issues 7368 and 8034). When ``infer`` is cancelled, its call ends by itself, and the result is dropped. When
more than MOST_ABANDONED such calls are open, new calls get another channel, and the old one closes after the timeout.
Two kinds of calls are cancelled on the wire: those of generations (``cancellable``), after LINGER_SECONDS, and streams
that are closed early.

A channel is one TCP connection at a time. More than one is not faster with 32 small calls in flight.

A channel that is silent for SILENT_SECONDS is asked for ServerLive, and replaced if there is no answer. After a
malformed frame from a proxy, gRPC can take all later answers for the rest of that frame; its keepalive does not notice,
since bytes keep arriving.
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
from hf_transformer.predictor.tls import own_certificate, root_certificates, ssl_context, system_certificates
from hf_transformer.protocol import grpc as codec
from hf_transformer.protocol.descriptions import model_spec, repository_entries, server_description
from hf_transformer.protocol.tensors import NOWHERE
from hf_transformer.types.tensors import ModelSpec, RepositoryEntry, ServerDescription

logger = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 10.0
"""How long a connection may take to open, TLS included."""

MOST_ABANDONED: Final = 64
"""Calls of one channel that may be open without a caller, before new calls get another channel."""

LINGER_SECONDS = 1.0
"""In which a ``cancellable`` call may still end by itself; docs/reliability.md has the numbers."""

PING_SECONDS, PONG_SECONDS = 10.0, 10.0
"""Silence during a call after which the server is pinged, and the time that it has to answer."""

MOST_UNANSWERED: Final = 3
SILENT_SECONDS = PING_SECONDS + PONG_SECONDS
"""A channel is silent after this time, or a shorter timeout of calls, without an answer to MOST_UNANSWERED calls."""

_IDLE_SECONDS = 240.0
"""After which an idle connection is closed: a firewall or NAT on the way may have forgotten it without a word."""

_METADATA_BYTES = 2**16
"""Of a response. Triton puts a backend's traceback there, and gRPC's own limit of 16 KiB would hide it."""

_Credentials: TypeAlias = ReloadableFile[grpc.ChannelCredentials]

_EOF: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined] # the stubs lack it

_STREAM_METADATA = ("triton_grpc_error", "true")
"""Asks Triton (24.08 and newer) to end a failed stream with the error's own status, not only with a message."""


class GrpcPredictor(Transport):
    """A predictor behind gRPC, with a connection of its own. Also answers what the doctor asks of the server."""

    def __init__(self, settings: PredictorSettings) -> None:
        address = parse_address(settings)
        host = f"[{address.host}]" if ":" in address.host else address.name
        self._target = f"dns:///{quote(host, safe='[]:')}:{address.port}"
        self._options = _options(settings, address)
        self._where = str(address)
        self._model_name = settings.model_name
        self._timeout = settings.timeout
        self._credentials: _Credentials | None = None
        if address.use_ssl:
            files = [settings.ca_file, settings.ca_path, settings.cert_file, settings.key_file]
            paths = [path for path in files if path is not None]
            self._credentials = ReloadableFile("certificates for the predictor", paths, lambda: _credentials(settings))
        self._line: _Channel | None = None
        self._retired: set[_Channel] = set()
        self._background: set[asyncio.Task[Any]] = set()
        """The renewal of certificates, channels that are closing, and calls without a caller."""

    async def open(self) -> None:
        self._line = _Channel(self._target, self._options, self._credentials)
        if self._credentials is not None:
            self._keep(asyncio.create_task(keep_renewing(self._credentials, lambda _: self._replace_line())))

    async def close(self) -> None:
        lines = [self._open_line(), *self._retired]
        self._line = None
        for task in self._background:
            task.cancel()
        for line in lines:
            await line.channel.close(None)
        if self._background:
            await asyncio.wait(self._background)

    async def model_spec(self) -> ModelSpec:
        about = await self._ask("ModelMetadata", name=self._model_name)
        try:
            config = (await self._ask("ModelConfig", name=self._model_name)).config
        except PredictorError as exc:
            if _status_of(exc) is not StatusCode.UNIMPLEMENTED:
                raise
            config = None
        return call_codec(model_spec, about, config)

    async def model_ready(self) -> bool:
        try:
            return bool((await self._ask("ModelReady", name=self._model_name)).ready)
        except PredictorUnavailable as exc:
            if _status_of(exc) is StatusCode.NOT_FOUND:
                return False
            raise

    async def infer(self, call: ModelCall, destination: Destination | None = None) -> Reply:
        placements = NOWHERE if destination is None else destination.placements
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
        line = self._line_for_call()
        connection = line.connection
        stream = line.stream(request, metadata=[_STREAM_METADATA, *metadata_of(call.headers)])
        answered = final = False
        try:
            while (body := await stream.read()) is not _EOF:
                line.unanswered = 0
                if final:  # to its end, since Triton ends the call by itself: a cancellation could only cross that
                    continue
                error, tensors, final = call_codec(codec.decode_stream_response, body)
                if error:
                    raise failures.error_from_message(error, self._where)
                answered = True
                if verified(call.outputs, tensors, some=True):
                    yield tensors
        except grpc.aio.AioRpcError as error:
            line.unanswered = 0
            raise self._failed(error, line, connection, failures.LOST if answered else failures.NO_ANSWER) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._closed() from None  # by closing the channel
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
            return None  # it has no such method, or has it switched off
        return call_codec(repository_entries, index)

    async def _ask(self, method: str, **fields: str | int) -> Any:
        """The response to a call other than an inference. The timeout is its bound."""
        try:
            async with asyncio.timeout(self._timeout):
                body = await self._call(method, codec.encode_request(method, **fields))
        except TimeoutError as exc:
            raise failures.too_late(self._where, self._timeout) from exc
        return call_codec(codec.decode_response, method, body)

    async def _call(
        self, method: str, request: bytes, metadata: Sequence[tuple[str, str]] = (), cancellable: bool = False
    ) -> bytes:
        """The response of a unary call."""
        line = self._line_for_call()
        connection = line.connection
        loop = asyncio.get_running_loop()
        call = asyncio.ensure_future(line.method(method)(request, metadata=metadata))
        ended = asyncio.Event()
        call.add_done_callback(lambda _: ended.set())
        try:
            await ended.wait()  # a cancellation of this leaves the call alone
        except asyncio.CancelledError:
            self._keep(call)
            if cancellable:
                loop.call_later(LINGER_SECONDS, call.cancel)  # does nothing to a call that has ended
            else:
                line.abandoned.add(call)
                call.add_done_callback(line.abandoned.discard)
                if len(line.abandoned) > MOST_ABANDONED and line is self._line:
                    self._replace_line()
            raise
        if call.cancelled():  # only closing the channel does that
            raise self._closed()
        line.unanswered = 0
        try:
            return call.result()
        except grpc.aio.AioRpcError as error:
            raise self._failed(error, line, connection, failures.NO_ANSWER) from error

    def _keep(self, task: asyncio.Task[Any]) -> None:
        """Holds a task that nobody waits for until it ends."""
        self._background.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # or asyncio would log that nobody has asked for it

    def _open_line(self) -> _Channel:
        if self._line is None:
            raise self._closed()
        return self._line

    def _line_for_call(self) -> _Channel:
        """The channel for a new call; starts a liveness check if the channel is silent."""
        line, now = self._open_line(), asyncio.get_running_loop().time()
        if not line.unanswered:
            line.silent_since = now
        elif line.unanswered >= MOST_UNANSWERED and now - line.silent_since > min(SILENT_SECONDS, self._timeout):
            line.unanswered, line.silent_since = 0, now
            self._keep(asyncio.create_task(self._require_answer(line)))
        line.unanswered += 1
        return line

    async def _require_answer(self, line: _Channel) -> None:
        """Replace a channel that does not answer ServerLive, which Triton answers even while a model is slow."""
        call = asyncio.ensure_future(line.method("ServerLive")(codec.encode_request("ServerLive"), metadata=()))
        self._keep(call)  # past its time it is left to end with the channel
        answered, _ = await asyncio.wait([call], timeout=min(PONG_SECONDS, self._timeout))
        if not answered and line is self._line:
            logger.warning(
                "the predictor at %s does not answer on an open connection; new calls get another one", self._where
            )
            self._replace_line()

    def _replace_line(self) -> None:
        """Sends new calls over another channel. The old one stays for the timeout, which bounds the calls on it."""
        old, self._line = self._open_line(), _Channel(self._target, self._options, self._credentials)
        self._retired.add(old)
        self._keep(asyncio.create_task(self._retire(old)))

    async def _retire(self, line: _Channel) -> None:
        await asyncio.sleep(self._timeout)
        self._retired.discard(line)
        await line.channel.close(None)

    def _closed(self) -> PredictorUnavailable:
        return PredictorUnavailable(f"the connections to the predictor at {self._where} are closed", failures.LOST)

    def _failed(self, error: grpc.aio.AioRpcError, line: _Channel, connection: _Connection, lost: str) -> RequestError:
        """The service's error; ``lost`` is the kind of one whose connection ended."""
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
        elif kind == failures.CONNECTION and not tls and any(words in details for words in _NO_GRPC):
            advice = " (if that is its REST port, use --predictor_protocol=v2)"
        elif kind == failures.CONNECTION and tls and "handshake" in details.lower():
            advice = f" ({TLS_FLAGS} ask for TLS)"
        said = _SAID.get(status, f"answered {status.name}")
        found = _ERRORS.get(status, PredictorError)(f"the predictor at {self._where} {said}: {quoted(details)}{advice}")
        if isinstance(found, PredictorUnavailable):
            found.kind = kind
            if kind in (failures.LOST, failures.NO_ANSWER):
                found.connection = connection
                if line.connection is connection:
                    line.connection = _Connection()
        return found


class _Connection:
    """Stands for one connection of a channel, which gRPC does not show: all calls between two losses share it."""


class _Channel:
    """A channel with its methods, made once."""

    def __init__(self, target: str, options: Sequence[tuple[str, Any]], credentials: _Credentials | None) -> None:
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(target, options)
        else:
            self.channel = grpc.aio.secure_channel(target, credentials.value, options)
        self.connection = _Connection()
        self.abandoned: set[asyncio.Task[bytes]] = set()
        self.unanswered = 0  # calls begun since the last answer to any call
        self.silent_since = 0.0  # when the first of them began, in the loop's time
        self.stream: Any = self.channel.unary_stream(f"/{codec.SERVICE}/ModelStreamInfer", None, None)
        # What makes a unary call of a method, with bytes in and out.
        self.method: Callable[[str], Callable[..., Awaitable[bytes]]] = cache(
            lambda name: self.channel.unary_unary(f"/{codec.SERVICE}/{name}", None, None)
        )


def metadata_of(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """The headers as gRPC metadata, without those that gRPC would fail the call for: binary keys (``-bin``), its own
    (``grpc-``), and values that are not ASCII."""
    metadata = []
    for line in forwarded(headers):
        key, _, value = line.removesuffix("\r\n").partition(": ")
        if value.isascii() and not key.endswith("-bin") and not key.startswith("grpc-"):
            metadata.append((key, value))
    return metadata


def _options(settings: PredictorSettings, address: Address) -> list[tuple[str, Any]]:
    # What stands for Host: always with the port. TLS expects this host in the certificate.
    authority = f"{address.name.rstrip('.') if address.use_ssl else address.name}:{address.port}"
    longest = settings.max_receive_message_length
    largest = settings.max_response_bytes if longest == -1 else min(longest, settings.max_response_bytes)
    return [
        ("grpc.default_authority", authority),
        ("grpc.max_send_message_length", settings.max_send_message_length),
        ("grpc.max_receive_message_length", largest),
        ("grpc.max_metadata_size", _METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
        # Else channels with the same arguments share a connection, also with one that is to be replaced.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.service_config_disable_resolution", 1),
        # A bit per algorithm: identity alone. Compressed logits cost Triton far more time than they save.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # A restarted predictor is found again within some 0.3 s. The minimum is the bound of one attempt, not a pause.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
        ("grpc.dns_min_time_between_resolutions_ms", 500),
        ("grpc.dns_ares_query_timeout", int(CONNECT_SECONDS * 1000)),
        ("grpc.client_idle_timeout_ms", int(_IDLE_SECONDS * 1000)),
        # At most two pings after each request, and none without a call: gRPC's servers (Triton's too) end a connection
        # with too_many_pings at the fourth ping that they get in five minutes without sending anything themselves.
        ("grpc.keepalive_time_ms", int(PING_SECONDS * 1000)),
        ("grpc.keepalive_timeout_ms", int(PONG_SECONDS * 1000)),
        ("grpc.http2.ping_timeout_ms", int(PONG_SECONDS * 1000)),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 2),
    ]


def _credentials(settings: PredictorSettings) -> grpc.ChannelCredentials:
    """The certificates to trust and to show, read now. Raises ConfigError where they can't be used."""
    ssl_context(settings)  # checks what gRPC would only complain about in a handshake
    roots, own = root_certificates(settings), own_certificate(settings)
    if roots is None:  # gRPC would take a list of its own
        roots = system_certificates()
    pem = None if roots is None else roots.encode("ascii", "replace")
    return grpc.ssl_channel_credentials(pem, *((own.key, own.chain) if own is not None else ()))


# What became of a call.

_ERRORS: Mapping[StatusCode, type[RequestError]] = {
    StatusCode.UNAVAILABLE: PredictorUnavailable,
    StatusCode.NOT_FOUND: PredictorUnavailable,
    StatusCode.CANCELLED: PredictorUnavailable,  # by the server, which is going away
    StatusCode.DEADLINE_EXCEEDED: PredictorTimeout,
    StatusCode.PERMISSION_DENIED: PredictorDenied,
    StatusCode.UNAUTHENTICATED: PredictorDenied,
}
"""The errors behind statuses; PredictorError is behind all others."""

_SAID = {StatusCode.UNAVAILABLE: "is unavailable", StatusCode.DEADLINE_EXCEEDED: "gave no answer in time"}
_REMOVED = re.compile(r"Stream removed \((.*)\)", re.DOTALL)  # around the reason, when gRPC itself ends a call

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
_NO_GRPC = ("http1.x server", "Expected SETTINGS frame", "Socket closed")
"""In gRPC's own messages with the status UNAVAILABLE: nothing was sent; what came is no HTTP/2 (also UNKNOWN); the
connection ended; the server may speak something else."""

_CONNECTION_FAULTS = ("RST_STREAM", "HTTP2", "http2", "HTTP/2")
"""In messages with the status INTERNAL about a lost connection. Triton says INTERNAL too when a model fails."""

_REFUSALS = (*failures.BUSY_WORDS, "stopped accepting", "unknown model")
"""In Triton's own messages with the status UNAVAILABLE. Those of a proxy are about connections lost during a call."""

_ENDED = frozenset(
    {StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND, StatusCode.ALREADY_EXISTS, StatusCode.UNIMPLEMENTED}
)
"""Statuses after which the predictor certainly does nothing more for a call."""


def _reason(error: grpc.aio.AioRpcError) -> str:
    details = error.details() or ""
    removed = _REMOVED.fullmatch(details)
    return removed[1] if removed is not None else details


def _kind(status: StatusCode, details: str, lost: str) -> str:
    """Which failure code a status has."""
    if status is StatusCode.CANCELLED:
        return failures.LOST
    if status is StatusCode.UNAVAILABLE and any(words in details for words in _NOT_CONNECTED):
        return failures.CONNECTION
    if status is StatusCode.UNAVAILABLE and any(words in details for words in _LOST):
        return lost
    return failures.refusal(details)


def _status_of(error: RequestError) -> StatusCode | None:
    """The status behind an error, None where it came from elsewhere."""
    return error.__cause__.code() if isinstance(error.__cause__, grpc.aio.AioRpcError) else None


def has_ended(error: RequestError) -> bool:
    """Whether a failed call has certainly ended at the predictor too; not sure is no."""
    cause = error.__cause__
    if not isinstance(cause, grpc.aio.AioRpcError):
        return False
    status, details = cause.code(), _reason(cause)
    if status is StatusCode.INTERNAL:
        return not any(words in details for words in _CONNECTION_FAULTS)
    if status is StatusCode.UNAVAILABLE:
        return any(words in details for words in (*_REFUSALS, *_NOT_CONNECTED))
    return status in _ENDED or (status is StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details)
