"""What can become of a call that fails, in one word each.

    connection      there was no connection, so nothing was sent
    no_answer       the connection ended before the first byte of an answer
    lost            it ended, or the call was broken off (a 502 of a proxy), later than that
    unavailable     the predictor says that it can't now: 503, 404 (it does not have the model), UNAVAILABLE
    busy            it is there, and has no place for the call: 429, a full queue
    circuit_open    nothing was sent, since the predictor counts as dead
    timeout         there was no answer in time
    error           the predictor's own error, or an answer that breaks the protocol, is not what the model promised or
                    can't be decoded (NaN)

They are shown in the metrics, and tell what is tried again and what speaks for a dead predictor.
"""

from __future__ import annotations

from typing import Final

from hf_transformer.errors import PredictorTimeout, PredictorUnavailable, RequestError

CONNECTION: Final = "connection"
NO_ANSWER: Final = "no_answer"
LOST: Final = "lost"
UNAVAILABLE: Final = "unavailable"
BUSY: Final = "busy"
CIRCUIT_OPEN: Final = "circuit_open"
TIMEOUT: Final = "timeout"
ERROR: Final = "error"

ALL: Final = (CONNECTION, NO_ANSWER, LOST, UNAVAILABLE, BUSY, CIRCUIT_OPEN, TIMEOUT, ERROR)

RETRIED: Final = frozenset({CONNECTION, NO_ANSWER, UNAVAILABLE})
"""What is tried again. A busy predictor is not: that is what would keep it busy."""

DEAD: Final = frozenset({CONNECTION, NO_ANSWER, LOST, UNAVAILABLE})
"""What speaks for a predictor that is dead."""

NEUTRAL: Final = frozenset({TIMEOUT, CIRCUIT_OPEN})
"""What speaks neither for that nor against it: a model that is slow for some requests answers others."""

_BUSY_WORDS = ("queue size", "Request timeout expired")
"""In Triton's messages, of a request that its queue has no place for, or not in time."""


def kind_of(error: RequestError) -> str:
    """The kind of an error that a predictor raised."""
    return error.kind if isinstance(error, PredictorUnavailable | PredictorTimeout) else ERROR


def refusal(message: str) -> str:
    """The kind of a refusal with this message."""
    return BUSY if any(words in message for words in _BUSY_WORDS) else UNAVAILABLE
