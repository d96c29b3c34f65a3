"""One call of Triton's generate_stream: a request, and its responses as server-sent events."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Mapping

from hf_transformer.errors import PredictorError, RequestError
from hf_transformer.following import Followed
from hf_transformer.predictors.answers import said
from hf_transformer.predictors.http1_stream import StreamedAnswer
from hf_transformer.predictors.rest_errors import refused
from hf_transformer.types import Tensor
from hf_transformer.wire.datatypes import Malformed
from hf_transformer.wire.generate import decode_generate_response
from hf_transformer.wire.sse import EventReader

_ERROR_BYTES = 2**16
"""How much is read of an answer that is an error."""


def responses(
    answer: StreamedAnswer, outputs: Collection[str], where: str, largest: int
) -> Followed[Mapping[str, Tensor]]:
    """The outputs of each event that has any of them, until the answer ends.

    Args:
        answer: its head has come.
        outputs: those wanted, all if there are none.
        where: names the predictor in messages.
        largest: bytes of one event.

    Raises:
        RequestError: the predictor's error, or an answer that breaks the protocol.
        Http1Error: the connection's.
    """
    made = _Responses(answer, outputs, where, largest)
    return Followed(made.read(), made)


class _Responses:
    """Those of one answer, and a Source of them."""

    def __init__(self, answer: StreamedAnswer, outputs: Collection[str], where: str, largest: int) -> None:
        self._answer = answer
        self._outputs = outputs
        self._where = where
        self._reader = EventReader(largest)
        self._events: deque[bytes] = deque()
        self._malformed: Malformed | None = None

    async def read(self) -> AsyncGenerator[Mapping[str, Tensor], None]:
        answer, where, events = self._answer, self._where, self._events
        if answer.status != 200:
            raise await _refusal(answer, where)
        content_type = answer.headers.get("content-type", "")
        if not content_type.startswith("text/event-stream"):
            raise PredictorError(
                f"the predictor at {where} answered with the content type {content_type[:80]!r}, expected "
                "text/event-stream (has it Triton's generate_stream? --predictor_protocol=grpc-v2 does without)"
            )
        try:
            while True:
                while events:
                    error, tensors = decode_generate_response(events.popleft(), self._outputs)
                    if error:
                        raise said(error, where)
                    if tensors:
                        yield tensors
                if self._malformed is not None:
                    raise self._malformed
                data = await answer.read()
                if not data:
                    return
                events.extend(self._reader.feed(data))
        except Malformed as exc:
            raise PredictorError(f"the predictor's response is malformed: {exc}") from exc

    def take(self) -> Mapping[str, Tensor] | None:
        """Errors are left to ``read``."""
        events = self._events
        try:
            while events or self._has_more():
                error, tensors = decode_generate_response(events[0], self._outputs)
                if error:
                    return None
                events.popleft()
                if tensors:
                    return tensors
        except PredictorError:
            pass  # the event is still there
        return None

    def _has_more(self) -> bool:
        """Whether more events have come."""
        try:
            while self._malformed is None and not self._events and (data := self._answer.take()):
                self._events.extend(self._reader.feed(data))
        except Malformed as exc:
            self._malformed = exc
        return bool(self._events)

    def follow(self, wake: Callable[[], object]) -> bool:
        return not self._events and self._malformed is None and self._answer.follow(wake)

    def unfollow(self) -> None:
        self._answer.unfollow()


async def _refusal(answer: StreamedAnswer, where: str) -> RequestError:
    """The error that another status than 200 stands for. Triton's body is JSON, or an event where the model failed."""
    body = b""
    while len(body) < _ERROR_BYTES and (data := await answer.read()):
        body += data
    body = body.removeprefix(b"data: ")
    encoding = answer.headers.get("content-encoding", "identity").lower()
    return refused(answer.status, f"the predictor at {where} answered {answer.status}", memoryview(body), encoding)
