"""Streams of generated text over HTTP and gRPC, as async iterators of bytes.

Over HTTP, the response starts with the first piece, so an earlier error has its own status and body. A later error is
the last event of the stream, in the API's format. On shutdown, streams end with an error within the grace period.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from typing import ClassVar

from hf_transformer.api.errors import error_json
from hf_transformer.api.open_streams import OpenStreams, shutting_down
from hf_transformer.errors import InvalidInput, RequestError
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.stream import Generation
from hf_transformer.generation.types import GenerationRequest, Piece
from hf_transformer.tasks.base import Servable
from hf_transformer.types.http import HeaderLines
from hf_transformer.types.request import Context, Json

UNBUFFERED: HeaderLines = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
"""Headers that disable buffering in proxies. nginx reads X-Accel-Buffering."""
STREAM = "stream"
"""The parameter that requests a stream."""


def wants_stream(task: Servable, parameters: Mapping[str, Json]) -> bool:
    """Whether the parameters request a stream. The task rejects values that are not booleans."""
    return parameters.get(STREAM) is True and STREAM in task.parameters


def not_streamed() -> InvalidInput:
    """The error for a stream request to an API without streams."""
    hint = "V1, generate_stream, OpenAI's endpoints and gRPC's ModelStreamInfer can stream"
    return InvalidInput(("parameters", STREAM), "false, since this API does not stream", "true", hint)


class TextStream(ABC):
    """A stream of a request's texts in an API's format. The default is server-sent events with V2's errors.

    Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
    """

    __slots__ = ("_context", "_model", "_request", "remaining", "running")
    content_type: ClassVar[bytes] = b"text/event-stream"
    joins: ClassVar[bool] = True
    """Whether the pieces that are ready at a time may leave as one."""
    running: Generation

    def __init__(self, model: GenerativeModel, request: GenerationRequest, context: Context) -> None:
        self._model = model
        self._request = request
        self._context = context
        self.remaining = len(request.prompts) * request.sampling.n  # unfinished texts

    async def start(self) -> Generation:
        """Starts the generation. Raises RequestError."""
        self.running = await self._model.generate(self._request, self._context)
        return self.running

    @abstractmethod
    def piece(self, piece: Piece) -> bytes:
        """Serializes a piece. The result is empty if the API sends nothing for the piece."""

    def end(self) -> bytes:
        """The final bytes after the last piece, possibly empty."""
        return b""

    def error(self, error: RequestError) -> bytes:
        """Serializes an error as the end of the stream."""
        return event(error_json(error, error.status))


async def pieces(stream: TextStream, streams: OpenStreams) -> AsyncGenerator[bytes, None]:
    """Yields serialized pieces that are not empty; those that are ready at a time together, if the format allows it.

    An empty stream yields a single empty piece.

    Raises RequestError, and Unavailable on shutdown.
    """
    has_begun, last = False, b""
    with streams.track() as end:
        try:
            async with await stream.start() as running:
                async for first in running:
                    piece: Piece | None = first
                    data = b""
                    while piece is not None:
                        if piece.finish is not None:
                            stream.remaining -= 1
                        data += stream.piece(piece)
                        piece = running.take_ready() if stream.joins else None
                    if not stream.remaining:
                        last = data  # yielded together with the end
                    elif data:
                        has_begun = end.is_sending = True
                        yield data
                        end.sent()
                last += stream.end()
        except asyncio.CancelledError:
            if not end.has_cancelled():
                raise
            raise shutting_down() from None
    if last or not has_begun:
        yield last


def event(data: bytes) -> bytes:
    """Formats a server-sent event. ``data`` is JSON without line breaks."""
    return b"data: " + data + b"\n\n"
