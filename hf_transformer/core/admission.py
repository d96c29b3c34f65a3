"""How much work may be in the service at a time; what comes on top is refused before anything is done for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hf_transformer.errors import TooManyRequests
from hf_transformer.observability.metrics import Metrics

BYTES_PER_TOKEN = 4
"""About how long a token's text is, to guess a request's tokens by the size of its body before it is read."""
LARGEST_GUESS = 8
"""A guess is at most this part of the budget: a large body may turn out to be anything."""


class Place:
    """What one request takes of the budget, until it leaves."""

    __slots__ = ("_admission", "tokens")

    def __init__(self, admission: Admission, tokens: int) -> None:
        self._admission = admission
        self.tokens = tokens

    def charge(self, tokens: int) -> None:
        """Puts the number of tokens that the request really has in place of the guess."""
        self._admission.tokens += tokens - self.tokens
        self.tokens = tokens

    def expect(self, characters: int) -> None:
        """Raises the guess where texts count more than once: those of pairs do, in each pair."""
        tokens = characters // BYTES_PER_TOKEN
        if tokens > self.tokens:
            self.charge(tokens)

    def leave(self) -> None:
        """Gives the place back; to be called once."""
        self._admission.requests -= 1
        self._admission.tokens -= self.tokens


class Admission:
    """Counts the predict requests in the service and their tokens, over all APIs, and refuses one too many.

    A request comes in while there is any room, however large it is, and none does while there is none: so that large
    ones are not kept out by small ones for ever. The budget of tokens can be passed by that one request.

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
        """Whether the next request would come in."""
        return self.requests < self._max_requests and self.tokens < self._max_tokens

    def enter(self, size: int) -> Place:
        """A place for a request with a body of ``size`` bytes.

        Raises:
            TooManyRequests: there is no room.
        """
        if self.requests >= self._max_requests or self.tokens >= self._max_tokens:
            raise self._no_room()
        tokens = size // BYTES_PER_TOKEN + 1
        if tokens > self._largest_guess:
            tokens = self._largest_guess
        self.requests += 1
        self.tokens += tokens
        return Place(self, tokens)

    def _no_room(self) -> TooManyRequests:
        """Counts a request that is refused, and says why."""
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
    def place(self, size: int) -> Iterator[Place]:
        """``enter``, and the place is given back at the end."""
        place = self.enter(size)
        try:
            yield place
        finally:
            place.leave()
