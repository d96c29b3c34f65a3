"""Compute the fill_mask goldens with torch and transformers, from the checkpoint beside this file.

    python tests/goldens/generate_fill_mask.py            writes fill_mask.json
    python tests/goldens/generate_fill_mask.py --check    ends with 1 if it would change

Needs torch and transformers; the tests that read the goldens need neither. All texts are run one at a time, unpadded.
So the goldens hold for every way to serve these weights: with and without an attention mask, alone and in a batch.
"""

# Types are checked in an environment without torch, where next to nothing here has one.
# mypy: ignore-errors

from __future__ import annotations

from typing import Any, Final

import tokenizers
import torch
import transformers
from fill_mask_texts import FULL_OUTPUT_TEXTS, TARGET_CASES, TEXTS, TEXTS_WITHOUT_MASK
from golden_files import HERE, generate
from transformers.pipelines.base import PipelineException

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
            "cases": [self.case(name, text) for name, text in TEXTS.items()],
            "targets": [self.target_case(text, targets) for text, targets in TARGET_CASES],
            "without_mask": [self.maskless_case(name, text) for name, text in TEXTS_WITHOUT_MASK.items()],
        }

    def case(self, name: str, text: str) -> dict[str, Any]:
        """One text with its token ids and every form of its answer."""
        encoding = self.tokenizer(text, truncation=True, return_tensors="pt")
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
            case["logits"] = at_masks
            case["probabilities"] = at_masks.softmax(dim=-1)
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
        """Call the pipeline."""
        return self.pipeline(text, tokenizer_kwargs={"truncation": True}, **parameters)


def check_gaps(name: str, logits: torch.Tensor) -> None:
    """Raise ValueError if any two neighbours among the best TOP_K + 1 logits are too near to keep their order."""
    best = logits.topk(TOP_K + 1, dim=-1).values
    gap = float((best[:, :-1] - best[:, 1:]).min())
    if gap < LEAST_GAP:
        raise ValueError(f"{name}: two of the best answers are only {gap:.1e} apart; change the text")


if __name__ == "__main__":
    most = TOLERANCE["logits_absolute"]
    generate("fill_mask", lambda folder: Goldens().everything(), transformers, tokenizers, tolerance=most)
