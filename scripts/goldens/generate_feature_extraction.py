"""Compute the feature_extraction goldens with transformers' own pipeline.

Needs torch, transformers 5 and onnx. Every text is run alone, unpadded, with truncation=True.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import tokenizers
import transformers

from scripts.goldens.golden_files import TOLERANCE, generate
from tests.goldens.checkpoints import checkpoint
from tests.goldens.embedding_texts import TEXTS
from tests.goldens.hard_texts import HARD_TEXTS

WHOLE: Final = 5
"""Texts of more tokens are stored as the first and the last token's vector and the mean of all."""
ABOUT: Final = {
    "made_by": "scripts/goldens/generate_feature_extraction.py",
    "tolerance": {"component_absolute": TOLERANCE},
    "model": "minibert_mean",
    "features": 'pipeline("feature-extraction")(text, truncation=True)[0]: FP32 [tokens, 48], special tokens too',
    "tokens, first, last, mean": f"of a text with more than {WHOLE} tokens: their number, two rows, the mean of all",
}


def everything(folder: Path) -> dict[str, Any]:
    """The contents of feature_extraction.json."""
    path = str(checkpoint("minibert_mean", folder))
    pipeline = transformers.pipeline("feature-extraction", path, device="cpu")
    cases = []
    for name, text in (TEXTS | HARD_TEXTS).items():
        (rows,) = pipeline(text, truncation=True)
        case = {"id": name, "text": text}
        if len(rows) <= WHOLE or name == "cat":
            case["features"] = rows
        else:
            mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
            case |= {"tokens": len(rows), "first": rows[0], "last": rows[-1], "mean": mean}
        cases.append(case)
    return {"about": ABOUT, "cases": cases}


if __name__ == "__main__":
    generate("feature_extraction", everything, transformers, tokenizers)
