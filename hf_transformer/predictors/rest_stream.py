"""One call of Triton's generate_stream: a request, and its responses as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping

from hf_transformer.errors import PredictorError, RequestError
from hf_transformer.following import Followed
from hf_transformer.predictors.answers import said
from hf_transformer.predictors.http1_errors import Http1Error
from hf_transformer.predictors.http1_stream import StreamedAnswer
from hf_transformer.predictors.rest_errors import mapped, refused
from hf_transformer.types import Tensor
from hf_transformer.wire.datatypes import Malformed
from hf_transformer.wire.generate import decode_generate_response
from hf_transformer.wire.sse import EventReader

_ERROR_BYTES = 2**16
"""How much is read of an answer that is an error."""

Outputs = Mapping[str, Tensor]


def responses(
    begin: Callable[[], Awaitable[StreamedAnswer]], outputs: Collection[str], where: str, seconds: float, largest: int
) -> Followed[Outputs]:
    """The outputs of each event that has any of them, until the answer ends. Closed early, it closes the answer.

    Args:
        begin: makes the call, when the first response is asked for.
        outputs: those wanted, all if there are none.
        where: names the predictor in messages.
        seconds: its timeout, for messages.
        largest: bytes of one event.

    Raises:
        RequestError: the call's, the predictor's error, or an answer that breaks the protocol.
    """
    made = _Responses(begin, outputs, where, seconds, largest)
    return Followed(made.read(), made)


class _Responses:
    """Those of one answer, and a Source of them."""

    __slots__ = ("_answer", "_begin", "_events", "_malformed", "_outputs", "_reader", "_seconds", "_where")

    def __init__(
        self,
        begin: Callable[[], Awaitable[StreamedAnswer]],
        outputs: Collection[str],
        where: str,
        seconds: float,
        largest: int,
    ) -> None:
        self._begin = begin
        self._outputs = outputs
        self._where = where
        self._seconds = seconds
        self._reader = EventReader(largest)
        self._answer: StreamedAnswer | None = None
        self._events: list[bytes] = []  # the next one is the last
        self._malformed = ""

    async def read(self) -> AsyncGenerator[Outputs, None]:
        where = self._where
        try:
            answer = self._answer = await self._begin()
            try:
                if answer.status != 200:
                    raise await _refusal(answer, where)
                content_type = answer.headers.get("content-type", "")
                if not content_type.startswith("text/event-stream"):
                    raise PredictorError(
                        f"the predictor at {where} answered with the content type {content_type[:80]!r}, expected "
                        "text/event-stream (has it Triton's generate_stream? --predictor_protocol=grpc-v2 does without)"
                    )
                while True:
                    while (tensors := self.take()) is not None:
                        yield tensors
                    if self._events:  # one that ``take`` has left
                        error, _ = decode_generate_response(self._events[-1], self._outputs)
                        raise said(error, where)
                    if self._malformed:
                        raise PredictorError(f"the predictor's response is malformed: {self._malformed}")
                    data = await answer.read()
                    if not data:
                        return
                    self._feed(data)
            finally:
                answer.close()
        except (OSError, Http1Error) as exc:
            raise mapped(exc, where, self._seconds) from exc

    def take(self) -> Outputs | None:
        """Errors are left to ``read``."""
        answer = self._answer
        if answer is None:
            return None
        try:
            while self._events or (answer.connection.unread and self._has_more(answer)):
                error, tensors = decode_generate_response(self._events[-1], self._outputs)
                if error:
                    return None
                self._events.pop()
                if tensors:
                    return tensors
        except PredictorError:
            pass  # the event is still there
        return None

    def _has_more(self, answer: StreamedAnswer) -> bool:
        """Whether more events have come, where there were none."""
        while not self._malformed and not self._events and (data := answer.take()):
            self._feed(data)
        return bool(self._events)

    def _feed(self, data: bytes) -> None:
        """Takes the next bytes, where there are no events."""
        try:
            self._events = self._reader.feed(data)
        except Malformed as exc:
            self._malformed = str(exc)
        else:
            self._events.reverse()

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
    encoding = answer.headers.get("content-encoding", "identity").lower()
    return refused(answer.status, f"the predictor at {where} answered {answer.status}", memoryview(body), encoding)
