"""What is around an HTTP/2 connection, noting what happens."""

from __future__ import annotations

from collections.abc import Mapping

from hf_transformer.predictor.http2_exchanges import Exchanges
from hf_transformer.predictor.http2_frames import SETTINGS_ACK, settings_frame
from hf_transformer.predictor.http2_reading import FrameReader


class Noted:
    """A stream that notes what reaches it; ``place`` is where its body may be received."""

    def __init__(self, place: bytearray | None = None) -> None:
        self.id = 0
        self.started = False
        self.place = memoryview(place) if place is not None else None
        self.events: list[object] = []

    def on_headers(self, fields: Mapping[str, str], end: bool) -> None:
        self.events.append((dict(fields), end))

    def on_data(self, data: memoryview, size: int, end: bool) -> None:
        self.events.append((bytes(data), size, end))

    def room(self) -> memoryview | None:
        return self.place

    def on_placed(self, count: int, end: bool) -> None:
        assert self.place is not None
        self.events.append((count, end))
        self.place = self.place[count:] or None

    def on_failed(self, error: Exception) -> None:
        self.events.append(error)


class Written:
    """A Writer that keeps everything."""

    def __init__(self) -> None:
        self.data = b""
        self.kept = 0
        self.free = True

    def write(self, data: bytes | memoryview, /) -> None:
        self.data += data

    def may_write(self) -> bool:
        return self.free

    def unsent(self) -> int:
        return self.kept

    def taken(self) -> bytes:
        data, self.data = self.data, b""
        return data


class Rig:
    """Exchanges with what is around them."""

    def __init__(self) -> None:
        self.written = Written()
        self.exchanges = Exchanges(self.written)
        self._reader = FrameReader()
        self.take(settings_frame({}))
        assert self.written.taken() == SETTINGS_ACK

    def take(self, wire: bytes) -> None:
        buffer = self._reader.get_buffer()
        buffer[: len(wire)] = wire
        self.exchanges.take(self._reader.updated(len(wire)))

    def start(self, body: bytes = b"hello", widen: int = 0) -> Noted:
        stream = Noted()
        self.exchanges.start(stream, b"block", (body,), widen)
        return stream
