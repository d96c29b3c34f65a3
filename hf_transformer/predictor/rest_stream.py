"""One call of Triton's generate_stream: a request, and its responses as server-sent events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from hf_transformer.errors import PredictorError, PredictorUnavailable, RequestError
from hf_transformer.predictor import kinds
from hf_transformer.predictor.answers import said
from hf_transformer.predictor.headers import header_lines
from hf_transformer.predictor.http1_errors import Http1Error
from hf_transformer.predictor.http1_parser import Head
from hf_transformer.predictor.http1_stream import StreamedAnswer
from hf_transformer.predictor.http1_streams import StreamedCalls
from hf_transformer.predictor.responses import Outputs, Responses, Watch
from hf_transformer.predictor.rest_errors import mapped, refused
from hf_transformer.protocol.generate import EventReader, GenerateEncoder, decode_generate_response
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.types import Tensor

_ERROR_BYTES = 2**16
"""How much is read of an answer that is an error."""


class GenerateStreams:
    """What the calls of one model have in common."""

    def __init__(self, calls: StreamedCalls, head: bytes, where: str, seconds: float, largest: int) -> None:
        """
        Args:
            calls: closed by others.
            head: of every request, but for its length and the client's headers.
            where: names the predictor in messages.
            seconds: what a call may take.
            largest: bytes of one event.
        """
        self._calls = calls
        self._head = head
        self._encoder = GenerateEncoder()
        self.where = where
        self.seconds = seconds
        self.largest = largest
        self.watch: Watch | None = None
        self.usual: Head | None = None
        """The last head that was that of a stream. Those that are the same, byte for byte, are one object."""

    def begin(self, inputs: Sequence[Tensor], headers: Mapping[str, str]) -> Coroutine[Any, Any, StreamedAnswer]:
        """Makes a call. Raises PredictorUnavailable once the connections are closed, and what GenerateEncoder does."""
        if self._calls.closed:
            raise PredictorUnavailable(f"the connections to the predictor at {self.where} are closed", kinds.LOST)
        body = self._encoder.encode(inputs)
        request = b"%sContent-Length: %d\r\n%s\r\n%s" % (self._head, len(body), header_lines(headers), body)
        return self._calls.begin(request, asyncio.get_running_loop().time() + self.seconds)


class RestResponses(Responses):
    """The outputs of each event that has any of them, until the answer ends. The call is made when the first is asked
    for; closed early, its connection is closed.

    Raises:
        RequestError: the call's, the predictor's error, or an answer that breaks the protocol.
    """

    _answer: StreamedAnswer | None = None  # while it goes on
    _malformed = ""

    def __init__(
        self, streams: GenerateStreams, inputs: Sequence[Tensor], outputs: Collection[str], headers: Mapping[str, str]
    ) -> None:
        """outputs: those wanted, all if there are none."""
        self._streams = streams
        self._watch = streams.watch
        self._inputs = inputs
        self._outputs = outputs
        self._headers = headers
        self._reader = EventReader(streams.largest)
        self._events: deque[bytes] = deque()

    async def __anext__(self) -> Outputs:
        answer = self._answer
        if answer is None:
            self.begins()
        try:
            if answer is None:
                answer = self._answer = await self._streams.begin(self._inputs, self._headers)
                if answer.head is not self._streams.usual:
                    await self._check(answer)
            while (tensors := self.take()) is None:
                if self._events or self._malformed:
                    raise self._fault()
                if answer.is_over or not await answer.more():
                    self.close()
                    break
        except (OSError, Http1Error) as exc:
            raise self.ended(mapped(exc, self._streams.where, self._streams.seconds)) from exc
        except BaseException as error:
            self.ended(error)
            raise
        self.answered()
        if tensors is None:
            raise StopAsyncIteration
        return tensors

    async def _check(self, answer: StreamedAnswer) -> None:
        """Raises what a refusal means, and PredictorError for an answer that is no stream."""
        streams, head = self._streams, answer.head
        if head.status != 200:
            raise await _refusal(answer, streams.where)
        content_type = head.headers.get("content-type", "")
        if not content_type.startswith("text/event-stream"):
            raise PredictorError(
                f"the predictor at {streams.where} answered with the content type {content_type[:80]!r}, expected "
                "text/event-stream (has it Triton's generate_stream? --predictor_protocol=grpc-v2 does without)"
            )
        streams.usual = head

    def close(self) -> None:
        self._is_over = True
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()

    def take(self) -> Outputs | None:
        """Errors are left to ``__anext__``."""
        answer, events = self._answer, self._events
        if answer is None:
            return None
        try:
            while True:
                if events:
                    error, tensors = decode_generate_response(events[0], self._outputs)
                    if error:
                        return None
                    events.popleft()
                    if tensors:
                        return tensors
                elif answer.connection.unread and not self._malformed and (data := answer.take()):
                    events += self._reader.feed(data)
                else:
                    return None
        except PredictorError:
            pass  # the event is still there
        except Malformed as exc:
            self._malformed = str(exc)
        return None

    def _fault(self) -> RequestError:
        """What the event means that ``take`` has left, or that there is none. Raises PredictorError for one that can't
        be read."""
        if not self._events:
            return PredictorError(f"the predictor's response is malformed: {self._malformed}")
        error, _ = decode_generate_response(self._events[0], self._outputs)
        return said(error, self._streams.where)

    def follow(self, wake: Callable[[], object]) -> bool:
        answer = self._answer
        return answer is not None and not self._events and not self._malformed and answer.follow(wake)

    def unfollow(self) -> None:
        if self._answer is not None:
            self._answer.unfollow()


async def _refusal(answer: StreamedAnswer, where: str) -> RequestError:
    """The error that another status than 200 stands for. Triton's body is JSON, or an event where the model failed."""
    body = b""
    while len(body) < _ERROR_BYTES and (data := await answer.read()):
        body += data
    body = body.removeprefix(b"data: ")
    head = answer.head
    encoding = head.headers.get("content-encoding", "identity").lower()
    return refused(head.status, f"the predictor at {where} answered {head.status}", memoryview(body), encoding)
