"""Wiring of a model's files, the flags and the predictor's description into a pipeline.

``load_model`` reads the model's files at startup. ``PipelineBuilder`` builds a pipeline for each model that the
predictor describes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from hf_transformer.config.options import Config, all_options
from hf_transformer.core.batch import EncodingBatchBuilder, PaddingPolicy, padding_buckets
from hf_transformer.core.batch_costs import BatchCosts
from hf_transformer.core.batch_rules import batch_rules
from hf_transformer.core.contract import ContractError, Signature, fit_signature
from hf_transformer.core.limits import Limits
from hf_transformer.core.pipeline import PipelineOptions, PredictivePipeline, TokenizingPipeline
from hf_transformer.core.scheduler import (
    MAX_OUTPUT_BYTES,
    MAX_SHARED_OUTPUT_BYTES,
    MAX_STEP_OUTPUT_BYTES,
    ConcurrencyLimit,
    Scheduler,
    SchedulerSettings,
)
from hf_transformer.errors import ConfigError, LoadError, RequestError
from hf_transformer.generation.build import generator_settings, make_generator
from hf_transformer.generation.cache import CacheBudget
from hf_transformer.generation.children import ChildPool
from hf_transformer.generation.grammar_memory import GrammarMemory
from hf_transformer.generation.inputs import FIELDS
from hf_transformer.generation.masks import Sandbox
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.task import ALL_TASKS, TASK_CLASSES, TextGeneration
from hf_transformer.generation.types import Generator, GeneratorSettings
from hf_transformer.generation.verification import Verifier, require_extra
from hf_transformer.observability.logging import names_of
from hf_transformer.observability.metrics import ModelMetrics
from hf_transformer.predictor.base import Predictor, PredictorSettings
from hf_transformer.tasks import find_task
from hf_transformer.tasks.base import (
    GenerationSettings,
    SentenceTransformers,
    Servable,
    Task,
    TaskSettings,
)
from hf_transformer.tasks.bi_encoder_rerank import BiEncoderRerank
from hf_transformer.tasks.causal_rerank import CausalRerank
from hf_transformer.tasks.options import OutputFormat, flags_of
from hf_transformer.tasks.playground import read_playground
from hf_transformer.tasks.representations import Representations, fit_outputs
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tokenizer.engine import strings
from hf_transformer.tokenizer.model_files import ModelFiles, find_model_files
from hf_transformer.tokenizer.reranker_files import implied_task, is_causal
from hf_transformer.tokenizer.sentence_transformers import read_cross_encoder, read_sentence_transformers
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.request import Context, Json
from hf_transformer.types.tensors import ModelSpec
from hf_transformer.types.tokenization import TextInput

if TYPE_CHECKING:
    from hf_transformer.generation.chat import ChatTemplate

logger = logging.getLogger(__name__)
texts_logger = logging.getLogger("hf_transformer.requests")

TASK_FLAGS = tuple(
    dict.fromkeys(flag for task in TASK_CLASSES.values() for flag in flags_of(task.options_type).values())
)
"""The flags that give defaults of parameters, of all tasks."""
GENERATION_FLAGS = flags_of(TextGeneration.options_type)
GENERATION_LIMITS = ("max_new_tokens", "max_schema_bytes")
"""The fields of GenerationSettings that are no defaults, flags of the same names."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The tokenizer and the task of a model, loaded from its files."""

    tokenizer: Tokenizer
    task: Servable


@dataclass(frozen=True, slots=True)
class LoadedGenerativeModel(LoadedModel):
    """A loaded generative model. ``chat_template`` is None for a model without chat support."""

    task: TextGeneration
    settings: GeneratorSettings
    chat_template: ChatTemplate | None = None


@dataclass(frozen=True, slots=True)
class ModelBinding:
    """A predictor's model with its tokenizer and its task.

    ``tokenizer`` truncates texts to the length in the model's files or --max_model_len, not to the predictor's length.
    """

    config: Config
    tokenizer: Tokenizer
    task: Servable
    spec: ModelSpec

    @property
    def model_config(self) -> Mapping[str, Json]:
        """The contents of config.json."""
        return self.task.settings.model_config


@dataclass(frozen=True, slots=True)
class FittedBinding(ModelBinding):
    """The binding of a predictive task to a fitting model."""

    task: Task[Any, Any, Any]
    signature: Signature

    @property
    def length(self) -> int:
        """The maximum length of a text for the predictor in tokens, including special tokens."""
        return min(self.signature.length or self.tokenizer.max_length, self.tokenizer.max_length)


Diagnose = Callable[[ModelBinding], None]
"""Examines a new binding, and gives advice in the log or in the report of hf-transformer doctor."""


# The model's files


def load_model(config: Config) -> LoadedModel:
    """Loads the tokenizer and the task.

    Raises:
        LoadError: a file is missing or invalid.
        ConfigError: a flag does not fit the task.
    """
    try:
        return _load_model(config)
    except BaseException as error:
        # The tokenizers library raises PanicException, a BaseException, for some broken files.
        is_panic = type(error).__name__ == "PanicException"
        if not is_panic and not isinstance(error, ArithmeticError | MemoryError | RecursionError | RequestError):
            raise
        detail = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        raise LoadError(f"the files of the model {config.model_name!r} can't be loaded: {detail}") from error


def _load_model(config: Config) -> LoadedModel:
    files = find_model_files(
        config.model_id,
        config.model_dir,
        model_name=config.model_name,
        model_revision=config.model_revision,
        tokenizer_revision=config.tokenizer_revision,
        token=config.hf_token,
        trust_remote_code=config.trust_remote_code,
        max_file_bytes=config.max_model_file_bytes,
    )
    sentences = read_sentence_transformers(files.model_folder)
    if sentences is not None and config.disable_lower_case:
        sentences = replace(sentences, lower_case=False)
    implied = implied_task(files.model_folder, files.config, sentences)
    task = find_task(config.task or implied, files.config, ALL_TASKS)
    if task is Rerank:
        task = reranker_class(files.config, sentences)
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
        word_cache=config.enable_word_cache,
        max_file_bytes=config.max_model_file_bytes,
    )
    settings = _task_settings(config, files, tokenizer, task, sentences)
    if issubclass(task, Rerank) and task is not BiEncoderRerank:
        from hf_transformer.app.rerank_template import prepare_reranker  # imports Jinja

        settings = replace(settings, reranker=prepare_reranker(config, files, tokenizer))
    check_stride(task, settings)
    loaded_task = task(settings)
    _warn(config, task, settings)
    if config.adapters and not isinstance(loaded_task, TextGeneration):
        adapters = f"--adapters={','.join(config.adapters)}"
        raise ConfigError(f"{adapters}: expected a model for {TextGeneration.name}, got {task.name}")
    if isinstance(loaded_task, TextGeneration):
        from hf_transformer.generation.chat import load_chat_template  # imports Jinja

        if config.verify_structured_output:
            require_extra()
        generator = _generator_settings(config, files, tokenizer)
        template = load_chat_template(files.tokenizer_folder, config.chat_template, tokenizer.special_tokens)
        return LoadedGenerativeModel(tokenizer, loaded_task, generator, template)
    if config.chat_template is not None:
        logger.warning("--chat_template has no effect for %s", task.name)
    return LoadedModel(tokenizer, loaded_task)


def _warn(config: Config, task: type[Servable], settings: TaskSettings) -> None:
    """Logs the flags and prompts without effect for a task."""
    uses_template = issubclass(task, Rerank) and task is not BiEncoderRerank
    if not uses_template and (config.rerank_template != "auto" or config.rerank_tokens):
        kind = "embedding models as rerankers" if task is BiEncoderRerank else task.name
        logger.warning("--rerank_template and --rerank_tokens have no effect for %s", kind)
    if any(settings.cross_encoder.prompts.values()) and not issubclass(task, Rerank):
        logger.warning("the prompts of this CrossEncoder have no effect for %s, only for --task=rerank", task.name)
    for flag in flags_without_effect(task, config):
        logger.warning("%s has no effect for %s", flag, task.name)
    read_playground(settings.model_config, logger.warning)


def reranker_class(model_config: Mapping[str, Json], sentences: SentenceTransformers | None) -> type[Servable]:
    """Selects the form of a reranker by its files."""
    if sentences is not None:
        return BiEncoderRerank
    return CausalRerank if is_causal(model_config) else Rerank


def _task_settings(
    config: Config,
    files: ModelFiles,
    tokenizer: Tokenizer,
    task: type[Servable],
    sentences: SentenceTransformers | None,
) -> TaskSettings:
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


def _generator_settings(config: Config, files: ModelFiles, tokenizer: Tokenizer) -> GeneratorSettings:
    """Reads the generator's settings. PipelineBuilder replaces ``scheduling`` for the predictor's model."""
    return generator_settings(
        files,
        tokenizer,
        interface=config.generation_interface,
        input_names=config.tensor_input_names or (),
        output_names=config.tensor_output_names or (),
        pad_to_multiple_of=config.pad_to_multiple_of,
        scheduling=scheduler_settings(config, 1, MAX_STEP_OUTPUT_BYTES),
        cache_budget=CacheBudget(config.max_cache_bytes),
        structured_output_form=config.structured_output_form,
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


@dataclass(frozen=True, slots=True)
class PipelineBuilder:
    """Builds the pipeline for a model of the predictor, and calls ``diagnose`` with the binding.

    All pipelines of a builder share the predictor's concurrency limit and cache budget, since running requests keep the
    pipeline of a replaced model.
    """

    config: Config
    model: LoadedModel
    predictor: Predictor
    metrics: ModelMetrics
    executor: ThreadPoolExecutor
    diagnose: Diagnose | None = None
    sandbox: Sandbox = field(default_factory=Sandbox)
    limit: ConcurrencyLimit = field(default_factory=lambda: ConcurrencyLimit(0))

    def __post_init__(self) -> None:
        self.metrics.watch_cache_checks(self.model.tokenizer.cache_checks)

    def tokenizing(self, spec: ModelSpec) -> TokenizingPipeline:
        """Builds the pipeline of a model without a predictor."""
        return TokenizingPipeline(self.config.model_name, self.model.tokenizer, self._options)

    def __call__(self, spec: ModelSpec) -> PredictivePipeline | GenerationPipeline:
        """Builds the pipeline. Raises ContractError if the model does not fit."""
        if isinstance(self.model, LoadedGenerativeModel):
            return self.generative(self.model, spec)
        return self.predictive(spec)

    def predictive(self, spec: ModelSpec) -> PredictivePipeline:
        """Builds the pipeline of a predictive task. Raises ContractError if the model does not fit."""
        config, tokenizer, task = self.config, self.model.tokenizer, cast(Task[Any, Any, Any], self.model.task)
        fitted, signature = fit_task(config, task, spec)
        if self.diagnose is not None:
            self.diagnose(FittedBinding(config, tokenizer, fitted, spec, signature))
        if signature.length is not None:
            tokenizer = tokenizer.with_max_length(min(signature.length, tokenizer.max_length))
            if isinstance(fitted, Representations | BiEncoderRerank):
                fitted = fitted.with_max_length(tokenizer.max_length)
        settings = scheduler_settings(config, spec.instances)
        self.limit.count = settings.max_batches_in_flight
        builder = EncodingBatchBuilder(
            signature,
            padding_policy(config, tokenizer, signature, task.settings.model_config, hides_tokens=fitted.hides_tokens),
            max_tokens=settings.max_batch_tokens,
            max_output_bytes=settings.max_batch_output_bytes,
            allow_in_shared_memory=outputs_in_shared_memory(config, self.predictor),
            costs=BatchCosts(spec.instances, config.model_name),
        )
        scheduler = Scheduler(
            self.predictor, builder, settings, executor=self.executor, metrics=self.metrics, limit=self.limit
        )
        return PredictivePipeline(fitted, tokenizer, scheduler, self._options)

    def generative(self, model: LoadedGenerativeModel, spec: ModelSpec) -> GenerationPipeline:
        """Builds the pipeline of a generative task. Raises ContractError if the model does not fit."""
        config, tokenizer = self.config, model.tokenizer
        settings = replace(model.settings, scheduling=scheduler_settings(config, spec.instances, MAX_STEP_OUTPUT_BYTES))
        generator = make_generator(
            spec,
            self.predictor,
            tokenizer,
            settings,
            executor=self.executor,
            metrics=self.metrics,
            sandbox=self.sandbox,
        )
        problems = _sampling_problems(config, model.task, generator)
        if config.adapters and not generator.takes_adapters:
            problems.append(f"--adapters={','.join(config.adapters)}: it has no input sampling_parameters.")
        if problems:
            raise ContractError(spec.name, problems)
        if self.diagnose is not None:
            self.diagnose(ModelBinding(config, tokenizer, model.task, spec))
        timeout = config.predictor_request_timeout_seconds
        verifier = None
        if config.verify_structured_output:
            verifier = Verifier(self.sandbox.children)
            self.sandbox.children.warm_up()
        return GenerationPipeline(
            model.task, tokenizer, generator, settings, self._options, timeout=timeout, verifier=verifier
        )

    @property
    def _options(self) -> PipelineOptions:
        config = self.config
        log_texts = partial(_log_texts, config.max_log_len) if config.enable_log_requests else None
        return PipelineOptions(self.executor, limits_of(config), self.metrics, log_texts)


def sandbox_of(config: Config) -> Sandbox:
    """Returns the sandbox of a service, whose child processes run once they are entered."""
    children = ChildPool(config.max_children, seconds=config.child_timeout_seconds, max_bytes=config.max_child_bytes)
    return Sandbox(children, GrammarMemory(config.max_constraint_bytes))


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


def fit_task(config: Config, task: Task[Any, Any, Any], spec: ModelSpec) -> tuple[Task[Any, Any, Any], Signature]:
    """Fits a task to a model, and returns the fitted task and the signature. Raises ContractError for a mismatch."""
    try:
        fitted = task.fit(spec.outputs) if isinstance(task, BiEncoderRerank) else fit_outputs(task, spec.outputs)
    except (ConfigError, LoadError) as error:
        raise ContractError(spec.name, [f"{error}."]) from error
    names = config.tensor_input_names or ()
    if names and config.return_token_type_ids and "token_type_ids" not in names:
        names = (*names, "token_type_ids")
    signature = fit_signature(
        spec,
        fitted.outputs,
        input_names=names,
        output_names=config.tensor_output_names or (),
        task=fitted.name,
    )
    if fitted.hides_tokens and not signature.masked:
        problem = (
            "Its queries have mask tokens that its attention must not see, but it gets no attention_mask; export it "
            "with one, or add attention_mask to --tensor_input_names."
        )
        raise ContractError(spec.name, [problem])
    multiple = config.pad_to_multiple_of
    if multiple > 1 and signature.length is None:
        flag = f"--pad_to_multiple_of={multiple}"
        if not signature.masked:
            problem = (
                f"{flag}: the model gets no attention_mask, so it would read the padding; expected 1, or a model that "
                "gets one (export it so, or add attention_mask to --tensor_input_names)."
            )
            raise ContractError(spec.name, [problem])
        if batch_rules(task.settings.model_config, None).equal_lengths:
            model_type = task.settings.model_config.get("model_type")
            problem = f"{flag}: the model is of the type {model_type}, which reads padding; expected 1."
            raise ContractError(spec.name, [problem])
    return fitted, signature


def _sampling_problems(config: Config, task: TextGeneration, generator: Generator) -> list[str]:
    """Returns one sentence for each default of a sampling parameter that the model does not support.

    With --do_sample, all requests with such a default would fail, except in OpenAI's API, which has its own defaults.
    """
    if not config.do_sample:
        return []
    sampling = task.options({"do_sample": True}).sampling
    problems = []
    for flag, neutral in (("temperature", 1), ("top_k", 0), ("top_p", 1)):
        if flag in sampling.names and flag not in generator.supported_fields:
            inputs = " or ".join(FIELDS[flag])
            problems.append(
                f"--do_sample=true with --{flag}={getattr(config, flag):g}: this model is a {generator.interface} model"
                f" without an input {inputs}; set --do_sample=false, or --{flag}={neutral}."
            )
    return problems


# Limits and sizes


def scheduler_settings(config: Config, instances: int, output_bytes: int = MAX_OUTPUT_BYTES) -> SchedulerSettings:
    """Returns the limits of batches at the predictor.

    The default is one batch in flight for each of the model's ``instances``, and one more in transfer or decoding. More
    batches would only be smaller, each with the fixed cost of a batch (benchmarks/, "Batches in flight"). The default
    limit of output bytes is the smaller of ``output_bytes`` and ``largest_response``.
    """
    return SchedulerSettings(
        max_batches_in_flight=config.max_batches_in_flight or instances + 1,
        max_batch_tokens=config.max_batch_tokens,
        max_batch_output_bytes=config.max_batch_output_bytes or min(output_bytes, largest_response(config)),
        timeout=config.predictor_request_timeout_seconds,
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


def outputs_in_shared_memory(config: Config, predictor: Predictor) -> Callable[[int], bool] | None:
    """Returns a function for EncodingBatchBuilder that reports whether outputs may currently use shared memory.

    Returns None if the maximum of outputs in shared memory is 0.
    """
    limit = max_shared_bytes(config)
    return (lambda size: size <= limit and predictor.shares(size)) if limit else None


def padding_policy(
    config: Config,
    tokenizer: Tokenizer,
    signature: Signature,
    model_config: Mapping[str, Json],
    *,
    hides_tokens: bool = False,
) -> PaddingPolicy:
    """Returns the side, the token id and the buckets of padding.

    Padding with a mask uses the architecture's side. Padding without a mask uses the tokenizer's side. The maximum
    width is the tokenizer's maximum length, since the model may have no more positions.
    """
    rules = batch_rules(model_config, tokenizer.token_to_id(tokenizer.special_tokens.get("eos_token", "")))
    equal_lengths = rules.equal_lengths and signature.masked
    has_buckets = signature.length is None and not equal_lengths
    return PaddingPolicy(
        tokenizer.pad_id if rules.pad_id is None or not signature.masked else rules.pad_id,
        left=rules.left if signature.masked else tokenizer.padding_side == "left",
        buckets=padding_buckets(config.pad_to_multiple_of, tokenizer.max_length) if has_buckets else None,
        equal_lengths=equal_lengths,
        counted_id=rules.counted_id,
        hides_tokens=hides_tokens,
    )


def _log_texts(max_length: int | None, texts: Sequence[TextInput], context: Context) -> None:
    """Logs a request's texts for --enable_log_requests, and truncates each text to ``max_length`` characters."""
    instances = [
        text[:max_length] if isinstance(text, str) else tuple(part[:max_length] for part in strings(text))
        for text in texts
    ]
    named = names_of(context.request_id, context.headers.get("traceparent"))
    texts_logger.info("requestId: %s, instances: %s", context.request_id, instances, extra=named)
