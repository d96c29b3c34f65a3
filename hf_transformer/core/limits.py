"""Admission of requests, and the size limits of one request, which its Budget (budget.py) applies."""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from hf_transformer.errors import TooManyRequests
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types.request import Used

BYTES_PER_TOKEN = 4
"""Average bytes of text per token, to estimate the tokens of a request from the size of its body."""
MAX_ESTIMATE_SHARE = 8
"""The divisor of the token budget for the maximum estimate, since a large body may have few tokens."""
DEFAULT_MAX_BYTES: Final = 256 * 2**20
"""Default maximum of the bytes of all requests."""
COLLECT_AFTER_BYTES: Final = 64 * 2**20
"""Bytes of finished requests per garbage collection. A failed request can leave a reference cycle with its body, and
Python's own threshold counts objects, not bytes."""


class Admission:
    """Counts requests, their tokens and the bytes that they take, and refuses requests over a limit.

    Requests of any size may enter while tokens remain in the budget, so small requests can't starve large requests. The
    last admitted request may exceed the budget. Bytes are those of bodies, also incomplete ones, since many connections
    with large bodies could exhaust the memory; and those of copies, windows and answers, before they are made.

    Args:
        max_requests: the maximum number of requests (--max_concurrent_requests).
        max_tokens: the token budget of all requests (--max_queued_tokens).
        max_bytes: the maximum bytes of all requests (--max_bytes_in_flight), at least the maximum bytes of one body.

    Attributes:
        reserved_tokens, reserved_bytes: the part that threads have added, guarded by ``lock``.
    """

    def __init__(
        self,
        max_requests: int,
        max_tokens: int,
        metrics: Metrics,
        max_bytes: int = DEFAULT_MAX_BYTES,
        *,
        collect_after: int = COLLECT_AFTER_BYTES,
    ) -> None:
        self.max_estimate = max(1, max_tokens // MAX_ESTIMATE_SHARE)
        self.requests = 0
        self.tokens = 0
        self.bytes = 0
        self.lock = threading.Lock()
        self.reserved_tokens = self.reserved_bytes = 0
        self._finished_bytes = 0  # since the last collection
        self._collect_after = collect_after
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self.max_bytes = max_bytes
        metrics.requests_in_flight.set_function(lambda: self.requests)
        metrics.tokens_in_flight.set_function(lambda: self.tokens + self.reserved_tokens)
        self._refused = metrics.refused
        for limit in ("requests", "tokens", "bytes"):
            self._refused.add(0, limit)

    @property
    def has_room(self) -> bool:
        """Whether another request is within the limits of requests and tokens."""
        return self.requests < self._max_requests and self.tokens + self.reserved_tokens < self._max_tokens

    def require(self) -> None:
        """Raises TooManyRequests, and counts the refusal, if ``has_room`` is false."""
        if self.requests >= self._max_requests:
            self._refused.add(1, "requests")
            raise TooManyRequests(
                f"{self.requests} requests are in flight, as many as --max_concurrent_requests allows; try again"
            )
        if self.tokens + self.reserved_tokens >= self._max_tokens:
            self.require_tokens()

    def require_tokens(self, held: int = 0) -> None:
        """Raises TooManyRequests, and counts the refusal, if no token remains besides those ``held`` by a request."""
        tokens = self.tokens + self.reserved_tokens - held
        if tokens >= self._max_tokens:
            self._refused.add(1, "tokens")
            raise TooManyRequests(
                f"the requests in flight have {tokens} tokens, --max_queued_tokens allows {self._max_tokens}; try again"
            )

    def require_bytes(self, size: int) -> None:
        """Raises TooManyRequests, and counts the refusal, if ``size`` more bytes exceed the limit."""
        held = self.bytes + self.reserved_bytes
        if held + size > self.max_bytes and size > 0:
            self._refused.add(1, "bytes")
            raise TooManyRequests(
                f"the requests in flight have {held} bytes, {size} more would exceed "
                f"--max_bytes_in_flight={self.max_bytes}; try again"
            )

    def release_bytes(self, size: int) -> None:
        """Releases the bytes of a request, and collects garbage after ``collect_after`` bytes."""
        self.bytes -= size
        self._finished_bytes += size
        if self._finished_bytes > self._collect_after:
            self._finished_bytes = 0
            gc.collect(1)


class AdmissionTicket:
    """The bytes and tokens of one request in Admission, and its use of a model. The context manager releases them on
    exit."""

    __slots__ = (
        *("admission", "bytes", "has_left", "in_threads", "model", "requests"),
        *("reserved_bytes", "reserved_tokens", "tokens"),
    )

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.model: Used | None = None
        self.bytes = self.requests = self.tokens = self.reserved_bytes = self.reserved_tokens = 0
        self.in_threads = self.has_left = False

    @property
    def held(self) -> int:
        """All bytes of the request."""
        return self.bytes + self.reserved_bytes

    def hold(self, size: int) -> None:
        """Adds bytes; a negative size removes bytes. Raises TooManyRequests over the limit."""
        admission = self.admission
        if admission.bytes + admission.reserved_bytes + size > admission.max_bytes:
            admission.require_bytes(size)
        admission.bytes += size
        self.bytes += size

    def enter(self) -> None:
        """Admits the request, and estimates its tokens from its bytes. Raises TooManyRequests over a limit."""
        admission, tokens = self.admission, self.bytes // BYTES_PER_TOKEN + 1
        admission.require()
        if tokens > admission.max_estimate:
            tokens = admission.max_estimate
        admission.requests += 1
        admission.tokens += tokens
        self.requests, self.tokens = 1, tokens

    def charge(self, tokens: int) -> None:
        """Replaces the estimate with the request's number of tokens."""
        self.admission.tokens += tokens - self.tokens
        self.tokens = tokens

    def expect(self, characters: int) -> None:
        """Increases the estimate to at least that of ``characters``, since the model may read a text several times."""
        tokens = characters // BYTES_PER_TOKEN
        if tokens > self.tokens:
            self.charge(tokens)

    def reserve(self, tokens: int, size: int) -> None:
        """Adds tokens and bytes that are about to be made. Threads may call it once ``in_threads`` is set.

        Raises TooManyRequests if the other requests have as many tokens as the budget, if the bytes exceed the limit,
        or if the request has ended meanwhile.
        """
        admission = self.admission
        with admission.lock:
            if self.has_left:
                raise TooManyRequests("the request has ended")
            if tokens:
                admission.require_tokens(self.tokens + self.reserved_tokens)
            admission.require_bytes(size)
            admission.reserved_tokens += tokens
            admission.reserved_bytes += size
            self.reserved_tokens += tokens
            self.reserved_bytes += size

    def use(self, model: Used) -> None:
        """Counts the request among those of its model, which stays in use until ``leave``."""
        self.model = model
        model.requests += 1

    def leave(self) -> None:
        """Releases all bytes and tokens of the request, and its model. Further calls have no effect."""
        admission = self.admission
        if self.model is not None:
            self.model.requests -= 1
            self.model = None
        admission.requests -= self.requests
        admission.tokens -= self.tokens
        admission.release_bytes(self.bytes)
        self.bytes = self.requests = self.tokens = 0
        if self.in_threads:  # a thread may still add something
            with admission.lock:
                self.has_left = True
                admission.reserved_tokens -= self.reserved_tokens
                admission.reserved_bytes -= self.reserved_bytes
                self.reserved_bytes = self.reserved_tokens = 0

    def keep(self, size: int) -> None:
        """Releases all but ``size`` bytes, those of the answer, which another call of ``leave`` releases."""
        self.leave()
        self.admission.bytes += size
        self.bytes = size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


@dataclass(frozen=True, slots=True)
class Limits:
    """The size limits of one request. Each field has the value of the flag of the same name."""

    max_instances: int
    max_text_length: int
    max_total_length: int
    max_sequences: int
    max_answer_values: int
    max_window_tokens: int

    @property
    def max_texts(self) -> int:
        """The maximum length of a list of texts in any request."""
        return max(self.max_instances, self.max_sequences)
