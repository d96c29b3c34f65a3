"""A model's weights, tokenizer and files, from a folder or a hub."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from hf_transformer.commands.export.settings import ExportSettings
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.tasks import find_task
from hf_transformer.tasks.base import SentenceTransformers
from hf_transformer.tokenizer.files import ModelFiles, find_model_files
from hf_transformer.tokenizer.sentence_transformers import read_sentence_transformers
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer

CLASSES: Mapping[str, str] = {
    "fill_mask": "AutoModelForMaskedLM",
    "sequence_classification": "AutoModelForSequenceClassification",
    "zero_shot_classification": "AutoModelForSequenceClassification",
    "rerank": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "text_embedding": "AutoModel",
    "feature_extraction": "AutoModel",
    "text_generation": "AutoModelForCausalLM",
    "text2text_generation": "AutoModelForSeq2SeqLM",
}
"""The class of transformers that has the head of each task."""
UNREADABLE = (
    OSError,
    ValueError,
    ImportError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
    SafetensorError,
    pickle.UnpicklingError,
)
"""What transformers and torch raise for files that they can't make a model of."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is exported: ``model`` is the torch model, in evaluation mode on the CPU, in float32."""

    files: ModelFiles
    task: str
    tokenizer: Tokenizer
    sentences: SentenceTransformers | None
    model: Any


def load_checkpoint(settings: ExportSettings) -> Checkpoint:
    """Loads everything; what is not there yet of a hub's model is downloaded.

    Raises:
        ConfigError: --task names none that can be served.
        LoadError: files are missing or broken, or the weights do not fit the task.
    """
    files = find_model_files(
        settings.model_id,
        settings.model_id,
        model_revision=settings.revision,
        token=settings.token,
        trust_remote_code=settings.trust_remote_code,
    )
    sentences = read_sentence_transformers(files.model_folder)
    task = find_task(settings.task or ("text_embedding" if sentences else None), files.config).name
    if sentences and sentences.inside and task == "text_embedding":
        raise LoadError(
            f"{settings.model_id}: its vectors go through {sentences.inside} behind the pooling, which this export "
            "leaves out; export it with sentence-transformers' own ONNX backend"
        )
    tokenizer = load_tokenizer(
        files.tokenizer_folder,
        files.config,
        at_most=sentences.max_seq_length if sentences else None,
        trust_remote_code=settings.trust_remote_code,
    )
    return Checkpoint(files, task, tokenizer, sentences, _load_model(settings, task))


def _load_model(settings: ExportSettings, task: str) -> Any:
    transformers.logging.set_verbosity_error()
    if not sys.stderr.isatty():  # a download shows its bar to people, not to logs
        transformers.logging.disable_progress_bar()
    auto = getattr(transformers, CLASSES[task])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, found = auto.from_pretrained(
                settings.model_id,
                revision=settings.revision or "main",
                token=settings.token,
                trust_remote_code=settings.trust_remote_code,
                # The others are written for one device, or hide their arithmetic from a trace.
                attn_implementation="eager",
                dtype=torch.float32,
                output_loading_info=True,
            )
    except UNREADABLE as exc:
        reason = " ".join(str(exc).split())[:400] or type(exc).__name__
        raise LoadError(f"{settings.model_id}: its weights can't be loaded for {task}: {reason}") from exc
    # A bare encoder's pooler is not part of what is exported.
    bare = CLASSES[task] == "AutoModel"
    missing = sorted(name for name in found["missing_keys"] if not (bare and "pooler." in name))
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ConfigError(
            f"--task={task}: {settings.model_id} has no weights for {shown}; it was trained for another task"
        )
    return model.train(False)
