"""Texts with a known number of tokens, always the same ones."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.speed.cases import LONGEST, Case

COUNT = 64
"""Different texts per case."""
SHORTEST = 8
FIXED = 3
"""[CLS], the full stop or [MASK], [SEP]."""
WORDS = (
    "the a this that our food place room people music story river city garden winter summer book game train house was "
    "is very good bad new old small large quiet long short and but or with for from near under over great fine warm"
).split()
"""Each a token of its own in BERT's vocabulary."""


def texts_of(case: Case, tokenizer_folder: Path) -> list[str]:
    """COUNT texts of a case; those of fill_mask hold one [MASK].

    Raises ValueError if a text has another number of tokens than it should.
    """
    chosen = random.Random(case.lengths)
    end = "[MASK]" if case.model.task == "fill_mask" else "."
    tokenizer = _tokenizer(tokenizer_folder)
    texts = []
    for _ in range(COUNT):
        tokens = chosen.randint(SHORTEST, LONGEST) if case.lengths == "mixed" else int(case.lengths)
        text = " ".join([*chosen.choices(WORDS, k=tokens - FIXED), end])
        found = len(tokenizer.encode(text).ids)
        if found != tokens:
            raise ValueError(f"{text!r} has {found} tokens, not {tokens}")
        texts.append(text)
    return texts


def token_ids(texts: list[str], tokenizer_folder: Path) -> list[list[int]]:
    """The ids of each text, as the service sends them."""
    tokenizer = _tokenizer(tokenizer_folder)
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def _tokenizer(folder: Path) -> Tokenizer:
    """Without the cutting and padding that a model's own file may ask for."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
