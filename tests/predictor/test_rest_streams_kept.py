"""Connections of streams over REST: kept after an answer that was read whole, and replaced when they are stale."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from hf_transformer.errors import PredictorError, PredictorUnavailable
from hf_transformer.predictor.base import PredictorSettings
from hf_transformer.predictor.rest import RestPredictor
from tests.predictor.fault_server import Connection, scripted
from tests.predictor.following import following
from tests.predictor.rest_calls import predictor
from tests.predictor.test_rest_stream import END, HEAD, answering, chunk, event, read, stream
from tests.predictor.test_tls import TLS

pytestmark = pytest.mark.asyncio

ANSWER = HEAD + chunk(event("a")) + END
LENGTH = HEAD.replace(b"Transfer-Encoding: chunked", f"Content-Length: {len(event('a'))}".encode()) + event("a")


class Server:
    """Answers every request of a connection with the same bytes; ``served`` counts the requests of each."""

    def __init__(self, answer: bytes = ANSWER, requests: int = 100, behind: bytes = b"") -> None:
        self.answer = answer
        self.requests = requests
        self.behind = behind
        self.served: list[int] = []
        self.ended = asyncio.Event()

    async def __call__(self, connection: Connection) -> None:
        self.served.append(0)
        for _ in range(self.requests):
            await connection.request()
            self.served[connection.number] += 1
            await connection.send(self.answer)
        if self.behind:
            await asyncio.sleep(0.01)
            await connection.send(self.behind)
            await connection.until_closed()
        self.ended.set()


@pytest.mark.parametrize("answer", [ANSWER, LENGTH], ids=["chunked", "of known length"])
async def test_a_connection_is_used_again(answer: bytes) -> None:
    server = Server(answer)
    async with scripted(server) as host, predictor(host) as rest:
        assert [await read(rest) for _ in range(3)] == [["a"]] * 3
        assert server.served == [3]
        assert await asyncio.gather(*(read(rest) for _ in range(4))) == [["a"]] * 4
        assert sum(server.served) == 7 and len(server.served) <= 4


@pytest.mark.parametrize("at_once", [False, True], ids=["followed", "taken at once"])
async def test_nothing_of_an_answer_is_left_for_the_next_one(at_once: bool) -> None:
    whole = chunk(event("a")) + chunk(event("b" * 70_000)) + chunk(event("é") + event("c")) + END
    places = (0, 9, len(chunk(event("a"))), 70_000, len(whole) - 9, len(whole) - 1)
    served = []

    async def script(connection: Connection) -> None:
        for place in places:
            await connection.request()
            served.append(connection.number)
            for part in (HEAD, whole[:place], whole[place:]):
                await connection.send(part)
                await asyncio.sleep(0.01)  # so that it is read by itself

    async with scripted(script) as host, predictor(host) as rest:
        for place in places:
            found = [one["text_output"].data[0] async for one in following(stream(rest), at_once=at_once)]
            assert found == [b"a", b"b" * 70_000, "é".encode(), b"c"], place
    assert served == [0] * len(places)


async def test_an_error_with_a_status_ends_the_connection() -> None:
    server = Server(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 13\r\n\r\n" + b'{"error":"x"}')
    async with scripted(server) as host, predictor(host) as rest:
        for _ in range(2):
            with pytest.raises(PredictorError, match="answered 400: x"):
                await read(rest)
    assert server.served == [1, 1]


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1),
        ANSWER.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Transfer-Encoding: chunked", b"X: y").replace(END, b""),
        ANSWER + b"HTTP/1.1 200 OK\r\n",
    ],
    ids=["that ends", "of HTTP/1.0", "with more behind it"],
)
async def test_a_connection_that_can_not_be_used_again_is_not(answer: bytes) -> None:
    server = Server(answer, requests=1)
    async with scripted(server) as host, predictor(host) as rest:
        for _ in range(2):
            found = [one async for one in stream(rest)]
            assert found[0]["text_output"].data[0] == b"a"
    assert server.served == [1, 1]


async def test_over_tls() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "localhost.pem", TLS / "localhost.key")
    server = Server(HEAD + chunk(event("a" * 200_000)) + chunk(event("b")) + END)
    async with scripted(server, context) as host:
        at = f"localhost:{host.rpartition(':')[2]}"
        settings = PredictorSettings("my model", at, use_ssl=True, ca_file=str(TLS / "localhost.pem"))
        async with RestPredictor(settings) as rest:
            assert [await read(rest) for _ in range(3)] == [["a" * 200_000, "b"]] * 3
    assert server.served == [3]


FOREIGN = HEAD + chunk(event("foreign")) + END


async def test_what_stands_behind_an_answer_of_known_length_is_no_answer() -> None:
    """Not even where no more than the answer was taken of what has come."""
    server = Server(LENGTH + FOREIGN, requests=1)
    async with scripted(server) as host, predictor(host) as rest:
        assert [await read(rest) for _ in range(2)] == [["a"]] * 2
    assert server.served == [1, 1]


@pytest.mark.parametrize("answer", [ANSWER, LENGTH], ids=["chunked", "of known length"])
async def test_what_comes_behind_an_answer_before_it_is_left_is_no_answer(answer: bytes) -> None:
    """The reader has the last event, and is slow to ask for the end."""
    served, taken = [], asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        served.append(connection.number)
        await connection.send(answer)
        await taken.wait()
        taken.clear()
        await connection.send(FOREIGN)
        await connection.until_closed()

    async with scripted(script) as host, predictor(host) as rest:
        for _ in range(2):
            responses = stream(rest)
            found = [(await anext(responses))["text_output"].data[0]]
            taken.set()
            async with asyncio.timeout(20):
                # On its way: a turn of the loop, or several, may be too early.
                while not any(b"foreign" in one.unread for one in rest._streams._connections):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            found += [one["text_output"].data[0] async for one in responses]
            assert found == [b"a"]
    assert served == [0, 1]


async def test_one_that_the_server_has_closed_is_replaced() -> None:
    server = Server(requests=1)
    async with scripted(server) as host, predictor(host) as rest:
        for _ in range(3):
            assert await read(rest) == ["a"]
            await server.ended.wait()
            server.ended.clear()
            await asyncio.sleep(0.01)  # the news is there
    assert server.served == [1, 1, 1]


async def test_what_nobody_asked_for_is_no_answer() -> None:
    server = Server(requests=1, behind=HEAD + chunk(event("foreign")) + END)
    async with scripted(server) as host, predictor(host) as rest:
        for _ in range(2):
            assert await read(rest) == ["a"]
            async with asyncio.timeout(20):
                await server.ended.wait()  # the client closes the connection at once
            server.ended.clear()
    assert server.served == [1, 1]


@pytest.mark.parametrize("last", [b"", b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n"], ids=["", "408"])
async def test_one_that_is_closed_while_it_is_used_costs_nothing(last: bytes) -> None:
    seen = []

    async def script(connection: Connection) -> None:
        seen.append((connection.number, (await connection.request())[1]))
        await connection.send(ANSWER)
        seen.append((connection.number, (await connection.request())[1]))
        await connection.send(ANSWER if connection.number else last)

    async with scripted(script) as host, predictor(host) as rest:
        assert [await read(rest), await read(rest)] == [["a"], ["a"]]
    assert [number for number, _ in seen] == [0, 0, 1] and len({body for _, body in seen}) == 1


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("begun", [b"H", b"HTTP/1.1 102 Processing\r\n\r\n"], ids=len)
async def test_what_the_server_has_begun_is_not_sent_again(begun: bytes, reset: bool) -> None:
    seen = []

    async def script(connection: Connection) -> None:
        for answer in (ANSWER, begun):
            await connection.request()
            seen.append(connection.number)
            await connection.send(answer)
        if reset:
            await asyncio.sleep(0.05)  # or the beginning would be lost with it
            connection.reset()

    async with scripted(script) as host, predictor(host) as rest:
        assert await read(rest) == ["a"]
        with pytest.raises(PredictorUnavailable) as caught:
            await read(rest)
    assert (seen, caught.value.kind) == ([0, 0], "lost")


async def test_a_new_one_that_is_closed_is_an_error() -> None:
    async with scripted(answering()) as host, predictor(host) as rest:
        with pytest.raises(PredictorUnavailable) as caught:
            await read(rest)
    assert caught.value.kind == "no_answer"


async def test_a_stream_that_is_left_takes_its_connection_along() -> None:
    server = Server(HEAD + chunk(event("a")) + chunk(event("b")))
    async with scripted(server) as host, predictor(host) as rest:
        for _ in range(2):
            responses = stream(rest)
            await anext(responses)
            await responses.aclose()
    assert server.served == [1, 1]


async def test_idle_ones_are_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_transformer.predictor.http1_streams._IDLE_SECONDS", 0.01)
    closed = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(ANSWER)
        await connection.until_closed()
        closed.set()

    async with scripted(script) as host, predictor(host) as rest:
        await read(rest)
        async with asyncio.timeout(20):
            await closed.wait()
