"""Admission: how much work may be in the service at a time; and how much one request may ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hf_transformer.errors import TooLarge, TooManyRequests
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tokenizer.engine import characters
from hf_transformer.types import TextInput

BYTES_PER_TOKEN = 4
"""About how long a token's text is, to guess a request's tokens by the size of its body before it is read."""
LARGEST_GUESS = 8
"""A guess is at most this part of the budget: a large body may turn out to be anything."""


class Admitted:
    """What one request takes of the budget until it leaves."""

    __slots__ = ("_admission", "tokens")

    def __init__(self, admission: Admission, tokens: int) -> None:
        self._admission = admission
        self.tokens = tokens

    def charge(self, tokens: int) -> None:
        """Replaces the guess by the number of tokens that the request really has."""
        self._admission.tokens += tokens - self.tokens
        self.tokens = tokens

    def expect(self, characters: int) -> None:
        """Raises the guess where texts count more than once, as a text does that is in several pairs."""
        tokens = characters // BYTES_PER_TOKEN
        if tokens > self.tokens:
            self.charge(tokens)

    def leave(self) -> None:
        """Gives the budget back; to be called once."""
        self._admission.requests -= 1
        self._admission.tokens -= self.tokens


class Admission:
    """Counts the predict requests in the service and their tokens, over all APIs, and refuses what is too much.

    A request is admitted while there is any room, however large it is, so that small requests can't keep large ones
    out for ever. The last one admitted may exceed the budget of tokens.

    Args:
        max_requests: how many requests may be there (--max_concurrent_requests).
        max_tokens: how many tokens they may have together before others are refused (--max_queued_tokens).
    """

    def __init__(self, max_requests: int, max_tokens: int, metrics: Metrics) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._largest_guess = max(1, max_tokens // LARGEST_GUESS)
        self.requests = 0
        self.tokens = 0
        metrics.watch_in_flight(lambda: self.requests, lambda: self.tokens)
        self._refused = metrics.count_refused

    @property
    def has_room(self) -> bool:
        """Whether the next request would be admitted."""
        return self.requests < self._max_requests and self.tokens < self._max_tokens

    def enter(self, size: int) -> Admitted:
        """Admits a request with a body of ``size`` bytes.

        Raises:
            TooManyRequests: there is no room.
        """
        self.require()
        tokens = min(size // BYTES_PER_TOKEN + 1, self._largest_guess)
        self.requests += 1
        self.tokens += tokens
        return Admitted(self, tokens)

    def require(self) -> None:
        """Raises TooManyRequests if the next request would be refused. Nothing is taken."""
        if not self.has_room:
            raise self._no_room()

    def _no_room(self) -> TooManyRequests:
        """Counts a refused request, and says why it was refused."""
        if self.requests >= self._max_requests:
            self._refused("requests")
            return TooManyRequests(
                f"{self.requests} requests are in flight, as many as --max_concurrent_requests allows; try again"
            )
        self._refused("tokens")
        return TooManyRequests(
            f"the requests in flight have {self.tokens} tokens, --max_queued_tokens allows {self._max_tokens}; "
            "try again"
        )

    @contextmanager
    def place(self, size: int) -> Iterator[Admitted]:
        """``enter``, and ``leave`` at the end."""
        admitted = self.enter(size)
        try:
            yield admitted
        finally:
            admitted.leave()


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one request may ask for: instances, characters of a text and of all, sequences, values in answers."""

    max_instances: int
    max_text_length: int
    max_total_length: int
    max_sequences: int
    max_answer_values: int

    def check_texts(self, texts: Sequence[TextInput], name: str, *, single: bool = False) -> int:
        """The number of characters of some texts; ``single`` says that ``name`` is one text's name, not a list's.

        Raises:
            TooLarge: there are too many texts, or they are too long.
        """
        self.check_instances(len(texts), name)
        total = 0
        for index, text in enumerate(texts):
            length = characters(text)
            if length > self.max_text_length:
                raise self.too_long(length, name if single else f"{name}[{index}]")
            total += length
        if total > self.max_total_length:
            raise TooLarge(
                f"{name}: {total} characters together, at most {self.max_total_length} are taken (--max_total_length)"
            )
        return total

    def check_instances(self, count: int, name: str) -> None:
        """Raises TooLarge for too many instances."""
        if count > self.max_instances:
            raise TooLarge(f"{name}: {count} in a request, at most {self.max_instances} are taken (--max_instances)")

    def check_sequences(self, count: int, name: str) -> None:
        """Raises TooLarge for too many sequences."""
        if count > self.max_sequences:
            raise TooLarge(
                f"{name}: {count} sequences (texts, pairs and windows) in one request, at most {self.max_sequences} "
                "are taken (--max_sequences)"
            )

    def too_long(self, length: int, where: str) -> TooLarge:
        """The error for a text of so many characters."""
        return TooLarge(f"{where}: {length} characters, at most {self.max_text_length} are taken (--max_text_length)")
