"""Construction of the application from a configuration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from hf_transformer.api import generate, health, info, openapi, tokenize, v1, v2
from hf_transformer.api.auth import ApiKeys
from hf_transformer.api.gateway import AllowedHosts, Gateway, GatewaySettings, Router
from hf_transformer.api.open_streams import OpenStreams
from hf_transformer.api.openai import routes as openai
from hf_transformer.api.service import Model, Models, Service
from hf_transformer.app.wiring import (
    Diagnose,
    LoadedGenerativeModel,
    LoadedModel,
    PipelineBuilder,
    load_model,
    predictor_settings,
)
from hf_transformer.config.options import Config
from hf_transformer.core.limits import Admission
from hf_transformer.core.model import CheckSettings, ServedModel
from hf_transformer.errors import ConfigError, without_userinfo
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.observability.board import WorkerBoard
from hf_transformer.observability.logging import LatencyLog
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor import open_predictor
from hf_transformer.predictor.base import parse_address
from hf_transformer.server.asgi import AsgiApplication, call_asgi

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
) -> AsgiApplication:
    """Builds the service.

    Args:
        loaded: the loaded model files; None loads the files.
        board: the shared state of all workers; None for a single process.
        diagnose: examines each new binding of a model.
        trusted_proxies: the addresses with a trusted X-Forwarded-For; None trusts only loopback addresses.
    """
    if board is not None:
        board.claim()
    loaded = loaded or load_model(config)
    metrics = Metrics()
    own_metrics = metrics.of(config.model_name)
    predictor = open_predictor(
        config.predictor_protocol,
        predictor_settings(config, warns=board is None or board.index == 0),
        own_metrics,
        retries=config.predictor_request_retries,
        retry_budget=config.predictor_retry_budget,
        circuit_failures=config.predictor_circuit_failures,
    )
    executor = ThreadPoolExecutor(config.max_asyncio_workers, "tokenizer")
    latency_log = LatencyLog() if config.enable_latency_logging else None
    checks = CheckSettings(config.enable_predictor_health_check, config.predictor_check_seconds)
    build = PipelineBuilder(config, loaded, predictor, own_metrics, executor, diagnose)
    shared: dict[str, Any] = {"checks": checks, "latency_log": latency_log, "board": board}
    model: Model
    if isinstance(loaded, LoadedGenerativeModel):
        generative, template = partial(build.generative, loaded), loaded.chat_template
        model = GenerativeModel(
            config.model_name, loaded.task, predictor, generative, own_metrics, chat_template=template, **shared
        )
    else:
        model = ServedModel(config.model_name, loaded.task, predictor, build.predictive, own_metrics, **shared)
    tracing = open_tracing(config, infers=not isinstance(model, GenerativeModel))
    service = _service(config, model, metrics, executor, tracing)
    keys = None if config.api_keys_file is None else ApiKeys(config.api_keys_file)
    grpc = grpc_server(config, service, keys)
    shared_metrics = None if board is None else metrics.share(board)
    renewing = None if keys is None else _running(keys.keep_renewing)
    first = None if board is None else _ready_first(model, board)
    resources = shared_metrics, tracing, predictor, _running(model.run), renewing, first, grpc
    inner = starlette_app(config, service, lambda app: _lifespan(service, executor, latency_log, resources))
    # After a signal, HTTP, streams and gRPC have the same grace period.
    ends = [model.start_shutdown, lambda: service.streams.end_within(config.grace_period_seconds)]
    if grpc is not None:
        ends.append(grpc.start_shutdown)
    settings = gateway_settings(config, keys, trusted_proxies)
    return AsgiApplication(gateway(config, service, inner, settings), inner, ends)


def _service(
    config: Config,
    model: Model,
    metrics: Metrics,
    executor: ThreadPoolExecutor,
    tracing: Tracing | None,
) -> Service:
    max_bytes = max(config.max_bytes_in_flight, config.max_request_bytes)
    return Service(
        models=Models([model]),
        admission=Admission(config.max_concurrent_requests, config.max_queued_tokens, metrics, max_bytes),
        metrics=metrics,
        max_bytes=config.max_request_bytes,
        max_texts=max(config.max_instances, config.max_sequences),
        max_json_depth=config.max_json_depth,
        streams=OpenStreams(),
        server_timing=config.enable_server_timing,
        token_inputs=config.enable_token_inputs,
        max_instances=config.max_instances,
        tracing=tracing,
        executor=executor,
    )


def open_tracing(config: Config, *, infers: bool = True) -> Tracing | None:
    """Makes the context manager for tracing to --otlp_endpoint, or returns None without the flag.

    ``infers`` is false for a generative model. Raises ConfigError if OpenTelemetry is missing or misconfigured.
    """
    if config.otlp_endpoint is None:
        return None
    try:
        from hf_transformer.observability.tracing import Tracing
    except ImportError as error:
        endpoint = without_userinfo(config.otlp_endpoint)
        raise ConfigError(
            f"--otlp_endpoint={endpoint}: OpenTelemetry is not installed ({error}): pip install 'hf-transformer[otel]'"
        ) from error
    calls = _call_attributes(config, infers)
    return Tracing(config.otlp_endpoint, config.model_name, config.otlp_sample_ratio, calls)


def _call_attributes(config: Config, infers: bool) -> dict[str, str | int]:
    """Returns the attributes of spans of predictor calls. A generative model has several methods and URLs, so its spans
    have no such attributes.

    Source: https://opentelemetry.io/docs/specs/semconv/rpc/grpc/ and .../http/http-spans/
    """
    address = parse_address(predictor_settings(config))
    server: dict[str, str | int] = {"server.address": address.host, "server.port": address.port}
    if config.predictor_protocol == "grpc-v2":
        method = {"rpc.method": "ModelInfer"} if infers else {}
        return {**server, "rpc.system": "grpc", "rpc.service": "inference.GRPCInferenceService", **method}
    url = f"{'https' if address.use_ssl else 'http'}://{address}/v2/models/{config.model_name}/infer"
    return {**server, "http.request.method": "POST", **({"url.full": url} if infers else {})}


def gateway_settings(config: Config, keys: ApiKeys | None, trusted_proxies: str | None) -> GatewaySettings:
    """Returns the gateway's settings from the flags."""
    open_paths = health.health_paths(config.openai_route_prefix)
    if config.enable_playground:  # the page requests a key from its user
        from hf_transformer.api import pages

        open_paths += [path for path, _ in pages.PLAYGROUND.files]
    return GatewaySettings(
        keys=keys,
        hosts=None if "*" in config.allowed_hosts else AllowedHosts(config.allowed_hosts),
        origins=config.cors_allow_origin,
        access_log=config.access_log_format,
        open_paths=open_paths,
        **({} if trusted_proxies is None else {"trusted_proxies": trusted_proxies}),
    )


def gateway(config: Config, service: Service, inner: Starlette, settings: GatewaySettings) -> Gateway:
    """Builds the HTTP gateway: the endpoints, and the Starlette application ``inner`` for all other routes."""
    prefix = config.openai_route_prefix
    endpoints = [
        *v1.endpoints(service),
        *tokenize.endpoints(service),
        *v2.endpoints(service),
        *generate.endpoints(service),
        *openai.endpoints(service, prefix),
    ]
    return Gateway(
        Router(endpoints, service.models.names),
        partial(call_asgi, inner),
        service.models.names,
        openai.errors_by_path(prefix),
        service.metrics,
        settings,
    )


def starlette_app(
    config: Config, service: Service, lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]]
) -> Starlette:
    """Builds the routes that are not endpoints: health, metadata, metrics and pages."""
    prefix = config.openai_route_prefix
    document = openapi.document(service, prefix, keys=config.api_keys_file is not None)
    info_settings = info.InfoSettings(
        limits={name: getattr(config, name) for name in info.LIMITS},
        model_id=config.model_id,
        revision=config.model_revision,
        openai_prefix=prefix,
        grpc_port=(config.grpc_port or None) if config.enable_grpc else None,
        tokenizer_threads=config.max_asyncio_workers,
        examples=openapi.predict_examples(document, service.models.names[0]),
    )
    routes: list[BaseRoute] = [
        *health.routes(service, prefix, "playground" if config.enable_playground else None),
        *v1.routes(service, openai.shared_cards(service, prefix)),
        *v2.routes(service),
        *openai.routes(service, prefix),
        *info.routes(service, info_settings),
        openapi.route(document),
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
async def _ready_first(model: Model, board: WorkerBoard) -> AsyncIterator[None]:
    """Delays a worker's start until its model is ready, while another worker is ready. Without the delay, requests to
    this worker would fail with 503."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + MAX_START_DELAY_SECONDS
    while not model.is_ready and board.another_is_ready and loop.time() < deadline:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.02)
    yield


def grpc_server(config: Config, service: Service, keys: ApiKeys | None = None) -> GrpcServer | None:
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
    )
    return GrpcServer(service, settings, keys, config.access_log_format)
