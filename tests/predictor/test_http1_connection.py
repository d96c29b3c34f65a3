"""One connection without sockets, on a clock that the tests set; and idle connections over hours of that clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from hf_transformer.predictor.http1_connection import Connection, Hold
from hf_transformer.predictor.http1_errors import AnswerTooLarge, DeadlineExceeded, Disconnected, NoAnswer
from hf_transformer.predictor.http1_parser import Answer, AnswerReader, Room
from tests.predictor.fault_server import Connection as Served
from tests.predictor.fault_server import scripted
from tests.predictor.http1_calls import GET, client_of, room, until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time stands still until a test sets it on."""

    now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def loop() -> Iterator[Clock]:
    with asyncio.Runner(loop_factory=Clock) as runner:
        yield runner.get_loop()  # type: ignore[misc]


class Wire(asyncio.Transport):
    """A transport that remembers what was written and sends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.unsent = 0
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.aborted = True


class Owned:
    """A connection over a Wire, and what it tells its owner."""

    def __init__(self, loop: Clock, place: Room = room) -> None:
        self.told: list[str] = []
        self.wire = Wire()
        self.loop = loop
        self.connection = Connection(loop, AnswerReader(place, 100), self)
        self.connection.connection_made(self.wire)

    def made(self, connection: Connection) -> None:
        self.told.append("made")

    def free(self, connection: Connection) -> None:
        self.told.append("free")

    def lost(self, connection: Connection) -> None:
        self.told.append("lost")

    def ended(self, connection: Connection) -> None:
        self.told.append("ended")

    def receive(self, data: bytes) -> None:
        buffer = self.connection.get_buffer(-1)
        buffer[: len(data)] = data
        self.connection.buffer_updated(len(data))

    async def exchange(
        self, body: Sequence[bytes | memoryview] = (), seconds: float = 10.0, hold: Hold | None = None
    ) -> Answer:
        waiter = self.connection.send(GET, body, self.loop.now + seconds, hold)
        return await self.connection.answered(waiter, hold)

    def call(self, seconds: float = 10.0, body: bytes = b"") -> asyncio.Task[Answer]:
        """A request under way."""
        task = self.loop.create_task(self.exchange((body,) if body else (), seconds))
        self.turn()
        return task

    def turn(self) -> None:
        for _ in range(3):
            self.loop.run_until_complete(asyncio.sleep(0))


def test_a_request_and_its_answer(loop: Clock) -> None:
    owned = Owned(loop)
    for turn in (1, 2):
        call = owned.call(body=b"body")
        assert owned.wire.written == (GET + b"body") * turn
        owned.receive(OK)
        answer = loop.run_until_complete(call)
        assert (answer.status, bytes(answer.body)) == (200, b"x")
    assert (owned.told, owned.wire.aborted) == (["made", "free", "free"], False)


def test_a_body_in_pieces_is_written_whole(loop: Clock) -> None:
    owned = Owned(loop)
    views = (memoryview(b"abc"), b"", memoryview(bytearray(2**17)), b"d")
    call = loop.create_task(owned.exchange(views))
    owned.turn()
    assert owned.wire.written == GET + b"abc" + bytes(2**17) + b"d"
    call.cancel()
    owned.turn()


def test_an_answer_before_the_request_is_sent(loop: Clock) -> None:
    owned = Owned(loop)
    owned.wire.unsent = 1
    call = owned.call()
    owned.receive(OK)
    assert loop.run_until_complete(call).status == 200
    assert (owned.told, owned.wire.aborted) == (["made", "lost"], True)


def test_an_answer_that_crosses_the_cancellation(loop: Clock) -> None:
    owned = Owned(loop)
    call = owned.call()
    call.cancel()
    owned.receive(OK)  # before the task has run again
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(call)
    assert (owned.told, owned.wire.aborted) == (["made", "lost"], True)


def test_a_cancellation_that_crosses_the_answer(loop: Clock) -> None:
    owned = Owned(loop)
    call = owned.call()
    owned.receive(OK)
    later = loop.create_task(owned.exchange())
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(call)
    owned.turn()
    owned.receive(OK)  # the connection serves the next call all the same
    assert loop.run_until_complete(later).status == 200
    assert not owned.wire.aborted


def test_bytes_that_nobody_asked_for(loop: Clock) -> None:
    owned = Owned(loop)
    owned.receive(OK)
    assert (owned.told, owned.wire.aborted, owned.connection.open) == (["made", "lost"], True, False)


@pytest.mark.parametrize("cause", [None, ConnectionResetError(104, "Connection reset by peer")], ids=["end", "reset"])
@pytest.mark.parametrize(
    ("part", "kind"),
    [(b"", NoAnswer), (b"H", Disconnected), (OK[:-1], Disconnected)],
    ids=["no byte", "one", "all but one"],
)
def test_lost(loop: Clock, part: bytes, kind: type[Exception], cause: Exception | None) -> None:
    owned = Owned(loop)
    call = owned.call()
    if part:
        owned.receive(part)
    owned.connection.connection_lost(cause)
    with pytest.raises(Disconnected, match="Connection reset by peer" if cause else "it closed the conn") as caught:
        loop.run_until_complete(call)
    assert (type(caught.value), caught.value.__cause__) == (kind, cause)
    assert owned.told == ["made", "lost", "ended"]


@pytest.mark.parametrize(
    ("raised", "expected"), [(MemoryError(), AnswerTooLarge), (KeyError("x"), KeyError)], ids=["memory", "other"]
)
def test_no_room(loop: Clock, raised: Exception, expected: type[Exception]) -> None:
    def place(size: int, headers: object) -> memoryview:
        raise raised

    owned = Owned(loop, place)
    call = owned.call()
    owned.receive(OK[:-1])
    with pytest.raises(expected):
        loop.run_until_complete(call)
    assert owned.wire.aborted


def test_one_timer_for_many_calls(loop: Clock) -> None:
    owned = Owned(loop)
    for _ in range(5):
        call = owned.call(10.0)
        loop.now += 9.0
        owned.turn()
        owned.receive(OK)
        assert loop.run_until_complete(call).status == 200
    late = owned.call(10.0)
    loop.now += 9.99
    owned.turn()
    assert not late.done()
    loop.now += 0.01
    with pytest.raises(DeadlineExceeded):
        loop.run_until_complete(late)
    assert owned.wire.aborted


def test_a_deadline_before_the_one_before_it(loop: Clock) -> None:
    owned = Owned(loop)
    call = owned.call(100.0)
    owned.receive(OK)
    loop.run_until_complete(call)
    late = owned.call(1.0)
    loop.now += 1.0
    with pytest.raises(DeadlineExceeded):
        loop.run_until_complete(late)


def test_idle_connections_are_closed_after_a_while(loop: Clock) -> None:
    async def check() -> None:
        everybody = asyncio.Barrier(7)

        async def script(served: Served) -> None:
            await served.request()
            await everybody.wait()
            while True:
                await served.answer("200 OK")
                await served.request()

        async with scripted(script) as host, client_of(host) as client:
            await asyncio.gather(*(client.request(GET) for _ in range(7)))
            await until(lambda: client.idle == 7)
            for seconds, left in [(14.0, 7), (1.0, 4), (200.0, 4), (10.0, 4), (30.0, 0)]:
                loop.now += seconds
                for _ in range(5):
                    await asyncio.sleep(0)
                assert client.idle == left
            await asyncio.sleep(0)
            await until(lambda: not client._connections)
            assert client._sweeper is None

    loop.run_until_complete(check())
