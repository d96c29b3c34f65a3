"""Compute the token_classification goldens with transformers' own pipeline.

Needs torch, transformers 5 and onnx. Every text is run alone, unpadded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import tokenizers
import torch
import transformers

from scripts.goldens.golden_files import MIN_GAP, TOLERANCE, generate, must_agree
from tests.goldens.checkpoints import checkpoint
from tests.goldens.hard_texts import HARD_TEXTS

# The texts of the token_classification goldens, besides the hard ones.

TEXTS: Final[dict[str, str]] = {
    "person_and_place": "Anna Smith lives in Berlin.",
    "all_three": "Maria Garcia works at Acme Corp in New York.",
    "two_sentences": "Yesterday Globex hired Wolfgang Schmidt. He lives in Zürich, near Oslo.",
    "lower_case": "my name is peter johnson and i live in tokyo.",
    "hyphen": "Emma Tanaka-Rossi wrote to Bank of Norway.",
    "apostrophe": "Is Liam O'Brien from São Paulo?",
    "pieces": "Rutenzor Kalomibar works at Shidragul University in Nepzorix.",
    "ampersand": "José wrote to AT&T, Air France and Oxford University!",
    "touching": "Anna,Peter;Berlin/Tokyo(Acme)",
    "touching_entities": "Anna Smith Peter Johnson Berlin Tokyo Acme Corp Globex",
    "parentheses": "Fatima Novak (Istanbul)",
    "nobody": "Thank you very much. Have a nice day!",
    "unknown_words": "Xqzvw Pfft lives in Grblmpf with Qwrtz.",
}

SENSIBLE: Final[dict[str, dict[str, str]]] = {
    "Anna Smith lives in Berlin.": {"Anna Smith": "PER", "Berlin": "LOC"},
    "Maria Garcia works at Acme Corp in New York.": {"Maria Garcia": "PER", "Acme Corp": "ORG", "New York": "LOC"},
    "Yesterday Globex hired Wolfgang Schmidt.": {"Globex": "ORG", "Wolfgang Schmidt": "PER"},
    "Thank you very much.": {},
}
"""Text -> what must be found in it, with the strategy average."""

SPLIT: Final[tuple[tuple[list[str], str], ...]] = (
    (["Anna", "Smith", "lives", "in", "Berlin", "."], " "),
    (["Maria", "Garcia", "works", "at", "Acme", "Corp", "in", "New", "York"], " "),
    (["Maria", "Garcia", "works", "at", "Acme", "Corp", "in", "New", "York"], ""),
    (["Anna", "lives", "in", "Berlin"], "---"),
    (["Rutenzor", "Kalomibar", "works", "at", "Shidragul", "University"], " "),
    (["Anna", "Tanaka-Rossi,", "O'Brien.", "(Berlin)"], " "),
    (["\u0130van", "lives", "in", "\u0130stanbul", "."], " "),
    (["Zoe\u0308", "lives", "in", "Sa\u0303o", "Paulo"], " "),
    (["😀", "Anna", "👩‍👩‍👧‍👦", "北京", "安娜", "Berlin"], " "),
    (["Anna Smith", "lives in", "New York"], " "),
    (["Anna", "", " ", "Berlin"], " "),
    (["Anna", "\u200b", "Berlin"], " "),
    (["Anna"], " "),
    (["Anna", "lives", "in", "Berlin", "."] * 40, " "),
)
"""(words, delimiter): the delimiter joins the words to the text that offsets point into."""

WINDOWS: Final[dict[str, str]] = {
    "short": "Anna Smith lives in Berlin.",
    "long": "Anna Smith works at Acme Corp in New York. Is Peter Johnson from Zürich? " * 9,
    "long_unicode": "😀 \u0130van Smith lives in \u0130stanbul, Zoe\u0308 Mu\u0308ller in 北京.\n" * 8,
    "long_names": "Rutenzor Kalomibar works at Shidragul University in Nepzorix and " * 8,
    "long_without_spaces": "Berlin/Tokyo,Anna;" * 30,
    "long_nobody": "Thank you very much. Have a nice day! " * 20,
}

MODELS: Final = ("ner", "ner_cased", "ner_roberta")
WINDOW_STRIDES: Final = (("ner", 0), ("ner", 16), ("ner_cased", 40), ("ner_roberta", 0), ("ner_roberta", 16))
STRATEGIES: Final = ("none", "simple", "first", "average", "max")
ABOUT: Final = {
    "made_by": "scripts/goldens/generate_token_classification.py",
    "tolerance": {"score_absolute": TOLERANCE},
    "cases": "one per model and input",
    "classes": "the best label's index for every token, special tokens too: KServe's default answer is [classes]",
    "offsets": "the tokenizer's offset_mapping for these tokens",
    "none, simple, first, average, max": 'pipeline("token-classification")(text, aggregation_strategy=...)',
    "split_cases": "pre-split words: pipeline(words, is_split_into_words=True, delimiter=...)",
    "window_cases": "pipeline(text, stride=..., aggregation_strategy=...): long texts in overlapping windows",
    "ignore_cases": "pipeline(text, ignore_labels=..., aggregation_strategy=...)",
    "near_tie": "somewhere two labels are too near each other to say which is the best",
}


class Goldens:
    """The pipelines, one per model."""

    def __init__(self, folder: Path) -> None:
        self.pipelines = {
            name: transformers.pipeline("token-classification", str(checkpoint(name, folder)), device="cpu")
            for name in MODELS
        }

    def everything(self) -> dict[str, Any]:
        """The contents of token_classification.json."""
        self.check_sense()
        texts = TEXTS | HARD_TEXTS
        return {
            "about": ABOUT,
            "cases": [
                self.case(model, name, text)
                for model in MODELS
                for name, text in texts.items()
                if model == "ner" or not name.startswith("very_long_")
            ],
            "split_cases": [
                {"model": model, "words": words, "delimiter": delimiter}
                | self.by_strategy(model, words, is_split_into_words=True, delimiter=delimiter)
                for model in MODELS
                for words, delimiter in SPLIT
            ],
            "window_cases": [
                {"model": model, "id": name, "text": text, "stride": stride}
                | self.by_strategy(model, text, STRATEGIES[1:] if stride == 16 else ("simple",), stride=stride)
                for model, stride in WINDOW_STRIDES
                for name, text in WINDOWS.items()
            ],
            "ignore_cases": [
                {"model": "ner", "text": TEXTS["two_sentences"], "ignore_labels": ignored}
                | self.by_strategy("ner", TEXTS["two_sentences"], ignore_labels=ignored)
                for ignored in ([], ["O", "B-PER"], ["PER", "O"])
            ],
        }

    def case(self, model: str, name: str, text: str) -> dict[str, Any]:
        """One text with every form of its answer."""
        pipe = self.pipelines[model]
        encoding = pipe.tokenizer(text, truncation=True, return_offsets_mapping=True, return_tensors="pt")
        offsets = encoding.pop("offset_mapping")[0].tolist()
        scores = pipe.model(**encoding).logits[0].softmax(-1)
        case = {"model": model, "id": name, "text": text, "classes": scores.argmax(-1).tolist(), "offsets": offsets}
        case |= self.by_strategy(model, text)
        if unsure(scores):
            case["near_tie"] = True
        return case

    def by_strategy(
        self, model: str, inputs: Any, strategies: tuple[str, ...] = STRATEGIES, **parameters: Any
    ) -> dict[str, Any]:
        """The answers for each aggregation strategy."""
        entities = {}
        for strategy in strategies:
            answer = self.pipelines[model](inputs, aggregation_strategy=strategy, **parameters)
            # Pre-split words come back as a batch of one.
            entities[strategy] = answer[0] if answer and isinstance(answer[0], list) else answer
        return entities

    def check_sense(self) -> None:
        """Raise ValueError if a model finds other entities than it was trained to find."""
        for model in MODELS:
            for text, expected in SENSIBLE.items():
                # Byte-level tokens are put together by the spaces between them: "Berlin." would be one word.
                strategy = "simple" if model == "ner_roberta" else "average"
                answer = self.pipelines[model](text, aggregation_strategy=strategy)
                found = {text[entity["start"] : entity["end"]].strip(): entity["entity_group"] for entity in answer}
                must_agree(f"{model}: {text}", found, expected)


def unsure(scores: torch.Tensor) -> bool:
    """Whether the two best of any token's scores are nearer than MIN_GAP."""
    best = np.sort(scores.numpy(), axis=-1)
    return bool((best[:, -1] - best[:, -2] < MIN_GAP * best[:, -1]).any())


if __name__ == "__main__":
    generate("token_classification", lambda folder: Goldens(folder).everything(), transformers, tokenizers)
