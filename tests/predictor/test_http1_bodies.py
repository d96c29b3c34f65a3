"""Chunked bodies: whole chunks are read in another way than those that come in parts, and to the same end."""

from __future__ import annotations

import random

import pytest

from hf_transformer.predictor.http1_bodies import LINE_LIMIT, ChunkedBody, OfLength
from hf_transformer.predictor.http1_errors import AnswerTooLarge, Http1Error, MalformedAnswer

LIMIT = 100


def outcome(parts: list[bytes]) -> tuple[bytes, int, str]:
    """The data, the bytes that were taken, and the kind of error if there is one."""
    body, taken = ChunkedBody(LIMIT), 0
    try:
        for part in parts:
            taken += body.feed(part)
    except Http1Error as error:
        return b"", 0, type(error).__name__
    return bytes(body.data), taken, "" if body.complete else "not complete"


def body_of(chance: random.Random) -> bytes:
    """Some chunks, of which every third body is damaged."""
    chunks = [bytes(chance.choices(b"a\r\n0;", k=chance.randint(1, 30))) for _ in range(chance.randint(0, 5))]
    extension = chance.choice([b"", b" ", b";x=1"])
    sent = b"".join(b"%x%s\r\n%s\r\n" % (len(chunk), extension, chunk) for chunk in chunks) + b"0\r\n\r\nmore"
    if chance.random() < 1 / 3:
        place = chance.randrange(len(sent))
        sent = sent[:place] + bytes([chance.randrange(256)]) + sent[place + chance.randint(0, 1) :]
    return sent


def test_it_does_not_matter_how_a_body_is_cut() -> None:
    chance = random.Random(11)
    seen = set()
    for _ in range(2000):
        sent = body_of(chance)
        expected = outcome([sent[place : place + 1] for place in range(len(sent))])
        place = chance.randint(0, len(sent))
        assert outcome([sent]) == expected
        assert outcome([sent[:place], sent[place:]]) == expected
        seen.add(expected[2])
    assert seen == {"", "not complete", "MalformedAnswer", "AnswerTooLarge"}


def test_limits_hold_for_whole_chunks() -> None:
    chunk = b"32\r\n" + b"x" * 50 + b"\r\n"
    body = ChunkedBody(LIMIT)
    assert body.feed(chunk * 2) == 2 * len(chunk) and body.take() == b"x" * 100
    with pytest.raises(AnswerTooLarge):
        body.feed(chunk * 3)
    with pytest.raises(MalformedAnswer, match="a line"):
        ChunkedBody(LIMIT).feed(b"1;" + b"x" * LINE_LIMIT + b"\r\na\r\n")


def test_a_chunk_that_is_alone() -> None:
    for size in range(1, 600):
        data = bytes([size % 256]) * size
        sent = b"%x\r\n%s\r\n" % (size, data)
        usual = ChunkedBody(2**20).usual(sent)
        assert usual == (data if len(sent) < 512 else b""), size
    for size in range(513):
        for filling in (b"\n", b"0", b"4", b"\r\n"):  # no chunks, whatever their length
            assert ChunkedBody(2**20).usual((filling * size)[:size] + b"\r\n") == b"", (size, filling)
    for limit, expected in ((9, b""), (1000, b"1234")):
        assert ChunkedBody(limit).usual(b"4\r\n1234\r\n") == expected


def test_a_chunk_that_is_alone_is_what_feeding_gives() -> None:
    chance = random.Random(12)
    count = 0
    for _ in range(5000):
        sent = body_of(chance)
        part = sent[: chance.choice([sent.find(b"\n", 4) + 1, chance.randint(0, len(sent))])]
        if usual := ChunkedBody(2**20).usual(part):
            assert outcome([part]) == (usual, len(part), "not complete")
            count += 1
    assert count > 100


@pytest.mark.parametrize("before", [b"4", b"4\r\n1", b"4\r\n1234", b"0\r\n", b"0\r\n\r\n"], ids=len)
def test_nothing_is_alone_within_what_has_begun(before: bytes) -> None:
    body = ChunkedBody(1000)
    body.feed(before)
    body.take()
    assert body.usual(b"4\r\n1234\r\n") == b""


def test_nothing_is_taken_behind_the_end() -> None:
    body = ChunkedBody(LIMIT)
    assert body.feed(b"0\r\n\r\n1\r\na\r\n") == 5
    assert body.complete and body.feed(b"1\r\na\r\n") == 0 and not body.data


def test_a_body_whose_length_is_known() -> None:
    assert OfLength(0).complete
    body = OfLength(5)
    assert body.feed(b"hel") == 3 and not body.complete and body.take() == b"hel"
    assert body.feed(b"loHTTP") == 2 and body.complete and body.take() == b"lo" and body.take() == b""
