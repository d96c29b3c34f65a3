"""Answers from bytes, cut at every place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.predictor.http1_bodies import LINE_LIMIT, TRAILER_LIMIT
from hf_transformer.predictor.http1_errors import (
    AnswerTooLarge,
    Disconnected,
    Http1Error,
    MalformedAnswer,
    NoAnswer,
    NotHttp,
)
from hf_transformer.predictor.http1_parser import HEAD_LIMIT, Answer, AnswerReader, Heads, parse_head
from tests.predictor.http1_calls import room

LIMIT = 2**20
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

ANSWERS: dict[str, tuple[bytes, int, bytes, bool]] = {
    "a length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello", True),
    "no body": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b"", True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", 304, b"", True),
    "no reason": (b"HTTP/1.1 503 \r\nContent-Length: 1\r\n\r\nx", 503, b"x", True),
    "no space either": (b"HTTP/1.1 503\r\nContent-Length: 1\r\n\r\nx", 503, b"x", True),
    "names in any case": (b"HTTP/1.1 200 OK\r\ncOnTeNt-LeNgTh:\t 2 \t\r\n\r\nab", 200, b"ab", True),
    "one length twice": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2, 2\r\n\r\nab", 200, b"ab", True),
    "a body like a head": (b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n\r\n\r\n\r\n\r\n", 200, b"\r\n" * 4, True),
    "close": (b"HTTP/1.1 200 OK\r\nConnection: foo, Close\r\nContent-Length: 1\r\n\r\nx", 200, b"x", False),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", 200, b"x", False),
    "HTTP/1.0 kept": (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\nx", 200, b"x", True),
    "one chunk": (CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", 200, b"hello", True),
    "no chunk": (CHUNKED + b"0\r\n\r\n", 200, b"", True),
    "chunks": (CHUNKED + b"00B\r\n\r\nhello\r\n\r\n\r\n1\r\n\n\r\n0\r\n\r\n", 200, b"\r\nhello\r\n\r\n\n", True),
    "extensions": (CHUNKED + b'3;a=b;c="d"\r\nabc\r\n1 ; x\r\nd\r\n0;last\r\n\r\n', 200, b"abcd", True),
    "trailers": (CHUNKED + b"1\r\nx\r\n0\r\nServer-Timing: 1\r\nExpires: never\r\n\r\n", 200, b"x", True),
    "chunked and close": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nConnection: close\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        200,
        b"x",
        False,
    ),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
        200,
        b"x",
        True,
    ),
}


def feed(reader: AnswerReader, data: bytes) -> Answer | None:
    """Hands data over as an event loop would: as much at once as the buffer takes."""
    answer: Answer | None = None
    while data:
        buffer = reader.get_buffer()
        assert len(buffer) > 0
        part = data[: len(buffer)]
        buffer[: len(part)] = part
        assert answer is None, "bytes behind the answer"
        answer = reader.updated(len(part))
        data = data[len(part) :]
    return answer


def read(parts: Iterable[bytes], reader: AnswerReader | None = None) -> tuple[Answer, bool]:
    """The answer in the parts, and whether its connection may be used again."""
    reader = reader or AnswerReader(room, LIMIT)
    reader.begin()
    answer: Answer | None = None
    for part in parts:
        assert answer is None, "whole before its last byte"
        answer = feed(reader, part)
    assert answer is not None, "not whole"
    return answer, reader.keep_alive


def bytewise(data: bytes) -> list[bytes]:
    return [data[place : place + 1] for place in range(len(data))]


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_cut_anywhere(name: str) -> None:
    data, status, body, keep_alive = ANSWERS[name]
    reader = AnswerReader(room, LIMIT)
    for parts in ([data], bytewise(data), *([data[:cut], data[cut:]] for cut in range(1, len(data)))):
        answer, kept = read(parts, reader)
        assert (answer.status, bytes(answer.body), kept) == (status, body, keep_alive)


@pytest.mark.parametrize("name", ANSWERS)
def test_every_beginning_of_an_answer_is_none(name: str) -> None:
    data = ANSWERS[name][0]
    for length in range(len(data)):
        reader = AnswerReader(room, LIMIT)
        assert feed(reader, data[:length]) is None
        with pytest.raises(Disconnected) as caught:
            reader.end()
        assert type(caught.value) is (Disconnected if length else NoAnswer)


@pytest.mark.parametrize("name", ANSWERS)
def test_bytes_behind_an_answer_end_the_connection(name: str) -> None:
    data, status, body, _ = ANSWERS[name]
    answer, kept = read([data + b"H"])
    assert (answer.status, bytes(answer.body), kept) == (status, body, False)


@pytest.mark.parametrize("minor", [0, 1])
def test_a_body_until_the_end(minor: int) -> None:
    data = b"HTTP/1.%d 200 OK\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n" % minor
    for cut in range(len(data)):
        reader = AnswerReader(room, LIMIT)
        assert feed(reader, data[:cut]) is None
        assert feed(reader, data[cut:]) is None
        assert (bytes(reader.end().body), reader.keep_alive) == (b"0\r\n\r\n", False)


def test_header_fields() -> None:
    data = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nEmpty:\r\nx-a:2\r\nC: a:b \xe9\r\nContent-Length: 0\r\n\r\n"
    answer, _ = read([data])
    assert answer.headers == {"x-a": "1, 2", "empty": "", "c": "a:b \xe9", "content-length": "0"}


BROKEN: dict[str, tuple[bytes, type[Http1Error]]] = {
    "another protocol": (b"SSH-2.0-OpenSSH\r\n", NotHttp),
    "HTTP/2": (b"HTTP/2 200\r\n\r\n", NotHttp),
    "a gRPC server": (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00", NotHttp),
    "an alert of TLS": (b"\x15\x03\x01\x00\x02\x02\x50", NotHttp),
    "an empty line": (b"\r\nHTTP/1.1 200 OK\r\n\r\n", NotHttp),
    "no status": (b"HTTP/1.1 OK\r\n\r\n", MalformedAnswer),
    "a short status": (b"HTTP/1.1 20 OK\r\n\r\n", MalformedAnswer),
    "a long minor": (b"HTTP/1.10 200 OK\r\n\r\n", MalformedAnswer),
    "lines that end with LF": (b"HTTP/1.1 200 OK\nContent-Length: 0\n\n", MalformedAnswer),
    "one line that ends with LF": (b"HTTP/1.1 200 OK\r\nA: b\nContent-Length: 0\r\n\r\n", MalformedAnswer),
    "a lone CR": (b"HTTP/1.1 200 OK\r\nA: b\rContent-Length: 0\r\n\r\n", MalformedAnswer),
    "a null": (b"HTTP/1.1 200 OK\r\nA: \0\r\n\r\n", MalformedAnswer),
    "no colon": (b"HTTP/1.1 200 OK\r\nContent-Length 5\r\n\r\n", MalformedAnswer),
    "no name": (b"HTTP/1.1 200 OK\r\n: 5\r\n\r\n", MalformedAnswer),
    "a space before the colon": (b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\n", MalformedAnswer),
    "a folded line": (b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", MalformedAnswer),
    "two lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", MalformedAnswer),
    "two lengths in one": (b"HTTP/1.1 200 OK\r\nContent-Length: 5,6\r\n\r\n", MalformedAnswer),
    "a negative length": (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", MalformedAnswer),
    "a length with a sign": (b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n", MalformedAnswer),
    "a length of other digits": ("HTTP/1.1 200 OK\r\nContent-Length: ²\r\n\r\n".encode("latin-1"), MalformedAnswer),
    "an empty length": (b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n", MalformedAnswer),
    "a long length": (b"HTTP/1.1 200 OK\r\nContent-Length: 1%b\r\n\r\n" % (b"0" * 5000), AnswerTooLarge),
    "a large length": (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (LIMIT + 1), AnswerTooLarge),
    "length and coding": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        MalformedAnswer,
    ),
    "another coding": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", MalformedAnswer),
    "chunked twice": (CHUNKED[:-2] + b"Transfer-Encoding: chunked\r\n\r\n", MalformedAnswer),
    "chunked in HTTP/1.0": (CHUNKED.replace(b"1.1", b"1.0"), MalformedAnswer),
    "another protocol in answer": (b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\n\r\n", MalformedAnswer),
    "no size": (CHUNKED + b"\r\n", MalformedAnswer),
    "a size that is none": (CHUNKED + b"xyz\r\n", MalformedAnswer),
    "a size with a prefix": (CHUNKED + b"0x5\r\n", MalformedAnswer),
    "a negative size": (CHUNKED + b"-5\r\n", MalformedAnswer),
    "a size after a space": (CHUNKED + b" 5\r\n", MalformedAnswer),
    "a size that ends with LF": (CHUNKED + b"5\nhello\r\n", MalformedAnswer),
    "a long size": (CHUNKED + b"0" * 17 + b"\r\n", MalformedAnswer),
    "a large chunk": (CHUNKED + b"%x\r\n" % (LIMIT + 1), AnswerTooLarge),
    "a chunk that is too long": (CHUNKED + b"5\r\nhello!", MalformedAnswer),
    "a chunk that ends with LF": (CHUNKED + b"5\r\nhello\n", MalformedAnswer),
    "a trailer that ends with LF": (CHUNKED + b"0\r\nA: b\n", MalformedAnswer),
    "an endless size": (CHUNKED + b"5;" + b"x" * LINE_LIMIT, MalformedAnswer),
    "an endless trailer": (CHUNKED + b"0\r\nA: " + b"x" * TRAILER_LIMIT, MalformedAnswer),
    "endless trailers": (CHUNKED + b"0\r\n" + b"A: b\r\n" * (TRAILER_LIMIT // 6 + 1), MalformedAnswer),
    "an endless head": (b"HTTP/1.1 200 OK\r\nA: ".ljust(HEAD_LIMIT, b"x"), MalformedAnswer),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_answers(name: str) -> None:
    data, kind = BROKEN[name]
    cuts = range(len(data)) if len(data) < 200 else [len(data) // 2]
    for cut in cuts:
        reader = AnswerReader(room, LIMIT)
        with pytest.raises(kind) as caught:
            feed(reader, data[:cut])
            feed(reader, data[cut:])
        assert type(caught.value) is kind


def test_too_much_until_the_end() -> None:
    reader = AnswerReader(room, 10)
    feed(reader, b"HTTP/1.1 200 OK\r\n\r\n0123456789")
    with pytest.raises(AnswerTooLarge):
        feed(reader, b"0")


def test_too_much_in_chunks() -> None:
    reader = AnswerReader(room, 10)
    feed(reader, CHUNKED + b"6\r\n012345\r\n4\r\n6789\r\n")
    with pytest.raises(AnswerTooLarge):
        feed(reader, b"1\r\n")


def test_a_head_as_large_as_allowed() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nA: "
    data = head.ljust(HEAD_LIMIT - 5, b"x") + b"\r\n\r\ny"
    assert len(data) == HEAD_LIMIT
    for parts in ([data], [data[:-1], data[-1:]]):
        assert bytes(read(parts)[0].body) == b"y"


def test_a_large_body_arrives_where_it_stays() -> None:
    places: list[tuple[memoryview, Mapping[str, str]]] = []

    def place(size: int, headers: Mapping[str, str]) -> memoryview:
        places.append((memoryview(bytearray(size)), headers))
        return places[-1][0]

    reader = AnswerReader(place, LIMIT)
    assert feed(reader, b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nab") is None
    ((body, headers),) = places
    assert headers == {"content-length": "1000"}
    buffer = reader.get_buffer()
    assert len(buffer) == 998
    buffer[:3] = b"cde"
    assert bytes(body[:5]) == b"abcde"
    assert reader.updated(3) is None
    assert len(reader.get_buffer()) == 995
    answer = reader.updated(995)
    assert answer is not None
    assert answer.body is body


@given(st.lists(st.binary(max_size=300), max_size=8), st.data())
def test_any_chunks_in_any_parts(chunks: list[bytes], data: st.DataObject) -> None:
    sent = (
        CHUNKED + b"".join(b"%x;e\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks if chunk) + b"0\r\nT: x\r\n\r\n"
    )
    cuts = sorted(data.draw(st.sets(st.integers(1, len(sent) - 1), max_size=20)))
    parts = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    answer, kept = read(parts)
    assert (bytes(answer.body), kept) == (b"".join(chunks), True)


@given(st.data())
def test_damage_never_shows_as_another_error(data: st.DataObject) -> None:
    sent = bytearray(data.draw(st.sampled_from([answer[0] for answer in ANSWERS.values()])))
    for _ in range(data.draw(st.integers(1, 4))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(sent)))
    reader = AnswerReader(room, LIMIT)
    try:
        for part in (bytes(sent[:cut]), *bytewise(bytes(sent[cut:]))):
            if feed(reader, part) is not None:
                return
        reader.end()
    except Http1Error as error:
        assert str(error)


@given(st.data())
def test_a_reader_that_knows_heads_reads_as_a_new_one_does(data: st.DataObject) -> None:
    """Damaged or not, cut anywhere, behind answers with heads of which this one may be a beginning or an end."""
    samples = [answer[0] for answer in ANSWERS.values()]
    sent = bytearray(data.draw(st.sampled_from(samples)))
    heads = Heads()
    knows = AnswerReader(room, LIMIT, heads)
    for known in [*samples, bytes(sent)]:
        if feed(knows, known) is None or not knows.keep_alive:
            knows = AnswerReader(room, LIMIT, heads)  # the connection would be closed
        knows.begin()
    for _ in range(data.draw(st.integers(0, 3))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(sent)))
    assert outcome(knows, bytes(sent[:cut]), bytes(sent[cut:])) == outcome(
        AnswerReader(room, LIMIT), bytes(sent[:cut]), bytes(sent[cut:])
    )


def outcome(reader: AnswerReader, *parts: bytes) -> tuple[object, ...]:
    """What a reader makes of an answer."""
    try:
        for part in parts:
            answer = feed(reader, part) if part else None
            if answer is not None:
                return answer.status, dict(answer.headers), bytes(answer.body), reader.keep_alive
    except Http1Error as error:
        return type(error), str(error)
    return (reader.started,)


def test_heads_are_parsed_once_and_only_so_many_are_kept() -> None:
    heads = Heads()
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d"
    first = heads.parsed(raw % 0)
    assert heads.parsed(raw % 0) is first
    for number in range(1000):
        assert heads.parsed(raw % number).length == number
        assert len(heads._known) <= 256
    long = raw % 1 + b"\r\nX: " + b"x" * 1024
    assert heads.parsed(long) == heads.parsed(long) and long not in heads._known


def test_what_is_kept_of_a_head_can_not_be_changed() -> None:
    with pytest.raises(TypeError, match="does not support item assignment"):
        parse_head(b"HTTP/1.1 200 OK\r\nA: b").headers["a"] = "c"  # type: ignore[index]  # that is what is tested
