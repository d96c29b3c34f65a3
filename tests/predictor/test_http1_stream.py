"""A streamed answer without sockets, on a clock that the tests set."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from hf_transformer.predictor.http1_errors import (
    AnswerTooLarge,
    DeadlineExceeded,
    Disconnected,
    Http1Error,
    MalformedAnswer,
    NoAnswer,
    NotHttp,
)
from hf_transformer.predictor.http1_parser import Heads
from hf_transformer.predictor.http1_stream import StreamedAnswer
from hf_transformer.predictor.http1_stream_connection import StreamConnection
from tests.predictor.test_http1_connection import Clock, Wire

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\n"
ONE, END = b"5\r\nhello\r\n", b"0\r\n\r\n"
KEPT = 2**17


@pytest.fixture
def loop() -> Iterator[Clock]:
    with asyncio.Runner(loop_factory=Clock) as runner:
        yield runner.get_loop()  # type: ignore[misc]  # it is the factory's


class Pausing(Wire):
    """A wire that can be told to receive nothing."""

    paused = False

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False


class Called:
    """One call after another over one connection; ``told`` is what its owner hears."""

    def __init__(self, loop: Clock) -> None:
        self.loop = loop
        self.told: list[str] = []
        self.wire = Pausing()
        self.heads = Heads()
        self.connection = StreamConnection(loop, self)
        self.connection.connection_made(self.wire)

    def free(self, connection: StreamConnection) -> None:
        self.told.append("free")

    def gone(self, connection: StreamConnection) -> None:
        self.told.append("gone")

    async def _begin(self, deadline: float) -> None:
        self.begun = self.answer.begin(b"request", deadline)

    def begin(self, seconds: float = 10.0) -> StreamedAnswer:
        self.answer = StreamedAnswer(self.connection, self.heads, 2**20 - 2)
        self.loop.run_until_complete(self._begin(self.loop.now + seconds))
        return self.answer

    def comes(self, *parts: bytes) -> None:
        for part in parts:
            self.connection.data_received(part)

    def read(self) -> bytes:
        return self.loop.run_until_complete(self.answer.read())

    def fails(self) -> Http1Error:
        with pytest.raises(Http1Error) as caught:
            self.read()
        return caught.value

    def turns(self) -> None:
        for _ in range(3):
            self.loop.run_until_complete(asyncio.sleep(0))


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    "sent",
    [HEAD + ONE + ONE + END, b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"a\r\nhellohello\r\n" + END],
    ids=["two chunks", "after an interim answer"],
)
def test_in_parts_of_any_size(loop: Clock, sent: bytes, size: int) -> None:
    called = Called(loop)
    answer = called.begin()
    found, of_body = b"", sent.index(HEAD) + len(HEAD)
    for place in range(0, len(sent), size):
        called.comes(sent[place : place + size])
        assert called.begun.done() == (place + size > of_body), place
        if called.begun.done():
            found += answer.take()
    assert found == b"hellohello" and called.read() == b""
    answer.close()
    assert called.told == ["free"] and not called.wire.aborted


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([], NoAnswer),
        ([b"HTTP/1.1 2"], Disconnected),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"], Disconnected),
        ([b"SSH-2.0"], NotHttp),
        ([b"HTTP/1.1 101 Switching\r\n\r\n"], MalformedAnswer),
        ([b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2**16], MalformedAnswer),
    ],
    ids=["nothing", "half a head", "an interim one", "not HTTP", "another protocol", "a long head"],
)
def test_answers_that_do_not_begin(loop: Clock, parts: list[bytes], expected: type[Http1Error]) -> None:
    called = Called(loop)
    answer = called.begin()
    called.comes(*parts)
    called.connection.connection_lost(None)
    assert type(called.begun.exception()) is expected
    answer.close()
    assert called.told == ["gone"]


@pytest.mark.parametrize(
    ("sent", "error"),
    [(HEAD + ONE, None), (LENGTH + b"hell", None), (HEAD, ConnectionResetError()), (UNTIL_CLOSED + b"x", OSError())],
    ids=["chunked", "of known length", "reset", "reset where closing ends it"],
)
def test_what_has_come_is_read_before_the_end(loop: Clock, sent: bytes, error: Exception | None) -> None:
    called = Called(loop)
    answer = called.begin()
    called.comes(sent)
    called.connection.connection_lost(error)
    while answer.take():
        pass
    found = called.fails()
    assert type(found) is Disconnected and found.__cause__ is error
    assert not answer.follow(called.turns)
    answer.close()
    assert called.told == ["gone"]


@pytest.mark.parametrize(("more", "kind"), [(b"zz\r\n", MalformedAnswer), (b"fffff\r\n", AnswerTooLarge)])
def test_what_is_broken_is_told_after_what_came_before(loop: Clock, more: bytes, kind: type[Http1Error]) -> None:
    called = Called(loop)
    answer = called.begin()
    called.comes(HEAD + ONE + more)
    assert answer.take() == b"hello" and answer.take() == b""
    assert not answer.follow(called.turns)
    assert type(called.fails()) is kind
    answer.close()
    assert called.wire.aborted


@pytest.mark.parametrize("sent", [UNTIL_CLOSED + b"hello", LENGTH + b"hello"], ids=["until closed", "of known length"])
def test_other_framings(loop: Clock, sent: bytes) -> None:
    called = Called(loop)
    called.begin()
    called.comes(sent)
    assert called.read() == b"hello"
    called.connection.eof_received()
    assert called.read() == b""


def test_no_more_is_kept_than_a_reader_may_leave_unread(loop: Clock) -> None:
    called = Called(loop)
    answer = called.begin()
    part = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    called.comes(HEAD, *[part] * (KEPT // len(part)))
    assert not called.wire.paused
    called.comes(part)
    assert called.wire.paused
    called.comes(part)  # it was on its way
    assert len(answer.take()) == 4096 * (KEPT // len(part) + 2)
    assert not called.wire.paused
    answer.close()
    assert called.wire.aborted


def test_one_who_follows_is_called_once(loop: Clock) -> None:
    called = Called(loop)
    answer = called.begin()
    calls: list[bytes] = []
    called.comes(HEAD + ONE)
    assert not answer.follow(lambda: calls.append(answer.take()))  # there is something
    assert answer.take() == b"hello"
    assert answer.follow(lambda: calls.append(answer.take()))
    called.comes(b"5\r\n", b"again\r\n")
    assert calls == [b""] and answer.take() == b"again"
    assert answer.follow(lambda: calls.append(b"never"))
    answer.unfollow()
    called.comes(ONE)
    assert calls == [b""]
    assert answer.take() == b"hello" and answer.follow(lambda: calls.append(b"the end"))
    called.connection.connection_lost(None)
    assert calls == [b"", b"the end"]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (HEAD + ONE + END, True),
        (HEAD + ONE, False),
        (HEAD + ONE + END + b"x", False),
        (LENGTH + b"hello", True),
        (LENGTH + b"hellox", False),
        (HEAD.replace(b"200 OK", b"500 No") + ONE + END, False),
        (HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + ONE + END, False),
    ],
    ids=["whole", "not whole", "more", "of known length", "longer", "a refusal", "that ends"],
)
def test_which_connections_are_kept(loop: Clock, sent: bytes, kept: bool) -> None:
    called = Called(loop)
    answer = called.begin()
    called.comes(sent)
    assert called.read() == b"hello"
    answer.close()
    answer.close()
    assert (called.told, called.wire.aborted) == ((["free"], False) if kept else (["gone"], True))
    assert answer.take() == b"" and not answer.follow(called.turns)
    assert type(called.fails()) is Disconnected


def test_an_answer_that_came_before_the_request_was_sent_ends_the_connection(loop: Clock) -> None:
    called = Called(loop)
    called.wire.unsent = 1
    answer = called.begin()
    called.comes(HEAD + ONE + END)
    assert called.read() == b"hello"
    answer.close()
    assert called.told == ["gone"] and called.wire.aborted


@pytest.mark.parametrize("end", ["data", "eof"])
def test_whatever_comes_while_it_is_idle_ends_it(loop: Clock, end: str) -> None:
    called = Called(loop)
    answer = called.begin()
    called.comes(HEAD + ONE + END)
    assert called.read() == b"hello"
    answer.close()
    if end == "data":
        called.comes(HEAD + ONE)
        assert called.wire.aborted
    else:
        called.connection.eof_received()
    assert called.told == ["free", "gone"] and not called.connection.open


def test_a_server_that_speaks_first(loop: Clock) -> None:
    called = Called(loop)
    called.comes(HEAD.replace(b"200 OK", b"503 Busy") + ONE + END)
    called.connection.connection_lost(None)
    answer = called.begin()
    assert called.begun.done() and answer.head.status == 503 and called.wire.written == b""
    assert called.read() == b"hello"


@pytest.mark.parametrize("idle", [0.0, 20.0], ids=["at once", "idle meanwhile"])
def test_the_deadline_is_of_the_call_that_is_under_way(loop: Clock, idle: float) -> None:
    called = Called(loop)
    answer = called.begin(seconds=10.0)
    loop.now += 6.0
    called.comes(HEAD + ONE + END)
    assert called.read() == b"hello"
    answer.close()
    loop.now += idle
    called.turns()
    answer = called.begin(seconds=10.0)
    loop.now += 9.0
    called.turns()
    assert not called.wire.aborted
    loop.now += 2.0
    called.turns()
    assert called.wire.aborted and called.told == ["free", "gone"]
    called.connection.connection_lost(None)
    assert type(called.begun.exception()) is DeadlineExceeded
    answer.close()


@pytest.mark.parametrize("sent", [HEAD, UNTIL_CLOSED], ids=["chunked", "until closed"])
def test_the_deadline_of_an_answer_that_has_begun(loop: Clock, sent: bytes) -> None:
    called = Called(loop)
    called.begin(seconds=10.0)
    called.comes(sent + ONE)
    assert called.read()
    loop.now += 11.0
    called.turns()
    called.connection.connection_lost(None)
    assert type(called.fails()) is DeadlineExceeded


def test_nobody_hears_of_the_end_of_a_call_that_was_cancelled(loop: Clock) -> None:
    heard: list[object] = []
    loop.set_exception_handler(lambda _, context: heard.append(context))
    called = Called(loop)
    answer = called.begin()
    called.comes(b"SSH-2.0")  # an error, of which its reader ...
    answer.close()  # ... does not hear
    del called.begun, called.answer, answer
    cancelled = Called(loop)
    answer = cancelled.begin()
    cancelled.begun.cancel()
    cancelled.comes(HEAD + ONE)
    answer.close()
    assert cancelled.wire.aborted and heard == []
