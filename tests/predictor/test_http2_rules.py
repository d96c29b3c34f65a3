"""What an HTTP/2 server may not send, and what it may not send too much of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.predictor.http2_errors import Malformed
from hf_transformer.predictor.http2_exchanges import IDLE_FRAMES
from hf_transformer.predictor.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    WINDOW_UPDATE,
    ErrorCode,
    Setting,
    head,
    ping_frame,
    reset_frame,
    settings_frame,
    window_frame,
)
from hf_transformer.predictor.http2_headers import LARGEST_BLOCK, encode_fields
from tests.predictor.http2_server import STATUS_200, data, headers, settings_of
from tests.predictor.http2_streams import Rig

BLOCK = STATUS_200 + encode_fields([("a", "b")])


@pytest.mark.parametrize(
    "wire",
    [
        data(0, b"x"),
        data(2, b"x"),
        data(99, b"x"),
        headers(99, ("a", "b")),
        headers(0, ("a", "b")),
        reset_frame(0, 8),
        reset_frame(99, 8),
        window_frame(99, 8),
        window_frame(0, 0),
        window_frame(1, 0),
        window_frame(0, 2**31 - 1) * 2,
        head(3, RST_STREAM, 0, 1) + b"abc",
        head(3, WINDOW_UPDATE, 0, 1) + b"abc",
        head(7, 6, 0, 0) + b"1234567",
        head(8, 6, 0, 1) + b"12345678",
        head(7, GOAWAY, 0, 0) + b"1234567",
        head(8, GOAWAY, 0, 1) + b"12345678",
        head(5, SETTINGS, 0, 0) + b"12345",
        head(0, SETTINGS, 0, 1),
        head(6, SETTINGS, ACK, 0) + b"123456",
        settings_of({Setting.ENABLE_PUSH: 2}),
        settings_of({Setting.INITIAL_WINDOW_SIZE: 2**31}),
        settings_of({Setting.MAX_FRAME_SIZE: 5}),
        head(4, PUSH_PROMISE, END_HEADERS, 1) + b"\0\0\0\2",
        head(4, CONTINUATION, END_HEADERS, 1) + b"\x88abc",
        head(1, HEADERS, 0, 1) + b"\x88" + data(1, b"x"),
        head(1, HEADERS, 0, 1) + b"\x88" + data(1, b""),
        head(1, HEADERS, 0, 1) + b"\x88" + ping_frame(b"12345678"),
        head(1, HEADERS, 0, 1) + b"\x88" + head(0, CONTINUATION, END_HEADERS, 3),
        head(1, HEADERS, 0, 1) + b"\x88" + head(0, CONTINUATION, 0, 1) * 20,
        head(1, HEADERS, END_HEADERS, 1) + b"\xff",
        head(2, HEADERS, END_HEADERS | PADDED, 1) + b"\x05\x88",
    ],
    ids=lambda wire: wire[:14].hex(),
)
def test_what_breaks_the_rules(wire: bytes) -> None:
    rig = Rig()
    rig.start()
    rig.start(b"x" * 100_000)
    with pytest.raises(Malformed):
        rig.take(wire)


def test_a_header_block_that_is_too_large() -> None:
    rig = Rig()
    rig.start()
    part = LARGEST_BLOCK // 2 + 1
    rig.take(head(part, HEADERS, 0, 1) + b"x" * part)
    with pytest.raises(Malformed, match="too large") as caught:
        rig.take(head(part, CONTINUATION, END_HEADERS, 1) + b"x" * part)
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "frame",
    [
        ping_frame(b"12345678", ACK),
        SETTINGS_ACK,
        data(1, b""),
        window_frame(1, 1),
        window_frame(0, 1),
        head(5, PRIORITY, 0, 1) + b"12345",
        head(0, 0xEE, 0, 0),
        data(3, b""),
        data(3, b"x"),
        reset_frame(3, 8),
    ],
    ids=lambda frame: frame[:12].hex(),
)
def test_a_flood(frame: bytes) -> None:
    rig = Rig()
    rig.start()
    rig.exchanges.reset(rig.start(), ErrorCode.CANCEL)
    rig.take(headers(1, ("a", "b")))
    for _ in range(IDLE_FRAMES // 1000):
        rig.take(frame * 1000)
    with pytest.raises(Malformed, match="no part of an answer") as caught:
        rig.take(frame)
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_an_answer_between_them_makes_no_flood() -> None:
    rig = Rig()
    rig.start()
    rig.take(headers(1, ("a", "b")))
    for _ in range(3 * IDLE_FRAMES // 1000):
        rig.take(ping_frame(b"12345678", ACK) * 1000 + data(1, b"x"))


@pytest.mark.parametrize("ask", [lambda: ping_frame(b"12345678"), lambda: settings_frame({})], ids=["ping", "settings"])
def test_answers_that_are_not_read(ask: Callable[[], bytes]) -> None:
    rig = Rig()
    rig.take(ask())
    rig.written.kept = 2**21
    with pytest.raises(Malformed, match="does not read the answers"):
        rig.take(ask())


FRAMES = st.tuples(
    st.one_of(st.integers(0, 10), st.sampled_from([DATA, HEADERS, CONTINUATION])),
    st.one_of(st.integers(0, 255), st.sampled_from([END_HEADERS, END_HEADERS | END_STREAM])),
    st.sampled_from([0, 1, 1, 3, 5, 2]),
    st.one_of(st.binary(max_size=30), st.sampled_from([BLOCK, b"\0\0\0\1", bytes(8)])),
)


@given(st.lists(FRAMES, max_size=20))
def test_any_frames_at_all(frames: list[tuple[int, int, int, bytes]]) -> None:
    """They are read, or the connection ends; nothing else comes of them."""
    rig = Rig()
    streams = [rig.start(), rig.start(b"x" * 100_000)]
    try:
        for kind, flags, stream, payload in frames:
            rig.take(head(len(payload), kind, flags, stream) + payload)
    except Malformed:
        pass
    assert all(stream.id in rig.exchanges.streams or stream.events for stream in streams)
