"""The ends of tasks, as parts of the graph: an answer's bytes travel instead of megabytes of logits.

Only what is exact is reduced: the service gives the same answers from it, and refuses those that would need the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hf_transformer.errors import ConfigError

POOLINGS = ("mean", "cls", "max")
"""sentence-transformers' names of those that can be part of a graph."""


class TopTokens(torch.nn.Module):
    """The likeliest tokens at the mask tokens of each text, of a head that gives logits [B,S,V].

    topk_ids INT64 [B,M,K] and topk_scores FP32 [B,M,K], the probabilities over the whole vocabulary, the likeliest
    first. M is the largest number of masks in a text of the batch; a text's own masks come first, in their order.

    Where the model is an encoder (``base_model``) with a head that looks at each token by itself, the head gets the
    tokens at the masks alone: it is a large part of the work where the vocabulary is large.
    """

    outputs = ("topk_ids", "topk_scores")

    def __init__(self, head: Any, mask_id: int, count: int) -> None:
        super().__init__()
        self.head = head
        self.inputs: Sequence[str] = head.inputs
        self.mask_id = mask_id
        self.count = count

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        places = self._places(tensors[self.inputs.index("input_ids")])
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
        """INT64 [B,M]: where the masks of each text are, and then anywhere."""
        masked = (ids == self.mask_id).to(torch.int64)
        positions = torch.cumsum(torch.ones_like(ids), dim=1)
        # The earlier a mask stands, the higher its number; what is no mask has 0.
        order = torch.argsort(masked * (positions.max() + 1 - positions), dim=1, descending=True)
        return order[:, : masked.sum(dim=1).max()]


def _at(values: Tensor, places: Tensor) -> Tensor:
    """[B,S,N] at INT64 [B,M] -> [B,M,N]"""
    return torch.gather(values, 1, places[:, :, None].expand(-1, -1, values.shape[-1]))


class Probabilities(torch.nn.Module):
    """The probabilities of the labels, FP32 [B,L], of a head that gives logits [B,L]."""

    outputs = ("probabilities",)

    def __init__(self, head: torch.nn.Module, function: str) -> None:
        super().__init__()
        self.head = head
        self.inputs: Sequence[str] = head.inputs
        self.function = function

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        logits = self.head(*tensors)[0].to(torch.float32)
        return (torch.softmax(logits, dim=-1) if self.function == "softmax" else torch.sigmoid(logits),)


class Pooled(torch.nn.Module):
    """One vector per text, FP32 [B,D], of a head that gives token vectors [B,S,D].

    With ``normalize`` it has an L2 norm of 1, and the norm that it had is an output of its own, embedding_norm FP32
    [B,1]: windows of a long text are weighed by it, and a request may ask for the vector as it was.
    """

    def __init__(self, head: torch.nn.Module, pooling: str, *, normalize: bool) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise ConfigError(
                f"--reduce: {pooling} pooling can't be part of the graph, expected one of {', '.join(POOLINGS)}"
            )
        self.head = head
        self.inputs: Sequence[str] = head.inputs
        self.outputs = ("sentence_embedding", "embedding_norm") if normalize else ("sentence_embedding",)
        self.pooling = pooling
        self.normalize = normalize

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        vectors = self.head(*tensors)[0].to(torch.float32)
        ids = tensors[self.inputs.index("input_ids")]
        mask = tensors[self.inputs.index("attention_mask")] if "attention_mask" in self.inputs else torch.ones_like(ids)
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
