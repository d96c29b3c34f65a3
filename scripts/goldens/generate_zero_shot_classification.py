"""Compute the zero_shot_classification goldens with transformers' own pipeline.

Needs torch, transformers 5 and onnx. The pipeline runs every pair alone, unpadded, and truncates the sequence only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import tokenizers
import transformers

from scripts.goldens.golden_files import TOLERANCE, generate, must_agree, near_tie
from tests.goldens.checkpoints import checkpoint
from tests.goldens.embedding_texts import LABELS, SEQUENCES, TEMPLATES
from tests.goldens.hard_texts import HARD_TEXTS

ABOUT: Final = {
    "made_by": "scripts/goldens/generate_zero_shot_classification.py",
    "tolerance": {"score_absolute": TOLERANCE},
    "model": "nli",
    "single": 'pipeline("zero-shot-classification")(sequence, candidate_labels): scores add up to 1',
    "multi": "the same with multi_label=True",
    "templates": "hypothesis_template -> single and multi with it; for some of the inputs",
    "near_tie": "the keys (a template's as template/single) whose order the tolerance could change",
}


def everything(folder: Path) -> dict[str, Any]:
    """The contents of zero_shot_classification.json."""
    pipeline = transformers.pipeline("zero-shot-classification", str(checkpoint("nli", folder)), device="cpu")
    inputs = {name: (sequence, labels) for name, (sequence, labels, _) in SEQUENCES.items()}
    # The pipeline refuses an empty sequence.
    inputs |= {name: (text, LABELS[:3]) for name, text in HARD_TEXTS.items() if text}
    cases = [case_of(pipeline, name, sequence, labels) for name, (sequence, labels) in inputs.items()]
    for case in cases:
        if expected := SEQUENCES.get(case["id"], (None, None, None))[2]:
            must_agree(case["sequence"], case["single"]["labels"][0], expected)
    return {"about": ABOUT, "cases": cases}


def case_of(pipeline: Any, name: str, sequence: str, labels: list[str]) -> dict[str, Any]:
    """One sequence with every form of its answer."""
    case: dict[str, Any] = {"id": name, "sequence": sequence, "candidate_labels": labels}
    unsure: list[str] = []

    def both(template: dict[str, str], prefix: str = "") -> dict[str, Any]:
        answers = {}
        for key, multi_label in (("single", False), ("multi", True)):
            answer = pipeline(sequence, candidate_labels=labels, multi_label=multi_label, **template)
            if near_tie(answer["scores"]):
                unsure.append(prefix + key)
            answers[key] = {"labels": answer["labels"], "scores": answer["scores"]}
        return answers

    case |= both({})
    if name in SEQUENCES:
        case["templates"] = {t: both({"hypothesis_template": t}, f"{t}/") for t in TEMPLATES}
    return case | ({"near_tie": unsure} if unsure else {})


if __name__ == "__main__":
    generate("zero_shot_classification", everything, transformers, tokenizers)
