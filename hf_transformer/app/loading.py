"""Loading of a model at startup: its files and the flags become a tokenizer and a task."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hf_transformer.app.label_files import with_label_files
from hf_transformer.app.label_model import LoadedLabels, load_labels
from hf_transformer.app.settings import check_stride, flags_without_effect, scheduler_settings, task_settings
from hf_transformer.config.options import Config
from hf_transformer.core.scheduler import MAX_STEP_OUTPUT_BYTES
from hf_transformer.errors import ConfigError, LoadError, RequestError
from hf_transformer.generation.build import generator_settings
from hf_transformer.generation.cache import CacheBudget
from hf_transformer.generation.task import ALL_TASKS, TextGeneration
from hf_transformer.generation.types import GeneratorSettings
from hf_transformer.generation.verification import require_extra
from hf_transformer.tasks import find_task
from hf_transformer.tasks.base import SentenceTransformers, Servable, TaskSettings
from hf_transformer.tasks.bi_encoder_rerank import BiEncoderRerank
from hf_transformer.tasks.causal_rerank import CausalRerank
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.tasks.playground import read_playground
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tasks.sequence_classification import SequenceClassification
from hf_transformer.tasks.token_classification import TokenClassification
from hf_transformer.tasks.zero_shot_token_classification import ZeroShotTokenClassification
from hf_transformer.tokenizer.image_tokens import ImageTokens, read_image_tokens
from hf_transformer.tokenizer.model_files import ModelFiles, find_model_files
from hf_transformer.tokenizer.reranker_files import implied_task, is_causal
from hf_transformer.tokenizer.sentence_transformers import read_sentence_transformers
from hf_transformer.tokenizer.shared import SharedEngines
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.request import Json
from hf_transformer.types.tokenization import UserTokens

if TYPE_CHECKING:
    from hf_transformer.generation.chat import ChatTemplate
    from hf_transformer.generation.responses.model import ModelResponses


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The tokenizer and the task of a model, loaded from its files. ``labels`` is for a bi-encoder."""

    tokenizer: Tokenizer
    task: Servable
    labels: LoadedLabels | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class LoadedGenerativeModel(LoadedModel):
    """A loaded generative model. ``chat_template`` is None for a model without chat support, and ``responses`` for
    one whose answers stay as they are."""

    task: TextGeneration
    settings: GeneratorSettings
    chat_template: ChatTemplate | None = None
    responses: ModelResponses | None = None
    image_tokens: ImageTokens | None = None


def load_model(config: Config, engines: SharedEngines | None = None) -> LoadedModel:
    """Loads the tokenizer and the task. ``engines`` are those of the other models, for equal tokenizers.

    Raises:
        LoadError: a file is missing or invalid.
        ConfigError: a flag does not fit the task.
    """
    try:
        return _load_model(config, engines)
    except BaseException as error:
        # The tokenizers library raises PanicException, a BaseException, for some broken files.
        is_panic = type(error).__name__ == "PanicException"
        if not is_panic and not isinstance(error, ArithmeticError | MemoryError | RecursionError | RequestError):
            raise
        detail = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        raise LoadError(f"the files of the model {config.model_name!r} can't be loaded: {detail}") from error


def _load_model(config: Config, engines: SharedEngines | None) -> LoadedModel:
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
    settings = task_settings(config, files, tokenizer, task, sentences)
    if issubclass(task, Rerank) and task is not BiEncoderRerank:
        from hf_transformer.app.rerank_template import prepare_reranker  # imports Jinja

        settings = replace(settings, reranker=prepare_reranker(config, files, tokenizer))
    if engines is not None:
        tokenizer.share(engines)
    settings = with_label_files(task, config, settings)
    scope = user_tokens(config, task)
    check_stride(task, settings)
    loaded_task = task(settings)
    _warn(config, task, settings)
    if config.adapters and not isinstance(loaded_task, TextGeneration):
        adapters = f"--adapters={','.join(config.adapters)}"
        raise ConfigError(f"{adapters}: expected a model for {TextGeneration.name}, got {task.name}")
    if isinstance(loaded_task, TextGeneration):
        return _load_generative(config, files, tokenizer, loaded_task, scope)
    if scope is not None:
        tokenizer.user_tokens_as_letters(scope)
    labels = None
    if isinstance(loaded_task, ZeroShotTokenClassification) and loaded_task.is_bi_encoder:
        labels = load_labels(config, files)
        if engines is not None:
            labels.tokenizer.share(engines)
        if scope is not None:
            labels.tokenizer.user_tokens_as_letters(scope)
    return LoadedModel(tokenizer, loaded_task, labels=labels)


def _load_generative(
    config: Config, files: ModelFiles, tokenizer: Tokenizer, task: TextGeneration, scope: UserTokens | None
) -> LoadedGenerativeModel:
    """Loads the templates of prompts and of answers. ``scope`` has the texts whose special tokens are letters."""
    from hf_transformer.app.response_template import load_responses  # imports regex
    from hf_transformer.generation.chat import load_chat_template  # imports Jinja
    from hf_transformer.generation.user_texts import UserTexts

    if config.verify_structured_output:
        require_extra()
    generator = _generator_settings(config, files, tokenizer)
    template = load_chat_template(files.tokenizer_folder, config.chat_template, tokenizer.special_tokens)
    source = "" if template is None else template.source
    if scope is not None:
        tokenizer.user_tokens_as_letters(scope, source)
        if template is not None:
            template.user_texts = UserTexts(tokenizer.control_tokens(source))
    responses = load_responses(config, files.tokenizer_folder, source, tokenizer)
    images = _image_tokens(files)
    return LoadedGenerativeModel(tokenizer, task, generator, template, responses, images)


def _image_tokens(files: ModelFiles) -> ImageTokens | None:
    """Reads the processor of images, without which only the render routes lack images."""
    try:
        return read_image_tokens(files.model_folder, files.config)
    except LoadError as error:
        logger.warning("the render routes refuse images: %s", error)
        return None


def _warn(config: Config, task: type[Servable], settings: TaskSettings) -> None:
    """Logs the flags and prompts without effect for a task."""
    uses_template = issubclass(task, Rerank) and task is not BiEncoderRerank
    if not uses_template and (config.rerank_template != "auto" or config.rerank_tokens):
        kind = "embedding models as rerankers" if task is BiEncoderRerank else task.name
        logger.warning("--rerank_template and --rerank_tokens have no effect for %s", kind)
    if any(settings.cross_encoder.prompts.values()) and not issubclass(task, Rerank):
        logger.warning("the prompts of this CrossEncoder have no effect for %s, only for --task=rerank", task.name)
    if config.moderation_categories is not None and task is not SequenceClassification:
        logger.warning("--moderation_categories has no effect for %s", task.name)
    if task is not TokenClassification:
        masking = {"mask_key_file": config.mask_key_file, "entity_names": config.entity_names}
        for name in (name for name, value in masking.items() if value is not None):
            logger.warning("--%s has no effect for %s", name, task.name)
        if config.enable_pii_patterns:
            logger.warning("--enable_pii_patterns has no effect for %s", task.name)
    if config.chat_template is not None and not issubclass(task, TextGeneration):
        logger.warning("--chat_template has no effect for %s", task.name)
    parsers = config.response_template != "auto" or config.tool_call_parser or config.reasoning_parser
    if parsers and not issubclass(task, TextGeneration):
        flags = "--response_template, --tool_call_parser and --reasoning_parser"
        logger.warning("%s have no effect for %s", flags, task.name)
    for flag in flags_without_effect(task, config):
        logger.warning("%s has no effect for %s", flag, task.name)
    if task is FillMask and config.user_special_tokens == "text":
        logger.warning("--user_special_tokens=text has no effect for %s, whose texts have mask tokens", task.name)
    read_playground(settings.model_config, logger.warning)


def user_tokens(config: Config, task: type[Servable]) -> UserTokens | None:
    """Reads --user_special_tokens: the plain strings whose special tokens are letters; None for no text at all.

    A chat's template says by itself which parts users wrote, see PromptText.
    """
    if task is FillMask or config.user_special_tokens == "tokens":
        return None
    if config.user_special_tokens == "text" or issubclass(task, Rerank):
        return "all"
    return "none" if issubclass(task, TextGeneration) else "pairs"


def reranker_class(model_config: Mapping[str, Json], sentences: SentenceTransformers | None) -> type[Servable]:
    """Selects the form of a reranker by its files."""
    if sentences is not None:
        return BiEncoderRerank
    return CausalRerank if is_causal(model_config) else Rerank


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
        structured_output_reasoning=config.structured_output_reasoning,
    )
