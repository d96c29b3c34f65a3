"""The graph of a task: the model as a function of tensors and, with --reduce, the task's last step.

The reduction shrinks responses from megabytes of logits to bytes, and does not change the service's answers. The
service refuses requests that need the removed values.
"""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hf_transformer.commands.export.checkpoint import Checkpoint
from hf_transformer.commands.export.config_pbtxt import ENTRIES, FREE, MASKS, TOP_K, GraphTensor
from hf_transformer.commands.export.token_heads import TokenHeads
from hf_transformer.core.batch_rules import COUNT_ENDS
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.generation.task import Text2TextGeneration, TextGeneration
from hf_transformer.tasks.causal_rerank import last_logit, token_ids
from hf_transformer.tasks.declaration import BATCH, DECODED, SEQUENCE
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.tasks.labels import read_labels, read_problem_type
from hf_transformer.tasks.numerics import softmax
from hf_transformer.tasks.pooling import pool, unit
from hf_transformer.tasks.representations import INDICES, VALUES
from hf_transformer.tasks.representations import VECTORS as TOKEN_VECTORS
from hf_transformer.tasks.representations import WEIGHTS as TOKEN_WEIGHTS
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tasks.sequence_classification import SequenceClassification, apply, default_function
from hf_transformer.tasks.sparse import SparsePooling, splade
from hf_transformer.tasks.text_embedding import KSERVE, TextEmbedding
from hf_transformer.tokenizer.reranker_files import is_causal, score_tokens
from hf_transformer.types.tensors import Array

POOLINGS = ("mean", "cls", "max")
"""Supported pooling modes, by their names in sentence-transformers."""


class Graph(torch.nn.Module):
    """A torch module that maps ``inputs``, each INT64 [B,S], to ``outputs``, in order."""

    def __init__(self, inputs: Sequence[GraphTensor], outputs: Sequence[GraphTensor]) -> None:
        super().__init__()
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)

    def named(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """Maps input names to tensors."""
        return {spec.name: tensor for spec, tensor in zip(self.inputs, tensors, strict=True)}

    def expected(self, whole: Mapping[str, Array], ids: Sequence[int]) -> Mapping[str, Array]:
        """The expected outputs for a text, calculated as in the service.

        ``whole`` contains the original model's outputs, and ``ids`` the token ids, without padding.
        """
        return whole

    def comparable(self, outputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """A text's outputs in the form of ``expected``."""
        return outputs


class Head(Graph):
    """Calls the model with the inputs and ``options``.

    The model creates its own attention masks, whose shape depends on the architecture (windows, relative positions).
    """

    def __init__(
        self, model: Any, inputs: Sequence[GraphTensor], outputs: Sequence[GraphTensor], **options: Any
    ) -> None:
        super().__init__(inputs, outputs)
        self.model = model
        self.options = options

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        result = self.model(**self.named(tensors), **self.options)
        return tuple(getattr(result, output.name) for output in self.outputs)


class LastEosHead(Head):
    """An encoder-decoder classifier with logits [B,L], from the state at each text's last eos token.

    transformers gathers the states of all eos tokens in the batch, so several eos tokens in a text
    change the outputs of other texts. For a single text, this class and transformers agree.
    """

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs, model = self.named(tensors), self.model
        ids = inputs["input_ids"]
        if hasattr(model, "_shift_right"):  # T5's base model does not create the decoder's inputs
            inputs["decoder_input_ids"] = model._shift_right(ids)
        states = model.base_model(**inputs, use_cache=False).last_hidden_state
        positions = torch.cumsum(torch.ones_like(ids), dim=1) * (ids == model.config.eos_token_id)
        last = positions.argmax(dim=1, keepdim=True)
        return (model.classification_head(_at(states, last)[:, 0]),)


class TopTokens(Graph):
    """The most probable tokens for each mask, from a head with logits [B,S,V].

    Outputs are topk_ids INT64 [B,M,K] and topk_scores FP32 [B,M,K]: probabilities over the whole vocabulary in
    descending order. M is the maximum number of masks in a text of the batch. The masks of a text precede padding.

    If the model consists of an encoder (``base_model``) and a head, the head receives only the mask positions. This
    saves time with a large vocabulary.
    """

    def __init__(self, head: Head, mask_id: int, count: int) -> None:
        axes = (BATCH, MASKS, count)
        super().__init__(head.inputs, [GraphTensor("topk_ids", axes, "INT64"), GraphTensor("topk_scores", axes)])
        self.head = head
        self.mask_id = mask_id
        self.count = count

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        positions = self._mask_positions(self.named(tensors)["input_ids"])
        model, gathered = self.head.model, False

        def gather(_: Any, __: Any, result: Any) -> Any:
            nonlocal gathered
            if getattr(result, "last_hidden_state", None) is not None:
                result["last_hidden_state"] = _at(result.last_hidden_state, positions)
                gathered = True
            return result

        hook = None if model.base_model is model else model.base_model.register_forward_hook(gather)
        try:
            (logits,) = self.head(*tensors)
        finally:
            if hook is not None:
                hook.remove()
        rows = logits if gathered else _at(logits, positions)
        scores, best = torch.softmax(rows.to(torch.float32), dim=-1).topk(self.count, dim=-1)
        return best, scores

    def _mask_positions(self, ids: Tensor) -> Tensor:
        """The positions of each text's masks, INT64 [B,M]. Arbitrary positions fill shorter rows."""
        masked = (ids == self.mask_id).to(torch.int64)
        positions = torch.cumsum(torch.ones_like(ids), dim=1)
        # Earlier masks have larger values; other tokens have 0.
        order = torch.argsort(masked * (positions.max() + 1 - positions), dim=1, descending=True)
        return order[:, : masked.sum(dim=1).max()]

    def expected(self, whole: Mapping[str, Array], ids: Sequence[int]) -> Mapping[str, Array]:
        """All probabilities at the masks, float32 [M,V], because the order of equally probable tokens is undefined."""
        return {"probabilities": softmax(whole["logits"][np.array(ids) == self.mask_id])}


def _at(values: Tensor, positions: Tensor) -> Tensor:
    """Gathers values [B,S,N] at positions INT64 [B,M]; returns [B,M,N]."""
    return torch.gather(values, 1, positions[:, :, None].expand(-1, -1, values.shape[-1]))


class Probabilities(Graph):
    """The probabilities of labels, FP32 [B,L], from a head with logits [B,L]."""

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
    """One vector for each text, FP32 [B,D], from a head with token vectors [B,S,D].

    With ``normalize``, vectors have an L2 norm of 1, and embedding_norm FP32 [B,1] is the original norm. The service
    weights the windows of a long text by this norm, and uses the norm to restore original vectors on request.
    """

    def __init__(self, head: Head, pooling: str, size: int, *, normalize: bool) -> None:
        outputs = [GraphTensor("sentence_embedding", (BATCH, size)), GraphTensor("embedding_norm", (BATCH, 1))]
        super().__init__(head.inputs, outputs if normalize else outputs[:1])
        self.head = head
        self.pooling = pooling
        self.normalize = normalize

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self.pooled(self.head(*tensors)[0], self.named(tensors))

    def pooled(self, vectors: Tensor, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """The outputs for token vectors [B,S,D]."""
        vectors = vectors.to(torch.float32)
        mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
        weights = mask.to(torch.float32)[:, :, None]
        if self.pooling == "cls":
            pooled = vectors[:, 0]
        elif self.pooling == "max":
            pooled = torch.where(weights > 0, vectors, torch.full_like(vectors, torch.finfo(torch.float32).min)).amax(1)
        else:
            pooled = (vectors * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        if not self.normalize:
            return (pooled,)
        norm = torch.sqrt((pooled * pooled).sum(dim=-1, keepdim=True))
        return pooled / norm.clamp(min=1e-12), norm

    def expected(self, whole: Mapping[str, Array], ids: Sequence[int]) -> Mapping[str, Array]:
        vector = pool(whole["last_hidden_state"], (self.pooling,))
        if not self.normalize:
            return {"sentence_embedding": vector}
        return {"sentence_embedding": unit(vector), "embedding_norm": np.sqrt(vector @ vector)[np.newaxis]}


class LastLogit(Graph):
    """A causal reranker's logit of each text, FP32 [B,1], from a head with logits [B,S,V].

    It is read at the last token of a text: the logit of one token, or of the second of two minus that of the first. The
    head reads the last position alone.
    """

    def __init__(self, head: Head, ids: tuple[int, ...]) -> None:
        super().__init__(head.inputs, [GraphTensor("logits", (BATCH, 1))])
        self.head = head
        self.ids = ids

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs = self.named(tensors)
        mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
        positions = torch.cumsum(torch.ones_like(mask), dim=1) * mask
        last = positions.argmax(dim=1, keepdim=True)

        def gather(_: Any, __: Any, result: Any) -> Any:
            result["last_hidden_state"] = _at(result.last_hidden_state, last)
            return result

        hook = self.head.model.base_model.register_forward_hook(gather)
        try:
            logits = self.head(*tensors)[0][:, 0].to(torch.float32)
        finally:
            hook.remove()
        scores = logits[:, self.ids[-1] :][:, :1]
        return (scores if len(self.ids) == 1 else scores - logits[:, self.ids[0] :][:, :1],)

    def expected(self, whole: Mapping[str, Array], ids: Sequence[int]) -> Mapping[str, Array]:
        return {"logits": np.array([last_logit(whole["logits"], len(ids), self.ids)])}


class SparseEntries(Graph):
    """SPLADE's vector of each text, from a head with logits [B,S,V]: the weights above zero.

    Outputs are sparse_indices INT64 [B,N] and sparse_values FP32 [B,N], in descending order of the values. N is the
    largest number of weights of a text in the batch, at least 1; the value 0 fills shorter rows. Nothing is lost.
    """

    def __init__(self, head: Head, pooling: SparsePooling, size: int) -> None:
        axes = (BATCH, ENTRIES)
        super().__init__(head.inputs, [GraphTensor(INDICES, axes, "INT64"), GraphTensor(VALUES, axes)])
        self.head = head
        self.pooling = pooling
        self.size = size

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        logits = self.head(*tensors)[0].to(torch.float32)
        inputs = self.named(tensors)
        mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
        # Padding has the weight 0, which changes neither the maximum nor the sum.
        pooled = torch.relu(logits) * mask.to(torch.float32)[:, :, None]
        if self.pooling.strategy == "max":
            pooled = pooled.amax(1)  # before the activation, which preserves the order: one row instead of all
        pooled = torch.log1p(pooled)
        if self.pooling.activation == "log1p_relu":
            pooled = torch.log1p(pooled)
        if self.pooling.strategy == "sum":
            pooled = pooled.sum(1)
        # A tensor as the number keeps it dynamic in the trace. Sorting the vocabulary would take eight times as long.
        values, indices = pooled.topk((pooled > 0).sum(dim=1).max().clamp(min=1), dim=1)
        return indices, values

    def expected(self, whole: Mapping[str, Array], ids: Sequence[int]) -> Mapping[str, Array]:
        return {"sparse_embedding": splade(whole["logits"], self.pooling)}

    def comparable(self, outputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """The whole vector, float32 [V], since the order of equal weights is undefined."""
        vector = np.zeros(self.size, np.float32)
        np.maximum.at(vector, outputs[INDICES], outputs[VALUES])
        return {"sparse_embedding": vector}


class WithTokenHeads(Graph):
    """All representations of a text in one pass, from a head with token vectors [B,S,H].

    Outputs are those that the model has of last_hidden_state [B,S,H], or with ``dense`` those of SentenceVector;
    token_weights FP32 [B,S], the weight of each token's id; and token_vectors [B,S,D].
    """

    def __init__(self, head: Head, dense: SentenceVector | None, heads: TokenHeads) -> None:
        outputs = [*(dense or head).outputs] if heads.dense else []
        (hidden,) = head.outputs
        if heads.weights is not None:
            outputs.append(GraphTensor(TOKEN_WEIGHTS, (BATCH, SEQUENCE)))
        if heads.vectors is not None:
            size = heads.vectors(torch.zeros(1, int(hidden.axes[-1]))).shape[-1]
            outputs.append(GraphTensor(TOKEN_VECTORS, (BATCH, SEQUENCE, size), hidden.datatype))
        super().__init__(head.inputs, outputs)
        self.head = head
        self.dense = dense
        self.has_dense = heads.dense
        self.weights = heads.weights
        self.vectors = heads.vectors

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        (hidden,) = self.head(*tensors)
        dense = self.dense.pooled(hidden, self.named(tensors)) if self.dense else (hidden,)
        return (*(dense if self.has_dense else ()), *self._by_token(hidden).values())

    def _by_token(self, hidden: Tensor) -> dict[str, Tensor]:
        """The outputs with a token axis besides ``hidden`` [...,S,H], computed in float32."""
        results, vectors = {}, hidden.to(torch.float32)
        if self.weights is not None:
            results[TOKEN_WEIGHTS] = torch.relu(self.weights(vectors))[..., 0]
        if self.vectors is not None:
            results[TOKEN_VECTORS] = self.vectors(vectors).to(hidden.dtype)
        return results

    def expected(self, whole: Mapping[str, Array], ids: Sequence[int]) -> Mapping[str, Array]:
        """Applies the layers to this text alone, since the service has no code for them."""
        dense = (self.dense.expected(whole, ids) if self.dense else whole) if self.has_dense else {}
        by_token = self._by_token(torch.from_numpy(whole["last_hidden_state"]))
        return {**dense, **{name: tensor.numpy() for name, tensor in by_token.items()}}


def build_graph(checkpoint: Checkpoint, settings: Namespace) -> Graph:
    """Builds the task's graph. --reduce adds the reduction.

    Raises ConfigError if --inputs names an input that the model lacks, or if the task has no exact reduction.
    """
    inputs = [
        GraphTensor(name, (BATCH, DECODED if name == "decoder_input_ids" else SEQUENCE), "INT64")
        for name in _inputs(checkpoint, settings)
    ]
    datatype = "FP16" if settings.precision == "fp16" else "FP32"
    model, name, heads = checkpoint.model, checkpoint.head.loader, checkpoint.head.outputs
    outputs = [
        GraphTensor(name, tuple(axis if axis in FREE else size_of(model, axis) for axis in axes), datatype)
        for name, axes in heads.items()
    ]
    # A cache would add outputs.
    options = (
        {"use_cache": False}
        if name in (TextGeneration.export_head.loader, Text2TextGeneration.export_head.loader)
        else {}
    )
    gathers_ends = type(checkpoint.model).__name__ in COUNT_ENDS and "logits" in heads
    head = (LastEosHead if gathers_ends else Head)(checkpoint.model, inputs, outputs, **options)
    graph = _reduced(head, checkpoint, settings.top_k) if settings.reduce else head
    if (layers := checkpoint.token_heads) and layers.splade is None:
        graph = WithTokenHeads(head, graph if isinstance(graph, SentenceVector) else None, layers)
    graph.train(False)
    return graph


def size_of(model: Any, name: str) -> int:
    """Reads a size from config.json or its text section. Raises LoadError for a missing field."""
    for config in (model.config, model.config.get_text_config()):
        if isinstance(size := getattr(config, name, None), int):
            return size
    raise LoadError(f"{type(model).__name__}: config.json has no {name}, which the export needs")


def _inputs(checkpoint: Checkpoint, settings: Namespace) -> list[str]:
    """The names in --inputs, by default all supported inputs of the model. Raises ConfigError for invalid names."""
    taken = inspect.signature(checkpoint.model.forward).parameters
    known = [name for name in ("input_ids", "attention_mask") if name in taken]
    if "token_type_ids" in taken and getattr(checkpoint.model.config, "type_vocab_size", 0) > 1:
        known.append("token_type_ids")
    if checkpoint.task == Text2TextGeneration.name:
        known.append("decoder_input_ids")
    for name in settings.inputs:
        if name not in known:
            raise ConfigError(f"--inputs: expected inputs of this model ({', '.join(known)}), got {name!r}")
    for needed in ("input_ids", "decoder_input_ids"):
        if settings.inputs and needed in known and needed not in settings.inputs:
            raise ConfigError(f"--inputs: {needed} is missing, which the model needs")
    return [name for name in known if not settings.inputs or name in settings.inputs]


def _reduced(head: Head, checkpoint: Checkpoint, top_k: int | None) -> Graph:
    """Adds the task's reduction. Raises ConfigError if the task or model has no exact reduction."""
    if top_k is not None and checkpoint.task != FillMask.name:
        raise ConfigError(f"--top_k: applies to fill_mask only, not to {checkpoint.task}")
    match checkpoint.task:
        case FillMask.name:
            mask_id = checkpoint.tokenizer.mask_id
            if mask_id is None:
                raise ConfigError("--reduce: fill_mask needs a mask token, and the tokenizer has none")
            return TopTokens(head, mask_id, min(top_k or TOP_K, size_of(checkpoint.model, "vocab_size")))
        case SequenceClassification.name:
            labels = len(read_labels(checkpoint.files.config))
            function = default_function(read_problem_type(checkpoint.files.config), labels)
            if function == "none":
                raise ConfigError("--reduce: config.json says regression, whose logits are already the answer")
            return Probabilities(head, function, labels)
        case TextEmbedding.name:
            if (layers := checkpoint.token_heads) and layers.splade:
                return SparseEntries(head, layers.splade, size_of(checkpoint.model, "vocab_size"))
            if layers and not layers.dense:
                raise ConfigError("--reduce: a vector per token has no exact reduction")
            # KServe's default, the normalized mean, applies without files of sentence-transformers.
            sentences = checkpoint.sentences or KSERVE
            if len(sentences.pooling) != 1 or sentences.pooling[0] not in POOLINGS:
                raise ConfigError(
                    f"--reduce: {', '.join(sentences.pooling)} pooling can't be part of the graph, expected one of "
                    f"{', '.join(POOLINGS)}"
                )
            if not sentences.include_prompt:
                raise ConfigError("--reduce: the model excludes prompts from the pooling, which the graph can't do")
            size = size_of(checkpoint.model, "hidden_size")
            return SentenceVector(head, sentences.pooling[0], size, normalize=sentences.normalize)
        case Rerank.name if is_causal(checkpoint.files.config):
            tokens = score_tokens(checkpoint.files.model_folder, checkpoint.files.config)
            return LastLogit(head, token_ids(tokens, checkpoint.tokenizer))
        case task:
            able = "fill_mask, sequence_classification, text_embedding or rerank with a causal model"
            raise ConfigError(f"--reduce: {task} has no exact reduction, expected {able}")
