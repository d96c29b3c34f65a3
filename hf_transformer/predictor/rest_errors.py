"""What a REST call that fails means: for the client of this service, for retries, and for shared memory."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Mapping

import orjson

from hf_transformer.errors import PredictorDenied, PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.predictor import kinds
from hf_transformer.predictor.answers import TIMEOUT_FLAG, quoted, reason, tls_hint
from hf_transformer.predictor.http1_errors import (
    AnswerTooLarge,
    ConnectDeadline,
    ConnectTimeout,
    DeadlineExceeded,
    Disconnected,
    Http1Error,
    NoAnswer,
    NotHttp,
)
from hf_transformer.predictor.http1_parser import Answer

_UNAVAILABLE: Mapping[int, str] = {404: kinds.UNAVAILABLE, 429: kinds.BUSY, 502: kinds.LOST, 503: ""}
"""Nobody has the model or takes the request now, and what kind of trouble that is; of 503 the message says it.
429 and 502 come from proxies on the way."""

_OF_PROXIES = frozenset({408, 429, 502, 504})
"""What a proxy says, of a call that may still go on behind it."""


def mapped(exc: OSError | Http1Error, where: str, seconds: float) -> RequestError:
    """The client's error as ours; ``where`` names the predictor in the message, ``seconds`` the timeout."""
    match exc:
        case ConnectTimeout():
            return PredictorUnavailable(f"no connection to the predictor at {where} in time", kinds.CONNECTION)
        case ConnectDeadline():
            message = f"there was no connection to the predictor at {where} in {seconds:g} s ({TIMEOUT_FLAG})"
            return PredictorTimeout(message, kinds.CONNECTION)
        case DeadlineExceeded():
            return PredictorTimeout(f"the predictor at {where} gave no answer in {seconds:g} s ({TIMEOUT_FLAG})")
        case OSError() | Disconnected():
            hint = tls_hint(exc) or tls_hint(exc.__cause__)
            message = f"the predictor at {where} is unavailable: {_reason(exc)}{hint}"
            return PredictorUnavailable(message, _kind_of_end(exc))
        case AnswerTooLarge():
            return PredictorError(
                f"the response of the predictor at {where} is too large: {_reason(exc)} "
                "(--max_predictor_response_bytes)"
            )
        case NotHttp():
            return PredictorError(
                f"the predictor at {where} does not speak HTTP/1.1; if that is its gRPC port, "
                "use --predictor_protocol=grpc-v2"
            )
        case _:
            return PredictorError(f"the call to the predictor at {where} failed: {_reason(exc)}")


def _kind_of_end(exc: Exception) -> str:
    if isinstance(exc, NoAnswer):
        return kinds.NO_ANSWER
    return kinds.LOST if isinstance(exc, Disconnected) else kinds.CONNECTION


def _reason(exc: OSError | Http1Error) -> str:
    return quoted(reason(exc))


def refused(status: int, what: str, body: memoryview, encoding: str) -> RequestError:
    """The error for an answer with another status than 200; ``what`` begins its message."""
    message = f"{what}: {message_of(body, encoding)}"
    if status in _UNAVAILABLE:
        return PredictorUnavailable(message, _UNAVAILABLE[status] or kinds.refusal(message))
    if status in (401, 403):
        return PredictorDenied(message)
    return (PredictorTimeout if status == 504 else PredictorError)(message)


def has_ended(answer: Answer) -> bool:
    """Whether a call has certainly ended at the predictor too; not sure is no.

    An error without the V2 protocol's body may come from a proxy, which knows nothing of the model, and so may one
    with a proxy's status.
    """
    if answer.status == 200:
        return True
    try:
        return answer.status not in _OF_PROXIES and isinstance(orjson.loads(answer.body)["error"], str)
    except (ValueError, KeyError, TypeError):
        return False


def message_of(body: memoryview, encoding: str) -> str:
    """What the predictor says is wrong: the value of "error" in JSON, or the text as it is."""
    data = bytes(body)
    if encoding in ("gzip", "x-gzip"):
        try:
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(2**16)
        except (OSError, EOFError, zlib.error):
            return "a message in broken gzip"
    try:
        error = orjson.loads(data)["error"]
    except (ValueError, KeyError, TypeError):
        return quoted(data.decode("utf-8", "replace"))
    return quoted(error if isinstance(error, str) else repr(error))
