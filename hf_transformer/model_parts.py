"""What is loaded from the model's files before anything is served: the tokenizer and the task."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from hf_transformer.config.options import Config
from hf_transformer.errors import ConfigError
from hf_transformer.generation.parts import GenerationParts, load_generation_parts
from hf_transformer.tasks import find_task
from hf_transformer.tasks.base import SentenceTransformers, Servable, TaskSettings
from hf_transformer.tasks.flags import check_stride, flags_without_effect
from hf_transformer.tasks.generation_settings import GenerationSettings
from hf_transformer.tasks.text_generation import TextGeneration
from hf_transformer.tokenizer.files import ModelFiles, find_model_files
from hf_transformer.tokenizer.sentence_transformers import read_activation, read_sentence_transformers
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What is loaded from the model's files before anything is served; ``generation`` for a model that does that."""

    tokenizer: Tokenizer
    task: Servable
    generation: GenerationParts | None = None


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
        word_cache=config.enable_word_cache,
    )
    settings = _task_settings(config, files, tokenizer, sentences)
    check_stride(task.name, settings)
    made = task(settings)
    for flag in flags_without_effect(task.name, settings):
        logger.warning("%s has no effect for %s", flag, task.name)
    generation = None
    if isinstance(made, TextGeneration):
        generation = load_generation_parts(files, tokenizer, config.chat_template)
    elif config.chat_template is not None:
        logger.warning("--chat_template has no effect for %s", task.name)
    return Parts(tokenizer, made, generation)


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
        generation=_generation_settings(config),
    )


def _generation_settings(config: Config) -> GenerationSettings:
    return GenerationSettings(
        max_length=config.generation_max_length,
        temperature=config.temperature,
        do_sample=config.do_sample,
        top_k=config.top_k,
        top_p=config.top_p,
        return_full_text=config.return_full_text,
        max_new_tokens=config.max_new_tokens,
    )


def _sentence_transformers(folder: Path, config: Config) -> SentenceTransformers | None:
    found = read_sentence_transformers(folder)
    return replace(found, lower_case=False) if found and config.disable_lower_case else found
