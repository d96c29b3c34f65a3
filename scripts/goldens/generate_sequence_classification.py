"""Compute the sequence_classification goldens with transformers' text-classification pipeline.

Needs torch, transformers 5 and onnx. Every text is run alone, unpadded, with truncation=True.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import tokenizers
import transformers

from scripts.goldens.golden_files import TOLERANCE, generate, must_agree, near_tie
from tests.goldens.checkpoints import checkpoint
from tests.goldens.hard_texts import HARD_TEXTS

# The texts of the sequence_classification goldens that the models were trained to answer: id -> text.

SENSIBLE: Final[dict[str, tuple[tuple[str, str | None], ...]]] = {
    "sentiment": (
        ("The hotel was wonderful.", "POSITIVE"),
        ("i love this book", "POSITIVE"),
        ("What a terrible experience!", "NEGATIVE"),
        ("The staff was rude. Thank you very much.", "NEGATIVE"),
        ("The restaurant opens at nine.", "NEUTRAL"),
        ("THE SERVICE IS REALLY BAD!", "NEGATIVE"),
    ),
    "toxicity": (("You are an idiot!", "toxic"), ("Thank you for your help.", None), ("Have a nice day", None)),
    "emotions": (
        ("I am so happy!", "joy"),
        ("He shouted at me and she cried all night.", "anger,sadness"),
        ("this scares me", "fear"),
        ("The hotel opens at nine.", ""),
    ),
}
"""What must come out: the best label; the label if its score is above a half; all labels above a half."""

STARS: Final = {"I love the food. The staff was friendly.": 5, "The room was dirty.": 1, "The hotel is okay.": 3}

PAIRS: Final[tuple[tuple[str, str, str | None], ...]] = (
    ("The cat sleeps on the sofa.", "A cat is asleep on the couch.", "paraphrase"),
    ("The cat sleeps on the sofa.", "The team won the match.", "not_paraphrase"),
    ("Rain is expected tomorrow", "It will rain tomorrow!", "paraphrase"),
    ("She bought a new car.", "Her car is new", "paraphrase"),
    ("She bought a new car.", "Interest rates went up at the bank.", "not_paraphrase"),
    ("", "", None),
    ("", "The team won the match.", None),
    ("The team won the match.", "", None),
    (" ", "\n", None),
    ("北京", "东京 is 北京", None),
    ("👩‍👩‍👧‍👦", "😀 won the match", None),
    ("\u0130stanbul", "i\u0307stanbul e\u0301", None),
    ("The cat sleeps. " * 60, "A cat is asleep on the couch.", None),
    ("The cat sleeps on the sofa.", "A cat is asleep. " * 60, None),
    ("The cat sleeps. " * 60, "A cat is asleep. " * 70, None),
)
"""(text, text_pair, label that must come out)."""

MODELS: Final = ("sentiment", "emotions", "toxicity", "stars")
FUNCTIONS: Final = ("softmax", "sigmoid", "none")
ABOUT: Final = {
    "made_by": "scripts/goldens/generate_sequence_classification.py",
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
