"""The open inference protocol (V2) over gRPC, with health checks and server reflection beside it.

    inference.GRPCInferenceService
        ServerLive, ServerReady, ModelReady     {live} or {ready}
        ServerMetadata, ModelMetadata           names, versions, tensors
        ModelConfig                             the tensors as Triton's configuration has them, for its clients
        ModelInfer, ModelStreamInfer            tensors -> tensors, raw or typed
    grpc.health.v1.Health, grpc.reflection.v1alpha.ServerReflection

Source: https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_grpc.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from hf_transformer import __version__
from hf_transformer.api.base import Model, Models, Service
from hf_transformer.api.grpc import calls as grpc_calls
from hf_transformer.api.grpc import health as grpc_health
from hf_transformer.api.grpc import reflection as grpc_reflection
from hf_transformer.api.grpc.calls import AtWork, Caller, unary
from hf_transformer.api.grpc.infer import Inference
from hf_transformer.api.grpc.stream import Streams
from hf_transformer.api.grpc.unsent import GRPCS_LOGGER, Sent, log_failed_tasks
from hf_transformer.api.tensors import check_version, clients_fault
from hf_transformer.api.v2 import EXTENSIONS, PLATFORM, SERVER
from hf_transformer.credentials import KeyPair, Renewable, read_server_pair
from hf_transformer.errors import ConfigError, NotReady, Unavailable
from hf_transformer.protocol.grpc import SERVICE, decode
from hf_transformer.protocol.grpc_inbound import encode_model_config, encode_model_metadata
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb

# There is no maximum_concurrent_rpcs: it would refuse health checks too, and a busy service would be restarted. What
# infers is within --max_concurrent_requests, and grpc_stream bounds what streams hold.
_OPTIONS = (
    # All workers listen on one port; serve has made sure that nobody else does.
    ("grpc.so_reuseport", 1),
    # Callers may look every few seconds whether we are still there, as our own channel to the predictor does. Without
    # this their third ping within a long inference would break the connection.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    # A caller whose machine is gone gives back its streams within two minutes.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


LARGEST = 2**31 - 1
"""The largest value of an option of gRPC."""
IDLE_SECONDS = 300.0
"""Seconds after which a connection without a call is closed; clients open another one without a word."""
MORE_STREAMS = 100
"""Calls of one connection beside those that infer: health checks, questions, and those that are told that there is no
room. A client that sends more at once on a new connection finds some of them reset, as UNAVAILABLE."""
REFUSING = 1.0
"""Seconds in which an ending server goes on taking calls at most, to refuse them: one that is on its way when it takes
no more is reset by gRPC, and its caller sees CANCELLED, as if it had done so itself."""
QUIET = 0.1
"""Seconds without a call after which none is on its way any more, as far as one can tell."""
LOOKS = 10
"""In that time: a busy event loop has then turned so often, and gRPC hands over a call in each turn."""


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """Where the server listens, with which certificate, and how large messages may be (in bytes, -1 is unlimited).

    ``certificate`` and ``private_key`` are PEM files; there is none of them or both. Each new connection gets what they
    hold by then.
    ``grace`` is how many seconds calls in flight have to finish when the server ends.
    ``connections`` may be open at a time, handshakes included; more are closed. ``handshake`` is how many seconds TLS's
    and HTTP/2's may take, ``patience`` how many a client has to take an answer of a stream, ``idle`` after how many a
    connection without a call is closed. ``concurrent`` is how many requests may be in flight in all.
    """

    host: str
    port: int
    certificate: str | None = None
    private_key: str | None = None
    max_receive: int = -1
    max_send: int = -1
    grace: float = 25.0
    connections: int = 16384
    handshake: float = 60.0
    patience: float = 60.0
    idle: float = IDLE_SECONDS
    concurrent: int = 1024

    @property
    def limits(self) -> tuple[tuple[str, int], ...]:
        """As options of gRPC."""
        return (
            ("grpc.max_receive_message_length", self.max_receive),
            ("grpc.max_send_message_length", self.max_send),
            ("grpc.max_allowed_incoming_connections", min(self.connections, LARGEST)),
            ("grpc.server_handshake_timeout_ms", min(int(self.handshake * 1e3) or 1, LARGEST)),
            ("grpc.max_connection_idle_ms", min(int(self.idle * 1e3) or 1, LARGEST)),
            ("grpc.max_concurrent_streams", min(self.concurrent + MORE_STREAMS, LARGEST)),
        )


class GrpcServer:
    """The server; an async context manager that serves while it is open.

    Args:
        interceptors: what sees each call first.

    Raises:
        ConfigError: the certificate can't be used, or, when it is opened, the port can't be had.
    """

    def __init__(
        self,
        service: Service,
        settings: GrpcSettings,
        interceptors: Sequence[grpc.aio.ServerInterceptor[Any, Any]] = (),
    ) -> None:
        self._service = service
        self._settings = settings
        self._interceptors = interceptors
        self._credentials = _credentials(settings)
        self._closing = asyncio.Event()
        self._at_work = AtWork()
        self._sent = Sent()
        self._server: grpc.aio.Server
        self._ending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        options = (*_OPTIONS, *self._settings.limits)
        self._server = grpc.aio.server(interceptors=self._interceptors, options=options)
        methods = {**_questions(self._service.models, self._at_work), **self._inference()}
        health = grpc_health.Health(self._service.models, (SERVICE,), self._closing)
        names = (SERVICE, grpc_health.SERVICE_NAME, grpc_reflection.SERVICE_NAME)
        reflection = grpc_reflection.Reflection(names, methods, self._closing)
        for name, served in zip(names, (methods, health.methods, reflection.methods), strict=True):
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, served),))
        self._listen()
        asyncio.get_running_loop().set_exception_handler(log_failed_tasks)
        GRPCS_LOGGER.addFilter(self._sent)
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.begin_end()
        if self._ending is not None:
            await self._ending
        GRPCS_LOGGER.removeFilter(self._sent)

    def begin_end(self) -> None:
        """Takes no more calls, and gives those in flight the time to finish; to be awaited by closing the server."""
        self._closing.set()
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        """Once nothing is worked on, clients have PATIENCE seconds to take what is on its way: who does not read would
        hold up the end for the whole grace, and gRPC can't break off a call alone."""
        now = asyncio.get_running_loop().time
        latest = now() + self._settings.grace
        await self._refuse_until(now() + max(QUIET, min(REFUSING, self._settings.grace)))
        stopping = asyncio.create_task(self._server.stop(max(latest - now(), 0.0)))
        while not stopping.done():
            over = asyncio.create_task(self._at_work.over())
            await asyncio.wait((stopping, over), return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
            await asyncio.wait((stopping,), timeout=grpc_calls.PATIENCE)
            if not self._at_work:
                break
        if not stopping.done():
            await self._server.stop(None)
        await stopping

    async def _refuse_until(self, latest: float) -> None:
        """Takes calls until none has come for a while, or until this time of the event loop's clock."""
        looks, begun = 0, self._at_work.begun
        while looks < LOOKS and asyncio.get_running_loop().time() < latest:
            await asyncio.sleep(QUIET / LOOKS)
            looks = looks + 1 if self._at_work.begun == begun else 0
            begun = self._at_work.begun

    def _inference(self) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
        inference = Inference(self._service, self._settings.max_send)
        longest = self._settings.max_receive
        patience = self._settings.patience
        streams = Streams(inference, self._service.admission, self._at_work, self._closing, longest, patience)

        async def infer(body: bytes, caller: Caller) -> bytes:
            if self._closing.is_set():
                raise Unavailable("the service is shutting down")
            return await inference.one(body, caller)

        return {"ModelInfer": unary(infer, self._at_work), "ModelStreamInfer": streams.handler}

    def _listen(self) -> None:
        host, port = self._settings.host, self._settings.port
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._credentials is None:
                self._server.add_insecure_port(address)
            else:
                self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise ConfigError(f"--grpc_port={port}: can't listen on {host}: {error}") from error


def _credentials(settings: GrpcSettings) -> grpc.ServerCredentials | None:
    """The certificate that HTTPS has too, and its private key. gRPC asks for them with each connection, and looking
    whether the files are others by now costs it two calls of stat."""
    certificate, private_key = settings.certificate, settings.private_key
    if certificate is None:
        return None
    if private_key is None:
        raise ConfigError(
            f"--ssl_certfile={certificate}, --ssl_keyfile={private_key}: a certificate needs its private key"
        )
    pair = Renewable(
        "the certificate for gRPC", (certificate, private_key), lambda: read_server_pair(certificate, private_key)
    )

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        return _as_grpc_has_it(pair.value) if pair.renew() else None

    # The type stubs don't know that None means that nothing has changed.
    return grpc.dynamic_ssl_server_credentials(_as_grpc_has_it(pair.value), renewed)  # type: ignore[arg-type]  # wrong stub


def _as_grpc_has_it(pair: KeyPair) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pair.key, pair.chain)])


def _questions(models: Models, at_work: AtWork) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """The methods that only tell something."""

    async def server_live(body: bytes, caller: Caller) -> bytes:
        return pb.ServerLiveResponse(live=True).SerializeToString()

    async def server_ready(body: bytes, caller: Caller) -> bytes:
        ready = all([await _is_ready(models[name], "") for name in models.names])
        return pb.ServerReadyResponse(ready=ready).SerializeToString()

    async def model_ready(body: bytes, caller: Caller) -> bytes:
        with clients_fault():
            asked = decode(pb.ModelReadyRequest, body)
        ready = await _is_ready(models[asked.name], asked.version)
        return pb.ModelReadyResponse(ready=ready).SerializeToString()

    async def server_metadata(body: bytes, caller: Caller) -> bytes:
        about = pb.ServerMetadataResponse(name=SERVER, version=__version__, extensions=EXTENSIONS)
        return about.SerializeToString()

    async def model_metadata(body: bytes, caller: Caller) -> bytes:
        with clients_fault():
            asked = decode(pb.ModelMetadataRequest, body)
        model = models[asked.name]
        check_version(model, asked.version)
        return encode_model_metadata(model.describe(), PLATFORM)

    async def model_config(body: bytes, caller: Caller) -> bytes:
        with clients_fault():
            asked = decode(pb.ModelConfigRequest, body)
        model = models[asked.name]
        check_version(model, asked.version)
        return encode_model_config(model.describe(), PLATFORM)

    return {
        "ServerLive": unary(server_live, at_work),
        "ServerReady": unary(server_ready, at_work),
        "ModelReady": unary(model_ready, at_work),
        "ServerMetadata": unary(server_metadata, at_work),
        "ModelMetadata": unary(model_metadata, at_work),
        "ModelConfig": unary(model_config, at_work),
    }


async def _is_ready(model: Model, version: str) -> bool:
    """Raises UnknownModel for a version that is not served."""
    try:
        await model.require_ready()
        check_version(model, version)
    except NotReady:
        return False
    return True
