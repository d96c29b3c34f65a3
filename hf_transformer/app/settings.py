"""Settings from flags: of tasks, of the predictor's transports, of batches, and the limits of a request."""

from __future__ import annotations

import logging
from dataclasses import fields

from hf_transformer.config.options import Config, all_options
from hf_transformer.core.limits import Limits
from hf_transformer.core.scheduler import (
    MAX_LEARNT_OUTPUT_BYTES,
    MAX_OUTPUT_BYTES,
    MAX_SHARED_OUTPUT_BYTES,
    SchedulerSettings,
)
from hf_transformer.errors import ConfigError
from hf_transformer.generation.children import ChildPool
from hf_transformer.generation.grammar_memory import GrammarMemory
from hf_transformer.generation.images import ImageLimits
from hf_transformer.generation.masks import Sandbox
from hf_transformer.generation.task import TASK_CLASSES, TextGeneration
from hf_transformer.predictor.base import PredictorSettings
from hf_transformer.tasks.base import GenerationSettings, SentenceTransformers, Servable, TaskSettings
from hf_transformer.tasks.options import OutputFormat, flags_of
from hf_transformer.tokenizer.model_files import ModelFiles
from hf_transformer.tokenizer.sentence_transformers import read_cross_encoder
from hf_transformer.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

GENERATION_FLAGS = flags_of(TextGeneration.options_type)
GENERATION_LIMITS = ("max_new_tokens", "max_schema_bytes")
"""The fields of GenerationSettings that are no defaults, flags of the same names."""
TASK_FLAGS = tuple(
    dict.fromkeys(flag for task in TASK_CLASSES.values() for flag in flags_of(task.options_type).values())
)
"""The flags that give defaults of parameters, of all tasks."""


def task_settings(
    config: Config,
    files: ModelFiles,
    tokenizer: Tokenizer,
    task: type[Servable],
    sentences: SentenceTransformers | None,
) -> TaskSettings:
    """Returns the settings of a task, from the flags and the model's files."""
    return TaskSettings(
        model_config=files.config,
        vocabulary=tokenizer,
        flags={
            **{flag: getattr(config, flag) for flag in TASK_FLAGS},
            "output_format": config.output_format or _implied_format(config, task),
        },
        on_overflow=config.on_overflow,
        stride=config.stride,
        max_length=tokenizer.max_length,
        sentence_transformers=sentences,
        cross_encoder=read_cross_encoder(files.model_folder),
        generation=GenerationSettings(
            **{
                field.name: getattr(config, GENERATION_FLAGS.get(field.name, field.name))
                for field in fields(GenerationSettings)
            }
        ),
    )


def _implied_format(config: Config, task: type[Servable]) -> OutputFormat:
    """Returns the output format for a service without --output_format.

    Only the pipeline format has entities, so --aggregation_strategy implies this format, as in KServe.
    """
    strategy = config.aggregation_strategy
    numbers = config.return_probabilities or config.return_raw_logits
    if strategy == "none" or numbers or "aggregation_strategy" not in task.parameters:
        return "kserve"
    logger.info("answers have the pipeline format, since --aggregation_strategy=%s is given", strategy)
    return "pipeline"


def flags_without_effect(task: type[Servable], config: Config) -> list[str]:
    """Returns the flags that have no effect on the task, in command-line form."""
    own, default = {*flags_of(task.options_type).values()}, {option.name: option.default for option in all_options()}
    limits = () if issubclass(task, TextGeneration) else GENERATION_LIMITS
    values = {flag: getattr(config, flag) for flag in (*TASK_FLAGS, *limits) if flag not in own}
    return [
        f"--{flag}" if value is True else f"--{flag}={str(value).lower()}"
        for flag, value in values.items()
        if value != default[flag]
    ]


def check_stride(task: type[Servable], settings: TaskSettings) -> None:
    """Raises ConfigError if --stride leaves no room for new tokens in a window, since all long texts would fail."""
    if settings.stride is None or "stride" not in task.parameters:
        return
    window = min(settings.max_length, task.window_tokens or settings.max_length)
    room = window - task.special_tokens
    if settings.stride >= room:
        raise ConfigError(
            f"--stride={settings.stride}: expected less than {room}, the tokens in a window of {window} without the "
            "special ones"
        )


def predictor_settings(config: Config, *, warns: bool = True) -> PredictorSettings:
    """Returns the transports' settings. ``warns`` is set for only one of several workers."""
    return PredictorSettings(
        model_name=config.predictor_model or config.model_name,
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
        max_event_bytes=config.max_predictor_event_bytes,
    )


def sandbox_of(config: Config) -> Sandbox:
    """Returns the sandbox of a service, whose child processes run once they are entered."""
    children = ChildPool(config.max_children, seconds=config.child_timeout_seconds, max_bytes=config.max_child_bytes)
    return Sandbox(children, GrammarMemory(config.max_constraint_bytes))


def image_limits(config: Config) -> ImageLimits:
    """Returns the limits of images in a chat."""
    return ImageLimits(
        count=config.max_images,
        file_bytes=config.max_image_bytes,
        pixels=config.max_image_pixels,
        hosts=config.allowed_image_hosts,
        seconds=config.image_timeout_seconds,
    )


def limits_of(config: Config) -> Limits:
    """Returns the size limits of a request."""
    return Limits(
        max_instances=config.max_instances,
        max_text_length=config.max_text_length,
        max_total_length=config.max_total_length,
        max_sequences=config.max_sequences,
        max_answer_values=config.max_answer_values,
        max_window_tokens=config.max_window_tokens,
    )


def scheduler_settings(
    config: Config, instances: int | None, output_bytes: int = MAX_OUTPUT_BYTES
) -> SchedulerSettings:
    """Returns the limits of batches at the predictor.

    The default is one batch in flight for each of the model's ``instances``, and one more in transfer or decoding. More
    batches would only be smaller, each with the fixed cost of a batch (benchmarks/, "Batches in flight"). The default
    limit of output bytes is the smaller of ``output_bytes`` and ``largest_response``; a flag ends what is learnt.
    """
    learnt = 0 if config.max_batch_output_bytes else min(MAX_LEARNT_OUTPUT_BYTES, largest_response(config))
    return SchedulerSettings(
        max_batches_in_flight=config.max_batches_in_flight or (instances or 1) + 1,
        max_batch_tokens=config.max_batch_tokens,
        max_batch_output_bytes=config.max_batch_output_bytes or min(output_bytes, largest_response(config)),
        timeout=config.predictor_request_timeout_seconds,
        max_learnt_output_bytes=learnt,
    )


def largest_response(config: Config) -> int:
    """Returns the maximum size of a predictor's response in bytes, from the flags."""
    response, message = config.max_predictor_response_bytes, config.grpc_max_receive_message_length
    return response if config.predictor_protocol == "v2" or message == -1 else min(response, message)


def max_shared_bytes(config: Config) -> int:
    """Returns the maximum bytes of a batch's outputs in shared memory, or 0 if shared memory is off or
    --max_batch_output_bytes is set."""
    if config.predictor_shared_memory == "off" or config.max_batch_output_bytes is not None:
        return 0
    # After the loss of the region during a call, the response contains the outputs, so the outputs must fit.
    return min(MAX_SHARED_OUTPUT_BYTES, config.predictor_shared_memory_bytes, largest_response(config))
