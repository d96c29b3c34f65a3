"""The wiring of one model: from its configuration and what the predictor says of it to a pipeline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hf_transformer.config.options import Config
from hf_transformer.core.batch import EncodingForm, Filling, widths_of
from hf_transformer.core.batch_costs import BatchCosts
from hf_transformer.core.contract import ContractError, Signature, fit_signature
from hf_transformer.core.limits import Limits
from hf_transformer.core.pipeline import Pipeline
from hf_transformer.core.scheduler import (
    OUTPUT_BYTES,
    SHARED_OUTPUT_BYTES,
    STEP_OUTPUT_BYTES,
    ConcurrencyLimit,
    Scheduler,
    SchedulerSettings,
)
from hf_transformer.errors import ConfigError
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.model_parts import Parts
from hf_transformer.observability.metrics import Metrics
from hf_transformer.pair import BoundPair, Diagnose, no_diagnosis
from hf_transformer.predictor.base import Predictor, PredictorSettings
from hf_transformer.tasks.base import Task
from hf_transformer.tasks.reduced import fit_reduced
from hf_transformer.tasks.text_generation import TextGeneration
from hf_transformer.tokenizer.engine import strings
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import Context, ModelSpec, TextInput

texts_logger = logging.getLogger("hf_transformer.requests")

LogTexts = Callable[[Sequence[TextInput], Context], None]
"""Is given the texts of each request."""


def predictor_settings(config: Config, *, warns: bool = True) -> PredictorSettings:
    """Where the predictor is, as the transports want it; ``warns``: this process says what all workers find."""
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
        shared_memory_warns=warns,
        max_response_bytes=config.max_predictor_response_bytes,
    )


def pipeline_builder(
    config: Config,
    parts: Parts,
    predictor: Predictor,
    metrics: Metrics,
    executor: ThreadPoolExecutor,
    diagnose: Diagnose = no_diagnosis,
) -> Callable[[ModelSpec], Pipeline | GenerationPipeline]:
    """A function that fits everything to the model that the predictor describes, and has the pair diagnosed."""
    log_texts = (
        text_logger(config.max_log_len) if config.enable_log_requests and not config.disable_log_requests else None
    )
    task = parts.task
    if isinstance(task, TextGeneration) and parts.generation is not None:
        # Imported here: a model that predicts needs nothing of it.
        from hf_transformer.generation_wiring import generation_builder

        return generation_builder(
            config,
            task,
            parts.tokenizer,
            parts.generation,
            predictor,
            metrics,
            executor,
            limits=limits_of(config),
            scheduling=lambda instances: scheduler_settings(config, instances, STEP_OUTPUT_BYTES),
            log_texts=log_texts,
            diagnose=diagnose,
        )
    if not isinstance(task, Task):
        raise AssertionError(f"{task.name} neither predicts nor generates")
    return predictive_builder(config, task, parts.tokenizer, predictor, metrics, executor, log_texts, diagnose)


def fit_task(config: Config, task: Task[Any, Any, Any], spec: ModelSpec) -> tuple[Task[Any, Any, Any], Signature]:
    """The task as it reads this model's outputs, and how the model is asked. Raises ContractError."""
    reader = reader_of(task, spec)
    signature = fit_signature(
        spec,
        reader.outputs,
        input_names=wanted_inputs(config),
        output_names=config.tensor_output_names or (),
        task=reader.name,
    )
    multiple = config.pad_to_multiple_of
    if multiple > 1 and not signature.masked and signature.length is None:
        raise ContractError(
            spec.name,
            [
                f"--pad_to_multiple_of={multiple}: the model gets no attention_mask, so it would read the padding; "
                "expected 1, or a model that gets one (export it so, or add attention_mask to --tensor_input_names)."
            ],
        )
    return reader, signature


def limits_of(config: Config) -> Limits:
    """How much one request may ask for."""
    return Limits(
        max_instances=config.max_instances,
        max_text_length=config.max_text_length,
        max_total_length=config.max_total_length,
        max_sequences=config.max_sequences,
        max_answer_values=config.max_answer_values,
    )


def predictive_builder(
    config: Config,
    task: Task[Any, Any, Any],
    loaded: Tokenizer,
    predictor: Predictor,
    metrics: Metrics,
    executor: ThreadPoolExecutor,
    log_texts: LogTexts | None,
    diagnose: Diagnose = no_diagnosis,
) -> Callable[[ModelSpec], Pipeline]:
    """The same for a model whose answers are read off its outputs; ``loaded`` is the tokenizer of its files."""
    limit = ConcurrencyLimit(0)  # of the predictor: requests under way keep their pipeline when another one is built

    def build(spec: ModelSpec) -> Pipeline:
        reader, signature = fit_task(config, task, spec)
        diagnose(BoundPair(config, loaded, reader, spec, signature))
        tokenizer = fitted(loaded, signature)
        settings = scheduler_settings(config, spec.instances)
        limit.count = settings.max_batches_in_flight
        scheduler = Scheduler(
            predictor,
            EncodingForm(
                signature,
                filling(config, tokenizer, signature),
                max_tokens=settings.max_batch_tokens,
                max_output_bytes=settings.max_batch_output_bytes,
                more=more_when_shared(config, predictor),
                costs=BatchCosts(spec.instances),
            ),
            settings,
            executor=executor,
            metrics=metrics,
            limit=limit,
        )
        return Pipeline(
            reader,
            tokenizer,
            scheduler,
            executor=executor,
            limits=limits_of(config),
            metrics=metrics,
            log_texts=log_texts,
        )

    return build


def reader_of(task: Task[Any, Any, Any], spec: ModelSpec) -> Task[Any, Any, Any]:
    """The form of the task that reads what the model gives. Raises ContractError."""
    try:
        return fit_reduced(task, (output.name for output in spec.outputs))
    except ConfigError as error:
        raise ContractError(spec.name, [f"{error}."]) from error


def scheduler_settings(config: Config, instances: int, output_bytes: int = OUTPUT_BYTES) -> SchedulerSettings:
    """How much goes to the predictor at a time.

    Without a flag, one batch for each of the model's ``instances`` and one that is on its way or being decoded. More
    would only be smaller, and every batch costs some time of its own (benchmarks/, "Batches in flight"). Its outputs
    then have ``output_bytes``, or what the predictor may respond with where that is less; see ``more_when_shared``.
    """
    return SchedulerSettings(
        max_batches_in_flight=config.max_batches_in_flight or instances + 1,
        max_batch_tokens=config.max_batch_tokens,
        max_batch_output_bytes=config.max_batch_output_bytes or min(output_bytes, largest_response(config)),
        timeout=config.predictor_request_timeout_seconds,
    )


def largest_response(config: Config) -> int:
    """Bytes of a response of the predictor at most, by the flags."""
    most, longest = config.max_predictor_response_bytes, config.grpc_max_receive_message_length
    return most if config.predictor_protocol == "v2" or longest == -1 else min(most, longest)


def most_shared_bytes(config: Config) -> int:
    """Bytes that a batch's outputs have through shared memory at most; 0 where none travel so, or a flag bounds them
    whatever their way."""
    if config.predictor_shared_memory == "off" or config.max_batch_output_bytes is not None:
        return 0
    # They come inline after all where the region is lost in that moment: never more than a response may have.
    return min(SHARED_OUTPUT_BYTES, config.predictor_shared_memory_bytes, largest_response(config))


def more_when_shared(config: Config, predictor: Predictor) -> Callable[[int], bool] | None:
    """Whether a batch's outputs may have so many bytes, more than they have inline, because they would travel through
    shared memory now. None where they may not in any case."""
    most = most_shared_bytes(config)
    return (lambda size: size <= most and predictor.shares(size)) if most else None


def fitted(tokenizer: Tokenizer, signature: Signature) -> Tokenizer:
    """The tokenizer, cutting at the model's own sequence length where that is fixed."""
    if signature.length is None:
        return tokenizer
    return tokenizer.with_max_length(min(signature.length, tokenizer.max_length))


def filling(config: Config, tokenizer: Tokenizer, signature: Signature) -> Filling:
    """Padding that a mask hides goes to the right, where it shifts no position; padding that the model sees goes where
    the tokenizer puts it. No batch is wider than ``tokenizer`` cuts texts, whatever --pad_to_multiple_of says: there
    the model's positions may end."""
    widths = widths_of(config.pad_to_multiple_of, tokenizer.max_length) if signature.length is None else None
    left = tokenizer.padding_side == "left" and not signature.masked
    return Filling(tokenizer.pad_id, left=left, widths=widths)


def text_logger(longest: int | None) -> LogTexts:
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
