"""Compute the text_embedding goldens with sentence-transformers.

Needs torch, transformers 5, sentence-transformers and onnx. Every text is run alone, unpadded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import sentence_transformers
import torch
import transformers

from scripts.goldens.golden_files import TOLERANCE, generate, must_agree
from tests.goldens.checkpoints import checkpoint
from tests.goldens.embedding_texts import MEANINGS, TEXTS
from tests.goldens.hard_texts import HARD_TEXTS

MODELS: Final = ("minibert_mean", "minibert_cls", "minibert_max", "minibert_last")
ABOUT: Final = {
    "made_by": "scripts/goldens/generate_text_embedding.py",
    "tolerance": {"component_absolute": TOLERANCE},
    "cases": "one per model and text, FP32 [D]",
    "default": "SentenceTransformer(folder).encode(text); minibert_pooled must give what minibert_mean gives",
    "normalized": "encode(text, normalize_embeddings=True), where the model has no Normalize module",
    "dimensions_16": "encode(text, truncate_dim=16), which does not bring the length back to 1",
    "dimensions_16_normalized": "encode(text, truncate_dim=16, normalize_embeddings=True)",
    "prompt_query, prompt_passage": "encode(text, prompt_name=...)",
    "prompt": 'encode(text, prompt="about: ")',
}


class Goldens:
    """The models."""

    def __init__(self, folder: Path) -> None:
        self.models = {
            name: sentence_transformers.SentenceTransformer(str(checkpoint(name, folder)), device="cpu")
            for name in MODELS
        }

    def everything(self) -> dict[str, Any]:
        """The contents of text_embedding.json."""
        self.check_sense()
        texts = TEXTS | HARD_TEXTS
        return {"about": ABOUT, "cases": [self.case(m, name, text) for m in MODELS for name, text in texts.items()]}

    def case(self, model: str, name: str, text: str) -> dict[str, Any]:
        """One text with every form of its vector."""

        def encode(**parameters: Any) -> Any:
            return self.models[model].encode([text], show_progress_bar=False, **parameters)[0]

        case = {"model": model, "id": name, "text": text, "default": encode()}
        if model != "minibert_mean":
            return case | ({"normalized": encode(normalize_embeddings=True)} if name in TEXTS else {})
        if name in TEXTS or name.startswith(("empty", "space", "very_long", "emoji")):
            case["prompt_query"] = encode(prompt_name="query")
        if name in TEXTS:
            case["prompt_passage"] = encode(prompt_name="passage")
            case["prompt"] = encode(prompt="about: ")
            case["dimensions_16"] = encode(truncate_dim=16)
            case["dimensions_16_normalized"] = encode(truncate_dim=16, normalize_embeddings=True)
        return case

    def check_sense(self) -> None:
        """Raise ValueError if the nearest sentence is not the one of the same meaning."""
        model = self.models["minibert_mean"]
        first, second = (torch.tensor(model.encode([pair[i] for pair in MEANINGS])) for i in (0, 1))
        must_agree("nearest sentences", (first @ second.T).argmax(-1).tolist(), list(range(len(MEANINGS))))


if __name__ == "__main__":
    generate("text_embedding", lambda folder: Goldens(folder).everything(), transformers, sentence_transformers)
