"""Graphs without a module, and settings, as an export has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_transformer.commands.export.graph import BATCH, DECODED, MASKS, SEQUENCE, Graph, Output
from hf_transformer.commands.export.settings import BACKENDS, ExportSettings

ENCODER = ("input_ids", "attention_mask", "token_type_ids")
GRAPHS = {
    "fill_mask": Graph(None, ENCODER, (Output("logits", (BATCH, SEQUENCE, 1024), "FP32"),)),
    "fill_mask reduced": Graph(
        None,
        ENCODER,
        (Output("topk_ids", (BATCH, MASKS, 10), "INT64"), Output("topk_scores", (BATCH, MASKS, 10), "FP32")),
    ),
    "sequence_classification": Graph(None, ENCODER[:2], (Output("logits", (BATCH, 5), "FP16"),)),
    "question_answering": Graph(
        None,
        ENCODER,
        (Output("start_logits", (BATCH, SEQUENCE), "FP32"), Output("end_logits", (BATCH, SEQUENCE), "FP32")),
    ),
    "text2text_generation": Graph(
        None,
        ("input_ids", "attention_mask", "decoder_input_ids"),
        (Output("logits", (BATCH, DECODED, 600), "FP32"),),
    ),
}


def settings(form: Any = "onnx", **fields: Any) -> ExportSettings:
    """Those of a model named bert."""
    given = {
        "model_id": "hub/bert",
        "output": Path("model_repository"),
        "model_name": "bert",
        "format": form,
        "backend": BACKENDS[form][0],
    }
    return ExportSettings(**{**given, **fields})
