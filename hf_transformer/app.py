"""The wiring: the only place where the objects meet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.types import ASGIApp

from hf_transformer.apis import docs_page, openai, openapi, ops, tokenization, v1, v2
from hf_transformer.apis.access_log import AccessLog
from hf_transformer.apis.base import Admission, Models, Service
from hf_transformer.apis.direct import Direct
from hf_transformer.batches import Filling
from hf_transformer.binding import Binding
from hf_transformer.config import Config
from hf_transformer.contract import bind
from hf_transformer.endings import told_of_the_end
from hf_transformer.engines import strings
from hf_transformer.latency_log import LatencyLog
from hf_transformer.metrics import Metrics
from hf_transformer.model_parts import Parts, load_parts
from hf_transformer.pipeline import Limits, Pipeline
from hf_transformer.predictors import open_predictor
from hf_transformer.predictors.base import Predictor, PredictorSettings
from hf_transformer.scheduler import Scheduler, SchedulerSettings
from hf_transformer.served_model import ServedModel
from hf_transformer.tokenizer import Tokenizer
from hf_transformer.types import Context, ModelSpec, TextInput
from hf_transformer.workers import Roster

if TYPE_CHECKING:
    from hf_transformer.apis.grpc_v2 import GrpcServer

logger = logging.getLogger(__name__)
texts_logger = logging.getLogger("hf_transformer.requests")


def build_app(config: Config, parts: Parts | None = None, roster: Roster | None = None) -> ASGIApp:
    """The ASGI application for one configuration.

    Args:
        config: the frozen configuration; a worker process builds its own application from it.
        parts: what ``load_parts`` gave, loaded here if None.
        roster: the workers, where this process is one of several.
    """
    if roster is not None:
        roster.claim()
    parts = parts or load_parts(config)
    metrics = Metrics(config.model_name)
    predictor = open_predictor(
        config.predictor_protocol, predictor_settings(config), config.predictor_request_retries, metrics
    )
    executor = ThreadPoolExecutor(config.max_asyncio_workers, "tokenizer")
    latency_log = LatencyLog() if config.enable_latency_logging else None
    model = ServedModel(
        config.model_name,
        parts.task,
        predictor,
        pipeline_builder(config, parts, predictor, metrics, executor),
        metrics,
        check_health=config.enable_predictor_health_check,
        latency_log=latency_log,
        roster=roster,
    )
    service = Service(
        models=Models([model]),
        admission=Admission(config.max_concurrent_requests, metrics),
        metrics=metrics,
        max_bytes=config.max_request_bytes,
        max_texts=max(config.max_instances, config.max_sequences),
    )
    grpc = grpc_server(config, service)
    app = http_app(config, service, lambda app: _lifespan(predictor, model, executor, grpc, latency_log))
    if config.access_log_format:
        return AccessLog(app, config.access_log_format, logging.getLogger("hf_transformer.access"))
    return app


def http_app(
    config: Config, service: Service, lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]]
) -> Direct:
    """All routes, the way to those of an Endpoint being the short one."""
    routes = [
        *ops.routes(service),
        *tokenization.routes(service),
        *v1.routes(service, openai.shared_fields(service, config.openai_route_prefix)),
        *v2.routes(service),
        *openai.routes(service, config.openai_route_prefix),
        *openapi.routes(service, config.openai_route_prefix),
        *(docs_page.routes() if config.enable_docs_url else ()),
    ]
    # A slash too many is a 404 and not a redirect, which clients would follow to whatever the Host header says.
    app = Starlette(
        routes=routes,
        exception_handlers=ops.error_handlers(openai.errors_by_path(config.openai_route_prefix)),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return Direct(app, routes, service.models.names)


@asynccontextmanager
async def _lifespan(
    predictor: Predictor,
    model: ServedModel,
    executor: ThreadPoolExecutor,
    grpc: GrpcServer | None,
    latency_log: LatencyLog | None,
) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        if latency_log is not None:
            stack.callback(latency_log.flush)
        await stack.enter_async_context(predictor)
        connecting = asyncio.create_task(model.connect())
        stack.push_async_callback(_cancel, connecting)
        if grpc is not None:
            await stack.enter_async_context(grpc)
            stack.enter_context(told_of_the_end(grpc.begin_end))
        yield


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def grpc_server(config: Config, service: Service) -> GrpcServer | None:
    """The gRPC server, to be opened; None without --enable_grpc, and its libraries are not loaded.

    Raises:
        ConfigError: the certificate can't be read.
    """
    if not config.enable_grpc:
        return None
    from hf_transformer.apis.grpc_v2 import GrpcServer, GrpcSettings

    longest = config.grpc_max_receive_message_length
    settings = GrpcSettings(
        config.host,
        config.grpc_port,
        certificate=config.ssl_certfile,
        private_key=config.ssl_keyfile,
        max_receive=config.max_request_bytes if longest == -1 else min(longest, config.max_request_bytes),
        max_send=config.grpc_max_send_message_length,
    )
    return GrpcServer(service, settings)


def predictor_settings(config: Config) -> PredictorSettings:
    """Where the predictor is, as the transports want it."""
    return PredictorSettings(
        model_name=config.model_name,
        host=config.predictor_host,
        use_ssl=config.predictor_use_ssl,
        timeout=config.predictor_request_timeout_seconds,
        ca_file=config.predictor_ca_file,
        ca_path=config.predictor_ca_path,
        max_send_message_length=config.grpc_max_send_message_length,
        max_receive_message_length=config.grpc_max_receive_message_length,
        shared_memory_bytes=config.predictor_shared_memory_bytes if config.predictor_shared_memory == "auto" else 0,
        shared_memory_min_bytes=config.predictor_shared_memory_min_bytes,
    )


def pipeline_builder(
    config: Config, parts: Parts, predictor: Predictor, metrics: Metrics, executor: ThreadPoolExecutor
) -> Callable[[ModelSpec], Pipeline]:
    """A function that fits everything to the model that the predictor describes."""
    limits = Limits(
        max_instances=config.max_instances,
        max_text_length=config.max_text_length,
        max_total_length=config.max_total_length,
        max_sequences=config.max_sequences,
        max_answer_values=config.max_answer_values,
    )
    log_texts = (
        text_logger(config.max_log_len) if config.enable_log_requests and not config.disable_log_requests else None
    )

    def build(spec: ModelSpec) -> Pipeline:
        binding = bind(
            spec,
            parts.task.outputs,
            input_names=wanted_inputs(config),
            output_names=config.tensor_output_names or (),
            task=parts.task.name,
        )
        tokenizer = fitted(parts.tokenizer, spec, binding)
        scheduler = Scheduler(
            predictor,
            binding,
            filling(tokenizer, binding),
            scheduler_settings(config),
            executor=executor,
            metrics=metrics,
        )
        return Pipeline(
            parts.task,
            tokenizer,
            scheduler,
            executor=executor,
            limits=limits,
            metrics=metrics,
            log_texts=log_texts,
        )

    return build


def scheduler_settings(config: Config) -> SchedulerSettings:
    """How much goes to the predictor at a time."""
    return SchedulerSettings(
        max_batches_in_flight=config.max_batches_in_flight,
        max_batch_tokens=config.max_batch_tokens,
        max_batch_output_bytes=config.max_batch_output_bytes,
        timeout=config.predictor_request_timeout_seconds,
    )


def fitted(tokenizer: Tokenizer, spec: ModelSpec, binding: Binding) -> Tokenizer:
    """The tokenizer, cutting at the model's own sequence length where that is fixed."""
    if binding.length is None:
        return tokenizer
    if not binding.masked:
        logger.warning(
            "model %r has a fixed sequence length of %d and takes no attention_mask: it sees the padding too",
            spec.name,
            binding.length,
        )
    return tokenizer.with_max_length(min(binding.length, tokenizer.max_length))


def filling(tokenizer: Tokenizer, binding: Binding) -> Filling:
    """Padding that a mask hides goes to the right, where it shifts no position; padding that the model sees goes where
    the tokenizer puts it."""
    return Filling(tokenizer.pad_id, left=tokenizer.padding_side == "left" and not binding.masked)


def text_logger(longest: int | None) -> Callable[[Sequence[TextInput], Context], None]:
    """Logs a request's texts, each cut to ``longest`` characters; only for --enable_log_requests."""

    def log(texts: Sequence[TextInput], context: Context) -> None:
        shown = [
            text[:longest] if isinstance(text, str) else tuple(one[:longest] for one in strings(text)) for text in texts
        ]
        texts_logger.info("requestId: %s, instances: %s", context.request_id, shown)

    return log


def wanted_inputs(config: Config) -> tuple[str, ...]:
    """--tensor_input_names, and token_type_ids where --return_token_type_ids asks for them."""
    names = config.tensor_input_names or ()
    if names and config.return_token_type_ids and "token_type_ids" not in names:
        return (*names, "token_type_ids")
    return names
