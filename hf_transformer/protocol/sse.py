"""Server-sent events (WHATWG HTML, 9.2.6): bytes, cut anywhere, -> the data of each event. No sockets."""

from __future__ import annotations

import re
from typing import Final

from hf_transformer.protocol.datatypes import Malformed

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_ONE_EVENT: Final = re.compile(rb"data: ([^\r\n]*)\n\n")
"""What comes at a time from a server that streams as it goes: read in a third of the time."""
_BOM: Final = b"\xef\xbb\xbf"


class EventReader:
    """The events of one stream. Only their data is of interest: names, ids and comments are read past."""

    _rest = b""
    _size = 0
    _begun = False

    def __init__(self, limit: int) -> None:
        """limit: the most bytes of one event."""
        self._limit = limit
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that are complete with these bytes; several data lines of one are joined by LF.

        An event is complete at its empty line. What the stream ends without one is no event, as the standard has it.

        Raises:
            Malformed: an event is larger than the limit.
        """
        if not self._rest and not self._data:
            match = _ONE_EVENT.fullmatch(data)
            if match is not None and len(data) <= self._limit:
                self._begun = True
                return [match[1]]
        buffer = self._rest + data if self._rest else data
        if not self._begun:
            if _BOM.startswith(buffer[:3]) and len(buffer) < 3:
                self._rest = buffer
                return []
            buffer = buffer.removeprefix(_BOM)
            self._begun = True
        events: list[bytes] = []
        position = 0
        for end in _LINE_END.finditer(buffer):
            if end.end() == len(buffer) and buffer.endswith(b"\r"):
                break  # its LF may come with the next bytes
            self._take(buffer[position : end.start()], events)
            position = end.end()
        self._rest = buffer[position:]
        if self._size + len(self._rest) > self._limit:
            raise Malformed(f"an event of its stream has more than {self._limit} bytes")
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        """One line without its end."""
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
            self._data, self._size = [], 0
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._size += len(value)
