"""What is new in the tokens that a token model answers with: the prompt may be among them, and what came before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hf_transformer.errors import PredictorError

_CERTAIN = 8
"""A response that begins with all of another one with so many tokens does not do so by chance."""


@dataclass(slots=True)
class RowHabits:
    """What a model's responses have shown of it so far; None where they have not yet.

    ``prompt``: whether the first response has the prompt in front. ``cumulative``: whether each response has all tokens
    so far, and not the new ones alone, which is what the interface says.
    """

    prompt: bool | None = None
    cumulative: bool | None = None


class Rows:
    """The responses of one continuation.

    ``habits`` are the model's. ``prompt`` is what may stand in front.
    """

    _held = 0
    _has_begun = False

    def __init__(self, habits: RowHabits, prompt: Sequence[int], *, decoupled: bool) -> None:
        self._habits = habits
        self._prompt = prompt
        self._decoupled = decoupled
        self._previous: list[int] = []

    def take(self, row: list[int], total: int | None = None) -> list[int]:
        """The tokens of a response that are new.

        ``total`` is its sequence_length. Where that is more than the row has, it counts what came before, and the row
        is new. None are given where the next response will tell which of them are; ``rest`` gives them at the end.

        Raises:
            PredictorError: a response does not begin with all tokens so far, as those before it did.
        """
        if not row:
            return row
        habits = self._habits
        if habits.cumulative is None and total is not None and total > len(row):
            habits.cumulative = False
        if not self._has_begun:
            self._has_begun = True
            if habits.cumulative is not False:
                self._previous = row
            return row[len(self._prompt) :] if habits.prompt is not False and self._has_prompt(row) else row
        if habits.cumulative is False:
            return row
        previous = self._previous
        grown = row[: len(previous)] == previous
        if habits.cumulative:
            if not grown:
                raise PredictorError(
                    "the predictor's responses begin with all output_ids so far, but one does not; new ones alone, or "
                    "all of them, are expected"
                )
            self._previous = row
            return row[len(previous) :]
        return self._learn(row, grown and len(row) > len(previous))

    def rest(self) -> list[int]:
        """What was held back: without a word to the contrary, it is new."""
        return self._previous if self._held else []

    def _has_prompt(self, row: list[int]) -> bool:
        """Whether the first response begins with the prompt; a model that once did not never does."""
        length = len(self._prompt)
        # A first response with the prompt and nothing new would make no sense in a stream.
        if row[:length] != [*self._prompt] or (self._decoupled and len(row) == length):
            self._habits.prompt = False
            return False
        return True

    def _learn(self, row: list[int], grown: bool) -> list[int]:
        """The second response, or the third: new tokens may begin as the ones before by chance, but not twice."""
        previous, held = self._previous, self._held
        self._held = 0
        if not grown:
            self._habits.cumulative = False
            return previous + row if held else row
        self._previous = row
        if held or len(previous) >= _CERTAIN:
            self._habits.cumulative = True
            return row[held or len(previous) :]
        self._held = len(previous)
        return []
