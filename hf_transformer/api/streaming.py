"""Text that is sent while it is written: a stream is an async iterator of bytes, over HTTP and over gRPC.

Over HTTP the status waits for the first piece, so an error before it has its usual status and body. A later error
stands in the stream, in the API's own form. When the service ends, streams end with an error within the grace period.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar, Final

from hf_transformer.api.base import Model, error_json, renamed
from hf_transformer.errors import InvalidInput, Unavailable
from hf_transformer.generation.stream import Generation
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.types import GenerationRequest, Piece
from hf_transformer.tasks.base import Servable
from hf_transformer.types import Context, HeaderLines, Json

UNBUFFERED: HeaderLines = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
"""Keeps proxies from collecting pieces (the second one is nginx's)."""
LAST_WORDS: Final = 1.0
"""Seconds of the grace period in which clients learn that their streams end; at most a fifth of it."""
STREAM = "stream"  # the parameter that asks for pieces


def wants_stream(task: Servable, parameters: Mapping[str, Json]) -> bool:
    """Whether a request asks for pieces. The task itself refuses a value that is not a boolean."""
    return parameters.get(STREAM) is True and isinstance(task, TextGeneration)


def one_answer(name: str) -> InvalidInput:
    """The error for a request that asks for pieces where none are given."""
    return InvalidInput(
        f"{name}: one answer is given here, expected false; V1, generate_stream, OpenAI's endpoints and "
        "ModelStreamInfer over gRPC give the text as it comes"
    )


class TextStream(ABC):
    """The texts of one request in the form of an API; by default server-sent events with errors as V1 and V2 have them.

    Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
    """

    __slots__ = ("_context", "_model", "_request", "left", "running")
    content_type: ClassVar[bytes] = b"text/event-stream"
    running: Generation

    def __init__(self, model: Model, request: GenerationRequest, context: Context) -> None:
        self._model = model
        self._request = request
        self._context = context
        self.left = len(request.prompts) * request.sampling.n  # texts that are not finished

    async def start(self) -> Generation:
        """Begins to write the texts. Raises RequestError."""
        self.running = await self._model.generate(self._request, self._context)
        return self.running

    @abstractmethod
    def piece(self, piece: Piece) -> bytes:
        """A piece in the API's form; empty if the API sends nothing for it."""

    def end(self) -> bytes:
        """What follows the last piece; may be empty."""
        return b""

    def error(self, message: str, status: int) -> bytes:
        """An error that ends the stream."""
        return event(error_json(message, status))

    def as_sent(self, message: str) -> str:
        """An error's message with the names that the client used."""
        return message


async def pieces(stream: TextStream, streams: OpenStreams) -> AsyncGenerator[bytes, None]:
    """The bytes of a stream. None are empty, except in a stream that has no others. Raises RequestError, which is
    Unavailable at the end of the service."""
    has_begun, last = False, b""
    with streams.one() as end, renamed(stream.as_sent):
        try:
            async with await stream.start() as running:
                async for piece in running:
                    if piece.finish is not None:
                        stream.left -= 1
                    written = stream.piece(piece)
                    if not stream.left:
                        last = written  # it goes together with what follows it
                    elif written:
                        has_begun = end.is_sending = True
                        yield written
                        end.sent()
                last += stream.end()
        except asyncio.CancelledError:
            if not end.has_cancelled():
                raise
            raise shutting_down() from None
    if last or not has_begun:
        yield last


class StreamEnd:
    """Breaks off one stream, that of the current task, at the end of the service.

    A piece that is being sent is sent whole: the task is only cancelled while it waits for the next piece.
    """

    __slots__ = ("_is_broken", "_task", "is_sending")

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = asyncio.current_task()
        self._is_broken = self.is_sending = False

    def break_off(self) -> None:
        """Ends the stream."""
        self._is_broken = True
        if self._task is not None and not self.is_sending:
            self._task.cancel()

    def sent(self) -> None:
        """Notes that a piece was sent. Raises Unavailable if the service has ended meanwhile."""
        self.is_sending = False
        if self._is_broken:
            raise shutting_down()

    def has_cancelled(self) -> bool:
        """Whether a cancellation came from ``break_off`` and from nowhere else."""
        return self._is_broken and self._task is not None and self._task.uncancel() == 0


class OpenStreams:
    """The streams that run. At the end of the service they have the grace period, less the time to tell clients."""

    def __init__(self) -> None:
        self._open: set[StreamEnd] = set()
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None

    def end_within(self, grace: float) -> None:
        """Ends all streams shortly before ``grace`` seconds are over; called on the event loop."""
        if self._timer is None:
            wait = grace - min(LAST_WORDS, grace / 5)
            self._timer = asyncio.get_running_loop().call_later(wait, self._end)

    def _end(self) -> None:
        self._is_over = True
        for one in tuple(self._open):
            one.break_off()

    def close(self) -> None:
        """Forgets the timer."""
        if self._timer is not None:
            self._timer.cancel()

    @contextmanager
    def one(self) -> Iterator[StreamEnd]:
        """Around a stream of the current task. Raises Unavailable once streams have ended."""
        if self._is_over:
            raise shutting_down()
        end = StreamEnd()
        self._open.add(end)
        try:
            yield end
        finally:
            self._open.discard(end)


def shutting_down() -> Unavailable:
    """The error of requests and streams at the end of the service."""
    return Unavailable("the service is shutting down")


def event(data: bytes) -> bytes:
    """A server-sent event; ``data`` is JSON, which has no line breaks."""
    return b"data: " + data + b"\n\n"
