"""Texts of which the right answer is known beforehand."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from tests.faults.known_logits import known_logits
from tests.support.triton_repository import task_model_folder

MODEL = "known"
LABELS = 16
LONGEST = 128
"""Tokens of the model."""
_COUNT = 1500

Answer = dict[str, float]


@dataclass(frozen=True, slots=True)
class Text:
    """A text, and the raw logits that each version of the model answers it with."""

    text: str
    answers: dict[int, Answer]


def write_model_folder(target: Path) -> None:
    """The files of --model_dir: the tokenizer of the tests' classifiers, and a config.json with 16 labels."""
    source = task_model_folder("sentiment")
    target.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, target / name)
    config = json.loads((source / "config.json").read_text())
    config["id2label"] = {str(label): f"LABEL_{label}" for label in range(LABELS)}
    config["label2id"] = {f"LABEL_{label}": label for label in range(LABELS)}
    (target / "config.json").write_text(json.dumps(config))


def make_texts(model_folder: Path, seed: int = 6) -> list[Text]:
    """Texts of 1 to 60 words, no two of them with the same answer, none too long for the model."""
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and len(word) > 1)
    generator = random.Random(seed)
    texts: dict[float, Text] = {}
    while len(texts) < _COUNT:
        text = " ".join(generator.choices(words, k=min(60, int(generator.expovariate(1 / 12)) + 1)))
        ids = tokenizer.encode(text).ids
        if len(ids) <= LONGEST:
            made = Text(text, {version: _answer(ids, version) for version in (1, 2)})
            texts[made.answers[1]["0"]] = made
    return list(texts.values())


def _answer(ids: list[int], version: int) -> Answer:
    array = np.array([ids], np.int64)
    logits = known_logits(array, np.ones_like(array), version, LABELS)[0]
    return {str(label): float(value) for label, value in enumerate(logits)}
