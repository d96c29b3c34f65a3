"""The open inference protocol (V2) over gRPC, with health checks and server reflection beside it.

    inference.GRPCInferenceService
        ServerLive, ServerReady, ModelReady     {live} or {ready}
        ServerMetadata, ModelMetadata           names, versions, tensors
        ModelConfig                             the tensors as Triton's configuration has them, for its clients
        ModelStatistics, RepositoryIndex        counts and times, and the served model, in Triton's form
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
from hf_transformer.api.grpc.calls import CallsInProgress
from hf_transformer.api.grpc.infer import Inference
from hf_transformer.api.grpc.interceptor import CallGuard
from hf_transformer.api.grpc.introspection import HEALTH, Health, add_reflection, questions
from hf_transformer.api.grpc.stream import stream_method
from hf_transformer.api.service import Service
from hf_transformer.credentials import KeyPair, ReloadableFile, read_key_pair
from hf_transformer.errors import ConfigError
from hf_transformer.protocol.grpc import SERVICE

LARGEST = 2**31 - 1  # the largest value of an option of gRPC
NO_ALGORITHM, ALL_ALGORITHMS = 0b1, 0b111
"""Sets of gRPC's compression algorithms, a bit each: none (identity), deflate and gzip."""
STREAMS = 128
"""Calls of one connection at a time; a client's further calls wait there for a free place. gRPC refuses a call with
more than 16 KiB of header fields, but holds up to a megabyte for it until then, and HTTP/2 compresses a field to one
byte: with 1,124 calls, 5 MB over one connection took 290 MB, with 128 they take 180."""
REFUSING = 1.0
"""Seconds at most in which an ending server still takes calls, to refuse them. Later gRPC resets a call that is on its
way, and its caller sees CANCELLED, as if it had cancelled the call itself."""
QUIET = 0.1
"""Seconds without a call after which none is on its way any more, as far as one can tell."""
LOOKS = 10
"""In that time: a busy event loop has then turned so often, and gRPC hands over a call in each turn."""


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """Where the server listens, with which certificate, and how large messages may be (in bytes, -1 is unlimited).

    ``certificate`` is the PEM files of a certificate and its private key. Each new connection gets what they hold then.
    ``compression``: messages may be compressed. ``connections`` may be open at a time, handshakes included; more are
    closed. All times are in seconds: ``grace`` for calls in flight when the server ends, ``handshake`` for TLS's and
    HTTP/2's, ``patience`` for a client to take an answer of a stream, ``idle`` until a connection without a call is
    closed; clients open another one.
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
        """The options of gRPC.

        There is no maximum_concurrent_rpcs: it would refuse health checks too, and a busy service would be restarted.
        Requests are within --max_concurrent_requests, and stream.py bounds what streams hold.
        """
        return (
            ("grpc.max_receive_message_length", self.max_receive),
            ("grpc.max_send_message_length", self.max_send),
            ("grpc.max_allowed_incoming_connections", min(self.connections, LARGEST)),
            ("grpc.server_handshake_timeout_ms", min(int(self.handshake * 1e3) or 1, LARGEST)),
            ("grpc.max_connection_idle_ms", min(int(self.idle * 1e3) or 1, LARGEST)),
            ("grpc.max_concurrent_streams", STREAMS),
            # gRPC inflates a message before anybody can refuse it: 16 kB may become 16 MB. Without compression it is
            # refused as UNIMPLEMENTED, by its header.
            ("grpc.compression_enabled_algorithms_bitset", ALL_ALGORITHMS if self.compression else NO_ALGORITHM),
            # With it gRPC also counts calls that its client has seen the end of. Of a client with more than STREAMS
            # calls at once it refused a quarter, as UNAVAILABLE, and none without it.
            ("grpc.http.overload_protection", 0),
            # All workers listen on one port; serve has made sure that nobody else does.
            ("grpc.so_reuseport", 1),
            # Callers may look every few seconds whether we are still there, as our own channel to the predictor does.
            # Without this their third ping within a long inference would break the connection.
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            # A caller whose machine is gone gives back its streams within two minutes.
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
        )


class NoTracebackOfLeaving(logging.Filter):
    """Drops gRPC's traceback of an answer that could not be sent because its client has just left. No code of ours can
    catch that error: gRPC sends an answer after its handler has returned."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        # A batch that did not start is another matter: metadata that no header can hold would be our fault.
        return not isinstance(error, grpc.aio.InternalError) or "start_batch" in str(error)


class GrpcServer:
    """The server; an async context manager that serves while it is open.

    Raises:
        ConfigError: the certificate or the format can't be used, or, when it is opened, the port can't be had.
    """

    def __init__(
        self, service: Service, settings: GrpcSettings, keys: ApiKeys | None = None, log_format: str | None = None
    ) -> None:
        self.calls = CallsInProgress(keys=keys is not None, timing=service.server_timing)
        self._service = service
        self._settings = settings
        self._guards = [CallGuard(service.metrics, keys, log_format)] if keys is not None or log_format else []
        self._credentials = None if settings.certificate is None else _credentials(*settings.certificate)
        self._closing = asyncio.Event()
        self._server: grpc.aio.Server
        self._ending: asyncio.Task[None] | None = None
        self._filter = NoTracebackOfLeaving()
        self._logger = logging.getLogger(grpc.aio.InternalError.__module__)  # gRPC names its logger after its module

    async def __aenter__(self) -> Self:
        settings, models = self._settings, self._service.models
        self._server = grpc.aio.server(interceptors=self._guards, options=settings.options)
        inference = Inference(self._service, self._closing, settings.max_send)
        methods = {
            **questions(self._service, self.calls),
            "ModelInfer": self.calls.unary(inference.one),
            "ModelStreamInfer": stream_method(inference, self.calls, settings.max_receive, settings.patience),
        }
        for name, served in ((SERVICE, methods), (HEALTH, Health(models, self._closing).methods)):
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, served),))
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
        if self._ending is not None:
            await self._ending
        self._logger.removeFilter(self._filter)

    def start_shutdown(self) -> None:
        """Takes no more calls, and gives those in flight the time to finish; closing the server waits for them."""
        self._closing.set()
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        """Clients have PATIENCE seconds to take their answers once nothing is worked on. One that does not read would
        hold up the end for the whole grace, and gRPC can't break off a call alone."""
        now = asyncio.get_running_loop().time
        latest = now() + self._settings.grace
        await self._refuse_until(now() + max(QUIET, min(REFUSING, self._settings.grace)))
        stopping = asyncio.create_task(self._server.stop(max(latest - now(), 0.0)))
        while not stopping.done():
            over = asyncio.create_task(self.calls.over())
            await asyncio.wait((stopping, over), return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
            await asyncio.wait((stopping,), timeout=grpc_calls.PATIENCE)
            if not self.calls.open:
                break
        if not stopping.done():
            await self._server.stop(None)
        await stopping

    async def _refuse_until(self, latest: float) -> None:
        """Refuses calls until none has come for a while, or until this time of the event loop's clock."""
        looks, begun = 0, self.calls.begun
        while looks < LOOKS and asyncio.get_running_loop().time() < latest:
            await asyncio.sleep(QUIET / LOOKS)
            looks = looks + 1 if self.calls.begun == begun else 0
            begun = self.calls.begun


def _credentials(certificate: str, private_key: str) -> grpc.ServerCredentials:
    """The certificate that HTTPS has too, and its private key. gRPC asks for them with each connection; looking whether
    the files have changed takes two calls of stat. Raises ConfigError."""
    files = certificate, private_key
    pair = ReloadableFile("the certificate for gRPC", files, lambda: read_key_pair(*files))

    def configuration(pair: KeyPair) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.chain)])

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        return configuration(pair.value) if pair.renew() else None

    # The type stubs don't know that None means that nothing has changed.
    return grpc.dynamic_ssl_server_credentials(configuration(pair.value), renewed)  # type: ignore[arg-type]  # wrong stub
