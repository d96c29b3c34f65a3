"""One call of Triton's generate_stream: a request, and its responses as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping

from hf_transformer.errors import PredictorError, RequestError
from hf_transformer.predictors.answers import said
from hf_transformer.predictors.http1_stream import StreamedAnswer
from hf_transformer.predictors.rest_errors import refused
from hf_transformer.types import Tensor
from hf_transformer.wire.datatypes import Malformed
from hf_transformer.wire.generate import decode_generate_response
from hf_transformer.wire.sse import EventReader

_ERROR_BYTES = 2**16
"""How much is read of an answer that is an error."""


async def responses(
    answer: StreamedAnswer, outputs: Collection[str], where: str, largest: int
) -> AsyncGenerator[Mapping[str, Tensor], None]:
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
    if answer.status != 200:
        raise await _refusal(answer, where)
    content_type = answer.headers.get("content-type", "")
    if not content_type.startswith("text/event-stream"):
        raise PredictorError(
            f"the predictor at {where} answered with the content type {content_type[:80]!r}, expected text/event-stream"
            " (has it Triton's generate_stream? --predictor_protocol=grpc-v2 does without)"
        )
    events = EventReader(largest)
    try:
        while data := await answer.read():
            for event in events.feed(data):
                error, tensors = decode_generate_response(event, outputs)
                if error:
                    raise said(error, where)
                if tensors:
                    yield tensors
    except Malformed as exc:
        raise PredictorError(f"the predictor's response is malformed: {exc}") from exc


async def _refusal(answer: StreamedAnswer, where: str) -> RequestError:
    """The error that another status than 200 stands for. Triton's body is JSON, or an event where the model failed."""
    body = b""
    while len(body) < _ERROR_BYTES and (data := await answer.read()):
        body += data
    body = body.removeprefix(b"data: ")
    encoding = answer.headers.get("content-encoding", "identity").lower()
    return refused(answer.status, f"the predictor at {where} answered {answer.status}", memoryview(body), encoding)
