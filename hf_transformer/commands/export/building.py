"""From the model of a task to the function of tensors that is written."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from hf_transformer.commands.export.checkpoint import Checkpoint
from hf_transformer.commands.export.graph import BATCH, DECODED, MASKS, SEQUENCE, Axis, Graph, Output
from hf_transformer.commands.export.heads import Head
from hf_transformer.commands.export.reductions import Pooled, Probabilities, TopTokens
from hf_transformer.commands.export.settings import TOP_K, ExportSettings
from hf_transformer.errors import ConfigError
from hf_transformer.tasks.labels import read_labels, read_problem_type
from hf_transformer.tasks.sequence_classification import default_function

GENERATIVE = ("text_generation", "text2text_generation")


def build_graph(checkpoint: Checkpoint, settings: ExportSettings) -> Graph:
    """The graph of the task, reduced if that is asked for.

    Raises:
        ConfigError: --inputs names what the model does not take, or the task has no exact reduction.
    """
    inputs = _inputs(checkpoint, settings)
    axes = _axes(checkpoint)
    # A cache would come back as more outputs.
    options = {"use_cache": False} if checkpoint.task in GENERATIVE else {}
    head = Head(checkpoint.model, inputs, tuple(axes), options)
    if settings.reduce:
        return _reduced(head, checkpoint, settings)
    floats = "FP16" if settings.precision == "fp16" else "FP32"
    return Graph(head.train(False), inputs, tuple(Output(name, shape, floats) for name, shape in axes.items()))


def _axes(checkpoint: Checkpoint) -> Mapping[str, tuple[Axis, ...]]:
    """The outputs of each task's head."""
    config = checkpoint.model.config
    match checkpoint.task:
        case "fill_mask" | "text_generation":
            return {"logits": (BATCH, SEQUENCE, config.vocab_size)}
        case "text2text_generation":
            return {"logits": (BATCH, DECODED, config.vocab_size)}
        case "token_classification":
            return {"logits": (BATCH, SEQUENCE, config.num_labels)}
        case "question_answering":
            return {"start_logits": (BATCH, SEQUENCE), "end_logits": (BATCH, SEQUENCE)}
        case "text_embedding" | "feature_extraction":
            return {"last_hidden_state": (BATCH, SEQUENCE, config.hidden_size)}
        case _:
            return {"logits": (BATCH, config.num_labels)}


def _inputs(checkpoint: Checkpoint, settings: ExportSettings) -> tuple[str, ...]:
    """Those of --inputs, else all that the model takes of what the tokenizer makes."""
    taken = inspect.signature(checkpoint.model.forward).parameters
    known = [name for name in ("input_ids", "attention_mask") if name in taken]
    if "token_type_ids" in taken and getattr(checkpoint.model.config, "type_vocab_size", 0) > 1:
        known.append("token_type_ids")
    if checkpoint.task == "text2text_generation":
        known.append("decoder_input_ids")
    for name in settings.inputs:
        if name not in known:
            raise ConfigError(f"--inputs: {name!r} is none of this model's, expected some of {', '.join(known)}")
    for needed in ("input_ids", "decoder_input_ids"):
        if settings.inputs and needed in known and needed not in settings.inputs:
            raise ConfigError(f"--inputs: {needed} is missing, and the model reads nothing without it")
    return tuple(name for name in known if not settings.inputs or name in settings.inputs)


def _reduced(head: Head, checkpoint: Checkpoint, settings: ExportSettings) -> Graph:
    if settings.top_k is not None and checkpoint.task != "fill_mask":
        raise ConfigError(f"--top_k: belongs to fill_mask, and the model is for {checkpoint.task}")
    match checkpoint.task:
        case "fill_mask":
            module, outputs = _top_tokens(head, checkpoint, settings)
        case "sequence_classification":
            module, outputs = _probabilities(head, checkpoint)
        case "text_embedding":
            module, outputs = _pooled(head, checkpoint)
        case task:
            able = "fill_mask, sequence_classification and text_embedding"
            raise ConfigError(f"--reduce: {task} has no exact reduction, only {able} have")
    return Graph(module.train(False), head.inputs, tuple(outputs))


def _top_tokens(head: Head, checkpoint: Checkpoint, settings: ExportSettings) -> tuple[Any, list[Output]]:
    mask_id = checkpoint.tokenizer.mask_id
    if mask_id is None:
        raise ConfigError("--reduce: the tokenizer has no mask token, so fill_mask has nothing to reduce to")
    count = min(settings.top_k or TOP_K, checkpoint.model.config.vocab_size)
    return TopTokens(head, mask_id, count), [
        Output("topk_ids", (BATCH, MASKS, count), "INT64"),
        Output("topk_scores", (BATCH, MASKS, count), "FP32"),
    ]


def _probabilities(head: Head, checkpoint: Checkpoint) -> tuple[Any, list[Output]]:
    config = checkpoint.files.config
    labels = len(read_labels(config))
    function = default_function(read_problem_type(config), labels)
    if function == "none":
        raise ConfigError("--reduce: config.json says regression, whose logits are the answer already")
    return Probabilities(head, function), [Output("probabilities", (BATCH, labels), "FP32")]


def _pooled(head: Head, checkpoint: Checkpoint) -> tuple[Any, list[Output]]:
    """Pooled as the model's own files say; without them as KServe does: the mean, of length 1."""
    sentences = checkpoint.sentences
    pooling = sentences.pooling if sentences else ("mean",)
    if len(pooling) != 1:
        raise ConfigError(f"--reduce: the model joins several poolings ({', '.join(pooling)}), which is not reduced")
    if sentences and not sentences.include_prompt:
        raise ConfigError("--reduce: the model leaves prompts out of the pooling, which the graph can't see")
    module = Pooled(head, pooling[0], normalize=sentences.normalize if sentences else True)
    sizes = {"sentence_embedding": checkpoint.model.config.hidden_size, "embedding_norm": 1}
    return module, [Output(name, (BATCH, sizes[name]), "FP32") for name in module.outputs]
