"""The graph of a task: the model as a function of tensors and, with --reduce, the last step of the task.

With that step, the reduction, a response is bytes instead of megabytes of logits. Only exact reductions are here: the
service gives the same answers, and refuses requests that need the missing values.
"""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hf_transformer.commands.export.checkpoint import HEADS, Checkpoint
from hf_transformer.commands.export.config_pbtxt import BATCH, DECODED, FREE, MASKS, SEQUENCE, TOP_K, GraphTensor
from hf_transformer.core.batch_rules import COUNT_ENDS
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.tasks.labels import read_labels, read_problem_type
from hf_transformer.tasks.numerics import softmax
from hf_transformer.tasks.pooling import pool, unit
from hf_transformer.tasks.sequence_classification import apply, default_function
from hf_transformer.tasks.text_embedding import KSERVE
from hf_transformer.types.tensors import Array

POOLINGS = ("mean", "cls", "max")
"""sentence-transformers' names of the poolings that can be part of a graph."""


class Graph(torch.nn.Module):
    """Takes ``inputs``, INT64 [B,S] each, and gives ``outputs``, in these orders."""

    def __init__(self, inputs: Sequence[GraphTensor], outputs: Sequence[GraphTensor]) -> None:
        super().__init__()
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)

    def named(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """The inputs by name."""
        return {tensor.name: given for tensor, given in zip(self.inputs, tensors, strict=True)}

    def expected(self, whole: Mapping[str, Array], ids: Sequence[int]) -> Mapping[str, Array]:
        """The right outputs for one text, by the service's own arithmetic.

        ``whole`` is what the model as it was loaded gives, ``ids`` are the text's tokens, both without padding.
        """
        return whole


class Head(Graph):
    """Calls the model; ``options`` are the call's other arguments.

    The model builds its attention masks itself, because families differ in what a mask covers (windows, relative
    positions, the positions of tokens).
    """

    def __init__(
        self, model: Any, inputs: Sequence[GraphTensor], outputs: Sequence[GraphTensor], **options: Any
    ) -> None:
        super().__init__(inputs, outputs)
        self.model = model
        self.options = options

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        found = self.model(**self.named(tensors), **self.options)
        return tuple(getattr(found, output.name) for output in self.outputs)


class LastEnd(Head):
    """A classifier of an encoder-decoder that reads the state at the last eos token of each text: logits [B,L].

    transformers gathers the states at all eos tokens of the batch first, so a text that holds more of them changes the
    answers of others. Alone, a text gets the same answer here and there.
    """

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given, model = self.named(tensors), self.model
        ids = given["input_ids"]
        if hasattr(model, "_shift_right"):  # T5's base model does not make the decoder's inputs itself
            given["decoder_input_ids"] = model._shift_right(ids)
        states = model.base_model(**given, use_cache=False).last_hidden_state
        positions = torch.cumsum(torch.ones_like(ids), dim=1) * (ids == model.config.eos_token_id)
        last = positions.argmax(dim=1, keepdim=True)
        return (model.classification_head(_at(states, last)[:, 0]),)


class TopTokens(Graph):
    """The likeliest tokens at the mask tokens of each text, of a head that gives logits [B,S,V].

    topk_ids INT64 [B,M,K] and topk_scores FP32 [B,M,K], the probabilities over the whole vocabulary, the likeliest
    first. M is the largest number of masks in a text of the batch; a text's own masks come first, in their order.

    Where the model is an encoder (``base_model``) with a head that looks at each token by itself, the head gets only
    the tokens at the masks: with a large vocabulary it is much of the work.
    """

    def __init__(self, head: Head, mask_id: int, count: int) -> None:
        axes = (BATCH, MASKS, count)
        super().__init__(head.inputs, [GraphTensor("topk_ids", axes, "INT64"), GraphTensor("topk_scores", axes)])
        self.head = head
        self.mask_id = mask_id
        self.count = count

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        places = self._places(self.named(tensors)["input_ids"])
        model, gathered = self.head.model, False

        def gather(_: Any, __: Any, found: Any) -> Any:
            nonlocal gathered
            if getattr(found, "last_hidden_state", None) is not None:
                found["last_hidden_state"] = _at(found.last_hidden_state, places)
                gathered = True
            return found

        hook = None if model.base_model is model else model.base_model.register_forward_hook(gather)
        try:
            (logits,) = self.head(*tensors)
        finally:
            if hook is not None:
                hook.remove()
        rows = logits if gathered else _at(logits, places)
        scores, best = torch.softmax(rows.to(torch.float32), dim=-1).topk(self.count, dim=-1)
        return best, scores

    def _places(self, ids: Tensor) -> Tensor:
        """INT64 [B,M]: the positions of the masks of each text, then any others."""
        masked = (ids == self.mask_id).to(torch.int64)
        positions = torch.cumsum(torch.ones_like(ids), dim=1)
        # The earlier a mask stands, the higher its number; other tokens have 0.
        order = torch.argsort(masked * (positions.max() + 1 - positions), dim=1, descending=True)
        return order[:, : masked.sum(dim=1).max()]

    def expected(self, whole: Mapping[str, Array], ids: Sequence[int]) -> Mapping[str, Array]:
        """All probabilities at the masks, float32 [M,V]: the order of equally likely tokens is free."""
        return {"probabilities": softmax(whole["logits"][np.array(ids) == self.mask_id])}


def _at(values: Tensor, places: Tensor) -> Tensor:
    """[B,S,N] at INT64 [B,M] -> [B,M,N]"""
    return torch.gather(values, 1, places[:, :, None].expand(-1, -1, values.shape[-1]))


class Probabilities(Graph):
    """The probabilities of the labels, FP32 [B,L], of a head that gives logits [B,L]."""

    def __init__(self, head: Head, function: Literal["softmax", "sigmoid"], labels: int) -> None:
        super().__init__(head.inputs, [GraphTensor("probabilities", (BATCH, labels))])
        self.head = head
        self.function = function

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        logits = self.head(*tensors)[0].to(torch.float32)
        return (torch.softmax(logits, dim=-1) if self.function == "softmax" else torch.sigmoid(logits),)

    def expected(self, whole: Mapping[str, Array], ids: Sequence[int]) -> Mapping[str, Array]:
        return {"probabilities": apply(self.function, whole["logits"])}


class SentenceVector(Graph):
    """One vector per text, FP32 [B,D], of a head that gives token vectors [B,S,D].

    With ``normalize`` it has an L2 norm of 1. The norm that it had is an output too, embedding_norm FP32 [B,1]: the
    service weighs the windows of a long text by it, and a request may ask for the vector without normalization.
    """

    def __init__(self, head: Head, pooling: str, size: int, *, normalize: bool) -> None:
        outputs = [GraphTensor("sentence_embedding", (BATCH, size)), GraphTensor("embedding_norm", (BATCH, 1))]
        super().__init__(head.inputs, outputs if normalize else outputs[:1])
        self.head = head
        self.pooling = pooling
        self.normalize = normalize

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        vectors = self.head(*tensors)[0].to(torch.float32)
        given = self.named(tensors)
        mask = given.get("attention_mask", torch.ones_like(given["input_ids"]))
        shown = mask.to(torch.float32)[:, :, None]
        if self.pooling == "cls":
            pooled = vectors[:, 0]
        elif self.pooling == "max":
            pooled = torch.where(shown > 0, vectors, torch.full_like(vectors, torch.finfo(torch.float32).min)).amax(1)
        else:
            pooled = (vectors * shown).sum(1) / shown.sum(1).clamp(min=1e-9)
        if not self.normalize:
            return (pooled,)
        norm = torch.sqrt((pooled * pooled).sum(dim=-1, keepdim=True))
        return pooled / norm.clamp(min=1e-12), norm

    def expected(self, whole: Mapping[str, Array], ids: Sequence[int]) -> Mapping[str, Array]:
        vector = pool(whole["last_hidden_state"], (self.pooling,))
        if not self.normalize:
            return {"sentence_embedding": vector}
        return {"sentence_embedding": unit(vector), "embedding_norm": np.sqrt(vector @ vector)[np.newaxis]}


def build_graph(checkpoint: Checkpoint, settings: Namespace) -> Graph:
    """The graph of the task, with its reduction if --reduce is set. Raises ConfigError if --inputs names an input that
    the model does not take, or the task has no exact reduction."""
    inputs = [
        GraphTensor(name, (BATCH, DECODED if name == "decoder_input_ids" else SEQUENCE), "INT64")
        for name in _inputs(checkpoint, settings)
    ]
    datatype = "FP16" if settings.precision == "fp16" else "FP32"
    model, (_, heads) = checkpoint.model, HEADS[checkpoint.task]
    outputs = [
        GraphTensor(name, tuple(axis if axis in FREE else size_of(model, axis) for axis in axes), datatype)
        for name, axes in heads.items()
    ]
    # A cache would be more outputs.
    options = {"use_cache": False} if checkpoint.task in ("text_generation", "text2text_generation") else {}
    gathers_ends = type(checkpoint.model).__name__ in COUNT_ENDS and "logits" in heads
    head = (LastEnd if gathers_ends else Head)(checkpoint.model, inputs, outputs, **options)
    graph = _reduced(head, checkpoint, settings.top_k) if settings.reduce else head
    graph.train(False)
    return graph


def size_of(model: Any, name: str) -> int:
    """A size of the configuration, or of the text part of a nested one. Raises LoadError where there is none."""
    for config in (model.config, model.config.get_text_config()):
        if isinstance(size := getattr(config, name, None), int):
            return size
    raise LoadError(f"{type(model).__name__}: its configuration has no {name}, which the export needs")


def _inputs(checkpoint: Checkpoint, settings: Namespace) -> list[str]:
    """Those of --inputs, else all that the model takes and the service sends."""
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
    return [name for name in known if not settings.inputs or name in settings.inputs]


def _reduced(head: Head, checkpoint: Checkpoint, top_k: int | None) -> Graph:
    """The reduction of the task. Raises ConfigError where it, or this model of it, has none that is exact."""
    if top_k is not None and checkpoint.task != "fill_mask":
        raise ConfigError(f"--top_k: belongs to fill_mask, and the model is for {checkpoint.task}")
    match checkpoint.task:
        case "fill_mask":
            mask_id = checkpoint.tokenizer.mask_id
            if mask_id is None:
                raise ConfigError("--reduce: the tokenizer has no mask token, so fill_mask has nothing to reduce to")
            return TopTokens(head, mask_id, min(top_k or TOP_K, size_of(checkpoint.model, "vocab_size")))
        case "sequence_classification":
            labels = len(read_labels(checkpoint.files.config))
            function = default_function(read_problem_type(checkpoint.files.config), labels)
            if function == "none":
                raise ConfigError("--reduce: config.json says regression, whose logits are the answer already")
            return Probabilities(head, function, labels)
        case "text_embedding":
            # Without files that say how, as KServe does: the mean, of length 1.
            sentences = checkpoint.sentences or KSERVE
            if len(sentences.pooling) != 1 or sentences.pooling[0] not in POOLINGS:
                raise ConfigError(
                    f"--reduce: {', '.join(sentences.pooling)} pooling can't be part of the graph, expected one of "
                    f"{', '.join(POOLINGS)}"
                )
            if not sentences.include_prompt:
                raise ConfigError("--reduce: the model leaves prompts out of the pooling, which the graph can't see")
            size = size_of(checkpoint.model, "hidden_size")
            return SentenceVector(head, sentences.pooling[0], size, normalize=sentences.normalize)
        case task:
            able = "fill_mask, sequence_classification and text_embedding"
            raise ConfigError(f"--reduce: {task} has no exact reduction, only {able} have")
