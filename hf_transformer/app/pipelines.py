"""Pipelines: a loaded model and the predictor's description of it become a pipeline, or a ContractError."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from hf_transformer.app.loading import LoadedGenerativeModel, LoadedModel
from hf_transformer.app.settings import limits_of, max_shared_bytes, scheduler_settings
from hf_transformer.config.options import Config
from hf_transformer.core.batch import PaddingPolicy, padding_buckets
from hf_transformer.core.batch_rules import batch_rules
from hf_transformer.core.contract import ContractError, Signature, fit_signature
from hf_transformer.core.label_vectors import FLAG, VECTORS, LabelVectors
from hf_transformer.core.labelled_batch import LabelledShape
from hf_transformer.core.pipeline import PipelineOptions, PredictivePipeline, TokenizingPipeline
from hf_transformer.core.remote import BatcherLink, PredictorRecipe, RemoteScheduler, SchedulerRecipe
from hf_transformer.core.scheduler import MAX_STEP_OUTPUT_BYTES, ConcurrencyLimit, Scheduler
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.generation.build import make_generator
from hf_transformer.generation.inputs import FIELDS
from hf_transformer.generation.masks import Sandbox
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.types import Generator
from hf_transformer.generation.verification import Verifier
from hf_transformer.observability.logging import names_of
from hf_transformer.observability.metrics import ModelMetrics
from hf_transformer.predictor.base import Predictor
from hf_transformer.tasks.base import Servable, Task
from hf_transformer.tasks.bi_encoder_rerank import BiEncoderRerank
from hf_transformer.tasks.representations import Representations, fit_outputs
from hf_transformer.tasks.zero_shot_token_classification import ZeroShotTokenClassification
from hf_transformer.tokenizer.engine import strings
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.request import Context, Json
from hf_transformer.types.tensors import ModelSpec
from hf_transformer.types.tokenization import Encoding, TextInput

texts_logger = logging.getLogger("hf_transformer.requests")


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


@dataclass(frozen=True, slots=True)
class RemoteBatches:
    """The process that forms the batches, and what it makes a model's predictor from."""

    link: BatcherLink
    predictor: PredictorRecipe


Diagnose = Callable[[ModelBinding], None]
"""Examines a new binding, and gives advice in the log or in the report of hf-transformer doctor."""


@dataclass(frozen=True, slots=True)
class PipelineBuilder:
    """Builds the pipeline for a model of the predictor, and calls ``diagnose`` with the binding.

    All pipelines of a builder share the predictor's concurrency limit and cache budget, since running requests keep the
    pipeline of a replaced model. The batches of a predictive task form in this process, or at ``batches``.
    ``label_vectors`` is for a bi-encoder.
    """

    config: Config
    model: LoadedModel
    predictor: Predictor
    metrics: ModelMetrics
    executor: ThreadPoolExecutor
    diagnose: Diagnose | None = None
    sandbox: Sandbox = field(default_factory=Sandbox)
    limit: ConcurrencyLimit = field(default_factory=lambda: ConcurrencyLimit(0))
    batches: RemoteBatches | None = None
    label_vectors: LabelVectors | None = None

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
        vector_size = -1 if self.label_vectors is None else _label_size(spec, self.label_vectors)
        if self.diagnose is not None:
            self.diagnose(FittedBinding(config, tokenizer, fitted, spec, signature))
        if signature.length is not None:
            tokenizer = tokenizer.with_max_length(min(signature.length, tokenizer.max_length))
            if isinstance(fitted, Representations | BiEncoderRerank):
                fitted = fitted.with_max_length(tokenizer.max_length)
        recipe = SchedulerRecipe(
            config.model_name,
            signature,
            padding_policy(config, tokenizer, signature, task.settings.model_config, hides_tokens=fitted.hides_tokens),
            scheduler_settings(config, spec.instances),
            max_shared_bytes(config),
            spec.instances,
            words_of(fitted),
        )
        scheduler: Scheduler[Encoding] | RemoteScheduler
        # The batcher's messages have no words.
        if self.batches is None or recipe.words is not None:
            scheduler = recipe.make(self.predictor, self.executor, self.metrics, self.limit)
        else:
            both = self.batches.predictor, recipe
            scheduler = RemoteScheduler(self.batches.link, both, executor=self.executor, metrics=self.metrics)
        return PredictivePipeline(fitted, tokenizer, scheduler, self._options, self.label_vectors, vector_size)

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


def words_of(task: Task[Any, Any, Any]) -> LabelledShape | None:
    """Returns the ``words`` of a SchedulerRecipe for a fitted task."""
    if not isinstance(task, ZeroShotTokenClassification):
        return None
    return LabelledShape(task.width, task.reads_word_padding, task.reads_label_padding)


def _label_size(spec: ModelSpec, vectors: LabelVectors) -> int:
    """The length of the vectors that the model reads, -1 for any. Raises ContractError if the model of labels makes
    others."""
    [wanted] = [tensor.shape[-1] for tensor in spec.inputs if tensor.name == VECTORS.name]
    if -1 not in (wanted, vectors.size) and wanted != vectors.size:
        problem = f"It reads vectors of {wanted} numbers for labels, but {vectors.name!r} makes {vectors.size}"
        raise ContractError(spec.name, [f"{problem}; name its own model of labels with {FLAG}."])
    return wanted


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
        extras=fitted.inputs,
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
    words = words_of(fitted)
    if spec.dynamic_batching and words is not None and words.width == 1 and words.equal_words:
        problem = (
            "Its encoder above the words reads their padding, and Triton's dynamic batcher joins calls with other "
            "numbers of words; remove dynamic_batching from config.pbtxt."
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
