"""Inputs and outputs of graphs, and settings, as an export has them."""

from __future__ import annotations

from argparse import Namespace

from hf_transformer.commands.export.command import parse
from hf_transformer.commands.export.config_pbtxt import BATCH, DECODED, MASKS, SEQUENCE, GraphTensor


def inputs(*names: str) -> list[GraphTensor]:
    return [GraphTensor(name, (BATCH, SEQUENCE), "INT64") for name in names]


ENCODER = inputs("input_ids", "attention_mask", "token_type_ids")
TOP_K = (BATCH, MASKS, 10)
GRAPHS = {
    "fill_mask": (ENCODER, [GraphTensor("logits", (BATCH, SEQUENCE, 1024))]),
    "fill_mask reduced": (ENCODER, [GraphTensor("topk_ids", TOP_K, "INT64"), GraphTensor("topk_scores", TOP_K)]),
    "sequence_classification": (ENCODER[:2], [GraphTensor("logits", (BATCH, 5), "FP16")]),
    "text2text_generation": (inputs("input_ids", "decoder_input_ids"), [GraphTensor("logits", (BATCH, DECODED, 600))]),
}
"""Inputs and outputs of a task's graph."""


def settings(*flags: str) -> Namespace:
    """Those of a model named bert."""
    return parse(["--model_id=hub/bert", "--output=model_repository", *flags], {})
