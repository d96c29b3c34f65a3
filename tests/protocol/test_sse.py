"""Server-sent events, cut anywhere."""

from __future__ import annotations

import pytest

from hf_transformer.protocol.generate import EventReader
from hf_transformer.protocol.tensors import Malformed

STREAM = (
    b'\xef\xbb\xbfdata: {"a": 1}\n\n'
    b": a comment\n\n"
    b"event: x\r\nid: 7\r\ndata: two\r\ndata:lines\r\n\r\n"
    b"data\n\n"
    b"retry: 10\rdata:  one space is dropped\r\r"
    b"data: \xc3\xa9\n\n"
    b"data: never ended\n"
)
EVENTS = [b'{"a": 1}', b"two\nlines", b"", b" one space is dropped", b"\xc3\xa9"]


def test_a_whole_stream() -> None:
    assert EventReader(1000).feed(STREAM) == EVENTS


@pytest.mark.parametrize("size", [1, 2, 3, 7], ids=lambda size: f"{size} bytes")
def test_in_parts_of_one_size(size: int) -> None:
    reader = EventReader(1000)
    parts = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert [event for part in parts for event in reader.feed(part)] == EVENTS


def test_cut_at_every_place() -> None:
    for place in range(len(STREAM) + 1):
        reader = EventReader(1000)
        assert reader.feed(STREAM[:place]) + reader.feed(STREAM[place:]) == EVENTS, place


def test_an_event_comes_with_its_last_byte() -> None:
    reader = EventReader(1000)
    assert reader.feed(b"data: 1\n") == []
    assert reader.feed(b"\ndata: 2\n\n") == [b"1", b"2"]


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 101, b"data: 1\n" * 101], ids=["a line", "lines"])
def test_an_event_that_is_too_large(stream: bytes) -> None:
    with pytest.raises(Malformed, match="more than 100 bytes"):
        EventReader(100).feed(stream)


def test_many_small_events_are_not_too_large() -> None:
    assert len(EventReader(100).feed(b"data: 12345\n\n" * 1000)) == 1000


def test_events_that_come_one_at_a_time() -> None:
    events = [
        b"data: 1\n\n",
        b"data: \n\n",
        b"data:  two\n\n",
        b"data: 3\r\n\n",
        b"data: \r\n\n",
        b"data: x\ny\n\n",
        b": no\n\n",
    ]
    for first in ([], [b"data: a\n"], [b"data: b"], [b"data: c\r"]):
        whole, alone = EventReader(1000), EventReader(1000)
        assert whole.feed(b"data: 0\n\n") == alone.feed(b"data: 0\n\n") == [b"0"]
        sent = [*first, *events]
        expected = [event for byte in b"".join(sent) for event in whole.feed(bytes([byte]))]
        assert [event for one in sent for event in alone.feed(one)] == expected


def test_a_first_event_that_comes_alone() -> None:
    for first in (b"data: 1\n\n", b"\xef\xbb\xbfdata: 1\n\n"):
        reader = EventReader(1000)
        assert reader.feed(first) == [b"1"]
        assert reader.feed(b"\xef\xbb\xbfdata: not at the beginning\n\n") == []
        assert reader.feed(b"data: 2\n\n") == [b"2"]
