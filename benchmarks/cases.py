"""The speed benchmark's models, texts with a known number of tokens, and numbers of connections."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from tokenizers import Tokenizer

from benchmarks.texts import Words

Lengths = Literal["4 tokens", "9 tokens", "mixed", "short", "270 words", "400 words"]
"""The size of the texts. Special tokens are included; ``mixed`` is MIN_TOKENS to MAX_TOKENS tokens. ``short`` is one
sentence of SHORT words; texts of a number of words are prose."""
Api = Literal["V1", "V2, REST", "V2, gRPC"]

VOCABULARY: Final = 30_522
LABELS: Final = 2
DIMENSIONS: Final = 384
MIN_TOKENS: Final = 8
MAX_TOKENS: Final = 256
SHORT: Final = (3, 14)
"""Minimum and maximum words of a short text."""
TEXT_COUNT: Final = 256
"""Different texts per case."""
MANY_TEXTS: Final = 4096
"""Texts in all different requests of several texts."""
NON_WORDS: Final = 3
"""Tokens of a text besides words: [CLS], the full stop or [MASK], and [SEP]."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model that Triton serves.

    Attributes:
        output: name of the FP32 output.
        width: values per token, or without ``per_token`` per text.
        inputs: the INT64 inputs.
        most_tokens: the limit of a text.
    """

    name: str
    task: str
    architecture: str
    output: str
    width: int
    per_token: bool
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    most_tokens: int = 512

    def output_bytes(self, tokens: int) -> int:
        """Bytes of the output for one text."""
        return 4 * self.width * (tokens if self.per_token else 1)


FILL_MASK: Final = Model("fill_mask", "fill_mask", "BertForMaskedLM", "logits", VOCABULARY, True)
CLASSIFIER: Final = Model(
    "classifier", "sequence_classification", "BertForSequenceClassification", "logits", LABELS, False
)
EMBEDDING: Final = Model("embedding", "text_embedding", "BertModel", "last_hidden_state", DIMENSIONS, True)
MINILM: Final = Model(
    "minilm", "text_embedding", "BertModel", "last_hidden_state", DIMENSIONS, True,
    ("input_ids", "attention_mask", "token_type_ids"), 256,
)  # fmt: skip
"""The real all-MiniLM-L6-v2 in ONNX Runtime, written by scripts/export_minilm."""
REDUCED: Final = Model("fill_mask_reduced", "fill_mask", "BertForMaskedLM", "topk_ids", 10, False)
"""FILL_MASK as ``export --reduce`` writes it."""
SYNTHETIC: Final = (FILL_MASK, CLASSIFIER, EMBEDDING)


@dataclass(frozen=True, slots=True)
class Case:
    """One model with one kind of texts, and ``texts`` of them in a request."""

    model: Model
    lengths: Lengths
    texts: int = 1

    @property
    def name(self) -> str:
        together = "" if self.texts == 1 else f", {self.texts} in a request"
        return f"{self.model.name}, {self.lengths}{together}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One case with a number of connections, each with one request in flight.

    ``beside`` is the load of further clients during the run, which the figures leave out.
    """

    case: Case
    connections: int
    api: Api = "V1"
    beside: Cell | None = None

    @property
    def name(self) -> str:
        api = "" if self.api == "V1" else f", {self.api}"
        other = "" if self.beside is None else f", beside {self.beside.name.partition(', ')[2]}"
        return f"{self.case.name}, {self.connections} at a time{api}{other}"


def cells_of(model: Model, lengths: Lengths, *connections: int) -> tuple[Cell, ...]:
    return tuple(Cell(Case(model, lengths), count) for count in connections)


SHORT_TEXTS: Final = Case(CLASSIFIER, "short")
PASSAGES: Final = Case(EMBEDDING, "270 words")
LONG_PASSAGES: Final = Case(EMBEDDING, "400 words")
MASKS: Final = Case(FILL_MASK, "9 tokens")
"""Each answer of a model without ``export --reduce`` has 1.1 MB."""
REAL_PASSAGES: Final = Case(MINILM, "270 words")
USUAL: Final = (
    *(Cell(SHORT_TEXTS, connections) for connections in (1, 8, 32)),
    *(Cell(PASSAGES, 1), Cell(LONG_PASSAGES, 16)),
    *(Cell(MASKS, 1), Cell(MASKS, 16)),
    Cell(REAL_PASSAGES, 16),
)
"""The cells of the users' table."""
FOR_GOALS: Final = (
    *(Cell(SHORT_TEXTS, connections) for connections in (1, 32)),
    *(Cell(MASKS, 1), Cell(MASKS, 16)),
    Cell(Case(MINILM, "mixed"), 64),
)


@lru_cache
def texts_of(case: Case, tokenizer_folder: Path) -> list[str]:
    """TEXT_COUNT texts of a case, the same at each call; a fill_mask text has one [MASK].

    Raises ValueError if a text has a wrong number of tokens.
    """
    words = Words((tokenizer_folder / "vocab.txt").read_text().splitlines(), case.lengths)
    if case.lengths == "short":
        return [words.between(*SHORT) for _ in range(TEXT_COUNT)]
    if case.lengths.endswith("words"):
        return [words.prose(int(case.lengths.split()[0])) for _ in range(TEXT_COUNT)]
    chosen, encode = random.Random(case.lengths), load_tokenizer(tokenizer_folder).encode
    end = "[MASK]" if case.model.task == "fill_mask" else "."
    texts = []
    for _ in range(TEXT_COUNT):
        fixed = case.lengths.endswith("tokens")
        tokens = int(case.lengths.split()[0]) if fixed else chosen.randint(MIN_TOKENS, MAX_TOKENS)
        text = f"{words.whole(tokens - NON_WORDS)} {end}"
        found = len(encode(text).ids)
        if found != tokens:
            raise ValueError(f"{text!r} has {found} tokens, not {tokens}")
        texts.append(text)
    return texts


def requests_of(case: Case, tokenizer_folder: Path) -> list[list[str]]:
    """The texts of each request, in rotation."""
    texts = itertools.cycle(texts_of(case, tokenizer_folder))
    count = TEXT_COUNT if case.texts == 1 else MANY_TEXTS // case.texts + 1
    return [list(itertools.islice(texts, case.texts)) for _ in range(count)]


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer without the truncation and padding in its file."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
