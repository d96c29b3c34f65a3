"""The errors of the service.

    TransformerError
    ├── ConfigError             a flag or variable has a bad value: the start ends with exit code 2
    ├── LoadError               the tokenizer or config.json can't be loaded: the start ends with exit code 1
    └── RequestError            one request fails, with this HTTP status and gRPC code
        ├── FieldError
        │   ├── InvalidInput            400 INVALID_ARGUMENT
        │   ├── UnknownModel            404 NOT_FOUND
        │   └── TooLarge                413 RESOURCE_EXHAUSTED
        ├── UnsupportedEncoding     415 INVALID_ARGUMENT
        ├── TooManyRequests         429 RESOURCE_EXHAUSTED, Retry-After
        ├── Unavailable             503 UNAVAILABLE, Retry-After
        │   ├── NotReady                the service is still starting, or the model does not fit the tokenizer
        │   └── PredictorUnavailable    the predictor is down, refuses work, or does not have the model
        ├── PredictorError          502 INTERNAL, quotes the predictor's message
        │   └── PredictorDenied         the predictor refuses the client's credentials
        ├── PredictorTimeout        504 DEADLINE_EXCEEDED
        └── CallersDeadline         504 DEADLINE_EXCEEDED

Each transport maps foreign exceptions in one context manager, and each API renders these errors in one handler. Errors
about a field are data, see FieldError; an API with other names for fields changes only the path.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Self

_FORGING = (*range(32), *range(127, 160), 0x2028, 0x2029)
"""Control characters (C0, C1), which terminals obey, and all characters that log readers take for a line's end."""
_BIDI = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that change the direction of text (UAX 9), so that a line reads as another line."""
ESCAPES = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in (*_FORGING, *_BIDI)}
"""A table for str.translate that keeps quoted foreign text from forging lines of a log."""
_USERINFO = re.compile(r"(?<=//)[^/?#\s]*@")


def without_userinfo(text: str) -> str:
    """Masks the credentials of all addresses in a text: user:password@ becomes ***@."""
    return _USERINFO.sub("***@", text)


def describe(value: Any, *, quote: bool = False) -> str:
    """Describes a value by its JSON type, for FieldError.got. The value itself is left out, since it may be a prompt.

    ``quote`` shows booleans, numbers and the first 40 characters of strings, for a field with few allowed values.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower() if quote else "a boolean"
    if isinstance(value, int | float):
        return str(value)[:40] if quote else "a number"
    if isinstance(value, str):
        return repr(value[:40]) if quote else "a string"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        keys = ", ".join(sorted(str(key)[:40] for key in list(value)[:8]))
        return f"an object with the keys {keys}" if keys else "an empty object"
    return type(value).__name__


class TransformerError(Exception):
    """The base of all errors of the service."""


class ConfigError(TransformerError):
    """A flag or an environment variable has an invalid value."""


class LoadError(TransformerError):
    """The model folder, config.json or the tokenizer can't be read."""


class RequestError(TransformerError):
    """One request fails; others are not affected."""

    status: ClassVar[int] = 500
    grpc_code: ClassVar[str] = "INTERNAL"
    retry_after: ClassVar[int | None] = None
    """Seconds until a client may try again, sent as Retry-After; None sends no such header."""
    path: str = ""
    """The path of the wrong field; empty for none. See FieldError."""


class FieldDetails(Exception):
    """Base of errors about a field of a message, as data. The message is ``PATH: expected EXPECTED, got GOT; HINT``.

    Attributes:
        path: the field, such as ``parameters.top_k`` or ``instances[3].text``; ``body`` for the whole body, and empty
            for an error that has no field.
        expected: the values that the service accepts, a noun phrase: ``a number``, ``at most 8 texts``.
        got: the value in the message, see ``describe``; empty where ``expected`` says it all.
        hint: advice to the sender, a clause of its own; may be empty.
    """

    def __init__(self, path: str, expected: str, got: str = "", hint: str = "") -> None:
        super().__init__(path, expected, got, hint)
        self.path, self.expected, self.got, self.hint = path, expected, got, hint

    def __str__(self) -> str:
        detail = f"expected {self.expected}{self.got and f', got {self.got}'}{self.hint and f'; {self.hint}'}"
        return f"{self.path}: {detail}" if self.path else detail

    def at(self, path: str) -> Self:
        """The same error about the field ``path``."""
        return type(self)(path, self.expected, self.got, self.hint)

    def within(self, parent: str) -> Self:
        """The same error with its path below the field ``parent``."""
        return self.at(f"{parent}.{self.path}" if self.path else parent)


class FieldError(FieldDetails, RequestError):
    """A field of the request is missing, wrong or over a limit."""


class InvalidInput(FieldError):
    """The request is invalid."""

    status = 400
    grpc_code = "INVALID_ARGUMENT"


class UnknownModel(FieldError):
    """The service does not serve the requested model."""

    status = 404
    grpc_code = "NOT_FOUND"


class TooLarge(FieldError):
    """The request exceeds a limit."""

    status = 413
    grpc_code = "RESOURCE_EXHAUSTED"


class UnsupportedEncoding(RequestError):
    """The service does not support the body's Content-Encoding or charset."""

    status = 415
    grpc_code = "INVALID_ARGUMENT"


class TooManyRequests(RequestError):
    """The service has as many requests, tokens or bytes in flight as its limits allow."""

    status = 429
    grpc_code = "RESOURCE_EXHAUSTED"
    retry_after = 1


class Unavailable(RequestError):
    """The service can't answer now, but may later."""

    status = 503
    grpc_code = "UNAVAILABLE"
    retry_after = 1


class NotReady(Unavailable):
    """The service is alive, but has no model yet."""


class PredictorUnavailable(Unavailable):
    """The predictor is unreachable, refuses work, or does not have the model."""

    kind: str
    """The kind of failure, a label of metrics; see predictor/failures.py."""
    connection: object = None
    """The shared connection whose end caused the failure, the same object for all failed calls; None otherwise."""

    def __init__(self, message: str, kind: str = "unavailable") -> None:
        super().__init__(message)
        self.kind = kind


class PredictorError(RequestError):
    """The predictor answered with an error, or broke the protocol."""

    status = 502
    grpc_code = "INTERNAL"


class PredictorDenied(PredictorError):
    """The predictor or a guard before it refuses this client; the model may be fine."""


class PredictorTimeout(RequestError):
    """The predictor took longer than --predictor_request_timeout_seconds."""

    status = 504
    grpc_code = "DEADLINE_EXCEEDED"

    def __init__(self, message: str, kind: str = "timeout") -> None:
        """See PredictorUnavailable for ``kind``."""
        super().__init__(message)
        self.kind = kind


class CallersDeadline(RequestError):
    """The caller's own deadline has passed; the predictor may be fine."""

    status = 504
    grpc_code = "DEADLINE_EXCEEDED"


PREDICTORS = PredictorError, PredictorTimeout, PredictorUnavailable
"""The errors of the predictor."""
