"""The speed benchmark's models, texts with a known number of tokens, and numbers of connections."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from tokenizers import Tokenizer

Lengths = Literal["4", "9", "128", "mixed"]
"""Tokens per text, special tokens included; ``mixed`` is MIN_TOKENS to MAX_TOKENS."""

VOCABULARY: Final = 30_522
LABELS: Final = 2
DIMENSIONS: Final = 384
MIN_TOKENS: Final = 8
MAX_TOKENS: Final = 256
TEXT_COUNT: Final = 64
"""Different texts per case."""
NON_WORDS: Final = 3
"""Tokens of a text besides words: [CLS], the full stop or [MASK], and [SEP]."""
WORDS: Final = (
    "the a this that our food place room people music story river city garden winter summer book game train house was "
    "is very good bad new old small large quiet long short and but or with for from near under over great fine warm"
).split()
"""Words that are one token in BERT's vocabulary."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model that Triton serves.

    Attributes:
        output: name of the FP32 output.
        width: values per token, or without ``per_token`` per text.
    """

    name: str
    task: str
    architecture: str
    output: str
    width: int
    per_token: bool

    def output_bytes(self, tokens: int) -> int:
        """Bytes of the output for one text."""
        return 4 * self.width * (tokens if self.per_token else 1)


FILL_MASK: Final = Model("fill_mask", "fill_mask", "BertForMaskedLM", "logits", VOCABULARY, True)
CLASSIFIER: Final = Model(
    "classifier", "sequence_classification", "BertForSequenceClassification", "logits", LABELS, False
)
EMBEDDING: Final = Model("embedding", "text_embedding", "BertModel", "last_hidden_state", DIMENSIONS, True)
MINILM: Final = Model("minilm", "text_embedding", "BertModel", "last_hidden_state", DIMENSIONS, True)
"""The real all-MiniLM-L6-v2 in ONNX Runtime, written by scripts/export_minilm."""
REDUCED: Final = Model("fill_mask_reduced", "fill_mask", "BertForMaskedLM", "topk_ids", 10, False)
"""FILL_MASK as ``export --reduce`` writes it."""
SYNTHETIC: Final = (FILL_MASK, CLASSIFIER, EMBEDDING)


@dataclass(frozen=True, slots=True)
class Case:
    """One model with one kind of texts."""

    model: Model
    lengths: Lengths

    @property
    def name(self) -> str:
        return f"{self.model.name}, {self.lengths}{'' if self.lengths == 'mixed' else ' tokens'}"

    @property
    def tokens(self) -> int:
        """The length of the longest text."""
        return MAX_TOKENS if self.lengths == "mixed" else int(self.lengths)


@dataclass(frozen=True, slots=True)
class Cell:
    """One case with a number of connections, each with one request in flight."""

    case: Case
    connections: int


def cells_of(model: Model, lengths: Lengths, *connections: int) -> tuple[Cell, ...]:
    return tuple(Cell(Case(model, lengths), count) for count in connections)


QUICK: Final = (*cells_of(CLASSIFIER, "9", 1, 32), *cells_of(FILL_MASK, "9", 1, 16))
USUAL: Final = (
    *cells_of(CLASSIFIER, "9", 1, 8, 32, 128),
    *cells_of(CLASSIFIER, "128", 32),
    *cells_of(CLASSIFIER, "mixed", 32),
    *cells_of(FILL_MASK, "9", 1, 8, 16, 32, 128),
    *cells_of(FILL_MASK, "128", 8),
    *cells_of(FILL_MASK, "mixed", 8),
    *cells_of(EMBEDDING, "9", 1, 32),
    *cells_of(EMBEDDING, "mixed", 32),
)
REAL: Final = cells_of(MINILM, "mixed", 64)


@lru_cache
def texts_of(case: Case, tokenizer_folder: Path) -> list[str]:
    """TEXT_COUNT texts of a case, the same at each call; a fill_mask text has one [MASK].

    Raises ValueError if a text has a wrong number of tokens.
    """
    chosen = random.Random(case.lengths)
    end = "[MASK]" if case.model.task == "fill_mask" else "."
    tokenizer = load_tokenizer(tokenizer_folder)
    texts = []
    for _ in range(TEXT_COUNT):
        tokens = chosen.randint(MIN_TOKENS, MAX_TOKENS) if case.lengths == "mixed" else int(case.lengths)
        text = " ".join([*chosen.choices(WORDS, k=tokens - NON_WORDS), end])
        found = len(tokenizer.encode(text).ids)
        if found != tokens:
            raise ValueError(f"{text!r} has {found} tokens, not {tokens}")
        texts.append(text)
    return texts


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer without the truncation and padding in its file."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
