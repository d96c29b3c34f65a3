"""gRPC's messages in bodies that come in any pieces."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_transformer.predictor.grpc_messages import LARGE, Message, MessageReader, prefixed
from hf_transformer.predictor.grpc_status import RpcError, Status
from tests.predictor.http2_server import message


def fed(reader: MessageReader, *pieces: bytes) -> list[Message]:
    return [one for piece in pieces for one in reader.feed(memoryview(piece))]


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 50), st.integers(LARGE - 1, LARGE + 1)), max_size=6),
    st.lists(st.integers(1, 40_000), min_size=1, max_size=20).filter(lambda steps: max(steps) > 500),
)
def test_any_messages_in_any_pieces(sizes: list[int], steps: list[int]) -> None:
    contents = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    wire = b"".join(message(content) for content in contents)
    reader, found, at, turn = MessageReader(10**6), [], 0, 0
    while at < len(wire):
        step = steps[turn % len(steps)]
        found += fed(reader, wire[at : at + step])
        at, turn = at + step, turn + 1
    assert [bytes(one) for one in found] == contents
    assert all(isinstance(one, bytes) or len(one) >= LARGE for one in found)
    assert reader.between and reader.missing == 0


def test_byte_by_byte() -> None:
    reader = MessageReader(100)
    wire = message(b"abc") + message(b"") + message(b"defg")
    found = [one for at in range(len(wire)) for one in fed(reader, wire[at : at + 1])]
    assert found == [b"abc", b"", b"defg"]


def test_what_is_missing() -> None:
    reader = MessageReader(10**6)
    assert reader.between
    assert fed(reader, message(b"a" * 100)[:4]) == []
    assert not reader.between and reader.missing == 0 and reader.room() is None
    assert fed(reader, message(b"a" * 100)[4:30]) == []
    assert reader.missing == 75
    room = reader.room()
    assert room is not None and len(room) == 75
    room[:70] = b"b" * 70
    assert reader.placed(70) is None
    room[70:] = b"c" * 5
    assert reader.placed(5) == b"a" * 25 + b"b" * 70 + b"c" * 5
    assert reader.between


def test_a_large_message_stays_where_it_was_received_and_ends_aligned() -> None:
    for size in (LARGE, LARGE + 13, 10**6 + 7):
        reader = MessageReader(10**7)
        fed(reader, message(bytes(size))[:100])
        room = reader.room()
        assert room is not None
        found = reader.placed(size - 95)
        assert isinstance(found, memoryview) and len(found) == size
        end = np.frombuffer(found, np.uint8).__array_interface__["data"][0] + size
        assert end % 64 == 0


@pytest.mark.parametrize("size", [11, 2**31, 2**32 - 1])
def test_a_message_over_the_limit(size: int) -> None:
    with pytest.raises(RpcError, match=rf"larger than max \({size} vs. 10\)") as caught:
        fed(MessageReader(10), message(b"a" * 10) + struct.pack(">BI", 0, size))
    assert caught.value.status is Status.RESOURCE_EXHAUSTED and caught.value.settled


@pytest.mark.parametrize(("flag", "said"), [(1, "compressed, although identity"), (2, "the flag 2")])
def test_a_flag_that_was_not_agreed_upon(flag: int, said: str) -> None:
    with pytest.raises(RpcError, match=said) as caught:
        fed(MessageReader(10), message(b"abc", flag))
    assert caught.value.status is Status.INTERNAL


def test_memory_is_taken_only_for_bytes_that_come() -> None:
    """A server that promises a hundred gigabytes a hundred times over."""
    readers = [MessageReader(2**40) for _ in range(100)]
    for reader in readers:
        fed(reader, struct.pack(">BI", 0, 2**30) + b"x")
    assert all(reader.missing == 2**30 - 1 for reader in readers)


def test_requests() -> None:
    assert prefixed(b"abc") == (b"\0\0\0\0\3", b"abc")
    assert prefixed(b"") == (b"\0\0\0\0\0",)
