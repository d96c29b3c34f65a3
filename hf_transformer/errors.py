"""The errors of the service.

    TransformerError
    ├── ConfigError             a flag or environment variable has an invalid value: exit code 2
    ├── LoadError               the tokenizer or config.json can't be loaded: exit code 1
    └── RequestError            one request fails, with this HTTP status and gRPC code
        ├── FieldError
        │   ├── InvalidInput            400 INVALID_ARGUMENT
        │   │   └── EmptyList               a list without elements, where at least one is required
        │   ├── UnknownModel            404 NOT_FOUND
        │   └── TooLarge                413 RESOURCE_EXHAUSTED
        │       └── ContextLengthExceeded   one text is too long; some APIs answer 400
        ├── UnsupportedEncoding     415 INVALID_ARGUMENT
        ├── NoPredictor             501 UNIMPLEMENTED
        ├── TooManyRequests         429 RESOURCE_EXHAUSTED, Retry-After
        ├── Unavailable             503 UNAVAILABLE, Retry-After
        │   ├── NotReady                the service is still starting, or the model doesn't fit the tokenizer
        │   └── PredictorUnavailable    the predictor is down, refuses work, or doesn't have the model
        ├── PredictorError          502 INTERNAL, quotes the predictor's message
        │   └── PredictorDenied         the predictor refuses the client's credentials
        ├── PredictorTimeout        504 DEADLINE_EXCEEDED
        └── CallersDeadline         504 DEADLINE_EXCEEDED

Each transport maps foreign exceptions in a context manager. Each API renders these errors in a handler. An API with
other field names changes only the path of a FieldError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeAlias

_FORGING = (*range(32), *range(127, 160), 0x2028, 0x2029)
"""Control characters (C0, C1), which terminals execute, and all line separators of Unicode."""
_BIDI = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Bidirectional formatting characters (UAX 9), which can disguise the content of a line."""
ESCAPES = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in (*_FORGING, *_BIDI)}
"""A table for str.translate that prevents log injection by quoted foreign text."""
QUOTES = {ord('"'): "\\x22", ord("\\"): "\\x5c"}
"""Additions to ESCAPES for foreign text between quotes, such as a header in the access log."""
_USERINFO = re.compile(r"(?<=//)[^/?#\s]*@")


def without_userinfo(text: str) -> str:
    """Masks the credentials of all URLs in a text: user:password@ becomes ***@."""
    return _USERINFO.sub("***@", text)


_FOLDERS = re.compile(r"(?<=['\"])/(?:[^'\"]*/)?(?=[^'\"/]+['\"])|(?<![\w.:/<)\]-])/(?:[^\s/'\"]+/)*(?=[^\s/'\"])")
"""The folders of an absolute path: in quotes with spaces, else up to the first space."""


def without_folders(text: str, *paths: str) -> str:
    """Shortens absolute paths to their last part, since clients must not learn the server's folders.

    ``paths`` are known ones in the text, which may contain spaces.
    """
    for path in paths:
        if bare := path.rstrip("/"):
            text = text.replace(bare, bare.rpartition("/")[2])
    return _FOLDERS.sub("", text)


def nearest(name: str, candidates: Mapping[str, str]) -> str:
    """Suggests the candidate whose key is most similar to the name. Returns an empty text if no key is similar."""
    from difflib import get_close_matches  # imported here, since most runs do not need it

    matches = get_close_matches(name, candidates, n=1, cutoff=0.5)
    return f"; did you mean {candidates[matches[0]]}?" if matches else ""


def describe(value: Any, *, quote: bool = False) -> str:
    """Describes a value by its JSON type, for FieldError.got. Omits the value, since a value may be a prompt.

    ``quote`` includes booleans, numbers and the first 40 characters of strings, for a field with few allowed values.
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


Path: TypeAlias = tuple[str | int, ...]
"""The path of a field: names of fields and indices of lists, as ("messages", 0, "role"). () means no particular
field. A name may contain any character, so code compares and renames paths, and never takes apart their text."""


class Key(str):
    """A name in a path that is shown in brackets and quotes, such as a tensor's name in a predictor's answer."""

    __slots__ = ()


def show_path(path: Path | str) -> str:
    """The text of a path: ("messages", 0, "role") is messages[0].role, and ("outputs", Key("a")) is outputs['a']."""
    if isinstance(path, str):
        return path
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif isinstance(part, Key):
            text += f"[{str(part)!r}]"
        else:
            text += f".{part}" if text else part
    return text


class TransformerError(Exception):
    """Base class of all errors of the service."""


class ConfigError(TransformerError):
    """A flag or an environment variable has an invalid value."""


class LoadError(TransformerError):
    """The model folder, config.json or the tokenizer can't be read.

    Attributes:
        message: the error without ``advice``, which is for the operator and never part of an answer to a client.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message}{advice}")
        self.message = message


class RequestError(TransformerError):
    """A failure of a single request, without effect on other requests."""

    status: ClassVar[int] = 500
    grpc_code: ClassVar[str] = "INTERNAL"
    retry_after: ClassVar[int | None] = None
    """The value of the Retry-After header in seconds; None omits the header."""
    path: Path = ()
    """The path of the invalid field; see FieldDetails."""


class FieldDetails(Exception):
    """Base class of errors about a field, with the text ``PATH: expected EXPECTED, got GOT; HINT``.

    Attributes:
        path: the field, such as ``("parameters", "top_k")`` or ``("instances", 3, "text")``. ``("body",)`` means the
            whole body. An empty path means no particular field. The constructor takes a path, or one name as a text.
        expected: a noun phrase for the accepted values: ``a number``, ``at most 8 texts``.
        got: a noun phrase for the actual value, often from ``describe``; may be empty.
        hint: advice to the sender, a full clause; may be empty.
    """

    def __init__(self, path: Path | str, expected: str, got: str = "", hint: str = "") -> None:
        if isinstance(path, str):
            path = (path,) if path else ()
        super().__init__(path, expected, got, hint)
        self.path, self.expected, self.got, self.hint = path, expected, got, hint

    def __str__(self) -> str:
        return f"{self.without_hint}{self.hint and f'; {self.hint}'}"

    @property
    def without_hint(self) -> str:
        """The text without the hint."""
        detail = f"expected {self.expected}{self.got and f', got {self.got}'}"
        return f"{show_path(self.path)}: {detail}" if self.path else detail

    def at(self, path: Path | str) -> Self:
        """A copy of this error with another path."""
        return type(self)(path, self.expected, self.got, self.hint)

    def within(self, parent: Path) -> Self:
        """A copy of this error with the prefix ``parent`` in its path."""
        return self.at((*parent, *self.path))


class FieldError(FieldDetails, RequestError):
    """A field of the request is missing or invalid, or exceeds a limit."""


class InvalidInput(FieldError):
    """The request is invalid."""

    status = 400
    grpc_code = "INVALID_ARGUMENT"


class EmptyList(InvalidInput):
    """A list has no elements, where at least one is required."""

    def __init__(self, path: Path | str, expected: str, got: str = "an empty list", hint: str = "") -> None:
        super().__init__(path, expected, got, hint)


class UnknownModel(FieldError):
    """The request names a model that the service does not serve."""

    status = 404
    grpc_code = "NOT_FOUND"


class TooLarge(FieldError):
    """The request exceeds a limit."""

    status = 413
    grpc_code = "RESOURCE_EXHAUSTED"


class ContextLengthExceeded(TooLarge):
    """A text is longer than the model reads, or than a text may be.

    Attributes:
        limit: the maximum number of tokens of the model.
        counted: whether ``got`` is the number of the text's tokens.
    """

    def __init__(
        self, path: Path | str, expected: str, got: str = "", hint: str = "", *, limit: int, counted: bool = True
    ) -> None:
        super().__init__(path, expected, got, hint)
        self.limit, self.counted = limit, counted

    def at(self, path: Path | str) -> Self:
        return type(self)(path, self.expected, self.got, self.hint, limit=self.limit, counted=self.counted)


class UnsupportedEncoding(RequestError):
    """The service does not support the body's Content-Encoding or charset."""

    status = 415
    grpc_code = "INVALID_ARGUMENT"


class NoPredictor(RequestError):
    """The model has no predictor (--predictor_protocol=none), so the service can't run it."""

    status = 501
    grpc_code = "UNIMPLEMENTED"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"model {model!r} has no predictor (--predictor_protocol=none): the service only tokenizes for it, and "
            "renders prompts"
        )


class TooManyRequests(RequestError):
    """The requests, tokens or bytes in flight have reached a limit of the service."""

    status = 429
    grpc_code = "RESOURCE_EXHAUSTED"
    retry_after = 1


class Unavailable(RequestError):
    """A temporary failure: the client may retry."""

    status = 503
    grpc_code = "UNAVAILABLE"
    retry_after = 1


class NotReady(Unavailable):
    """The service is live, but not ready for inference."""


class PredictorUnavailable(Unavailable):
    """The predictor is unreachable, refuses work, or doesn't have the model."""

    kind: str
    """The kind of failure for metrics; see predictor/failures.py."""
    connection: object = None
    """The closed connection that caused the failure, the same object for all calls on the connection."""

    def __init__(self, message: str, kind: str = "unavailable") -> None:
        super().__init__(message)
        self.kind = kind


class PredictorError(RequestError):
    """The predictor returned an error or an invalid answer."""

    status = 502
    grpc_code = "INTERNAL"


class PredictorDenied(PredictorError):
    """The predictor, or a proxy in front of the predictor, refuses the client's credentials."""


class PredictorTimeout(RequestError):
    """A call to the predictor exceeded --predictor_request_timeout_seconds."""

    status = 504
    grpc_code = "DEADLINE_EXCEEDED"

    def __init__(self, message: str, kind: str = "timeout") -> None:
        super().__init__(message)
        self.kind = kind


class CallersDeadline(RequestError):
    """The caller's deadline has expired; the predictor may be healthy."""

    status = 504
    grpc_code = "DEADLINE_EXCEEDED"


PREDICTORS = PredictorError, PredictorTimeout, PredictorUnavailable
