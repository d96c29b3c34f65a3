"""The wiring: the only place where the objects meet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp

from hf_transformer.api import docs_page, elsewhere, openapi, ops, tokenization, v1, v2, v2_generate
from hf_transformer.api.access_log import AccessLog
from hf_transformer.api.api_keys import ApiKeys, KeyedApp
from hf_transformer.api.base import Models, Service
from hf_transformer.api.body import Bodies
from hf_transformer.api.direct import Direct
from hf_transformer.api.endpoint import Endpoint
from hf_transformer.api.openai import routes as openai
from hf_transformer.api.streaming import OpenStreams
from hf_transformer.config.options import Config
from hf_transformer.core.limits import Admission
from hf_transformer.core.model import ServedModel
from hf_transformer.model_parts import Parts, load_parts
from hf_transformer.model_wiring import pipeline_builder, predictor_settings
from hf_transformer.observability.board import Board
from hf_transformer.observability.board import Board as Roster
from hf_transformer.observability.latency_log import LatencyLog
from hf_transformer.observability.logging import ACCESS_LOGGER
from hf_transformer.observability.metrics import Metrics
from hf_transformer.observability.tracing.export import Exporter
from hf_transformer.observability.tracing.spans import Tracing
from hf_transformer.pair import Diagnose, no_diagnosis
from hf_transformer.predictor import open_predictor
from hf_transformer.predictor.base import Predictor
from hf_transformer.predictor.shared_memory import remove_own_and_leftovers
from hf_transformer.server.shutdown import told_of_the_end

if TYPE_CHECKING:
    from hf_transformer.api.grpc.server import GrpcServer

logger = logging.getLogger(__name__)


def build_app(
    config: Config,
    parts: Parts | None = None,
    roster: Roster | None = None,
    board: Board | None = None,
    diagnose: Diagnose = no_diagnosis,
) -> ASGIApp:
    """The ASGI application for one configuration.

    Args:
        config: the frozen configuration; a worker process builds its own application from it.
        parts: what ``load_parts`` gave, loaded here if None.
        roster: the workers, where this process is one of several.
        board: where these find each other's metrics.
        diagnose: looks at each model that is bound.
    """
    if roster is not None:
        roster.claim()
    parts = parts or load_parts(config)
    metrics = Metrics(config.model_name)
    beside: list[AbstractAsyncContextManager[object]] = [] if board is None else [metrics.share(board)]
    predictor = open_predictor(
        config.predictor_protocol,
        predictor_settings(config, warns=roster is None or roster.place == 0),
        config.predictor_request_retries,
        metrics,
        retry_budget=config.predictor_retry_budget,
        circuit_failures=config.predictor_circuit_failures,
    )
    executor = ThreadPoolExecutor(config.max_asyncio_workers, "tokenizer")
    latency_log = LatencyLog() if config.enable_latency_logging else None
    model = _served_model(config, parts, predictor, metrics, executor, latency_log, roster, diagnose)
    service = _service(config, model, metrics, executor, _tracing(config, beside))
    beside.append(_streams_until_the_end(service.streams, config.grace_period_seconds))
    keys = None if config.api_keys_file is None else ApiKeys(config.api_keys_file)
    grpc = grpc_server(config, service, keys)
    app: ASGIApp = http_app(
        config, service, lambda app: _lifespan(predictor, model, executor, grpc, latency_log, keys, beside)
    )
    if keys is not None:
        by_path = openai.errors_by_path(config.openai_route_prefix)
        app = KeyedApp(app, keys, service.models.names, by_path, metrics)
    if config.access_log_format:
        return AccessLog(app, config.access_log_format, logging.getLogger(ACCESS_LOGGER))
    return app


def clean_up() -> None:
    """Removes what an application leaves on the machine if its process, this or another one, ends without a word."""
    remove_own_and_leftovers()


def _served_model(
    config: Config,
    parts: Parts,
    predictor: Predictor,
    metrics: Metrics,
    executor: ThreadPoolExecutor,
    latency_log: LatencyLog | None,
    roster: Roster | None,
    diagnose: Diagnose,
) -> ServedModel:
    return ServedModel(
        config.model_name,
        parts.task,
        predictor,
        pipeline_builder(config, parts, predictor, metrics, executor, diagnose),
        metrics,
        check_health=config.enable_predictor_health_check,
        check_seconds=config.predictor_check_seconds,
        latency_log=latency_log,
        roster=roster,
        chat_template=None if parts.generation is None else parts.generation.chat_template,
    )


def _service(
    config: Config, model: ServedModel, metrics: Metrics, executor: ThreadPoolExecutor, tracing: Tracing | None
) -> Service:
    return Service(
        models=Models([model]),
        admission=Admission(config.max_concurrent_requests, config.max_queued_tokens, metrics),
        metrics=metrics,
        max_bytes=config.max_request_bytes,
        max_texts=max(config.max_instances, config.max_sequences),
        server_timing=config.enable_server_timing,
        tracing=tracing,
        executor=executor,
        bodies=Bodies(max(config.max_bytes_in_flight, config.max_request_bytes), metrics.count_refused),
    )


def _tracing(config: Config, beside: list[AbstractAsyncContextManager[object]]) -> Tracing | None:
    """Tracing where there is a collector; its exporter runs beside the service."""
    if config.otlp_endpoint is None:
        return None
    exporter = Exporter(config.otlp_endpoint)
    beside.append(exporter)
    return Tracing(config.model_name, config.otlp_sample_ratio, exporter.put)


@asynccontextmanager
async def _streams_until_the_end(streams: OpenStreams, grace: float) -> AsyncIterator[None]:
    """Lets streams run on for most of the grace period once a signal ends the service."""
    with told_of_the_end(lambda: streams.end_within(grace)):
        try:
            yield
        finally:
            streams.close()


def http_app(
    config: Config, service: Service, lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]]
) -> Direct:
    """All routes, the way to those of an Endpoint being the short one."""
    routes = [
        *ops.routes(service),
        *tokenization.routes(service),
        *v1.routes(service, openai.shared_fields(service, config.openai_route_prefix)),
        *v2.routes(service),
        *v2_generate.routes(service),
        *openai.routes(service, config.openai_route_prefix),
        *openapi.routes(service, config.openai_route_prefix, keys=config.api_keys_file is not None),
        *(docs_page.routes() if config.enable_docs_url else ()),
    ]
    # A slash too many is a 404 and not a redirect, which clients would follow to whatever the Host header says.
    prefix = config.openai_route_prefix
    handlers = ops.error_handlers(openai.errors_by_path(prefix), elsewhere.hints(prefix))
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    app.router.redirect_slashes = False
    if service.tracing is not None:
        found = [route for route in routes if isinstance(route, Route) and isinstance(route.endpoint, Endpoint)]
        service.tracing.name_routes((route.path_regex, route.path) for route in found)
    return Direct(app, routes, service.models.names, tasks=service.models.generate)


@asynccontextmanager
async def _lifespan(
    predictor: Predictor,
    model: ServedModel,
    executor: ThreadPoolExecutor,
    grpc: GrpcServer | None,
    latency_log: LatencyLog | None,
    keys: ApiKeys | None,
    beside: Sequence[AbstractAsyncContextManager[object]],
) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for one in beside:
            await stack.enter_async_context(one)
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        if latency_log is not None:
            stack.callback(latency_log.flush)
        await stack.enter_async_context(predictor)
        connecting = asyncio.create_task(model.run())
        stack.push_async_callback(_cancel, connecting)
        if keys is not None:
            stack.push_async_callback(_cancel, asyncio.create_task(keys.keep_renewing()))
        if grpc is not None:
            await stack.enter_async_context(grpc)
            stack.enter_context(told_of_the_end(grpc.begin_end))
        stack.enter_context(told_of_the_end(model.begin_end))
        yield


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def grpc_server(config: Config, service: Service, keys: ApiKeys | None = None) -> GrpcServer | None:
    """The gRPC server, to be opened; None without --enable_grpc, and its libraries are not loaded.

    Raises:
        ConfigError: the certificate can't be read.
    """
    if not config.enable_grpc:
        return None
    from hf_transformer.api.grpc.server import GrpcServer, GrpcSettings

    longest = config.grpc_max_receive_message_length
    settings = GrpcSettings(
        config.host,
        config.grpc_port,
        certificate=config.ssl_certfile,
        private_key=config.ssl_keyfile,
        max_receive=config.max_request_bytes if longest == -1 else min(longest, config.max_request_bytes),
        max_send=config.grpc_max_send_message_length,
        grace=config.grace_period_seconds,
        connections=config.max_connections,
        handshake=config.client_timeout_seconds,
        patience=config.client_timeout_seconds,
        concurrent=config.max_concurrent_requests,
    )
    interceptors: list[Any] = []
    if config.access_log_format:
        from hf_transformer.api.grpc.access_log import LoggedCalls

        interceptors.append(LoggedCalls(config.access_log_format, logging.getLogger(ACCESS_LOGGER)))
    if keys is not None:
        from hf_transformer.api.grpc.keys import KeyedCalls

        interceptors.append(KeyedCalls(keys, service.metrics))
    return GrpcServer(service, settings, interceptors)
