"""ModelInfer with admission, metrics and traces, and the streamed pieces of generated texts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import grpc

from hf_transformer.api.body import decoded
from hf_transformer.api.call import apply_triton_parameters
from hf_transformer.api.endpoint import UNHELD_BYTES
from hf_transformer.api.errors import to_request_error
from hf_transformer.api.generate import GenerateRequest, NewOutputs
from hf_transformer.api.grpc.calls import ensure_request_id
from hf_transformer.api.open_streams import shutting_down
from hf_transformer.api.service import Model, Service
from hf_transformer.api.streaming import TextStream, wants_stream
from hf_transformer.api.tensors import all_parameters, backend_tensors, infer, is_for_backend, read_as_backend, to_query
from hf_transformer.core.budget import Budget
from hf_transformer.core.limits import AdmissionTicket
from hf_transformer.core.pipeline import INLINE_VALUES
from hf_transformer.errors import RequestError, TooLarge
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.types import Piece
from hf_transformer.observability.access_log import CLIENT_CLOSED
from hf_transformer.protocol import grpc_server_codec as codec
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.server_codec import InferRequest, InferResponse, note_unknown
from hf_transformer.tasks.tensors import bytes_tensor
from hf_transformer.types.request import Context

GRPC_COPIES = 2
"""Copies of a message until the client has read it: gRPC's own, and the service's."""


@contextmanager
def measured(service: Service, context: Context, method: str) -> Iterator[None]:
    """Records metrics and a trace for one request. Converts an unexpected exception to RequestError."""
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
        ensure_request_id(context)
        raise to_request_error(error, context) from None
    finally:
        service.metrics.count_request("grpc", status, context.arrived, context.served_name)
        if trace is not None and tracing is not None:
            tracing.end_grpc(trace, SERVICE, method, code.value[0], context if context.request_id else None)


class Inference:
    """Answers serialized ModelInferRequests, and refuses requests once ``closing`` is set. ``max_send`` is the maximum
    response size in bytes, -1 for no limit. For a larger response, gRPC itself would end a whole stream."""

    def __init__(self, service: Service, closing: asyncio.Event, max_send: int = -1) -> None:
        self.service = service
        self.closing = closing
        self._max_send = max_send

    async def infer(self, body: bytes, context: Context) -> bytes:
        """Returns the serialized ModelInferResponse. Raises RequestError.

        A large one keeps ``context.ticket``, which the caller releases once the client has read it."""
        if self.closing.is_set():
            raise shutting_down()
        with measured(self.service, context, "ModelInfer"), AdmissionTicket(self.service.admission) as ticket:
            ticket.hold(len(body))
            ticket.enter()
            model, request = self.read(body, context, ticket)
            response = await infer(model, request, context)
            message = self.checked_size(await self.encode(response, request, context))
        context.ticket = None
        if len(message) > UNHELD_BYTES:
            ticket.keep(GRPC_COPIES * len(message))
            context.ticket = ticket
        return message

    async def encode(
        self, response: InferResponse, request: InferRequest, context: Context, *, final: bool = False
    ) -> bytes:
        """Serializes a response, in a thread if it is large."""
        if context.values <= INLINE_VALUES:
            return codec.encode_infer_response(response, request, final=final)
        encode = partial(codec.encode_infer_response, response, request, final=final)
        return await asyncio.get_running_loop().run_in_executor(self.service.executor, encode)

    def read(self, body: bytes, context: Context, ticket: AdmissionTicket) -> tuple[Model, InferRequest]:
        """Parses a request and finds its model. Raises RequestError."""
        request = decoded(codec.decode_infer_request, body, self.service.limits.max_texts)
        ensure_request_id(context, request.id)
        context.ticket, context.budget = ticket, Budget(self.service.limits, ticket)
        note_unknown(request.ignored, (), context.ignored)
        request.parameters = apply_triton_parameters(request.parameters, context)
        return self.service.models.choose(request.model_name, context, request.model_version), request

    def fits(self, message: bytes) -> bool:
        """Whether gRPC can send the message."""
        return self._max_send == -1 or len(message) <= self._max_send

    def checked_size(self, message: bytes) -> bytes:
        """Returns the message. Raises TooLarge if gRPC can't send it."""
        if not self.fits(message):
            raise TooLarge(
                "",
                f"a response of at most {self._max_send} bytes (--grpc_max_send_message_length)",
                str(len(message)),
                "ask for fewer instances or less about each",
            )
        return message


class StreamedPieces(TextStream):
    """Sends a ModelStreamInferResponse for each piece of text. The last response has triton_final_response=true.

    A response contains ``output-0`` BYTES [1], or the requested ``outputs`` if the request has the form of Triton's
    backends. A text's last response has the parameter ``finish_reason``. The parameters ``instance`` and ``choice``
    identify a text among several.
    """

    __slots__ = ("_infer_request", "_outputs", "_version")
    joins = False  # each piece is a message

    def __init__(
        self,
        model: GenerativeModel,
        infer_request: InferRequest,
        context: Context,
        generate_request: GenerateRequest,
        outputs: NewOutputs | None,
    ) -> None:
        super().__init__(model, generate_request.request, context)
        self._infer_request = infer_request
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
            tensors = backend_tensors(self._outputs.take(self.running.prompt_tokens), self._infer_request)
        parameters: dict[str, int | str | bool] = {}
        if len(self._request.prompts) > 1:
            parameters["instance"] = piece.prompt
        if self._request.sampling.n > 1:
            parameters["choice"] = piece.choice
        if piece.finish is not None:
            parameters["finish_reason"] = piece.finish
        response = InferResponse(self._context.model_name, self._version, tensors, self._infer_request.id)
        final = not self.remaining
        return codec.encode_stream_response(
            codec.encode_infer_response(response, self._infer_request, final=final, parameters=parameters)
        )


def pieces_of(model: Model, request: InferRequest, context: Context) -> StreamedPieces | None:
    """Returns the stream of a generated text; None if the request expects a single response. Raises RequestError."""
    if not isinstance(model, GenerativeModel):
        return None
    if is_for_backend(request):
        generate_request = read_as_backend(model, request, context)
        if not generate_request.stream:
            return None
        return StreamedPieces(model, request, context, generate_request, NewOutputs(generate_request))
    if not wants_stream(model.task, all_parameters(request.parameters)):
        return None
    query = to_query(model.task, request, context)
    generate_request = GenerateRequest(model.task.request(query), stream=True, extra=())
    return StreamedPieces(model, request, context, generate_request, None)
