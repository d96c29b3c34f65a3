"""How a stream is sent: what is done when, what goes together, and what is sent of a stream that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import pytest

from hf_transformer.api.sending import AsgiSink, Sender, Sink
from hf_transformer.api.streaming import OpenStreams, Stream
from hf_transformer.errors import InvalidInput, PredictorError, RequestError
from hf_transformer.generation.types import Piece
from hf_transformer.types import Context

pytestmark = pytest.mark.asyncio


def piece(text: str, *, last: bool = False, prompt: int = 0) -> Piece:
    return Piece(prompt, 0, text, finish="stop" if last else None)


class Script:
    """A generation with these pieces and failures, one after the other; waits for ``gate`` where there is None."""

    prompt_tokens = completion_tokens = 0

    def __init__(self, *items: Piece | Exception | None) -> None:
        self._items = iter(items)
        self.gate = asyncio.Event()
        self.asked = self.left = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.left = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        self.asked = True
        item = next(self._items, StopAsyncIteration())
        if item is None:
            await self.gate.wait()
            return await self.__anext__()
        if isinstance(item, Exception):
            raise item
        return item


class Told(Stream):
    """Notes how it is called, and tells of pieces by their text."""

    content_type = b"text/plain"

    def __init__(self, script: Script | RequestError, texts: int = 1) -> None:
        self._script = script
        self.texts = texts
        self.calls: list[str] = []

    async def start(self) -> Any:
        if isinstance(self._script, RequestError):
            raise self._script
        return self._script

    def prepare(self) -> None:
        self.calls.append("prepare")

    def piece(self, piece: Piece) -> bytes:
        self.calls.append("piece")
        return piece.text.encode()

    def end(self, running: Any) -> bytes:
        return b"END"

    def error(self, message: str, status: int) -> bytes:
        return f"{status} {message}".encode()

    def named(self, error: RequestError) -> RequestError:
        return type(error)(f"renamed {error}")


class Kept(Sink):
    """Keeps what is sent, call by call."""

    def __init__(self) -> None:
        self.begun = False
        self.head = b""
        self.sent: list[Sequence[bytes]] = []

    def prepare(self, content_type: bytes, request_id: bytes) -> None:
        assert not self.head
        self.head = content_type + b" " + request_id

    async def begin(self, timing: bytes, piece: bytes) -> None:
        assert self.head and not self.begun
        self.begun = True
        self.sent.append((piece,))

    async def send(self, piece: bytes) -> None:
        assert self.sent
        self.sent.append((piece,))

    async def end(self, *pieces: bytes) -> None:
        assert self.sent
        self.sent.append(pieces)


async def sent(stream: Told) -> tuple[int, list[Sequence[bytes]]]:
    """Status, and what was sent together."""
    sink = Kept()
    status = await Sender(sink, stream, Context("17", {}), timing=True).run(OpenStreams())
    assert sink.head == b"text/plain 17"
    return status, sink.sent


async def test_the_last_piece_goes_with_the_end() -> None:
    stream = Told(Script(piece("a"), piece("b"), piece("c", last=True)))
    assert await sent(stream) == (200, [(b"a",), (b"b",), (b"c", b"END")])


async def test_of_several_texts_only_the_last_one_ends_the_stream() -> None:
    items = piece("a"), piece("b", last=True, prompt=1), piece("c"), piece("d", last=True)
    stream = Told(Script(*items), texts=2)
    assert await sent(stream) == (200, [(b"a",), (b"b",), (b"c",), (b"d", b"END")])


async def test_a_piece_that_is_first_and_last() -> None:
    assert await sent(Told(Script(piece("a", last=True)))) == (200, [(b"a",), (b"", b"END")])


async def test_no_piece_that_tells_anything() -> None:
    assert await sent(Told(Script(piece(""), piece("", last=True)))) == (200, [(b"",), (b"", b"END")])


@pytest.mark.parametrize("items", [(), (piece("b", last=True),)], ids=["in the middle", "behind the last piece"])
async def test_an_error_comes_behind_what_came_before(items: tuple[Piece, ...]) -> None:
    stream = Told(Script(piece("a"), *items, PredictorError("it broke")))
    status, found = await sent(stream)
    assert status == PredictorError.status
    told = f"{status} renamed it broke".encode()
    assert [one for together in found for one in together if one] == [b"a", *(b"b" for _ in items), told]


@pytest.mark.parametrize("starts", [False, True], ids=["start", "first piece"])
async def test_an_error_before_anything_is_raised_as_the_client_is_told(starts: bool) -> None:
    error = InvalidInput("wrong")
    script = Script(error) if starts else error
    with pytest.raises(InvalidInput, match="renamed wrong"):
        await Sender(Kept(), Told(script), Context("17", {}), timing=True).run(OpenStreams())


async def test_what_a_piece_needs_is_prepared_while_the_model_works() -> None:
    script = Script(None, piece("a", last=True))
    stream, sink = Told(script), Kept()
    running = asyncio.create_task(Sender(sink, stream, Context("17", {}), timing=False).run(OpenStreams()))
    await asyncio.sleep(0)
    assert script.asked and not stream.calls and not sink.head
    await asyncio.sleep(0)
    assert stream.calls == ["prepare"] and sink.head
    script.gate.set()
    assert await running == 200
    assert stream.calls == ["prepare", "piece"]


async def test_what_a_piece_needs_is_prepared_once_if_it_comes_at_once() -> None:
    stream = Told(Script(piece("a"), piece("b", last=True)))
    await sent(stream)
    await asyncio.sleep(0)
    assert stream.calls == ["prepare", "piece", "piece"]


@pytest.mark.parametrize(
    ("pieces", "bodies"),
    [
        ((b"a", b"END"), [(b"a", True), (b"END", False)]),
        ((b"a", b""), [(b"a", False)]),
        ((b"", b""), [(b"", False)]),
    ],
    ids=["both", "the last piece alone", "nothing"],
)
async def test_the_end_as_messages(pieces: Sequence[bytes], bodies: list[tuple[bytes, bool]]) -> None:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    await AsgiSink(send).end(*pieces)
    assert [(one["body"], one["more_body"]) for one in messages] == bodies


class Broken(Told):
    """Can't tell of pieces."""

    def prepare(self) -> None:
        raise ZeroDivisionError


async def test_what_goes_wrong_while_the_model_works_is_raised_once_there_is_a_piece() -> None:
    logged: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context["exception"]))
    script, sink = Script(None, piece("a", last=True)), Kept()
    running = asyncio.create_task(Sender(sink, Broken(script), Context("17", {}), timing=False).run(OpenStreams()))
    for _ in range(3):
        await asyncio.sleep(0)
    assert [type(one) for one in logged] == [ZeroDivisionError] and not running.done()
    script.gate.set()
    with pytest.raises(ZeroDivisionError):
        await running
    assert script.left and not sink.begun
