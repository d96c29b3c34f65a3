"""What an HTTP/2 connection expects of those around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Stream(Protocol):
    """One request and its answer. Its methods must not raise."""

    id: int
    """Set by the connection."""
    started: bool
    """Whether any of the answer has come; set by the connection."""

    def on_headers(self, fields: Mapping[str, str], end: bool) -> None:
        """Header fields, or trailers, have come."""

    def on_data(self, data: memoryview, size: int, end: bool) -> None:
        """A part of the body; ``size`` is what it takes of the stream's window. The bytes change after the call."""

    def room(self) -> memoryview | None:
        """Where the next bytes of the body may be received straight away; never empty."""

    def on_placed(self, count: int, end: bool) -> None:
        """So many bytes have been received there."""

    def on_failed(self, error: Exception) -> None:
        """Nothing more comes. ``error`` is an Http2Error."""


class Writer(Protocol):
    """What sends bytes."""

    def write(self, data: bytes | memoryview, /) -> None:
        """Sends them, or keeps them until they can be; they must not change."""

    def may_write(self) -> bool:
        """Whether little enough is kept."""

    def unsent(self) -> int:
        """How many bytes are kept."""
