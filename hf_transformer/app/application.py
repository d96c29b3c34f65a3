"""Construction of the application from a configuration."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from hf_transformer.api import generate, health, info, openapi, v1, v1_tokenize, v2
from hf_transformer.api.anthropic import messages as anthropic
from hf_transformer.api.auth import CONTROL_KEYS, ApiKeys
from hf_transformer.api.dialects import routes as dialects
from hf_transformer.api.document.operation import MODEL
from hf_transformer.api.document.table import served
from hf_transformer.api.endpoint import Endpoint
from hf_transformer.api.gateway import AllowedHosts, Gateway, GatewaySettings, Handler, Router
from hf_transformer.api.open_streams import OpenStreams
from hf_transformer.api.openai import routes as openai
from hf_transformer.api.responses import get_route
from hf_transformer.api.service import Model, Models, Service
from hf_transformer.api.table import ROUTES
from hf_transformer.app.loading import LoadedModel, load_model
from hf_transformer.app.models import DeclaredModel, ModelFactory, ModelSet
from hf_transformer.app.pipelines import Diagnose
from hf_transformer.app.settings import limits_of, predictor_settings, sandbox_of
from hf_transformer.config.entries import ModelEntries
from hf_transformer.config.options import Config
from hf_transformer.core.limits import Admission
from hf_transformer.core.remote import BatcherLink
from hf_transformer.errors import ConfigError, without_userinfo
from hf_transformer.extras import install_command
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.observability.board import WorkerBoard
from hf_transformer.observability.logging import LatencyLog
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor import Connections
from hf_transformer.predictor.base import parse_address
from hf_transformer.server.asgi import AsgiApplication, call_asgi
from hf_transformer.types.http import Request, Response, Stream

if TYPE_CHECKING:
    from hf_transformer.api.grpc.server import GrpcServer
    from hf_transformer.observability.tracing import Tracing

logger = logging.getLogger(__name__)

MAX_START_DELAY_SECONDS = 10.0
"""The maximum delay of a worker's start while another worker is ready."""


def build_app(
    config: Config,
    loaded: LoadedModel | None = None,
    board: WorkerBoard | None = None,
    diagnose: Diagnose | None = None,
    trusted_proxies: str | None = None,
    entries: ModelEntries | None = None,
    introductions: socket.socket | None = None,
) -> AsgiApplication:
    """Builds the service.

    Args:
        loaded: the loaded files of a single model; None loads the files.
        board: the shared state of all workers; None for a single process.
        diagnose: examines each new binding of a model.
        trusted_proxies: the addresses with a trusted X-Forwarded-For; None trusts only loopback addresses.
        entries: declares the models of --models or --model_repository, which load after the start; None for the model
            of ``config``.
        introductions: brings connections to the process that forms the batches of all workers; None forms them here.
    """
    if board is not None:
        board.claim()
    metrics = Metrics()
    executor = ThreadPoolExecutor(config.max_asyncio_workers, "tokenizer")
    latency_log = LatencyLog() if config.enable_latency_logging else None
    warns = board is None or board.index == 0
    sandbox = sandbox_of(config)
    link = None if introductions is None else BatcherLink(introductions)
    factory = ModelFactory(metrics, executor, Connections(), latency_log, diagnose, warns, sandbox, link)
    tracing = open_tracing(config)
    models = Models(ready_when=config.ready_when, board=board)
    metrics.watch_unserved(lambda: models.unserved_since)
    if entries is None or entries.path is None:
        entries = None
        deployed = [factory.make(DeclaredModel(config), loaded or load_model(config))]
    else:
        deployed = []

    def on_change(name: str, changed: Config | None) -> None:
        if tracing is not None:
            tracing.calls[name] = {} if changed is None else call_attributes(changed, models.find(name))
        if started is not None:
            started.use_models(models.names)

    started: Gateway | None = None
    model_set = ModelSet(models, factory, deployed, entries, board, on_change)
    service = _service(config, models, metrics, executor, tracing, model_set if config.enable_model_control else None)
    keys = None if config.api_keys_file is None else ApiKeys(config.api_keys_file)
    control_file = config.model_control_keys_file if config.enable_model_control else None
    control_keys = None if control_file is None else ApiKeys(control_file, CONTROL_KEYS)
    grpc = grpc_server(config, service, keys, control_keys)
    shared_metrics = None if board is None else metrics.share(board)
    renewing = [_running(known.keep_renewing) for known in (keys, control_keys) if known is not None]
    first = None if board is None else _ready_first(models, board)
    resources = shared_metrics, tracing, sandbox.children, link, model_set, *renewing, first, grpc
    inner = starlette_app(config, service, lambda app: _lifespan(service, executor, latency_log, resources))
    # After a signal, HTTP, streams and gRPC have the same grace period.
    ends = [model_set.start_shutdown, lambda: service.streams.end_within(config.grace_period_seconds)]
    if grpc is not None:
        ends.append(grpc.start_shutdown)
    settings = gateway_settings(config, keys, trusted_proxies, control_keys)
    started = gateway(config, service, inner, settings)
    return AsgiApplication(started, inner, ends)


def _service(
    config: Config,
    models: Models,
    metrics: Metrics,
    executor: ThreadPoolExecutor,
    tracing: Tracing | None,
    control: ModelSet | None,
) -> Service:
    max_bytes = max(config.max_bytes_in_flight, config.max_request_bytes)
    return Service(
        models=models,
        admission=Admission(config.max_concurrent_requests, config.max_queued_tokens, metrics, max_bytes),
        metrics=metrics,
        max_bytes=config.max_request_bytes,
        limits=limits_of(config),
        max_json_depth=config.max_json_depth,
        streams=OpenStreams(),
        server_timing=config.enable_server_timing,
        tokenize_timing=config.enable_tokenize_timing,
        token_inputs=config.enable_token_inputs,
        tracing=tracing,
        executor=executor,
        control=control,
    )


def open_tracing(config: Config) -> Tracing | None:
    """Makes the context manager for tracing to --otlp_endpoint, or returns None without the flag.

    Raises ConfigError if OpenTelemetry is missing or misconfigured.
    """
    if config.otlp_endpoint is None:
        return None
    try:
        from hf_transformer.observability.tracing import Tracing
    except ImportError as error:
        endpoint = without_userinfo(config.otlp_endpoint)
        raise ConfigError(
            f"--otlp_endpoint={endpoint}: OpenTelemetry is not installed ({error}): {install_command('otel')}"
        ) from error
    return Tracing(config.otlp_endpoint, config.otlp_sample_ratio)


def call_attributes(config: Config, model: Model) -> dict[str, str | int]:
    """Returns the attributes of spans of a model's predictor calls, none without a predictor. A generative model has
    several methods and URLs, so its spans have no such attributes.

    Source: https://opentelemetry.io/docs/specs/semconv/rpc/grpc/ and .../http/http-spans/
    """
    if config.predictor_protocol == "none":
        return {}
    settings, infers = predictor_settings(config), not isinstance(model, GenerativeModel)
    address = parse_address(settings)
    server: dict[str, str | int] = {"server.address": address.host, "server.port": address.port}
    if config.predictor_protocol == "grpc-v2":
        method = {"rpc.method": "ModelInfer"} if infers else {}
        return {**server, "rpc.system": "grpc", "rpc.service": "inference.GRPCInferenceService", **method}
    url = f"{'https' if address.use_ssl else 'http'}://{address}/v2/models/{settings.model_name}/infer"
    return {**server, "http.request.method": "POST", **({"url.full": url} if infers else {})}


def gateway_settings(
    config: Config, keys: ApiKeys | None, trusted_proxies: str | None, control_keys: ApiKeys | None = None
) -> GatewaySettings:
    """Returns the gateway's settings from the flags."""
    root = openai.root_of(config.openai_route_prefix)
    open_paths = [one.path for one in served(root) if one.is_open and MODEL not in one.path]
    if config.enable_playground:  # the page requests a key from its user
        from hf_transformer.api import pages

        open_paths += [path for path, _ in pages.PLAYGROUND.files]
    return GatewaySettings(
        keys=keys,
        control_keys=control_keys,
        hosts=None if "*" in config.allowed_hosts else AllowedHosts(config.allowed_hosts),
        origins=config.cors_allow_origin,
        access_log=config.access_log_format,
        open_paths=open_paths,
        **({} if trusted_proxies is None else {"trusted_proxies": trusted_proxies}),
    )


def gateway(config: Config, service: Service, inner: Starlette, settings: GatewaySettings) -> Gateway:
    """Builds the HTTP gateway: the endpoints, and the Starlette application ``inner`` for all other routes."""
    prefix, fallback = config.openai_route_prefix, partial(call_asgi, inner)
    by_id = {
        **v1.endpoints(service),
        **v1_tokenize.endpoints(service),
        **v2.endpoints(service),
        **generate.endpoints(service),
        **openai.endpoints(service),
        **anthropic.endpoints(service),
    }
    by_path = dict(dialects.endpoints(service, ROUTES))
    endpoints: list[tuple[str, Handler]] = []
    for one in served(openai.root_of(prefix)):
        if one.method == "post":
            endpoint = by_path[one.path] if one.path in by_path else by_id[one.handler or one.id]
            endpoints.append((one.path, _with_get(endpoint, fallback) if one.path == "/" else endpoint))
    return Gateway(
        Router(endpoints, service.models.names),
        fallback,
        service.models.names,
        anthropic.errors_by_path(dialects.errors_by_path(ROUTES, openai.errors_by_path(prefix))),
        service.metrics,
        settings,
    )


def _with_get(endpoint: Endpoint, fallback: Handler) -> Handler:
    """Returns a handler for a path that has a GET route in ``fallback``."""

    async def handle(request: Request) -> Response | Stream:
        return await (fallback if request.method in ("GET", "HEAD") else endpoint)(request)

    return handle


def starlette_app(
    config: Config, service: Service, lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]]
) -> Starlette:
    """Builds the routes that are not endpoints: health, metadata, metrics and pages."""
    prefix = config.openai_route_prefix
    documents = openapi.Documents(service, prefix, keys=config.api_keys_file is not None)
    info_settings = info.InfoSettings(
        limits={name: getattr(config, name) for name in info.LIMITS},
        openai_prefix=prefix,
        grpc_port=(config.grpc_port or None) if config.enable_grpc else None,
        tokenizer_threads=config.max_asyncio_workers,
        links=info.find_links(docs=config.enable_docs_url),
    )
    views = {
        **health.views(service, "playground" if config.enable_playground else None),
        **info.views(service, info_settings),
        **v1.views(service, openai.model_cards(service.models)),
        **v2.views(service),
        **openai.views(service),
        **documents.views(),
    }
    operations = served(openai.root_of(prefix))
    routes: list[BaseRoute] = [
        get_route(one.path, views[one.handler or one.id]) for one in operations if one.method == "get"
    ]
    if config.enable_docs_url or config.enable_playground:
        from hf_transformer.api import pages  # reads its files at import

        switches = {pages.DOCS: config.enable_docs_url, pages.PLAYGROUND: config.enable_playground}
        routes += [route for page, enabled in switches.items() if enabled for route in page.routes()]
    app = Starlette(routes=routes, exception_handlers=health.error_handlers(prefix), lifespan=lifespan)
    # A path with an extra slash fails with 404, since a redirect would send clients to the host of the Host header.
    app.router.redirect_slashes = False
    return app


@asynccontextmanager
async def _lifespan(
    service: Service,
    executor: ThreadPoolExecutor,
    latency_log: LatencyLog | None,
    resources: Sequence[AbstractAsyncContextManager[object] | None],
) -> AsyncIterator[None]:
    """Enters all ``resources`` except None in order, and exits them in reverse order."""
    async with AsyncExitStack() as stack:
        stack.callback(service.streams.close)
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        if latency_log is not None:
            stack.callback(latency_log.flush)
        for resource in resources:
            if resource is not None:
                await stack.enter_async_context(resource)
        yield


@asynccontextmanager
async def _running(work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Runs ``work`` as a task, and cancels the task on exit."""
    task = asyncio.ensure_future(work())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def _ready_first(models: Models, board: WorkerBoard) -> AsyncIterator[None]:
    """Delays a worker's start until its models are ready, while another worker is ready. Without the delay, requests to
    this worker would fail with 503."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + MAX_START_DELAY_SECONDS
    while not models.is_ready and board.another_is_ready and loop.time() < deadline:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.02)
    yield


def grpc_server(
    config: Config, service: Service, keys: ApiKeys | None = None, control_keys: ApiKeys | None = None
) -> GrpcServer | None:
    """Builds the gRPC server if --enable_grpc is set. Raises ConfigError if the certificate can't be read."""
    if not config.enable_grpc:
        return None
    from hf_transformer.api.grpc.server import GrpcServer, GrpcSettings

    max_receive, certificate, key = config.grpc_max_receive_message_length, config.ssl_certfile, config.ssl_keyfile
    settings = GrpcSettings(
        config.host,
        config.grpc_port,
        certificate=None if certificate is None or key is None else (certificate, key),
        max_receive=config.max_request_bytes if max_receive == -1 else min(max_receive, config.max_request_bytes),
        max_send=config.grpc_max_send_message_length,
        compression=config.enable_grpc_compression,
        grace=config.grace_period_seconds,
        connections=config.max_connections,
        handshake=config.client_timeout_seconds,
        patience=config.client_timeout_seconds,
        age=config.grpc_max_connection_age,
        age_grace=config.grpc_max_connection_age_grace,
    )
    return GrpcServer(service, settings, keys, config.access_log_format, control_keys)
