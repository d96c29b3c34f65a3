"""What is measured: models, texts and numbers of connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Lengths = Literal["4", "9", "128", "mixed"]
"""Tokens per text, special tokens included; mixed is 8 to 256."""

VOCABULARY: Final = 30_522
LABELS: Final = 2
DIMENSIONS: Final = 384
LONGEST: Final = 256
ANSWER: Final = "paris"
"""The token that fill_mask's synthetic model always prefers."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model that Triton serves. ``output`` is FP32, ``width`` values per token or, if not ``per_token``, per text.
    ``flags`` are those that every form of the service has for it."""

    name: str
    task: str
    architecture: str
    output: str
    width: int
    per_token: bool
    flags: tuple[str, ...] = ()

    def output_bytes(self, tokens: int) -> int:
        """Bytes of the output for one text."""
        return 4 * self.width * (tokens if self.per_token else 1)


FILL_MASK: Final = Model("fill_mask", "fill_mask", "BertForMaskedLM", "logits", VOCABULARY, True)
CLASSIFIER: Final = Model(
    "classifier", "sequence_classification", "BertForSequenceClassification", "logits", LABELS, False
)
EMBEDDING: Final = Model("embedding", "text_embedding", "BertModel", "last_hidden_state", DIMENSIONS, True)
MINILM: Final = Model("minilm", "text_embedding", "BertModel", "last_hidden_state", DIMENSIONS, True)
"""The real all-MiniLM-L6-v2, in ONNX Runtime as it is exported."""
MINILM_OPENVINO: Final = Model(
    "minilm_openvino",
    "text_embedding",
    "BertModel",
    "last_hidden_state",
    DIMENSIONS,
    True,
    flags=("--pad_to_multiple_of=16",),
)
"""The same in OpenVINO, which computes in bfloat16 where the processor can, and prepares itself anew for each shape."""

SYNTHETIC: Final = (FILL_MASK, CLASSIFIER, EMBEDDING)
REAL_MODELS: Final = (MINILM, MINILM_OPENVINO)


@dataclass(frozen=True, slots=True)
class Case:
    """One model under one kind of texts."""

    model: Model
    lengths: Lengths

    @property
    def name(self) -> str:
        return f"{self.model.name}, {self.lengths}{'' if self.lengths == 'mixed' else ' tokens'}"

    @property
    def tokens(self) -> int:
        """The length of the longest text."""
        return LONGEST if self.lengths == "mixed" else int(self.lengths)


@dataclass(frozen=True, slots=True)
class Cell:
    """One case under so many connections, each with one request in flight."""

    case: Case
    connections: int


def _cells(model: Model, lengths: Lengths, *connections: int) -> list[Cell]:
    return [Cell(Case(model, lengths), count) for count in connections]


QUICK: Final = (
    *_cells(CLASSIFIER, "9", 1, 32),
    *_cells(FILL_MASK, "9", 1, 16),
)
USUAL: Final = (
    *_cells(CLASSIFIER, "9", 1, 8, 32, 128),
    *_cells(CLASSIFIER, "128", 32),
    *_cells(CLASSIFIER, "mixed", 32),
    *_cells(FILL_MASK, "9", 1, 8, 16, 32, 128),
    *_cells(FILL_MASK, "128", 8),
    *_cells(FILL_MASK, "mixed", 8),
    *_cells(EMBEDDING, "9", 1, 32),
    *_cells(EMBEDDING, "mixed", 32),
)
FULL: Final = tuple(
    cell
    for model in SYNTHETIC
    for lengths, counts in (("9", (1, 8, 16, 32, 128)), ("128", (1, 8, 32, 128)), ("mixed", (1, 8, 32, 128)))
    for cell in _cells(model, lengths, *counts)
)
REAL: Final = tuple(cell for model in REAL_MODELS for cell in _cells(model, "mixed", 64))
