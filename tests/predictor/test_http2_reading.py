"""Frames of HTTP/2 as they come in: in any pieces, and against the rules."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.predictor.http2_errors import Malformed, NotHttp2
from hf_transformer.predictor.http2_frames import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITIZED,
    SETTINGS,
    ErrorCode,
    goaway_frame,
    head,
    headers_frames,
    ping_frame,
    reset_frame,
    settings_frame,
    window_frame,
)
from hf_transformer.predictor.http2_reading import (
    LARGEST_CONTROL,
    ROOM,
    FrameReader,
    parse_goaway,
    parse_number,
    parse_settings,
    without_padding,
)
from tests.predictor.http2_server import data

FIRST = settings_frame({})
Read = tuple[int, int, int, bytes, int]


def feed(reader: FrameReader, wire: bytes) -> list[Read]:
    """The frames of bytes that come in one piece, or in as many as the buffer makes of them."""
    found = []
    while wire:
        buffer = reader.get_buffer()
        count = min(len(buffer), len(wire))
        buffer[:count] = wire[:count]
        wire = wire[count:]
        found += [(*frame[:3], bytes(frame[3]), frame[4]) for frame in reader.updated(count)]
    return found


def joined(frames: list[Read]) -> list[Read]:
    """Parts of one DATA frame as one."""
    found: list[Read] = []
    for kind, flags, stream, payload, size in frames:
        last = found[-1] if found else None
        if last and last[0] == kind == DATA and last[2] == stream and not last[1]:
            found[-1] = (DATA, flags, stream, last[3] + payload, last[4] + size)
        else:
            found.append((kind, flags, stream, payload, size))
    return found


def padded(stream: int, payload: bytes, padding: int, flags: int = 0) -> bytes:
    content = bytes((padding,)) + payload + b"\0" * padding
    return head(len(content), DATA, flags | PADDED, stream) + content


def test_frames_of_each_kind() -> None:
    wire = FIRST + ping_frame(b"12345678") + data(1, b"abc") + headers_frames(3, b"block", 2**14) + data(1, b"", True)
    wire += head(3, 0xBE, 0xFF, 1) + b"xyz" + reset_frame(1, 8) + window_frame(0, 5)
    assert feed(FrameReader(), wire) == [
        (SETTINGS, 0, 0, b"", 0),
        (PING, 0, 0, b"12345678", 0),
        (DATA, 0, 1, b"abc", 3),
        (HEADERS, 4, 3, b"block", 0),
        (DATA, END_STREAM, 1, b"", 0),
        (0xBE, 0, 1, b"", 0),
        (3, 0, 1, b"\0\0\0\x08", 0),
        (8, 0, 0, b"\0\0\0\x05", 0),
    ]


def test_the_upper_bit_of_a_stream_means_nothing() -> None:
    frames = feed(FrameReader(), FIRST + head(1, DATA, 0, 2**31 + 5) + b"a" + head(8, PING, 0, 2**31) + b"12345678")
    assert [frame[2] for frame in frames] == [0, 5, 0]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 10])
def test_in_small_pieces(step: int) -> None:
    wire = FIRST + data(1, b"abcdef") + padded(3, b"ghi", 4, END_STREAM) + head(20, 0xAA, 0, 0) + b"?" * 20
    wire += padded(5, b"", 3) + ping_frame(b"12345678") + data(1, b"", True)
    reader = FrameReader()
    pieces = [frame for at in range(0, len(wire), step) for frame in feed(reader, wire[at : at + step])]
    assert joined(pieces) == joined(feed(FrameReader(), wire))
    assert joined(pieces)[1:3] == [(DATA, 0, 1, b"abcdef", 6), (DATA, END_STREAM, 3, b"ghi", 8)]
    assert reader.data_bytes == 6 + 8 + 4


def test_a_frame_that_is_larger_than_the_buffer() -> None:
    content = bytes(range(256)) * 1000
    reader = FrameReader()
    frames = feed(reader, FIRST + data(1, content, True) + data(1, b"x"))
    assert len(frames) > 3
    assert joined(frames)[1:] == [(DATA, END_STREAM, 1, content, len(content)), (DATA, 0, 1, b"x", 1)]
    assert reader.left == 0 and reader.data_bytes == len(content) + 1


def test_bytes_that_go_to_their_place() -> None:
    reader = FrameReader()
    feed(reader, FIRST + data(7, b"a" * 100, True)[:-60])
    assert (reader.left, reader.stream) == (60, 7)
    assert reader.placed(40) == 0
    assert reader.placed(20) == END_STREAM
    assert feed(reader, data(7, b"b")) == [(DATA, 0, 7, b"b", 1)]


def test_padding_counts_where_the_bytes_go_to_their_place() -> None:
    reader = FrameReader()
    frames = feed(reader, FIRST + padded(7, b"a" * 60, 5, END_STREAM)[: -5 - 60])
    assert frames[1:] == [(DATA, 0, 7, b"", 6)] and reader.left == 60
    assert reader.placed(60) == END_STREAM
    assert feed(reader, b"\0" * 5 + data(7, b"b")) == [(DATA, 0, 7, b"b", 1)]


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 3, 5]), st.binary(max_size=40), st.one_of(st.none(), st.integers(0, 9))),
        max_size=8,
    ),
    st.lists(st.integers(1, 60), min_size=1, max_size=60),
)
def test_any_frames_in_any_pieces(frames: list[tuple[int, bytes, int | None]], steps: list[int]) -> None:
    wire = FIRST + b"".join(
        data(stream, payload) if padding is None else padded(stream, payload, padding)
        for stream, payload, padding in frames
    )
    reader, found, at, turn = FrameReader(), [], 0, 0
    while at < len(wire):
        step = steps[turn % len(steps)]
        found += feed(reader, wire[at : at + step])
        at, turn = at + step, turn + 1
    bodies = {number: b"".join(one[3] for one in found if one[0] == DATA and one[2] == number) for number in (1, 3, 5)}
    assert bodies == {number: b"".join(one[1] for one in frames if one[0] == number) for number in (1, 3, 5)}
    sizes = sum(len(payload) + (0 if padding is None else 1 + padding) for _, payload, padding in frames)
    assert sum(one[4] for one in found) == sizes == reader.data_bytes


@given(st.binary(max_size=300))
def test_any_bytes_at_all(wire: bytes) -> None:
    """They are frames, or an error; nothing else comes of them."""
    for beginning in (b"", FIRST):
        try:
            feed(FrameReader(), beginning + wire)
        except (Malformed, NotHttp2):
            pass


@pytest.mark.parametrize(
    "wire",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", ping_frame(b"12345678"), head(0, SETTINGS, 1, 0), head(0, SETTINGS, 0, 1)],
    ids=["http/1", "ping", "acknowledgment", "for a stream"],
)
def test_what_does_not_begin_with_settings(wire: bytes) -> None:
    with pytest.raises(NotHttp2, match="it begins with b'"):
        feed(FrameReader(), wire)


@pytest.mark.parametrize(
    ("wire", "message", "code"),
    [
        (head(LARGEST_CONTROL + 1, HEADERS, 4, 1), "of type 1 has 32769 bytes", ErrorCode.FRAME_SIZE_ERROR),
        (head(0, DATA, PADDED, 1), "no room for its padding", ErrorCode.FRAME_SIZE_ERROR),
        (head(3, DATA, PADDED, 1) + b"\3\0\0", "3 bytes of padding", ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_frames_that_break_the_rules(wire: bytes, message: str, code: ErrorCode) -> None:
    with pytest.raises(Malformed, match=message) as caught:
        feed(FrameReader(), FIRST + wire)
    assert caught.value.code is code


def test_a_control_frame_of_the_largest_size_fits_behind_anything() -> None:
    wire = FIRST + data(1, b"a" * (ROOM - 20)) + head(LARGEST_CONTROL, HEADERS, 4, 1) + b"b" * LARGEST_CONTROL
    assert feed(FrameReader(), wire)[-1][3] == b"b" * LARGEST_CONTROL


def test_padding_and_priority_of_headers() -> None:
    view = memoryview(b"\2\0\0\0\1\x10block\0\0")
    assert bytes(without_padding(PADDED | PRIORITIZED, view)) == b"block"
    assert bytes(without_padding(PRIORITIZED, view[1:-2])) == b"block"
    assert bytes(without_padding(0, view[6:-2])) == b"block"


@pytest.mark.parametrize(
    ("flags", "payload"),
    [(PADDED, b""), (PRIORITIZED, b"1234"), (PADDED, b"\x02a"), (PADDED | PRIORITIZED, b"\x01" * 6)],
)
def test_padding_and_priority_that_do_not_fit(flags: int, payload: bytes) -> None:
    with pytest.raises(Malformed):
        without_padding(flags, memoryview(payload))


def test_settings() -> None:
    payload = struct.pack(">HIHIHI", 3, 7, 0x99, 1, 3, 8)
    assert parse_settings(memoryview(payload)) == {3: 8, 0x99: 1}
    for setting, value in ((2, 2), (4, 2**31), (5, 2**14 - 1), (5, 2**24)):
        with pytest.raises(Malformed):
            parse_settings(memoryview(struct.pack(">HI", setting, value)))
    with pytest.raises(Malformed, match="5 bytes"):
        parse_settings(memoryview(payload[:5]))


def test_the_other_payloads() -> None:
    assert parse_number("RST_STREAM", memoryview(b"\0\0\0\x08")) == 8
    with pytest.raises(Malformed, match="a RST_STREAM frame has 3 bytes"):
        parse_number("RST_STREAM", memoryview(b"\0\0\0"))
    (frame,) = feed(FrameReader(), FIRST + goaway_frame(11, "too_many_pings"))[1:]
    assert frame[0] == GOAWAY
    assert parse_goaway(memoryview(frame[3])) == (0, 11, "too_many_pings")
    with pytest.raises(Malformed, match="7 bytes"):
        parse_goaway(memoryview(b"1234567"))
