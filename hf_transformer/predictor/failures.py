"""Failure codes of calls to a predictor, and error messages and checks for all transports.

Metrics have the code as the label ``kind``. Retries and the circuit breaker depend on it.

    connection      no connection could be opened, so nothing was sent
    no_answer       the connection ended before the first byte of the response
    lost            the connection or the call (a proxy's 502) ended after that
    unavailable     the predictor is unavailable or lacks the model: 503, 404, UNAVAILABLE
    busy            the predictor is overloaded: 429, a full queue
    circuit_open    nothing was sent, since the circuit breaker is open
    timeout         no response arrived in time
    error           the predictor's own error, or a response that breaks the protocol, contradicts the model's metadata
                    or can't be decoded (NaN)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, ParamSpec, TypeVar

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable, RequestError, without_folders
from hf_transformer.protocol.tensors import Malformed, Unwritable, shorten
from hf_transformer.types.tensors import Tensor

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

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
"""Kinds of failures that are retried. Retries after BUSY would keep the predictor busy."""
DEAD: Final = frozenset({CONNECTION, NO_ANSWER, LOST, UNAVAILABLE})
"""Kinds of failures that count towards opening the circuit breaker."""
NEUTRAL: Final = frozenset({TIMEOUT, CIRCUIT_OPEN})
"""Kinds that neither count as a failure nor reset the count. A model that is slow for some requests answers others."""

BUSY_WORDS = ("queue size", "Request timeout expired")
"""Parts of Triton's messages about a full queue, and about a request that stayed in the queue for too long."""

TIMEOUT_FLAG = "--predictor_request_timeout_seconds"
TLS_FLAGS = "--predictor_use_ssl or https:// in --predictor_host"


def kind_of(error: RequestError) -> str:
    """The failure code of a predictor's error."""
    return error.kind if isinstance(error, PredictorUnavailable | PredictorTimeout) else ERROR


def refusal_kind(message: str) -> str:
    """The failure code of a refusal with this message: BUSY or UNAVAILABLE."""
    return BUSY if any(words in message for words in BUSY_WORDS) else UNAVAILABLE


def timeout_error(address: str, seconds: float) -> PredictorTimeout:
    """The error for a call without a response within ``seconds``."""
    return PredictorTimeout(f"the predictor at {address} gave no answer in {seconds:g} s ({TIMEOUT_FLAG})")


def codec_error(error: Malformed) -> PredictorError:
    """PredictorError with the message of a codec's error."""
    if isinstance(error, Unwritable):
        return PredictorError(f"the request can't be written: {error}")
    return PredictorError(f"the predictor's response is malformed: {error}")


@contextmanager
def refusals_as_errors() -> Iterator[None]:
    """Raises PredictorError in place of PredictorUnavailable for a request that the predictor answered and refused.

    Triton refuses to load a model with UNAVAILABLE or 503 if it decides itself which models it loads.
    """
    try:
        yield
    except PredictorUnavailable as exc:
        if exc.kind != UNAVAILABLE:
            raise
        raise PredictorError(str(exc)) from exc


def call_codec(function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    """Calls a function of a codec. Raises PredictorError in place of Malformed."""
    try:
        return function(*args, **kwargs)
    except Malformed as exc:
        raise codec_error(exc) from exc


def quoted(message: str) -> str:
    """The predictor's message for another message, which clients get: shortened, since a backend's traceback can be
    pages long, and without the folders that it names."""
    return without_folders(shorten(message.strip() or "no message", 500))


def verified(requested: Sequence[str], outputs: Mapping[str, Tensor], *, some: bool = False) -> Mapping[str, Tensor]:
    """The same outputs. Raises PredictorError for a missing output, and for one that was not requested.

    An empty ``requested`` allows every output; ``some`` allows missing outputs. Triton does not check a model's
    outputs.
    """
    if [*outputs] == requested:  # in another order they are examined below
        return outputs
    missing = [name for name in requested if name not in outputs and not some]
    unknown = [name for name in outputs if requested and name not in requested]
    if missing or unknown:
        parts = [f"without the output {', '.join(map(repr, missing))}"] if missing else []
        parts += [f"with {', '.join(map(repr, unknown))}, which was not asked for"] if unknown else []
        raise PredictorError(f"the predictor answered {' and '.join(parts)}")
    return outputs


_UNAVAILABLE_WORDS = (*BUSY_WORDS, "unknown model", "is not ready", "is unavailable", "stopped accepting")
"""Parts of Triton's messages about errors with the status UNAVAILABLE or NOT_FOUND."""


def error_from_message(error: str, address: str) -> RequestError:
    """The error for a message without a status, such as one in a stream."""
    message = f"the predictor at {address} answered: {quoted(error)}"
    if any(words in error for words in _UNAVAILABLE_WORDS):
        return PredictorUnavailable(message, refusal_kind(error))
    return PredictorError(message)
