"""What can go wrong in one HTTP/2 call, apart from OSError.

Http2Error
├── NotHttp2            what came is no HTTP/2 at all
├── Malformed           HTTP/2, but against its rules, or over a limit on its framing; ends the connection
├── ConnectTimeout      there was no connection in time
├── StreamReset         the server ended this call alone, with a code
├── NotProcessed        the server says that it has not begun with the request, and never will
│   └── GoesAway            nor with later ones on this connection
└── Disconnected        the connection ended before the answer did
    └── NoAnswer            and before the answer's first byte
"""

from __future__ import annotations

from hf_transformer.predictor.http2_frames import ErrorCode


class Http2Error(Exception):
    """Base of all errors here."""


class NotHttp2(Http2Error):
    """The other side does not speak HTTP/2."""


class Malformed(Http2Error):
    """What came breaks the rules of HTTP/2, or is over a limit of ours. ``code`` is what the server is told."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code = code


class ConnectTimeout(Http2Error):
    """No connection could be opened in time."""


class StreamReset(Http2Error):
    """The server has ended one call by RST_STREAM."""

    def __init__(self, code: int) -> None:
        super().__init__(f"Received RST_STREAM with error code {code}")
        self.code = code


class NotProcessed(Http2Error):
    """The server has refused a request before any of it was processed: it may be sent again, whatever it asks for."""


class GoesAway(NotProcessed):
    """The server ends the connection, by GOAWAY, and so refuses every request that it has not begun with."""


class Disconnected(Http2Error):
    """The connection ended, or was closed here, before the answer was whole."""


class NoAnswer(Disconnected):
    """The connection ended before the first byte of the answer."""
