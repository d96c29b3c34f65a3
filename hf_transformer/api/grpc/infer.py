"""ModelInfer: a serialized request -> a serialized response, counted, traced and within the limits.

Also the answers to the requests of a stream, whole or in pieces; stream.py reads the requests and writes the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from hf_transformer.api.call import without_clients_own
from hf_transformer.api.errors import as_request_error
from hf_transformer.api.generate import GenerateRequest, NewOutputs
from hf_transformer.api.grpc.calls import identify
from hf_transformer.api.open_streams import shutting_down
from hf_transformer.api.service import Model, Service
from hf_transformer.api.streaming import TextStream, wants_stream
from hf_transformer.api.tensors import all_parameters, backend_tensors, infer, is_for_backend, read_as_backend, to_query
from hf_transformer.core.limits import AdmissionTicket
from hf_transformer.errors import InvalidInput, RequestError, TooLarge
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.types import Piece
from hf_transformer.observability.access_log import CLIENT_CLOSED
from hf_transformer.protocol import grpc_server_codec as wire
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.server_codec import InferRequest, InferResponse, note_unknown
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.tasks.tensors import bytes_tensor
from hf_transformer.types.request import Budget, Context


@contextmanager
def counted(service: Service, context: Context, method: str) -> Iterator[None]:
    """Counts and traces one request, around its work. Raises RequestError for an unexpected exception."""
    tracing, trace = service.tracing, None
    if tracing is not None:
        context.headers, trace = tracing.begin(context.headers)
    status, code = 500, grpc.StatusCode.INTERNAL
    try:
        yield
        status, code = 200, grpc.StatusCode.OK
    except RequestError as error:
        status, code = error.status, grpc.StatusCode[error.grpc_code]
        raise
    except asyncio.CancelledError:
        status, code = CLIENT_CLOSED, grpc.StatusCode.CANCELLED
        raise
    except Exception as error:
        raise as_request_error(error, identify(context), context.headers.get("traceparent")) from None
    finally:
        service.metrics.count_request("grpc", status, context.arrived)
        if trace is not None and tracing is not None:
            tracing.end_grpc(trace, SERVICE, method, code.value[0], context if context.request_id else None)


class Inference:
    """Answers serialized ModelInferRequests, and refuses them once ``closing`` is set.

    ``max_send`` is how many bytes an answer may have, -1 is unlimited: gRPC itself would end a whole stream.
    """

    def __init__(self, service: Service, closing: asyncio.Event, max_send: int = -1) -> None:
        self.service = service
        self.closing = closing
        self._max_send = max_send

    async def one(self, body: bytes, context: Context) -> bytes:
        """The serialized ModelInferResponse. Raises RequestError."""
        if self.closing.is_set():
            raise shutting_down()
        with counted(self.service, context, "ModelInfer"), AdmissionTicket(self.service.admission) as place:
            place.hold(len(body))
            place.enter()
            model, request = self.read(body, context, place)
            response = await infer(model, request, context)
            return self.checked(wire.encode_infer_response(response, request))

    def read(self, body: bytes, context: Context, place: Budget) -> tuple[Model, InferRequest]:
        """The request in a message, and its model. Raises RequestError."""
        try:
            request = wire.decode_infer_request(body, self.service.max_texts)
        except Malformed as error:
            raise InvalidInput.of(str(error)) from error
        identify(context, request.id)
        context.ticket = place
        note_unknown(request.ignored, (), context.ignored)
        request.parameters = without_clients_own(request.parameters, context)
        return self.service.models.find(request.model_name, request.model_version), request

    def fits(self, answer: bytes) -> bool:
        """Whether gRPC will send the message."""
        return self._max_send == -1 or len(answer) <= self._max_send

    def checked(self, answer: bytes) -> bytes:
        """The same message. Raises TooLarge if gRPC would not send it."""
        if not self.fits(answer):
            raise TooLarge.of(
                f"the answer has {len(answer)} bytes, --grpc_max_send_message_length allows {self._max_send}; ask for "
                "fewer instances or less about each"
            )
        return answer


class StreamedPieces(TextStream):
    """A ModelStreamInferResponse for each piece, with the parameter triton_final_response=true in the last of all.

    Each has ``output-0`` BYTES [1], or those of ``outputs`` for a request in the form of Triton's backends. The last
    piece of a text has the parameter ``finish_reason``. ``instance`` and ``choice`` tell several texts apart.
    """

    __slots__ = ("_asked", "_infer", "_outputs", "_version")

    def __init__(
        self,
        model: GenerativeModel,
        request: InferRequest,
        context: Context,
        asked: GenerateRequest,
        outputs: NewOutputs | None,
    ) -> None:
        super().__init__(model, asked.request, context)
        self._infer = request
        self._asked = asked
        self._outputs = outputs
        self._version = model.describe().version

    def piece(self, piece: Piece) -> bytes:
        if self._outputs is not None:
            self._outputs.add(piece)
        if not piece.text and piece.finish is None:
            return b""
        if self._outputs is None:
            tensors = [bytes_tensor([piece.text.encode()])]
        else:
            tensors = backend_tensors(self._outputs.take(self.running.prompt_tokens), self._infer)
        parameters: dict[str, int | str | bool] = {}
        if len(self._request.prompts) > 1:
            parameters["instance"] = piece.prompt
        if self._request.sampling.n > 1:
            parameters["choice"] = piece.choice
        if piece.finish is not None:
            parameters["finish_reason"] = piece.finish
        response = InferResponse(self._model.name, self._version, tensors, self._infer.id)
        return wire.encode_stream_response(
            wire.encode_infer_response(response, self._infer, final=not self.remaining, parameters=parameters)
        )

    def as_sent(self, message: str) -> str:
        return self._asked.as_sent(message)


def pieces_of(model: Model, request: InferRequest, context: Context) -> StreamedPieces | None:
    """The answer to a request that asks for pieces; None if it wants one answer. Raises RequestError."""
    if not isinstance(model, GenerativeModel):
        return None
    if is_for_backend(request):
        asked = read_as_backend(model, request, context)
        return StreamedPieces(model, request, context, asked, NewOutputs(asked)) if asked.stream else None
    if not wants_stream(model.task, all_parameters(request.parameters)):
        return None
    query = to_query(model.task, request, context)
    asked = GenerateRequest(model.task.request(query), stream=True, further=(), as_sent=str)
    return StreamedPieces(model, request, context, asked, None)
