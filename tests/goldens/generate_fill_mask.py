"""Compute the fill_mask goldens with torch and transformers, from the checkpoint beside this file.

    python tests/goldens/generate_fill_mask.py            writes fill_mask.json
    python tests/goldens/generate_fill_mask.py --check    ends with 1 if it would change

Needs torch and transformers; the tests that read the goldens need neither. All texts are run one at a time, unpadded.
So the goldens hold for every way to serve these weights: with and without an attention mask, alone and in a batch.
"""

# Types are checked in an environment without torch, where next to nothing here has one.
# mypy: ignore-errors

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

import tokenizers
import torch
import transformers
from fill_mask_texts import FULL_OUTPUT_TEXTS, TARGET_CASES, TEXTS, TEXTS_WITHOUT_MASK
from transformers.pipelines.base import PipelineException

HERE: Final = Path(__file__).resolve().parent
GOLDENS: Final = HERE / "fill_mask.json"
TOKENIZER: Final = HERE.parents[1] / "deploy/model_repository/bert"
CHECKPOINT: Final = HERE / "checkpoint"

TOP_K: Final = 5
TOLERANCE: Final = {"logits_absolute": 1e-4, "score_absolute": 1e-5, "score_relative": 1e-4}
LEAST_GAP: Final = 4 * TOLERANCE["logits_absolute"]
"""Logits that rank nearer than this could change places within the tolerance, so such a text is refused."""

ABOUT: Final = {
    "made_by": "tests/goldens/generate_fill_mask.py",
    "tolerance": TOLERANCE,
    "model": "tests/goldens/checkpoint, the weights of every fill-mask model of the test Triton",
    "padding": "each text was run alone and unpadded: bert (no mask input) and bert_masked must give the same",
    "plain": "tokenizer.decode(ids of the largest logits at the masks), KServe's default answer",
    "pipeline": 'pipeline("fill-mask", top_k=5, tokenizer_kwargs={"truncation": True}), a list per mask if several',
    "logits": "FP32 [masks, vocabulary], 7 significant digits; probabilities: their softmax",
}


class Goldens:
    """The model, its tokenizer and the pipeline of both."""

    def __init__(self) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(TOKENIZER)
        self.model = transformers.BertForMaskedLM.from_pretrained(CHECKPOINT).eval()
        self.pipeline = transformers.pipeline("fill-mask", model=self.model, tokenizer=self.tokenizer, device="cpu")

    def everything(self) -> dict[str, Any]:
        """The contents of fill_mask.json."""
        return {
            "about": ABOUT,
            "versions": {module.__name__: module.__version__ for module in (torch, transformers, tokenizers)},
            "cases": [self.case(name, text) for name, text in TEXTS.items()],
            "targets": [self.target_case(text, targets) for text, targets in TARGET_CASES],
            "without_mask": [self.maskless_case(name, text) for name, text in TEXTS_WITHOUT_MASK.items()],
        }

    def case(self, name: str, text: str) -> dict[str, Any]:
        """One text with its token ids and every form of its answer."""
        encoding = self.tokenizer(text, truncation=True, return_tensors="pt")
        with torch.no_grad():
            logits = self.model(**encoding).logits[0]
        ids = encoding["input_ids"][0]
        positions = (ids == self.tokenizer.mask_token_id).nonzero().flatten()
        if not len(positions):
            raise ValueError(f"{name} has no mask, or none among the first {len(ids)} tokens")
        at_masks = logits[positions]
        check_gaps(name, at_masks)
        case = {
            "id": name,
            "text": text,
            "input_ids": ids.tolist(),
            "mask_positions": positions.tolist(),
            "plain": self.tokenizer.decode(at_masks.argmax(dim=-1)),
            "pipeline": self.fill(text, top_k=TOP_K),
        }
        if name in FULL_OUTPUT_TEXTS:
            case["logits"] = rounded(at_masks)
            case["probabilities"] = rounded(at_masks.softmax(dim=-1))
        return case

    def target_case(self, text: str, targets: list[str]) -> dict[str, Any]:
        """A pipeline answer limited to some words."""
        return {"text": text, "targets": targets, "pipeline": self.fill(text, targets=targets)}

    def maskless_case(self, name: str, text: str) -> dict[str, Any]:
        """A text that has no mask to fill, or none before it is cut: transformers raises, the service answers 400."""
        try:
            self.fill(text)
        except PipelineException:
            return {"id": name, "text": text, "input_ids": self.tokenizer(text, truncation=True)["input_ids"]}
        raise ValueError(f"{name} has a mask after all")

    def fill(self, text: str, **parameters: Any) -> Any:
        """Call the pipeline; scores to 7 significant digits."""
        answer = self.pipeline(text, tokenizer_kwargs={"truncation": True}, **parameters)
        for row in answer:
            for proposal in row if isinstance(row, list) else [row]:
                proposal["score"] = float(f"{proposal['score']:.7g}")
        return answer


def check_gaps(name: str, logits: torch.Tensor) -> None:
    """Raise ValueError if any two neighbours among the best TOP_K + 1 logits are too near to keep their order."""
    best = logits.topk(TOP_K + 1, dim=-1).values
    gap = float((best[:, :-1] - best[:, 1:]).min())
    if gap < LEAST_GAP:
        raise ValueError(f"{name}: two of the best answers are only {gap:.1e} apart; change the text")


def rounded(array: torch.Tensor) -> list[list[float]]:
    """Nested lists with 7 significant digits, about what FP32 holds."""
    return [[float(f"{value:.7g}") for value in row] for row in array.tolist()]


def as_text(goldens: dict[str, Any]) -> str:
    """JSON with one case per line, so that a change shows as one changed line."""
    sections = []
    for key, value in goldens.items():
        if isinstance(value, list):
            rows = ",\n".join("  " + json.dumps(row) for row in value)
            sections.append(f"{json.dumps(key)}: [\n{rows}\n]")
        else:
            sections.append(f"{json.dumps(key)}: {json.dumps(value, indent=1)}")
    return "{\n" + ",\n".join(sections) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compute the goldens of fill_mask.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is out of date")
    check: bool = parser.parse_args().check
    torch.set_num_threads(1)
    text = as_text(Goldens().everything())
    if not check:
        GOLDENS.write_text(text, encoding="utf-8")
    elif not same(json.loads(text), json.loads(GOLDENS.read_text(encoding="utf-8"))):
        raise SystemExit(f"{GOLDENS} is out of date")


def same(new: Any, old: Any) -> bool:
    """Equality, numbers within the tolerance; versions may differ."""
    if isinstance(new, dict) and isinstance(old, dict):
        return new.keys() == old.keys() and all(key == "versions" or same(new[key], old[key]) for key in new)
    if isinstance(new, list) and isinstance(old, list):
        return len(new) == len(old) and all(map(same, new, old))
    if isinstance(new, float) and isinstance(old, float):
        return abs(new - old) <= TOLERANCE["logits_absolute"]
    return bool(new == old)


if __name__ == "__main__":
    main()
