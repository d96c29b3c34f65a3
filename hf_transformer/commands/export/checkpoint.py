"""Loads a model's weights, tokenizer and files from a folder or the hub."""

from __future__ import annotations

import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers

from hf_transformer.commands.export.token_heads import TokenHeads, read_token_heads
from hf_transformer.core.batch_rules import DECODERS, batch_rules
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.generation.task import ALL_TASKS, TextGeneration
from hf_transformer.tasks import find_task
from hf_transformer.tasks.base import SentenceTransformers
from hf_transformer.tasks.declaration import ExportHead
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.tasks.zero_shot_token_classification import ZeroShotTokenClassification
from hf_transformer.tokenizer.files import GLINER, transformer_folder
from hf_transformer.tokenizer.model_files import ModelFiles, find_model_files
from hf_transformer.tokenizer.reranker_files import implied_task, is_causal
from hf_transformer.tokenizer.sentence_transformers import read_sentence_transformers
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.request import Json

LENGTH = "max_position_embeddings"
"""The field of config.json for the maximum number of tokens."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded model: a torch module in evaluation mode, on the CPU, in float32.

    ``changes`` contains the fields of config.json that the export changes. ``head`` is the task's, or that of another
    task whose outputs it reads. ``token_heads`` are the layers of sparse and multi-vector embeddings.
    """

    files: ModelFiles
    task: str
    tokenizer: Tokenizer
    sentences: SentenceTransformers | None
    model: Any
    changes: Mapping[str, Json]
    head: ExportHead
    token_heads: TokenHeads | None


NOT_EXPORTABLE: Mapping[str, str] = {
    **dict.fromkeys(("longformer", "led"), "pads each text to a multiple of its window of attention"),
    "funnel": "pools neighbouring tokens, by the length of the text",
    "reformer": "pads each text to a multiple of its chunks, and sorts it by hashes",
    **dict.fromkeys(
        ("mamba", "mamba2", "falcon_mamba", "falcon_h1", "jamba", "bamba", "zamba", "zamba2", "rwkv", "xlstm"),
        "carries a state from token to token, which padding changes",
    ),
}
"""Reasons by model type. A static graph can't represent code that depends on the texts."""


def remedy(model_config: Mapping[str, Json], form: str) -> str:
    """Suggests alternatives for a model that torch can't export to the format ``form``."""
    elsewhere = "run the original in a model.py of Triton's Python backend, or in vLLM if it generates text"
    if reason := NOT_EXPORTABLE.get(str(model_config.get("model_type"))):
        return f"A {model_config['model_type']} model {reason}: {elsewhere}"
    return f"Try --format={'torchscript' if form == 'onnx' else 'onnx'}, or {elsewhere}"


@contextmanager
def with_remedy(model_config: Mapping[str, Json], form: str) -> Iterator[None]:
    """Appends the remedy to a LoadError in the block, unless the message already suggests --max_batch_size."""
    try:
        yield
    except LoadError as error:
        if "--max_batch_size" in str(error):
            raise
        raise LoadError(f"{str(error).removesuffix('.')}. {remedy(model_config, form)}") from error


@contextmanager
def explained(message: str) -> Iterator[None]:
    """Converts any exception of torch, transformers, onnx or the tokenizer to a LoadError.

    These libraries raise nearly every type of exception for unsupported models, and models may include custom code.
    """
    try:
        yield
    except (ConfigError, LoadError):
        raise
    except Exception as exc:
        reason = " ".join(str(exc).split())[:400] or type(exc).__name__
        raise LoadError(f"{message}: {reason}") from exc


def load_checkpoint(settings: Namespace) -> Checkpoint:
    """Loads the model, after a download from the hub if needed.

    Raises ConfigError for an unknown --task or weights of another task, LoadError for missing or invalid files.
    """
    trusting = settings.trust_remote_code
    files = find_model_files(
        settings.model_id,
        settings.model_id,
        model_revision=settings.revision,
        token=settings.token,
        trust_remote_code=trusting,
    )
    sentences = read_sentence_transformers(files.model_folder)
    implied = implied_task(files.model_folder, files.config, sentences)
    task = find_task(settings.task or implied, files.config, ALL_TASKS)
    if task is ZeroShotTokenClassification:  # gliner_model.py loads these models
        raise LoadError(f"--task={settings.task}: {settings.model_id} has no {GLINER}, which the task needs")
    embeds = task is TextEmbedding
    token_heads = read_token_heads(files, sentences, settings) if embeds else None
    if sentences and sentences.inside and embeds:
        raise LoadError(
            f"{settings.model_id}: {sentences.inside} follows the pooling, which this export does not support; use "
            "sentence-transformers' own ONNX export"
        )
    rules = batch_rules(files.config, None)
    if rules.equal_lengths and rules.pad_id is None and files.config.get("model_type") in DECODERS:
        raise LoadError(
            f"{settings.model_id}: config.json has no pad_token_id, which this classifier needs to find the end of "
            "each text in a batch; set it to the tokenizer's padding id"
        )
    changes = changes_of(files.config)
    files = replace(files, config={**files.config, **changes})
    at_most = sentences.max_seq_length if sentences else None
    inner = transformer_folder(files.model_folder)
    subfolder = "" if inner == files.model_folder else inner.name
    tokenizer = load_tokenizer(files.tokenizer_folder, files.config, at_most=at_most, trust_remote_code=trusting)
    head = task.export_head
    if token_heads and token_heads.splade:
        head = FillMask.export_head  # SPLADE pools the logits of a masked LM
    elif task is Rerank and is_causal(files.config):
        head = TextGeneration.export_head
    model = _load_model(settings, task.name, head.loader, changes, subfolder)
    return Checkpoint(files, task.name, tokenizer, sentences, model, changes, head, token_heads)


def changes_of(model_config: Mapping[str, Json]) -> Mapping[str, Json]:
    """Changes to config.json that limit the exported model to short texts.

    A graph represents only the code for short texts. For texts over 704 tokens, BigBird uses attention blocks that
    depend on the padding. A first short text switches BigBird permanently to full attention. Dynamic and long rotary
    embeddings depend on the longest text in a batch.
    """
    if model_config.get("model_type") in ("big_bird", "bigbird_pegasus"):
        if model_config.get("attention_type") == "original_full":
            return {}
        limit = (5 + 2 * model_config.get("num_random_blocks", 3)) * model_config.get("block_size", 64)
        return {"attention_type": "original_full", LENGTH: min(limit, model_config.get(LENGTH, limit))}
    name = "rope_scaling" if model_config.get("rope_scaling") else "rope_parameters"
    rope = model_config.get(name)
    if not isinstance(rope, dict):
        return {}
    match rope.get("rope_type", rope.get("type")):
        case "dynamic" if LENGTH in model_config:
            return {LENGTH: model_config[LENGTH], name: {**rope, "rope_type": "default"}}
        case "longrope" | "su":
            limit = model_config.get(f"original_{LENGTH}", rope.get(f"original_{LENGTH}"))
            return {LENGTH: limit} if isinstance(limit, int) else {}
    return {}


def _load_model(settings: Namespace, task: str, loader: str, changes: Mapping[str, Json], subfolder: str) -> Any:
    transformers.logging.set_verbosity_error()
    if not sys.stderr.isatty():  # progress bars are for terminals, not for logs
        transformers.logging.disable_progress_bar()
    auto = getattr(transformers, loader)
    with explained(f"{settings.model_id}: can't load the weights for {task}"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, info = auto.from_pretrained(
            settings.model_id,
            subfolder=subfolder,  # only old sentence-transformers models have a subfolder
            revision=settings.revision or "main",
            token=settings.token,
            trust_remote_code=settings.trust_remote_code,
            # Other implementations depend on the device, or don't support tracing.
            attn_implementation="eager",
            dtype=torch.float32,
            output_loading_info=True,
            **{name: value for name, value in changes.items() if name == "attention_type"},
        )
    # The export omits an encoder's pooler.
    missing = sorted(key for key in info["missing_keys"] if not (loader == "AutoModel" and "pooler." in key))
    if missing:
        listed = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ConfigError(
            f"--task={task}: {settings.model_id} has no weights for {listed}; it was trained for another task"
        )
    return model.train(False)
