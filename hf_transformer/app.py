"""The wiring: the only place where the objects meet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from hf_transformer.apis import ops, v1
from hf_transformer.apis.access_log import AccessLog
from hf_transformer.apis.base import Admission, Models
from hf_transformer.binding import Binding
from hf_transformer.config import Config
from hf_transformer.contract import bind
from hf_transformer.engines import strings
from hf_transformer.errors import ConfigError, RequestError
from hf_transformer.loading.model_files import ModelFiles, find_model_files
from hf_transformer.loading.sentence_transformers import read_activation, read_sentence_transformers
from hf_transformer.metrics import Metrics
from hf_transformer.pipeline import Limits, Pipeline
from hf_transformer.predictors import open_predictor
from hf_transformer.predictors.base import Predictor, PredictorSettings
from hf_transformer.scheduler import Filling, Scheduler
from hf_transformer.served_model import ServedModel
from hf_transformer.tasks import find_task
from hf_transformer.tasks.base import SentenceTransformers, Task, TaskSettings
from hf_transformer.tasks.flags import check_stride, flags_without_effect
from hf_transformer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types import Context, ModelSpec, TextInput

logger = logging.getLogger(__name__)
texts_logger = logging.getLogger("hf_transformer.requests")


@dataclass(frozen=True, slots=True)
class Parts:
    """What is loaded from the model's files before anything is served."""

    tokenizer: Tokenizer
    task: Task[Any, Any, Any]


def load_parts(config: Config) -> Parts:
    """Loads the tokenizer and the task.

    Raises:
        LoadError: with one line on what is missing or wrong.
    """
    files = find_model_files(
        config.model_id,
        config.model_dir,
        model_name=config.model_name,
        model_revision=config.model_revision,
        tokenizer_revision=config.tokenizer_revision,
        token=config.hf_token,
        trust_remote_code=config.trust_remote_code,
    )
    sentences = _sentence_transformers(files.model_folder, config)
    # config.json still names what such a model was before: all-mpnet-base-v2 says MPNetForMaskedLM.
    task = find_task(config.task or ("text_embedding" if sentences else None), files.config)
    if config.on_overflow == "window" and not task.has_windows:
        raise ConfigError(f"--on_overflow=window: {task.name} can't read a text in windows, expected truncate or error")
    tokenizer = load_tokenizer(
        files.tokenizer_folder,
        files.config,
        max_model_len=config.max_model_len,
        at_most=sentences.max_seq_length if sentences and task.reads_sentence_transformers else None,
        lower_case=not config.disable_lower_case,
        special_tokens=not config.disable_special_tokens,
        trust_remote_code=config.trust_remote_code,
    )
    settings = _task_settings(config, files, tokenizer, sentences)
    check_stride(task.name, settings)
    made = task(settings)
    for flag in flags_without_effect(task.name, settings):
        logger.warning("%s has no effect for %s", flag, task.name)
    return Parts(tokenizer, made)


def _task_settings(
    config: Config, files: ModelFiles, tokenizer: Tokenizer, sentences: SentenceTransformers | None
) -> TaskSettings:
    return TaskSettings(
        model_config=files.config,
        vocabulary=tokenizer,
        output_format=config.output_format,
        return_probabilities=config.return_probabilities,
        return_raw_logits=config.return_raw_logits,
        return_offsets_mapping=config.return_offsets_mapping,
        aggregation_strategy=config.aggregation_strategy,
        on_overflow=config.on_overflow,
        stride=config.stride,
        max_length=tokenizer.max_length,
        sentence_transformers=sentences,
        activation_fn=read_activation(files.model_folder),
    )


def _sentence_transformers(folder: Path, config: Config) -> SentenceTransformers | None:
    found = read_sentence_transformers(folder)
    return replace(found, lower_case=False) if found and config.disable_lower_case else found


def build_app(config: Config, parts: Parts | None = None) -> ASGIApp:
    """The ASGI application for one configuration.

    Args:
        config: the frozen configuration; a worker process builds its own application from it.
        parts: what ``load_parts`` gave, loaded here if None.
    """
    parts = parts or load_parts(config)
    metrics = Metrics(config.model_name)
    predictor = open_predictor(
        config.predictor_protocol, predictor_settings(config), retries=config.predictor_request_retries
    )
    executor = ThreadPoolExecutor(config.max_asyncio_workers, "tokenizer")
    model = ServedModel(
        config.model_name,
        predictor,
        pipeline_builder(config, parts, predictor, metrics, executor),
        metrics,
        check_health=config.enable_predictor_health_check,
        log_latency=config.enable_latency_logging,
    )
    models = Models([model])
    admission = Admission(config.max_concurrent_requests, metrics)
    # A slash too many is a 404 and not a redirect, which clients would follow to whatever the Host header says.
    app = Starlette(
        routes=[
            *ops.routes(models, metrics),
            *v1.routes(models, admission, metrics, config.max_request_bytes),
        ],
        exception_handlers={HTTPException: ops.http_error, RequestError: ops.request_error},
        lifespan=lambda app: _lifespan(predictor, model, executor),
    )
    app.router.redirect_slashes = False
    if config.access_log_format:
        return AccessLog(app, config.access_log_format, logging.getLogger("hf_transformer.access"))
    return app


@asynccontextmanager
async def _lifespan(predictor: Predictor, model: ServedModel, executor: ThreadPoolExecutor) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        await stack.enter_async_context(predictor)
        connecting = asyncio.create_task(model.connect())
        stack.push_async_callback(_cancel, connecting)
        yield


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


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
            max_batches_in_flight=config.max_batches_in_flight,
            timeout=config.predictor_request_timeout_seconds,
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
