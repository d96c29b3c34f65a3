"""What the texts of one request have come to."""

from __future__ import annotations

from time import perf_counter

from hf_transformer.observability.metrics import GenerationMetrics
from hf_transformer.types import Context

CHARACTERS_PER_TOKEN = 4
"""About how long a token's text is, as admission reckons it too: the tokens of a model that gives text alone are only
counted at its end."""


class Tally:
    """What the texts of one request have come to: for its place, the client's bill and the metrics.

    Attributes: ``prompt_tokens`` of all prompts together; ``completion_tokens``, new ones of all texts so far.
    """

    __slots__ = ("_has_begun", "_made", "_uncounted", "completion_tokens", "context", "metrics", "prompt_tokens")

    def __init__(self, context: Context, metrics: GenerationMetrics, prompt_tokens: int) -> None:
        self._made = perf_counter()
        self.context = context
        self.metrics = metrics
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        self._uncounted = 0
        self._has_begun = False

    def first(self) -> float:
        """A text has begun; the first of a request is what its client has waited for. Gives the moment."""
        now = perf_counter()
        if not self._has_begun:
            self._has_begun = True
            self.metrics.first_token.observe(now - self.context.arrived)
        return now

    def gives(self) -> None:
        """A reader gets a piece: the first of a request is what the model has taken, for who is told by then."""
        if not self.context.predict:
            self.context.predict = perf_counter() - self._made

    def add(self, tokens: int) -> None:
        """New tokens are known."""
        self.completion_tokens += tokens
        self.metrics.generated_tokens += tokens
        place = self.context.place
        if place is not None:
            expected = self._uncounted // CHARACTERS_PER_TOKEN
            place.charge(self.prompt_tokens + self.completion_tokens + expected)

    def expect(self, characters: int) -> None:
        """So much text has come whose tokens are not known yet: for its place alone, which may be told another number
        later. The others only ever add up, and are exact."""
        self._uncounted += characters
        self.add(0)

    def settle(self, characters: int, tokens: int) -> None:
        """That text, whose tokens are known now."""
        self._uncounted -= characters
        self.add(tokens)
