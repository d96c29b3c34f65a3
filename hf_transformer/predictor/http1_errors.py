"""What can go wrong in one HTTP/1.1 call, apart from OSError.

Http1Error
├── NotHttp             what came is no HTTP/1 at all
├── MalformedAnswer     HTTP/1, but against its rules, or over a limit on its framing
├── AnswerTooLarge      the body is larger than allowed, or than memory
├── ConnectTimeout      there was no connection in time
├── DeadlineExceeded    there was no whole answer in time
│   └── ConnectDeadline     nor even a connection
└── Disconnected        the connection ended before the answer did
    └── NoAnswer            and before the answer's first byte
"""

from __future__ import annotations


class Http1Error(Exception):
    """Base of all errors here."""


class NotHttp(Http1Error):
    """The other side does not speak HTTP/1."""


class MalformedAnswer(Http1Error):
    """The answer breaks the rules of HTTP/1.1, or its framing is over a limit of ours."""


class AnswerTooLarge(Http1Error):
    """The body has more bytes than are allowed, or than fit into memory."""


class ConnectTimeout(Http1Error):
    """No connection could be opened in time."""


class DeadlineExceeded(Http1Error):
    """The call as a whole took too long."""


class ConnectDeadline(DeadlineExceeded):
    """The time for the whole call was over before there was a connection."""


class Disconnected(Http1Error):
    """The connection ended, or was closed here, before the answer was whole."""


class NoAnswer(Disconnected):
    """The connection ended before the first byte of the answer."""

    kept: bool = False
    """Whether it had been idle, and was closed by the server before it had seen the request: most probably."""
