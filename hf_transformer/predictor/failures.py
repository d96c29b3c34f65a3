"""Why calls to a predictor fail: failure codes, and the words and checks that all transports share.

The code is the label ``kind`` of the metrics. It decides whether a call is tried again, and whether the failure speaks
for a dead predictor.

    connection      there was no connection, so nothing was sent
    no_answer       the connection ended before the first byte of an answer
    lost            it ended, or the call was broken off (a 502 of a proxy), later than that
    unavailable     the predictor says that it can't now: 503, 404 (it does not have the model), UNAVAILABLE
    busy            it is there, and has no place for the call: 429, a full queue
    circuit_open    nothing was sent, since the predictor counts as dead
    timeout         there was no answer in time
    error           the predictor's own error, or an answer that breaks the protocol, is not what the model promised or
                    can't be decoded (NaN)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, ParamSpec, TypeVar

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.protocol.tensors import Malformed, Unwritable, shorten
from hf_transformer.types.tensors import Tensor

Arguments = ParamSpec("Arguments")
Found = TypeVar("Found")

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
"""Without BUSY: retries would keep a busy predictor busy."""
DEAD: Final = frozenset({CONNECTION, NO_ANSWER, LOST, UNAVAILABLE})
NEUTRAL: Final = frozenset({TIMEOUT, CIRCUIT_OPEN})
"""Say neither that the predictor is dead nor that it is not: a model that is slow for some requests answers others."""

BUSY_WORDS = ("queue size", "Request timeout expired")
"""In Triton's messages, of a request that its queue has no place for, or not in time."""

TIMEOUT_FLAG = "--predictor_request_timeout_seconds"
TLS_FLAGS = "--predictor_use_ssl or https:// in --predictor_host"


def kind_of(error: RequestError) -> str:
    """The kind of an error that a predictor raised."""
    return error.kind if isinstance(error, PredictorUnavailable | PredictorTimeout) else ERROR


def refusal(message: str) -> str:
    return BUSY if any(words in message for words in BUSY_WORDS) else UNAVAILABLE


def too_late(where: str, seconds: float) -> PredictorTimeout:
    """The error for a call whose bound has passed."""
    return PredictorTimeout(f"the predictor at {where} gave no answer in {seconds:g} s ({TIMEOUT_FLAG})")


def malformed(error: Malformed) -> PredictorError:
    """The service's error for a codec's."""
    what = "the request can't be written" if isinstance(error, Unwritable) else "the predictor's response is malformed"
    return PredictorError(f"{what}: {error}")


def call_codec(function: Callable[Arguments, Found], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Found:
    """What a function of the codec gives. Raises PredictorError in place of Malformed."""
    try:
        return function(*args, **kwargs)
    except Malformed as exc:
        raise malformed(exc) from exc


def quoted(message: str) -> str:
    """The predictor's message as it may stand in one of ours: a backend's traceback can be pages long."""
    return shorten(message.strip() or "no message", 500)


def verified(asked: Sequence[str], outputs: Mapping[str, Tensor], *, some: bool = False) -> Mapping[str, Tensor]:
    """The outputs, if they are those asked for (all if none are named), or with ``some`` no others. Triton does not
    check what a model returns. Raises PredictorError for a missing one, and for one that was not asked for.
    """
    if outputs.keys() == set(asked):
        return outputs
    missing = [name for name in asked if name not in outputs and not some]
    unknown = [name for name in outputs if asked and name not in asked]
    if missing or unknown:
        parts = [f"without the output {', '.join(map(repr, missing))}"] if missing else []
        parts += [f"with {', '.join(map(repr, unknown))}, which was not asked for"] if unknown else []
        raise PredictorError(f"the predictor answered {' and '.join(parts)}")
    return outputs


_UNAVAILABLE_WORDS = (*BUSY_WORDS, "unknown model", "is not ready", "is unavailable", "stopped accepting")
"""In Triton's messages of errors that have the status UNAVAILABLE or NOT_FOUND where they have one."""


def error_from_message(error: str, where: str) -> RequestError:
    """The error behind a message without a status, which is how one comes in the middle of a stream."""
    message = f"the predictor at {where} answered: {quoted(error)}"
    if any(words in error for words in _UNAVAILABLE_WORDS):
        return PredictorUnavailable(message, refusal(error))
    return PredictorError(message)
