"""Every error that the service raises on purpose.

    TransformerError
    ├── ConfigError             a flag or variable has a bad value: the start ends with exit code 2
    ├── LoadError               the tokenizer or config.json can't be loaded: the start ends with exit code 1
    └── RequestError            one request fails; carries the HTTP status and the gRPC code it is answered with
        ├── FieldError
        │   ├── InvalidInput            400 INVALID_ARGUMENT
        │   ├── UnknownModel            404 NOT_FOUND
        │   └── TooLarge                413 RESOURCE_EXHAUSTED
        ├── UnsupportedEncoding     415 INVALID_ARGUMENT
        ├── TooManyRequests         429 RESOURCE_EXHAUSTED, Retry-After
        ├── Unavailable             503 UNAVAILABLE, Retry-After
        │   ├── NotReady                the service is still starting, or the model does not fit the tokenizer
        │   └── PredictorUnavailable    the predictor is down, refuses, or does not have the model
        ├── PredictorError          502 INTERNAL, the predictor's own message quoted
        │   └── PredictorDenied         the client's credentials, passed on, do not let it ask the predictor
        ├── PredictorTimeout        504 DEADLINE_EXCEEDED
        └── CallersDeadline         504 DEADLINE_EXCEEDED

Foreign exceptions are mapped where they enter (one context manager per predictor), each API has one handler
that renders these. Errors about a field are data (FieldError): its path, what was expected and what was sent; an API
that calls fields by other names changes the path alone.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Self

_FORGING = (*range(32), *range(127, 160), 0x2028, 0x2029)
"""Control characters (C0, C1), which terminals obey, and all that readers of logs take for the end of a line."""
_BIDI = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""What changes the direction of a line, so that it reads as another one (UAX 9)."""
ESCAPES = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in (*_FORGING, *_BIDI)}
"""For str.translate: foreign text that a log or a message quotes can't forge a line of it."""
_FIELD = re.compile(r"(\w+(?:\[\d+\])*(?:\.\w+(?:\[\d+\])*)*): ")
_USERINFO = re.compile(r"(?<=//)[^/?#\s]*@")


def without_userinfo(text: str) -> str:
    """A text that may have addresses in it, for a message: user:password@ becomes ***@."""
    return _USERINFO.sub("***@", text)


def describe(value: Any, *, quote: bool = False) -> str:
    """The JSON type of a value, for FieldError.got. The value itself is left out, since it may be a prompt.

    ``quote`` shows booleans, and strings up to 40 characters, where a field has a few allowed values.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower() if quote else "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return repr(value[:40]) if quote else "a string"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        keys = ", ".join(sorted(str(key)[:40] for key in list(value)[:8]))
        return f"an object with the keys {keys}" if keys else "an empty object"
    return type(value).__name__


class TransformerError(Exception):
    """Base of all errors here."""


class ConfigError(TransformerError):
    """A flag or an environment variable has a value that can't be used."""


class LoadError(TransformerError):
    """The model folder, config.json or the tokenizer can't be read."""


class RequestError(TransformerError):
    """One request can't be answered; others are not affected."""

    status: ClassVar[int] = 500
    grpc_code: ClassVar[str] = "INTERNAL"
    retry_after: ClassVar[int | None] = None
    """Seconds after which a client may try again, sent as Retry-After; None sends no such header."""
    path: str = ""
    """The field that the error is about; empty for none. See FieldError."""


class FieldDetails(Exception):
    """Base of errors about a field of a message, as data. The message is ``PATH: expected EXPECTED, got GOT; HINT``.

    Attributes:
        path: the field, such as ``parameters.top_k`` or ``instances[3].text``; ``body`` for the whole body, and empty
            for an error that has no field.
        expected: the values that the service accepts, a noun phrase: ``a number``, ``at most 8 texts``.
        got: the value in the message, see ``describe``; empty where ``expected`` says it all.
        hint: advice to the sender, a clause of its own; may be empty.
    """

    text: str = ""

    def __init__(self, path: str, expected: str, got: str = "", hint: str = "") -> None:
        super().__init__(path, expected, got, hint)
        self.path, self.expected, self.got, self.hint = path, expected, got, hint

    def __str__(self) -> str:
        detail = (
            self.text or f"expected {self.expected}{self.got and f', got {self.got}'}{self.hint and f'; {self.hint}'}"
        )
        return f"{self.path}: {detail}" if self.path else detail

    def at(self, path: str) -> Self:
        """The same error about the field ``path``."""
        error = type(self)(path, self.expected, self.got, self.hint)
        error.text = self.text
        return error

    def within(self, parent: str) -> Self:
        """The same error with its path below the field ``parent``."""
        return self.at(f"{parent}.{self.path}" if self.path else parent)


class FieldError(FieldDetails, RequestError):
    """A field of the request is missing, wrong or over a limit."""

    @classmethod
    def of(cls, message: str) -> Self:
        """The error with this message, whose path is the field that it begins with."""
        found = _FIELD.match(message)
        error = cls(found[1] if found else "", "")
        error.text = message[found.end() :] if found else message
        return error


class InvalidInput(FieldError):
    """The client's request is wrong in itself."""

    status = 400
    grpc_code = "INVALID_ARGUMENT"


class UnknownModel(FieldError):
    """The path names a model that is not served here."""

    status = 404
    grpc_code = "NOT_FOUND"


class TooLarge(FieldError):
    """The body, the batch or a text is over its limit."""

    status = 413
    grpc_code = "RESOURCE_EXHAUSTED"


class UnsupportedEncoding(RequestError):
    """The body has a Content-Encoding or charset that is not understood."""

    status = 415
    grpc_code = "INVALID_ARGUMENT"


class TooManyRequests(RequestError):
    """As many requests are in flight as --max_concurrent_requests allows."""

    status = 429
    grpc_code = "RESOURCE_EXHAUSTED"
    retry_after = 1


class Unavailable(RequestError):
    """No answer now, maybe later."""

    status = 503
    grpc_code = "UNAVAILABLE"
    retry_after = 1


class NotReady(Unavailable):
    """The service is alive, but can't predict yet."""


class PredictorUnavailable(Unavailable):
    """The predictor can't be reached, refuses work, or does not have the model."""

    kind: str
    """What happened, as a short word; see predictor/failures.py."""
    connection: object = None
    """The connection whose end is all that happened, where calls share one: the same object for all that it took
    along."""

    def __init__(self, message: str, kind: str = "unavailable") -> None:
        super().__init__(message)
        self.kind = kind


class PredictorError(RequestError):
    """The predictor answered with an error of its own, or with something that breaks the protocol."""

    status = 502
    grpc_code = "INTERNAL"


class PredictorDenied(PredictorError):
    """The predictor, or what guards it, does not let this client ask; that says nothing of the model."""


class PredictorTimeout(RequestError):
    """The predictor took longer than --predictor_request_timeout_seconds."""

    status = 504
    grpc_code = "DEADLINE_EXCEEDED"

    def __init__(self, message: str, kind: str = "timeout") -> None:
        """``kind`` is as for PredictorUnavailable."""
        super().__init__(message)
        self.kind = kind


class CallersDeadline(RequestError):
    """The caller's own deadline has passed; that says nothing about the predictor."""

    status = 504
    grpc_code = "DEADLINE_EXCEEDED"


PREDICTORS = PredictorError, PredictorTimeout, PredictorUnavailable
"""The errors that are the predictor's."""
