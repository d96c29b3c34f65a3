"""Request bodies in the parts that a server's windows allow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.predictor.http2_errors import Malformed
from hf_transformer.predictor.http2_frames import DATA, END_STREAM, FIRST_WINDOW, HEAD, LARGEST_WINDOW, Setting
from hf_transformer.predictor.http2_sending import Sender

Part = tuple[int, int, bytes]


def sent(sender: Sender, most: int = 10**9) -> list[Part]:
    """Stream, flags and payload of the frames that leave, until ``most`` bytes have."""
    left = most
    found = []
    frames = sender.frames(lambda: left > 0)
    for head in frames:
        high, low, kind, flags, stream = HEAD.unpack(head)
        payload = bytes(next(frames))
        assert (kind, high << 8 | low) == (DATA, len(payload))
        left -= len(payload)
        found.append((stream, flags, payload))
    return found


def upload(sender: Sender, stream: int, *parts: bytes) -> None:
    sender.upload(stream, [memoryview(part) for part in parts])


def test_what_fits_takes_from_the_connections_window() -> None:
    sender = Sender()
    assert not sender.fits(2**14 + 1), "more than a frame may have"
    assert [sender.fits(2**14) for _ in range(4)] == [True, True, True, False]
    assert sender.fits(FIRST_WINDOW - 3 * 2**14)
    assert sender.fits(0)
    assert not sender.fits(1)
    sender.widen(0, 1)
    assert sender.fits(1)


def test_a_body_leaves_as_the_windows_open() -> None:
    sender = Sender()
    body = bytes(range(256)) * 400
    upload(sender, 1, b"12345", body)
    first = sent(sender)
    assert [len(part[2]) for part in first] == [5, 16384, 16384, 16384, 65535 - 3 * 16384 - 5]
    assert sent(sender) == []
    sender.widen(1, 1000)
    assert sent(sender) == [], "the connection's window is shut"
    sender.widen(0, 10**6)
    assert [len(part[2]) for part in sent(sender)] == [1000]
    sender.widen(1, 10**6)
    last = sent(sender)
    assert last[-1][1] == END_STREAM and not any(part[1] for part in (*first, *last[:-1]))
    assert not sender.waiting


def test_one_that_waits_for_its_own_window_holds_up_no_other() -> None:
    sender = Sender()
    sender.apply({Setting.INITIAL_WINDOW_SIZE: 10})
    upload(sender, 1, b"a" * 20)
    upload(sender, 3, b"b" * 20)
    assert sent(sender) == [(1, 0, b"a" * 10), (3, 0, b"b" * 10)]
    sender.widen(3, 100)
    assert sent(sender) == [(3, END_STREAM, b"b" * 10)]
    assert not sender.fits(11)
    assert sender.fits(10)


def test_a_window_may_become_negative() -> None:
    sender = Sender()
    sender.apply({Setting.INITIAL_WINDOW_SIZE: 100})
    upload(sender, 1, b"a" * 150)
    assert sent(sender) == [(1, 0, b"a" * 100)]
    sender.apply({Setting.INITIAL_WINDOW_SIZE: 20})
    sender.widen(1, 80)
    assert sent(sender) == []
    sender.widen(1, 10)
    assert sent(sender) == [(1, 0, b"a" * 10)]
    sender.apply({Setting.INITIAL_WINDOW_SIZE: 60, Setting.MAX_FRAME_SIZE: 2**20})
    assert sent(sender) == [(1, END_STREAM, b"a" * 40)]
    assert sender.largest_frame == 2**20


def test_nothing_is_written_that_would_only_be_kept() -> None:
    sender = Sender()
    upload(sender, 1, b"a" * 40_000)
    assert [len(part[2]) for part in sent(sender, most=20_000)] == [16384, 16384]
    assert [len(part[2]) for part in sent(sender)] == [40_000 - 2 * 16384]


def test_what_is_cancelled_is_not_sent() -> None:
    sender = Sender()
    upload(sender, 1, b"a" * 70_000)
    sent(sender)
    assert sender.cancel(1)
    assert not sender.cancel(1)
    sender.widen(0, 10**6)
    sender.widen(1, 10**6)
    assert sent(sender) == []


def test_windows_that_open_against_the_rules() -> None:
    sender = Sender()
    upload(sender, 1, b"a" * 70_000)
    for stream in (0, 1, 99):
        with pytest.raises(Malformed, match="by nothing"):
            sender.widen(stream, 0)
    for stream in (0, 1):
        with pytest.raises(Malformed, match="opens to"):
            sender.widen(stream, LARGEST_WINDOW)
    sender.widen(1, LARGEST_WINDOW - FIRST_WINDOW)
    with pytest.raises(Malformed, match="opens to"):
        sender.apply({Setting.INITIAL_WINDOW_SIZE: FIRST_WINDOW + 1})


@given(
    st.lists(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=3), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 40)), max_size=60),
)
def test_any_bodies_and_any_windows(bodies: list[list[bytes]], updates: list[tuple[int, int]]) -> None:
    """Everything leaves, in order and once, and never more than a window allows."""
    sender = Sender()
    sender.fits(2**14), sender.fits(2**14), sender.fits(2**14), sender.fits(FIRST_WINDOW - 3 * 2**14)
    sender.apply({Setting.INITIAL_WINDOW_SIZE: 0})
    allowed, found = dict.fromkeys(range(5), 0), dict.fromkeys(range(1, 5), b"")
    for number, parts in enumerate(bodies, 1):
        upload(sender, number, *parts)
    for stream, increment in (*updates, *((stream, 200) for stream in (1, 2, 3, 4)), (0, 10**4)):
        sender.widen(stream, increment)
        allowed[stream] += increment
        for number, _, payload in sent(sender):
            found[number] += payload
            assert len(found[number]) <= allowed[number]
        assert sum(map(len, found.values())) <= allowed[0]
    assert {number: b"".join(parts) for number, parts in enumerate(bodies, 1)} == {
        number: content for number, content in found.items() if content
    }
    assert not sender.waiting
