"""The wiring of one model: from its configuration and what the predictor says of it to a pipeline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from hf_transformer.batches import Filling
from hf_transformer.binding import Binding
from hf_transformer.config import Config
from hf_transformer.contract import bind
from hf_transformer.engines import strings
from hf_transformer.metrics import Metrics
from hf_transformer.model_parts import Parts
from hf_transformer.pipeline import Pipeline
from hf_transformer.predictors.base import Predictor, PredictorSettings
from hf_transformer.scheduler import Scheduler, SchedulerSettings
from hf_transformer.tokenizer import Tokenizer
from hf_transformer.types import Context, ModelSpec, TextInput
from hf_transformer.worklist import Limits

logger = logging.getLogger(__name__)
texts_logger = logging.getLogger("hf_transformer.requests")


def predictor_settings(config: Config) -> PredictorSettings:
    """Where the predictor is, as the transports want it."""
    return PredictorSettings(
        model_name=config.model_name,
        host=config.predictor_host,
        use_ssl=config.predictor_use_ssl,
        timeout=config.predictor_request_timeout_seconds,
        ca_file=config.predictor_ca_file,
        ca_path=config.predictor_ca_path,
        cert_file=config.predictor_cert_file,
        key_file=config.predictor_key_file,
        max_send_message_length=config.grpc_max_send_message_length,
        max_receive_message_length=config.grpc_max_receive_message_length,
        shared_memory_bytes=config.predictor_shared_memory_bytes if config.predictor_shared_memory == "auto" else 0,
        shared_memory_min_bytes=config.predictor_shared_memory_min_bytes,
        max_response_bytes=config.max_predictor_response_bytes,
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
            scheduler_settings(config, spec.instances),
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


def scheduler_settings(config: Config, instances: int) -> SchedulerSettings:
    """How much goes to the predictor at a time.

    Without a flag, one batch for each of the model's ``instances`` and one that is on its way or being decoded. More
    would only be smaller, and every batch costs some time of its own (benchmarks/, "Batches in flight").
    """
    return SchedulerSettings(
        max_batches_in_flight=config.max_batches_in_flight or instances + 1,
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
        named = {"request_id": context.request_id}
        texts_logger.info("requestId: %s, instances: %s", context.request_id, shown, extra=named)

    return log


def wanted_inputs(config: Config) -> tuple[str, ...]:
    """--tensor_input_names, and token_type_ids where --return_token_type_ids asks for them."""
    names = config.tensor_input_names or ()
    if names and config.return_token_type_ids and "token_type_ids" not in names:
        return (*names, "token_type_ids")
    return names
