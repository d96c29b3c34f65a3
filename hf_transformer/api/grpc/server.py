"""The open inference protocol (V2) over gRPC, with health checks and server reflection.

    inference.GRPCInferenceService
        ServerLive, ServerReady, ModelReady     {live} or {ready}
        ServerMetadata, ModelMetadata           names, versions, tensors
        ModelConfig                             tensors in the form of Triton's model configuration
        ModelStatistics, RepositoryIndex        request statistics and served models, in Triton's form
        ModelInfer, ModelStreamInfer            inference on raw or typed tensors
    grpc.health.v1.Health, grpc.reflection.v1alpha.ServerReflection

The server is grpc.aio's. In grpc's synchronous server, a call that waits for the event loop takes 1.3 times the CPU
time (docs/decisions/0026).

Source: https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_grpc.md
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from math import ceil
from types import TracebackType
from typing import Self

import grpc
import grpc.aio

from hf_transformer.api.auth import ApiKeys
from hf_transformer.api.grpc import calls as grpc_calls
from hf_transformer.api.grpc.calls import ActiveCalls
from hf_transformer.api.grpc.infer import Inference
from hf_transformer.api.grpc.interceptor import CallGuard
from hf_transformer.api.grpc.introspection import HEALTH, REFLECTION, Health, metadata_methods, reflection_methods
from hf_transformer.api.grpc.small_messages import SmallMessages
from hf_transformer.api.grpc.stream import stream_method
from hf_transformer.api.service import Service
from hf_transformer.credentials import KeyPair, ReloadableFile, read_key_pair
from hf_transformer.errors import ConfigError
from hf_transformer.protocol.grpc import SERVICE

MAX_OPTION = 2**31 - 1
"""Maximum value of a gRPC option."""
IDENTITY_ONLY, ALL_ALGORITHMS = 0b1, 0b111
"""Bit sets of gRPC's compression algorithms: identity, deflate and gzip."""
MAX_CONCURRENT_STREAMS = 128
"""Maximum concurrent calls of a connection; clients queue further calls. gRPC buffers up to a megabyte of header fields
before it refuses a call with more than 16 KiB. HTTP/2 compresses a field to one byte: 5 MB from one connection take 180
MB of memory, or 290 MB at a maximum of 1,124 calls."""
WINDOW_BYTES = 256 * 1024
"""Bytes that a client may send before the service reads its message. A larger message takes further round trips."""
MAX_REFUSING_SECONDS = 1.0
"""Maximum time in which a closing server refuses new calls. Afterwards, pending calls end as CANCELLED."""
QUIET_SECONDS = 0.1
"""Time without a new call after which the server assumes that no call is pending."""
QUIET_CHECKS = 10
"""Number of checks within QUIET_SECONDS. gRPC delivers a pending call in each iteration of the event loop."""


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """Settings of the gRPC server. Times are in seconds.

    Attributes:
        host, port: address to listen on.
        certificate: PEM files of the certificate and its private key, reloaded on changes; None disables TLS.
        max_receive, max_send: maximum message sizes in bytes, -1 for no limit.
        compression: whether the server accepts compressed messages.
        grace: maximum time for calls in flight to finish when the server closes.
        connections: maximum number of open connections, handshakes included.
        handshake: maximum time for the handshakes of TLS and HTTP/2.
        patience: maximum time for a client to read a response of a stream.
        idle: time after which the server closes a connection without calls.
        age: time after which the server asks the client of a connection to connect again, 10 % more or less; 0 is no
            limit. Calls in flight finish on the old connection.
        age_grace: time for these calls, after which gRPC ends them; 0 is no limit.
    """

    host: str
    port: int
    certificate: tuple[str, str] | None = None
    max_receive: int = -1
    max_send: int = -1
    compression: bool = False
    grace: float = 25.0
    connections: int = 16384
    handshake: float = 60.0
    patience: float = 60.0
    idle: float = 300.0
    age: float = 0.0
    age_grace: float = 0.0

    @property
    def options(self) -> tuple[tuple[str, int], ...]:
        """Channel arguments of the server.

        maximum_concurrent_rpcs is not set: it would also refuse health checks, so that a busy service would restart.
        --max_concurrent_requests limits requests, and stream.py limits the memory of streams.
        """
        return (
            ("grpc.max_receive_message_length", self.max_receive),
            ("grpc.max_send_message_length", self.max_send),
            ("grpc.max_allowed_incoming_connections", min(self.connections, MAX_OPTION)),
            ("grpc.server_handshake_timeout_ms", min(int(self.handshake * 1e3) or 1, MAX_OPTION)),
            ("grpc.max_connection_idle_ms", min(int(self.idle * 1e3) or 1, MAX_OPTION)),
            # MAX_OPTION is gRPC's own value for no limit.
            ("grpc.max_connection_age_ms", min(ceil(self.age * 1e3) or MAX_OPTION, MAX_OPTION)),
            ("grpc.max_connection_age_grace_ms", min(ceil(self.age_grace * 1e3) or MAX_OPTION, MAX_OPTION)),
            ("grpc.max_concurrent_streams", MAX_CONCURRENT_STREAMS),
            # Otherwise the window of a call grows to several megabytes on a fast connection, whether or not the service
            # reads its message: 60 large health checks then took 574 MB, and 214 MB with a fixed window.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
            # gRPC decompresses a message before the service can refuse it: 16 kB may become 16 MB. With compression
            # disabled, gRPC refuses a compressed message by its header, as UNIMPLEMENTED.
            ("grpc.compression_enabled_algorithms_bitset", ALL_ALGORITHMS if self.compression else IDENTITY_ONLY),
            # Overload protection also counts calls that the client considers finished. As UNAVAILABLE, it refused a
            # quarter of the calls of a client with more than MAX_CONCURRENT_STREAMS.
            ("grpc.http.overload_protection", 0),
            # All workers share the port; the serve command has checked that no other process uses it.
            ("grpc.so_reuseport", 1),
            # Clients may send a keepalive ping every few seconds, as the service does to the predictor. By default,
            # gRPC closes the connection at the third ping within a long inference.
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            # End the streams of an unreachable client within two minutes.
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
        )


class DisconnectTracebackFilter(logging.Filter):
    """Drops gRPC's traceback if a client disconnects before it receives the response. Handlers can't catch this error,
    since gRPC sends the response after the handler returns."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        # A failure to start a batch of operations is a bug of the service, such as invalid metadata.
        return not isinstance(error, grpc.aio.InternalError) or "start_batch" in str(error)


class GrpcServer:
    """The gRPC server, an async context manager. The constructor raises ConfigError for an invalid certificate or log
    format; __aenter__ raises ConfigError if the port is unavailable."""

    def __init__(
        self,
        service: Service,
        settings: GrpcSettings,
        keys: ApiKeys | None = None,
        log_format: str | None = None,
        control_keys: ApiKeys | None = None,
    ) -> None:
        self.calls = ActiveCalls(
            keys=keys is not None, timing=service.server_timing, tokenize_timing=service.tokenize_timing
        )
        self._service = service
        self._settings = settings
        has_keys = keys is not None or control_keys is not None
        guard = CallGuard(service.metrics, keys, log_format, control_keys)
        self._guards = [guard] if has_keys or log_format else []
        self._credentials = None if settings.certificate is None else _credentials(*settings.certificate)
        self._closing = asyncio.Event()
        self._server: grpc.aio.Server
        self._shutdown_task: asyncio.Task[None] | None = None
        self._filter = DisconnectTracebackFilter()
        self._logger = logging.getLogger(grpc.aio.InternalError.__module__)  # gRPC names its logger after its module

    async def __aenter__(self) -> Self:
        settings, models = self._settings, self._service.models
        self._server = grpc.aio.server(interceptors=self._guards, options=settings.options)
        inference = Inference(self._service, self._closing, settings.max_send)
        small = SmallMessages()
        methods = {
            **small.handlers(metadata_methods(self._service, self.calls)),
            "ModelInfer": self.calls.unary(inference.infer),
            "ModelStreamInfer": stream_method(inference, self.calls, settings.max_receive, settings.patience),
        }
        services = {
            SERVICE: methods,
            HEALTH: small.handlers(Health(models, self._closing, settings.connections).methods),
            REFLECTION: small.handlers(reflection_methods(methods)),
        }
        for name, handlers in services.items():
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        address = f"[{settings.host}]:{settings.port}" if ":" in settings.host else f"{settings.host}:{settings.port}"
        try:
            if self._credentials is None:
                self._server.add_insecure_port(address)
            else:
                self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            where = f"--grpc_port={settings.port}: can't listen on {settings.host}"
            raise ConfigError(f"{where}: {error}") from error
        self._logger.addFilter(self._filter)
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.start_shutdown()
        if self._shutdown_task is not None:
            await self._shutdown_task
        self._logger.removeFilter(self._filter)

    def start_shutdown(self) -> None:
        """Starts refusing new calls. Calls in flight may finish before the context manager exits."""
        self._closing.set()
        if self._shutdown_task is None:
            self._shutdown_task = asyncio.create_task(self._shutdown())

    async def _shutdown(self) -> None:
        """Stops the server once no handler runs and clients have had CLOSING_WRITE_SECONDS to read their responses.

        gRPC can't end a single call, so a client that reads nothing would delay the shutdown for the whole grace
        period.
        """
        now = asyncio.get_running_loop().time
        latest = now() + self._settings.grace
        await self._refuse_until(now() + max(QUIET_SECONDS, min(MAX_REFUSING_SECONDS, self._settings.grace)))
        stopping = asyncio.create_task(self._server.stop(max(latest - now(), 0.0)))
        while not stopping.done():
            idle = asyncio.create_task(self.calls.wait_until_idle())
            await asyncio.wait((stopping, idle), return_when=asyncio.FIRST_COMPLETED)
            idle.cancel()
            await asyncio.wait((stopping,), timeout=grpc_calls.CLOSING_WRITE_SECONDS)
            if not self.calls.active:
                break
        if not stopping.done():
            await self._server.stop(None)
        await stopping

    async def _refuse_until(self, latest: float) -> None:
        """Waits for QUIET_SECONDS without a new call, at most until ``latest``. Meanwhile, handlers refuse calls."""
        quiet_checks, started = 0, self.calls.started
        while quiet_checks < QUIET_CHECKS and asyncio.get_running_loop().time() < latest:
            await asyncio.sleep(QUIET_SECONDS / QUIET_CHECKS)
            quiet_checks = quiet_checks + 1 if self.calls.started == started else 0
            started = self.calls.started


def _credentials(certificate: str, private_key: str) -> grpc.ServerCredentials:
    """Returns credentials that gRPC reloads when the certificate's files change. Raises ConfigError. Each connection
    costs two calls of ``stat``."""
    files = certificate, private_key
    pair = ReloadableFile("the certificate for gRPC", files, lambda: read_key_pair(*files))

    def configuration(pair: KeyPair) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.chain)])

    def reload() -> grpc.ServerCertificateConfiguration | None:
        return configuration(pair.value) if pair.renew() else None

    # The type stubs lack None, which means unchanged.
    return grpc.dynamic_ssl_server_credentials(configuration(pair.value), reload)  # type: ignore[arg-type]  # wrong stub
