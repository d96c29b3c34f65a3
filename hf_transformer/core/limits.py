"""Admission: how much work may be in the service at a time; and how much one request may ask for."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from hf_transformer.errors import TooLarge, TooManyRequests
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tokenizer.engine import characters
from hf_transformer.types.tokenization import TextInput

BYTES_PER_TOKEN = 4
"""About how long a token's text is, to guess a request's tokens by the size of its body before it is read."""
LARGEST_GUESS = 8
"""A guess is at most this part of the budget: a large body may turn out to be anything."""
MOST_BYTES: Final = 256 * 2**20
"""Bytes of all bodies where nobody says how many."""
COLLECTED_BYTES: Final = 64 * 2**20
"""Bytes of finished requests per garbage collection. A failed request can leave a reference cycle that holds its body,
and the collector's own threshold counts objects, however large they are."""


class Admission:
    """Counts the predict requests in the service, their tokens and the bytes of their bodies, and refuses what is too
    much.

    A request is admitted while there is any room, however large it is, so that small requests can't keep large ones
    out for ever. The last one admitted may exceed the budget of tokens. Bytes count from the first that comes: without
    that, as many clients as there may be connections could each have us hold a body of the largest size.

    Args:
        max_requests: how many requests may be there (--max_concurrent_requests).
        max_tokens: how many tokens they may have together before others are refused (--max_queued_tokens).
        max_bytes: bytes of all bodies that are there, whole or in part (--max_bytes_in_flight); no fewer than one
            request may have, or it would never come in.
    """

    def __init__(self, max_requests: int, max_tokens: int, metrics: Metrics, max_bytes: int = MOST_BYTES) -> None:
        self.largest_guess = max(1, max_tokens // LARGEST_GUESS)
        self.requests = 0
        self.tokens = 0
        self.bytes = 0
        self._finished_bytes = 0  # since the last collection
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self.max_bytes = max_bytes
        metrics.requests_in_flight.set_function(lambda: self.requests)
        metrics.tokens_in_flight.set_function(lambda: self.tokens)
        self._refused = metrics.refused

    @property
    def has_room(self) -> bool:
        """Whether the next request would be admitted."""
        return self.requests < self._max_requests and self.tokens < self._max_tokens

    def require(self) -> None:
        """Raises TooManyRequests, and counts it, if the next request would be refused. Nothing is taken."""
        if self.requests >= self._max_requests:
            self._refused.add(1, "requests")
            raise TooManyRequests(
                f"{self.requests} requests are in flight, as many as --max_concurrent_requests allows; try again"
            )
        if self.tokens >= self._max_tokens:
            self._refused.add(1, "tokens")
            raise TooManyRequests(
                f"the requests in flight have {self.tokens} tokens, --max_queued_tokens allows {self._max_tokens}; "
                "try again"
            )

    def require_bytes(self, size: int) -> None:
        """The same for so many bytes more."""
        if self.bytes + size > self.max_bytes and size > 0:
            self._refused.add(1, "bytes")
            raise TooManyRequests(
                f"the requests that are there or on their way have {self.bytes} bytes, --max_bytes_in_flight allows "
                f"{self.max_bytes}; try again"
            )

    def release_bytes(self, size: int) -> None:
        """Give back the bytes of a request. Collects garbage after COLLECTED_BYTES."""
        self.bytes -= size
        self._finished_bytes += size
        if self._finished_bytes > COLLECTED_BYTES:
            self._finished_bytes = 0
            gc.collect(1)


class AdmissionTicket:
    """What one request takes of the service: the bytes of its body, and from ``enter`` on its tokens.

    As a context manager it gives them back at the end.
    """

    __slots__ = ("admission", "bytes", "requests", "tokens")

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.bytes = self.requests = self.tokens = 0

    def hold(self, size: int) -> None:
        """Counts bytes that have come; fewer than none gives some back. Raises TooManyRequests where there is no room
        for them."""
        admission = self.admission
        if admission.bytes + size > admission.max_bytes:
            admission.require_bytes(size)
        admission.bytes += size
        self.bytes += size

    def enter(self) -> None:
        """Admits the request, whose tokens are guessed from its bytes until they are known.

        Raises:
            TooManyRequests: there is no room.
        """
        admission, tokens = self.admission, self.bytes // BYTES_PER_TOKEN + 1
        admission.require()
        if tokens > admission.largest_guess:
            tokens = admission.largest_guess
        admission.requests += 1
        admission.tokens += tokens
        self.requests, self.tokens = 1, tokens

    def charge(self, tokens: int) -> None:
        """Replaces the guess by the number of tokens that the request really has."""
        self.admission.tokens += tokens - self.tokens
        self.tokens = tokens

    def expect(self, characters: int) -> None:
        """Raises the guess where texts count more than once, as a text does that is in several pairs."""
        tokens = characters // BYTES_PER_TOKEN
        if tokens > self.tokens:
            self.charge(tokens)

    def leave(self) -> None:
        """Gives everything back; calling it again does nothing."""
        admission = self.admission
        admission.requests -= self.requests
        admission.tokens -= self.tokens
        admission.release_bytes(self.bytes)
        self.bytes = self.requests = self.tokens = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


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
            raise TooLarge.of(
                f"{name}: {total} characters together, at most {self.max_total_length} are taken (--max_total_length)"
            )
        return total

    def check_instances(self, count: int, name: str) -> None:
        """Raises TooLarge for too many instances."""
        if count > self.max_instances:
            raise TooLarge.of(f"{name}: {count} in a request, at most {self.max_instances} are taken (--max_instances)")

    def check_sequences(self, count: int, name: str) -> None:
        """Raises TooLarge for too many sequences."""
        if count > self.max_sequences:
            raise TooLarge.of(
                f"{name}: {count} sequences (texts, pairs and windows) in one request, at most {self.max_sequences} "
                "are taken (--max_sequences)"
            )

    def too_long(self, length: int, where: str) -> TooLarge:
        """The error for a text of so many characters."""
        return TooLarge.of(
            f"{where}: {length} characters, at most {self.max_text_length} are taken (--max_text_length)"
        )
