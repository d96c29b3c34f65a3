"""Texts of different lengths, with the answers of the model itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hf_transformer.commands.export.checkpoint import UNREADABLE, Checkpoint
from hf_transformer.commands.export.graph import Graph
from hf_transformer.commands.export.settings import ExportSettings
from hf_transformer.errors import ConfigError, InvalidInput, LoadError

SHORT = "hi"
MIDDLE = "The capital of france is paris."
LONGER = (
    "A rather longer sentence, so that the shorter ones are padded beside it, and some words that nobody knows: qzxv."
)
LONG = " ".join([LONGER] * 20)
BATCHES = ((MIDDLE, SHORT, LONGER), (SHORT,), (LONGER, LONGER), (LONG,), (SHORT, LONG, MIDDLE))
"""Several texts side by side only where a mask tells them from their padding, or where they are equal."""
LONGEST = 300
"""Tokens of the longest: beyond the windows of attention that encoders have, as ModernBERT's 128."""
WITHOUT_MASK = ((LONGER, LONGER), (SHORT,), (MIDDLE,), (LONG,))

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Sample:
    """One batch, and what the model as it was loaded gives for it, by output; by text where these differ in size."""

    inputs: Inputs
    expected: Mapping[str, Any]


def take_samples(graph: Graph, checkpoint: Checkpoint, settings: ExportSettings) -> list[Sample]:
    """Batches with the answers of the model itself, called as transformers' users do. Before it becomes half.

    Raises:
        ConfigError: a model for text generation sees the tokens that come after.
        LoadError: the model can't be called so.
    """
    batches = BATCHES if "attention_mask" in graph.inputs else WITHOUT_MASK
    try:
        if checkpoint.task == "text_generation":
            _require_causal(checkpoint)
        samples = []
        for number, texts in enumerate(batches):
            inputs = _encoded(graph, checkpoint, _marked(texts, checkpoint, number))
            samples.append(Sample(inputs, _reference(graph, checkpoint, settings, inputs)))
    except (*UNREADABLE, IndexError, NotImplementedError, InvalidInput) as exc:
        reason = " ".join(str(exc).split())[:400]
        raise LoadError(f"{type(checkpoint.model).__name__} can't be asked for {checkpoint.task}: {reason}") from exc
    return samples


def _require_causal(checkpoint: Checkpoint) -> None:
    """transformers makes a causal model of an encoder's weights too, but not one that writes text."""
    ids = torch.tensor([checkpoint.tokenizer.encode([LONGER])[0].ids])
    with torch.no_grad():
        whole, cut = (checkpoint.model(input_ids=one).logits[0, 0] for one in (ids, ids[:, :-1]))
    if not torch.allclose(whole, cut, rtol=1e-3, atol=1e-3):
        raise ConfigError(
            "--task=text_generation: its logits depend on the tokens that follow; it was trained for another task"
        )


def _marked(texts: Sequence[str], checkpoint: Checkpoint, number: int) -> list[str]:
    """For fill_mask with mask tokens: none in the second batch, elsewhere one, and more in texts that are unlike the
    first."""
    if checkpoint.task != "fill_mask":
        return list(texts)
    mask = f"{checkpoint.tokenizer.mask_token} "
    least = int(number != 1)
    return [mask * (least + (row if text != texts[0] else 0)) + text for row, text in enumerate(texts)]


def _encoded(graph: Graph, checkpoint: Checkpoint, texts: Sequence[str]) -> Inputs:
    """The texts in one padded batch, as the service sends them."""
    tokenizer = checkpoint.tokenizer
    tokenizer = tokenizer.with_max_length(min(LONGEST, tokenizer.max_length))
    encodings = tokenizer.encode(texts)
    width = max(len(one.ids) for one in encodings)
    ids = torch.full((len(texts), width), tokenizer.pad_id)
    mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, one in enumerate(encodings):
        ids[row, : len(one.ids)] = torch.tensor(one.ids)
        mask[row, : len(one.ids)] = 1
        types[row, : len(one.ids)] = torch.tensor(one.type_ids)
    made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types, "decoder_input_ids": ids[:, :3]}
    return {name: made[name] for name in graph.inputs}


def _reference(graph: Graph, checkpoint: Checkpoint, settings: ExportSettings, inputs: Inputs) -> Mapping[str, Any]:
    with torch.no_grad():
        found = checkpoint.model(**inputs)
    if not settings.reduce:
        return {output.name: getattr(found, output.name).numpy() for output in graph.outputs}
    if checkpoint.task == "fill_mask":
        masked = inputs["input_ids"] == checkpoint.tokenizer.mask_id
        rows = [torch.softmax(one[where], -1).numpy() for one, where in zip(found.logits, masked, strict=True)]
        return {"probabilities": rows}
    if checkpoint.task == "sequence_classification":
        function: str = graph.module.function
        scores = torch.softmax(found.logits, -1) if function == "softmax" else torch.sigmoid(found.logits)
        return {"probabilities": scores.numpy()}
    mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
    vectors = torch.stack(
        [
            _pooled(one[shown.bool()], graph.module.pooling)
            for one, shown in zip(found.last_hidden_state, mask, strict=True)
        ]
    )
    if not graph.module.normalize:
        return {"sentence_embedding": vectors.numpy()}
    norms = vectors.norm(dim=-1, keepdim=True)
    return {"sentence_embedding": (vectors / norms).numpy(), "embedding_norm": norms.numpy()}


def _pooled(vectors: torch.Tensor, pooling: str) -> torch.Tensor:
    """The vector of one text [D], of those of its tokens [S,D], without padding."""
    return {"cls": vectors[0], "max": vectors.amax(0), "mean": vectors.mean(0)}[pooling]
