"""Text that is sent while it is written: a stream is an async iterator of bytes, over HTTP and over gRPC.

Over HTTP the status waits for the first piece, so an error before it has its usual status and body. A later error
stands in the stream, in the API's own form. When the service ends, streams end with an error within the grace period.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from typing import ClassVar

from hf_transformer.api.errors import error_json, renamed
from hf_transformer.api.open_streams import OpenStreams, shutting_down
from hf_transformer.errors import InvalidInput
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.stream import Generation
from hf_transformer.generation.types import GenerationRequest, Piece
from hf_transformer.tasks.base import Servable
from hf_transformer.types.http import HeaderLines
from hf_transformer.types.request import Context, Json

UNBUFFERED: HeaderLines = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
"""Keeps proxies from collecting pieces (the second one is nginx's)."""
STREAM = "stream"  # the parameter that asks for pieces


def wants_stream(task: Servable, parameters: Mapping[str, Json]) -> bool:
    """Whether a request asks for pieces. The task itself refuses a value that is not a boolean."""
    return parameters.get(STREAM) is True and STREAM in task.parameters


def one_answer(name: str) -> InvalidInput:
    """The error for a request that asks for pieces where none are given."""
    return InvalidInput.of(
        f"{name}: one answer is given here, expected false; V1, generate_stream, OpenAI's endpoints and "
        "ModelStreamInfer over gRPC give the text as it comes"
    )


class TextStream(ABC):
    """The texts of one request in the form of an API; by default server-sent events with errors as V1 and V2 have them.

    Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
    """

    __slots__ = ("_context", "_model", "_request", "remaining", "running")
    content_type: ClassVar[bytes] = b"text/event-stream"
    running: Generation

    def __init__(self, model: GenerativeModel, request: GenerationRequest, context: Context) -> None:
        self._model = model
        self._request = request
        self._context = context
        self.remaining = len(request.prompts) * request.sampling.n  # texts that are not finished

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
                        stream.remaining -= 1
                    written = stream.piece(piece)
                    if not stream.remaining:
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


def event(data: bytes) -> bytes:
    """A server-sent event; ``data`` is JSON, which has no line breaks."""
    return b"data: " + data + b"\n\n"
