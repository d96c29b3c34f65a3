"""Requests and answers on one connection, frame by frame and without sockets."""

from __future__ import annotations

import pytest
from hpack import Decoder

from hf_transformer.predictor.http2_errors import NotProcessed, StreamReset
from hf_transformer.predictor.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PRIORITIZED,
    PRIORITY,
    SETTINGS_ACK,
    ErrorCode,
    Setting,
    goaway_frame,
    head,
    ping_frame,
    reset_frame,
    settings_frame,
    window_frame,
)
from hf_transformer.predictor.http2_headers import encode_fields
from tests.predictor.http2_server import STATUS_200, data, headers, settings_of, trailers
from tests.predictor.http2_streams import Noted, Rig

HEAD_EVENT = ({":status": "200", "a": "b"}, False)


def test_a_request_leaves_in_one_piece() -> None:
    rig = Rig()
    first, second = rig.start(), rig.start(widen=7)
    assert (first.id, second.id) == (1, 3)
    block = head(5, HEADERS, END_HEADERS, 1) + b"block"
    assert rig.written.taken() == block + head(5, DATA, END_STREAM, 1) + b"hello" + (
        head(5, HEADERS, END_HEADERS, 3) + b"block" + window_frame(3, 7) + head(5, DATA, END_STREAM, 3) + b"hello"
    )


def test_a_server_without_a_table_for_header_fields_is_told_that_ours_is_empty() -> None:
    """By a change of the table's size, without which it may not read on (RFC 9113, 4.3.1)."""
    rig, decoder = Rig(), Decoder()
    rig.take(settings_of({Setting.HEADER_TABLE_SIZE: 0}))
    decoder.max_allowed_table_size = 0
    rig.written.taken()
    for number in (1, 3):
        rig.exchanges.start(Noted(), encode_fields([("a", "b")]), (b"hello",), 0)
        (_, _, _, block), _ = frames_of(rig.written.taken())
        assert dict(decoder.decode(block, raw=True)) == {b"a": b"b"}
        assert block.startswith(b"\x20") == (number == 1)


def test_header_fields_that_need_several_frames() -> None:
    rig = Rig()
    rig.exchanges.start(Noted(), b"x" * 40_000, (b"hello",), 0)
    kinds = [frame[:2] for frame in frames_of(rig.written.taken())]
    assert kinds == [(HEADERS, 0), (CONTINUATION, 0), (CONTINUATION, END_HEADERS), (DATA, END_STREAM)]


def frames_of(wire: bytes) -> list[tuple[int, int, int, bytes]]:
    found = []
    while wire:
        length, kind, flags, stream = int.from_bytes(wire[:3]), wire[3], wire[4], int.from_bytes(wire[5:9])
        found.append((kind, flags, stream, wire[9 : 9 + length]))
        wire = wire[9 + length :]
    return found


def test_answers_that_come_mixed() -> None:
    rig = Rig()
    one, two = rig.start(), rig.start()
    rig.take(headers(3, ("a", "b")) + headers(1, ("a", "b")) + data(1, b"x") + data(3, b"y") + data(1, b"z"))
    rig.take(trailers(3, ("s", "0")) + data(1, b"", end=True))
    assert one.events == [HEAD_EVENT, (b"x", 1, False), (b"z", 1, False), (b"", 0, True)]
    assert two.events == [HEAD_EVENT, (b"y", 1, False), ({"s": "0"}, True)]
    assert one.started and two.started
    assert not rig.exchanges.streams


def test_what_comes_for_a_stream_that_has_ended_is_passed_over() -> None:
    rig = Rig()
    one = rig.start()
    rig.exchanges.reset(one, ErrorCode.CANCEL)
    assert rig.written.taken().endswith(reset_frame(1, 8))
    rig.take(headers(1, ("a", "b")) + data(1, b"x") + window_frame(1, 5) + reset_frame(1, 0) + trailers(1, ("s", "0")))
    rig.exchanges.reset(one, ErrorCode.CANCEL)
    rig.exchanges.widen(one, 5)
    assert (one.events, rig.written.taken()) == ([], b"")


def test_fields_of_a_stream_that_has_ended_count_for_those_that_follow() -> None:
    """Its block fills the dynamic table: a, b in it is 0xbe from then on."""
    rig = Rig()
    one, two = rig.start(), rig.start()
    rig.exchanges.reset(one, ErrorCode.CANCEL)
    block = STATUS_200 + b"\x40\x01a\x01b"
    rig.take(head(len(block), HEADERS, END_HEADERS, 1) + block + head(2, HEADERS, END_HEADERS, 3) + b"\x88\xbe")
    assert two.events == [HEAD_EVENT]


def test_header_fields_in_many_frames_with_all_that_is_allowed() -> None:
    rig = Rig()
    one = rig.start()
    block = STATUS_200 + encode_fields([("a", "b")])
    begun = b"\2" + b"\0\0\0\1\x10" + block[:2] + b"\0\0"
    rig.take(head(len(begun), HEADERS, PADDED | PRIORITIZED, 1) + begun)
    rig.take(head(1, CONTINUATION, 0, 1) + block[2:3])
    rig.take(head(len(block) - 3, CONTINUATION, END_HEADERS, 1) + block[3:])
    assert one.events == [HEAD_EVENT]


def test_questions_are_answered() -> None:
    rig = Rig()
    rig.take(ping_frame(b"12345678") + ping_frame(b"87654321", ACK) + settings_frame({}) + SETTINGS_ACK)
    assert rig.written.taken() == ping_frame(b"12345678", ACK) + SETTINGS_ACK


def test_what_nobody_knows_is_passed_over() -> None:
    rig = Rig()
    one = rig.start()
    rig.written.taken()
    rig.take(head(5, PRIORITY, 0, 1) + b"12345" + head(3, 0xFA, 0xFF, 1) + b"abc" + settings_of({0x99: 7}))
    assert (one.events, rig.written.taken()) == ([], SETTINGS_ACK)


def test_how_many_requests_the_server_takes() -> None:
    rig = Rig()
    rig.take(settings_of({Setting.MAX_CONCURRENT_STREAMS: 2}))
    assert rig.exchanges.have_room
    one, _ = rig.start(), rig.start()
    assert not rig.exchanges.have_room
    rig.exchanges.reset(one, ErrorCode.CANCEL)
    assert rig.exchanges.have_room
    rig.take(settings_of({Setting.MAX_CONCURRENT_STREAMS: 0}))
    assert not rig.exchanges.have_room


def test_a_large_request_leaves_as_the_server_lets_it() -> None:
    rig = Rig()
    body = bytes(range(250)) * 400
    rig.start(body)
    rig.written.taken()
    rig.take(window_frame(0, 10**6))
    assert rig.written.taken() == b""
    rig.take(settings_of({Setting.INITIAL_WINDOW_SIZE: 10**6}))
    last = [frame for frame in frames_of(rig.written.taken()) if frame[0] == DATA]
    assert (last[-1][1], b"".join(frame[3] for frame in last)) == (END_STREAM, body[65535:])


def test_what_the_server_does_not_want_is_not_sent() -> None:
    rig = Rig()
    one = rig.start(b"x" * 100_000)
    rig.written.taken()
    rig.take(headers(1, ("s", "8"), end=True))
    assert one.events == [({":status": "200", "s": "8"}, True)]
    assert rig.written.taken() == reset_frame(1, 8)
    rig.take(window_frame(0, 10**6) + window_frame(1, 10**6))
    assert rig.written.taken() == b""


@pytest.mark.parametrize("code", [0, 2, 8, 99])
def test_a_reset(code: int) -> None:
    rig = Rig()
    one, two = rig.start(), rig.start()
    rig.take(reset_frame(1, code))
    (error,) = one.events
    assert isinstance(error, StreamReset) and error.code == code
    assert not two.events


def test_a_refusal() -> None:
    rig = Rig()
    one = rig.start()
    rig.take(reset_frame(1, ErrorCode.REFUSED_STREAM))
    assert isinstance(one.events[0], NotProcessed)
    assert rig.exchanges.have_room


def goaway(last: int, code: int, why: bytes = b"") -> bytes:
    return head(8 + len(why), GOAWAY, 0, 0) + last.to_bytes(4) + code.to_bytes(4) + why


def test_the_end_of_the_connection_is_announced() -> None:
    rig = Rig()
    one, two, three = rig.start(), rig.start(), rig.start()
    rig.take(goaway(2**31 - 1, 0))
    assert not rig.exchanges.have_room and not rig.exchanges.open
    rig.take(goaway(3, 0, b"restart"))
    assert not one.events and not two.events
    assert isinstance(three.events[0], NotProcessed) and "restart" in str(three.events[0])
    rig.take(headers(1, ("a", "b"), end=True))
    assert one.events == [({":status": "200", "a": "b"}, True)]
    assert list(rig.exchanges.streams) == [3]


def test_placed_bytes() -> None:
    rig = Rig()
    stream = Noted(bytearray(10))
    rig.exchanges.start(stream, b"block", (b"hello",), 0)
    rig.exchanges.take_placed(1, 4, False)
    rig.exchanges.take_placed(1, 6, True)
    assert stream.events == [(4, False), (6, True)]
    assert not rig.exchanges.streams


def test_our_own_word_at_the_end() -> None:
    ((kind, flags, stream, payload),) = frames_of(goaway_frame(ErrorCode.PROTOCOL_ERROR, "a frame " * 100))
    assert (kind, flags, stream, payload[:8], len(payload)) == (GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\1", 208)
