"""What the pipeline keeps of one request, from its instances to their predictions, and how much of it there may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from hf_transformer.errors import TooLarge
from hf_transformer.tasks.base import Task
from hf_transformer.tokenizer.engine import characters
from hf_transformer.types import Answers, Encoding, TextInput


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one request may ask for: instances, characters of a text and of all, sequences, values in answers."""

    max_instances: int
    max_text_length: int
    max_total_length: int
    max_sequences: int
    max_answer_values: int

    def check_texts(self, texts: Sequence[TextInput], name: str, *, single: bool = False) -> int:
        """How many characters some texts have together; ``single`` says that ``name`` is a text's and not a list's.

        Raises:
            TooLarge: there are too many, or they are too long.
        """
        if len(texts) > self.max_instances:
            raise TooLarge(
                f"{name}: {len(texts)} in a request, at most {self.max_instances} are taken (--max_instances)"
            )
        total = 0
        for index, text in enumerate(texts):
            length = characters(text)
            if length > self.max_text_length:
                where = name if single else f"{name}[{index}]"
                raise TooLarge(
                    f"{where}: {length} characters, at most {self.max_text_length} are taken (--max_text_length)"
                )
            total += length
        if total > self.max_total_length:
            raise TooLarge(
                f"{name}: {total} characters together, at most {self.max_total_length} are taken (--max_total_length)"
            )
        return total


@dataclass(slots=True)
class Worklist:
    """One request's way through the pipeline: items, their texts, and the encodings of these.

    ``name`` is what the client calls its instances.
    ``counts`` has the number of texts of each item; ``encodings`` per item, text and window; ``flat`` all encodings in
    that order, and ``owners`` the index of the item that each of them belongs to.
    """

    name: str
    items: list[Any] = field(default_factory=list)
    texts: list[TextInput] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    encodings: list[list[list[Encoding]]] = field(default_factory=list)
    flat: list[Encoding] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    characters: int = 0

    def where(self, index: int) -> str:
        """An instance's name in messages."""
        return f"{self.name}[{index}]"

    def check_sequences(self, count: int, limit: int) -> None:
        """Raises TooLarge for more sequences than the limit."""
        if count > limit:
            raise TooLarge(
                f"{self.name}: {count} sequences (texts, pairs and windows) in one request, at most {limit} are taken "
                "(--max_sequences)"
            )

    def answers(
        self, task: Task[Any, Any, Any], parts: Sequence[Any], options: Any, tensors: bool, tokens: int
    ) -> Answers:
        """Hands every item the parts of its own encodings."""
        rest = iter(parts)
        predictions = [
            task.answer(item, [list(islice(rest, len(windows))) for windows in texts], options)
            for item, texts in zip(self.items, self.encodings, strict=True)
        ]
        return Answers(
            predictions,
            task.beside(self.encodings, options),
            tokens,
            task.tensor(predictions, options) if tensors else None,
        )
