"""What is sent on one HTTP/2 connection, in the parts that the server's windows allow (RFC 9113, 5.2). No sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from hf_transformer.predictor.http2_errors import Malformed
from hf_transformer.predictor.http2_frames import (
    DATA,
    END_STREAM,
    FIRST_WINDOW,
    LARGEST_WINDOW,
    SMALLEST_FRAME,
    ErrorCode,
    Setting,
    head,
)

_LARGEST_PART: Final = 2**18
"""Bytes of a frame at most, however large the server takes them: others want their turn."""


class Upload:
    """A body that could not be sent at once."""

    __slots__ = ("left", "parts", "window")

    def __init__(self, parts: list[memoryview], window: int) -> None:
        self.parts = parts
        self.left = sum(len(part) for part in parts)
        self.window = window
        """Of its stream; may be negative."""


class Sender:
    """The windows of the server, and the bodies that wait for them, in turn."""

    def __init__(self) -> None:
        self.largest_frame = SMALLEST_FRAME
        self._window = FIRST_WINDOW
        self._first_window = FIRST_WINDOW
        self._uploads: dict[int, Upload] = {}

    @property
    def waiting(self) -> bool:
        """Whether any body is not all sent."""
        return bool(self._uploads)

    def fits(self, size: int) -> bool:
        """Whether a new stream's body of so many bytes may be sent at once, in one frame; it then counts as sent."""
        if size > self._window or size > self._first_window or size > self.largest_frame:
            return False
        self._window -= size
        return True

    def upload(self, stream: int, parts: list[memoryview]) -> None:
        """Takes a new stream's body, which ``frames`` will send."""
        self._uploads[stream] = Upload(parts, self._first_window)

    def cancel(self, stream: int) -> bool:
        """Sends no more of a stream's body; whether there was more."""
        return self._uploads.pop(stream, None) is not None

    def frames(self, may_write: Callable[[], bool]) -> Iterator[bytes | memoryview]:
        """DATA frames of the bodies, head and payload in turn, as long as the windows and ``may_write`` allow."""
        for stream, upload in list(self._uploads.items()):
            while upload.left and may_write():
                part = upload.parts[0]
                size = min(len(part), self._window, upload.window, self.largest_frame, _LARGEST_PART)
                if size <= 0:
                    break
                upload.left -= size
                upload.window -= size
                self._window -= size
                if size == len(part):
                    del upload.parts[0]
                else:
                    upload.parts[0] = part[size:]
                if not upload.left:
                    del self._uploads[stream]
                yield head(size, DATA, 0 if upload.left else END_STREAM, stream)
                yield part[:size]

    def apply(self, settings: Mapping[int, int]) -> None:
        """Takes note of the server's settings. Raises Malformed where a window gets too large."""
        self.largest_frame = settings.get(Setting.MAX_FRAME_SIZE, self.largest_frame)
        window = settings.get(Setting.INITIAL_WINDOW_SIZE, self._first_window)
        change, self._first_window = window - self._first_window, window
        for upload in self._uploads.values():
            upload.window = _checked(upload.window + change)

    def widen(self, stream: int, increment: int) -> None:
        """Takes note of a window that opens; 0 is the connection's. A stream that has sent everything has none.

        Raises:
            Malformed: it opens by nothing, or too far.
        """
        if increment == 0:
            raise Malformed("a WINDOW_UPDATE frame opens the window by nothing")
        if stream == 0:
            self._window = _checked(self._window + increment)
        elif stream in self._uploads:
            upload = self._uploads[stream]
            upload.window = _checked(upload.window + increment)


def _checked(window: int) -> int:
    if window > LARGEST_WINDOW:
        raise Malformed(f"a window opens to {window} bytes", ErrorCode.FLOW_CONTROL_ERROR)
    return window
