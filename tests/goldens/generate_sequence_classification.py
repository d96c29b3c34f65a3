"""Compute the sequence_classification goldens with transformers' text-classification pipeline.

    python tests/goldens/generate_sequence_classification.py            writes sequence_classification.json
    python tests/goldens/generate_sequence_classification.py --check    ends with 1 if it would change

Needs torch, transformers 5 and onnx. Every text is run alone, unpadded, with truncation=True.
"""

# mypy: ignore-errors

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import tokenizers
import transformers
from checkpoints import checkpoint
from golden_files import TOLERANCE, generate, must_agree, near_tie
from hard_texts import HARD_TEXTS
from sequence_texts import PAIRS, SENSIBLE, STARS

MODELS: Final = ("sentiment", "emotions", "toxicity", "stars")
FUNCTIONS: Final = ("softmax", "sigmoid", "none")
ABOUT: Final = {
    "made_by": "tests/goldens/generate_sequence_classification.py",
    "tolerance": {"score_absolute": TOLERANCE},
    "cases": "one per model and input; text_pair only with the model paraphrase. An empty text_pair counts as none",
    "default": 'pipeline("text-classification")(text, truncation=True): the best label alone',
    "all": "the same with top_k=None: every label, best first",
    "top_2": "the same with top_k=2, where there are more than two labels",
    "softmax, sigmoid, none": "top_k=None and function_to_apply; for some of the inputs",
    "near_tie": "two scores are too near each other to fix their order",
}


class Goldens:
    """The pipelines, one per model."""

    def __init__(self, folder: Path) -> None:
        self.pipelines = {
            name: transformers.pipeline("text-classification", str(checkpoint(name, folder)), device="cpu")
            for name in (*MODELS, "paraphrase")
        }

    def everything(self) -> dict[str, Any]:
        """The contents of sequence_classification.json."""
        cases = []
        for model in MODELS:
            trained = [*STARS] if model == "stars" else [text for text, _ in SENSIBLE[model]]
            texts = {f"trained_{index}": text for index, text in enumerate(trained)} | HARD_TEXTS
            cases += [self.case(model, name, text) for name, text in texts.items()]
        cases += [self.case("paraphrase", f"pair_{i}", text, pair) for i, (text, pair, _) in enumerate(PAIRS)]
        self.check_sense()
        return {"about": ABOUT, "cases": cases}

    def case(self, model: str, name: str, text: str, pair: str | None = None) -> dict[str, Any]:
        """One input with every form of its answer."""
        inputs = {"text": text} if pair is None else {"text": text, "text_pair": pair}

        def run(**parameters: Any) -> Any:
            return self.pipelines[model]([inputs], truncation=True, **parameters)[0]

        every = run(top_k=None)
        case = {"model": model, "id": name, **inputs, "default": run(), "all": every}
        if len(every) > 2:
            case["top_2"] = run(top_k=2)
        if name.startswith(("trained", "pair", "emoji", "turkish")):
            case |= {function: run(top_k=None, function_to_apply=function) for function in FUNCTIONS}
        if near_tie([answer["score"] for answer in every]):
            case["near_tie"] = True
        return case

    def check_sense(self) -> None:
        """Raise ValueError if a model says something else than it was trained to say."""
        for text, expected in SENSIBLE["sentiment"]:
            must_agree(text, self.pipelines["sentiment"](text)[0]["label"], expected)
        for text, expected in SENSIBLE["toxicity"]:
            must_agree(text, self.pipelines["toxicity"](text)[0]["score"] > 0.5, expected is not None)
        for text, expected in SENSIBLE["emotions"]:
            answers = self.pipelines["emotions"](text, top_k=None)
            must_agree(text, ",".join(sorted(a["label"] for a in answers if a["score"] > 0.5)), expected)
        for text, expected in STARS.items():
            must_agree(text, round(self.pipelines["stars"](text)[0]["score"]), expected)
        for text, pair, expected in PAIRS:
            if expected:
                answer = self.pipelines["paraphrase"]([{"text": text, "text_pair": pair}])[0]
                must_agree(f"{text} / {pair}", answer["label"], expected)


if __name__ == "__main__":
    generate("sequence_classification", lambda folder: Goldens(folder).everything(), transformers, tokenizers)
