"""The open inference protocol (V2) over gRPC, with health checks and server reflection.

    inference.GRPCInferenceService
        ServerLive, ServerReady, ModelReady     {live} or {ready}
        ServerMetadata, ModelMetadata           names, versions, tensors
        ModelConfig                             tensors in the form of Triton's configuration, for its clients
        ModelStatistics, RepositoryIndex        counts and times, and the served models, in Triton's form
        ModelInfer, ModelStreamInfer            tensors -> tensors, raw or typed
    grpc.health.v1.Health, grpc.reflection.v1alpha.ServerReflection

Source: https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_grpc.md
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import grpc
import grpc.aio

from hf_transformer.api.auth import ApiKeys
from hf_transformer.api.grpc import calls as grpc_calls
from hf_transformer.api.grpc.calls import ActiveCalls
from hf_transformer.api.grpc.infer import Inference
from hf_transformer.api.grpc.interceptor import CallGuard
from hf_transformer.api.grpc.introspection import HEALTH, Health, add_reflection, metadata_methods
from hf_transformer.api.grpc.stream import stream_method
from hf_transformer.api.service import Service
from hf_transformer.credentials import KeyPair, ReloadableFile, read_key_pair
from hf_transformer.errors import ConfigError
from hf_transformer.protocol.grpc import SERVICE

MAX_OPTION = 2**31 - 1
"""The largest value of a gRPC option."""
IDENTITY_ONLY, ALL_ALGORITHMS = 0b1, 0b111
"""Sets of gRPC's compression algorithms, with a bit for each of identity, deflate and gzip."""
MAX_CONCURRENT_STREAMS = 128
"""Concurrent calls of one connection; further calls wait in the client. gRPC refuses a call with more than 16 KiB of
header fields, but first buffers up to a megabyte for it, and HTTP/2 compresses a field to one byte. 5 MB over one
connection take 180 MB of memory, and took 290 with a limit of 1,124 calls."""
MAX_REFUSING_SECONDS = 1.0
"""The longest time in which a closing server accepts calls only to refuse them. After it gRPC resets pending calls, and
their clients see CANCELLED, as if they had cancelled the calls themselves."""
QUIET_SECONDS = 0.1
"""Idle time after which no call is assumed pending."""
QUIET_CHECKS = 10
"""Checks within QUIET_SECONDS. Each is one turn of the event loop, and gRPC hands over a call in each turn."""


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """Settings of the gRPC server. Times are in seconds.

    Attributes:
        host, port: the address to listen on.
        certificate: PEM files of a certificate and its private key, read again when they change; None for no TLS.
        max_receive, max_send: the largest messages in bytes, -1 for no limit.
        compression: whether messages may be compressed.
        grace: time for calls in flight when the server closes.
        connections: the most open connections, handshakes included; further ones are closed.
        handshake: time for the handshakes of TLS and HTTP/2.
        patience: time for a client to read a response of a stream.
        idle: time after which a connection without a call is closed. Clients then open another one.
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

    @property
    def options(self) -> tuple[tuple[str, int], ...]:
        """The server's channel arguments.

        maximum_concurrent_rpcs is not set: it would refuse health checks too, and a busy service would be restarted.
        --max_concurrent_requests limits requests, and stream.py the memory of streams.
        """
        return (
            ("grpc.max_receive_message_length", self.max_receive),
            ("grpc.max_send_message_length", self.max_send),
            ("grpc.max_allowed_incoming_connections", min(self.connections, MAX_OPTION)),
            ("grpc.server_handshake_timeout_ms", min(int(self.handshake * 1e3) or 1, MAX_OPTION)),
            ("grpc.max_connection_idle_ms", min(int(self.idle * 1e3) or 1, MAX_OPTION)),
            ("grpc.max_concurrent_streams", MAX_CONCURRENT_STREAMS),
            # gRPC inflates a message before the service can refuse it: 16 kB may become 16 MB. Without compression,
            # gRPC refuses a compressed message by its header, as UNIMPLEMENTED.
            ("grpc.compression_enabled_algorithms_bitset", ALL_ALGORITHMS if self.compression else IDENTITY_ONLY),
            # Overload protection also counts calls that have ended for the client. It refused a quarter of the calls of
            # a client with more than MAX_CONCURRENT_STREAMS, as UNAVAILABLE.
            ("grpc.http.overload_protection", 0),
            # All workers listen on one port; the serve command has checked that no other process does.
            ("grpc.so_reuseport", 1),
            # Clients may send a keepalive ping every few seconds, as the predictor's channel here does. By default
            # gRPC closes the connection at the third ping within a long inference.
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            # The streams of a client whose machine is gone end within two minutes.
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
        )


class DisconnectTracebackFilter(logging.Filter):
    """Drops gRPC's traceback when a client disconnects before its response is sent. Handlers can't catch that error:
    gRPC sends a response after its handler has returned."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        # A batch of operations that did not start is a bug here, such as invalid metadata.
        return not isinstance(error, grpc.aio.InternalError) or "start_batch" in str(error)


class GrpcServer:
    """The gRPC server, an async context manager.

    Raises:
        ConfigError: the certificate or the log format can't be used; on entering, the port is not available.
    """

    def __init__(
        self, service: Service, settings: GrpcSettings, keys: ApiKeys | None = None, log_format: str | None = None
    ) -> None:
        self.calls = ActiveCalls(keys=keys is not None, timing=service.server_timing)
        self._service = service
        self._settings = settings
        self._guards = [CallGuard(service.metrics, keys, log_format)] if keys is not None or log_format else []
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
        methods = {
            **metadata_methods(self._service, self.calls),
            "ModelInfer": self.calls.unary(inference.infer),
            "ModelStreamInfer": stream_method(inference, self.calls, settings.max_receive, settings.patience),
        }
        for name, handlers in ((SERVICE, methods), (HEALTH, Health(models, self._closing).methods)):
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        add_reflection(self._server, methods)
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
        """Starts refusing new calls and lets those in flight finish. Leaving the context waits for that."""
        self._closing.set()
        if self._shutdown_task is None:
            self._shutdown_task = asyncio.create_task(self._shutdown())

    async def _shutdown(self) -> None:
        """Stops the server once no handler runs and clients have had CLOSING_WRITE_SECONDS to read their responses.

        A client that does not read would otherwise delay the end for the whole grace. gRPC can't end a single call.
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
        """Waits for QUIET_SECONDS without a new call, at most until ``latest`` on the event loop's clock. The handlers
        refuse all calls meanwhile."""
        quiet_checks, started = 0, self.calls.started
        while quiet_checks < QUIET_CHECKS and asyncio.get_running_loop().time() < latest:
            await asyncio.sleep(QUIET_SECONDS / QUIET_CHECKS)
            quiet_checks = quiet_checks + 1 if self.calls.started == started else 0
            started = self.calls.started


def _credentials(certificate: str, private_key: str) -> grpc.ServerCredentials:
    """Credentials that follow changes of the certificate's files. gRPC calls ``reload`` for each connection, which
    costs two calls of stat. Raises ConfigError."""
    files = certificate, private_key
    pair = ReloadableFile("the certificate for gRPC", files, lambda: read_key_pair(*files))

    def configuration(pair: KeyPair) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.chain)])

    def reload() -> grpc.ServerCertificateConfiguration | None:
        return configuration(pair.value) if pair.renew() else None

    # None means unchanged, which the type stubs don't know.
    return grpc.dynamic_ssl_server_credentials(configuration(pair.value), reload)  # type: ignore[arg-type]  # wrong stub
