"""Text as it is generated, over ModelStreamInfer with the parameter stream=true: a response per piece.

Each has ``output-0`` BYTES [1], or the outputs of triton_tensors.py where the request has its form, and parameters that
say which text it belongs to where there are several: ``instance`` counts the instances, ``choice`` the texts of one.
The last piece of a text has ``finish_reason``; the last of all responses has triton_final_response=true, the others
false.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from hf_transformer.api.base import Model
from hf_transformer.api.generate_request import Asked, Told
from hf_transformer.api.generation import generating, place_of, wants_stream
from hf_transformer.api.streaming import OpenStreams, shutting_down
from hf_transformer.api.tensors import all_parameters, to_query
from hf_transformer.api.triton_tensors import has_form, read, tensors_of
from hf_transformer.generation.types import GenerationRequest, Piece
from hf_transformer.protocol import grpc_inbound as wire
from hf_transformer.protocol.inbound import InferRequest, InferResponse
from hf_transformer.tasks.tensors import bytes_tensor
from hf_transformer.types import Context, Tensor

Emit = Callable[[bytes], Awaitable[None]]
"""Sends a serialized ModelInferResponse that more will follow; waits while the client does not read."""


class PieceForm(Protocol):
    """How a request is read and its pieces are told.

    Attributes: ``request`` is what is generated.
    """

    request: GenerationRequest

    def errors(self) -> AbstractContextManager[None]:
        """Names what an error is about as the client did."""

    def add(self, piece: Piece) -> None:
        """A piece has come; ``outputs`` is asked for once it is to be told."""

    def outputs(self, piece: Piece, prompt_tokens: int) -> Sequence[Tensor]:
        """The outputs of a response."""


class OwnForm(PieceForm):
    """``output-0``, with a piece of one text."""

    def __init__(self, model: Model, request: InferRequest) -> None:
        self.request = generating(model, "a stream").request(to_query(model.task, request))

    def errors(self) -> AbstractContextManager[None]:
        return nullcontext()

    def add(self, piece: Piece) -> None:
        return

    def outputs(self, piece: Piece, prompt_tokens: int) -> Sequence[Tensor]:
        return [bytes_tensor([piece.text.encode()])]


class TritonForm(PieceForm):
    """``text_output``, with a piece of one text in its place among all, and what else is asked for."""

    def __init__(self, asked: Asked, request: InferRequest) -> None:
        self.request = asked.request
        self._asked = asked
        self._infer = request
        self._told = Told(asked.request.sampling.n)

    def errors(self) -> AbstractContextManager[None]:
        return self._asked.names.told()

    def add(self, piece: Piece) -> None:
        self._told.add(piece, piece.choice)

    def outputs(self, piece: Piece, prompt_tokens: int) -> Sequence[Tensor]:
        return tensors_of(self._told.take(self._asked.further, prompt_tokens), self._infer)


def form_of_pieces(model: Model, request: InferRequest) -> PieceForm | None:
    """How a request's pieces are told; None where it wants one answer. Raises RequestError."""
    if has_form(model, request):
        asked = read(model, request)
        return TritonForm(asked, request) if asked.stream else None
    return OwnForm(model, request) if wants_stream(model.task, all_parameters(request.parameters)) else None


async def pieces(
    model: Model, request: InferRequest, form: PieceForm, context: Context, streams: OpenStreams, emit: Emit
) -> bytes:
    """Sends all responses to a request but the last one, and gives that.

    Raises:
        RequestError: it can't be answered, or no further; the service ends.
    """
    asked = form.request
    version = model.describe().version
    left = len(asked.prompts) * asked.sampling.n
    final = b""
    with streams.one() as end, form.errors():
        try:
            async with await model.generate(asked, context) as running:
                async for piece in running:
                    form.add(piece)
                    if piece.finish is not None:
                        left -= 1
                    elif not piece.text:
                        continue
                    outputs = form.outputs(piece, running.prompt_tokens)
                    message = wire.encode_infer_response(
                        InferResponse(model.name, version, outputs, request.id),
                        request,
                        final=not left,
                        parameters=_parameters(asked, piece),
                    )
                    if left:
                        await emit(message)
                    else:
                        final = message
        except asyncio.CancelledError:
            if not end.has_cancelled():
                raise
            raise shutting_down() from None
    return final


def _parameters(asked: GenerationRequest, piece: Piece) -> dict[str, int | str | bool]:
    found: dict[str, int | str | bool] = dict(place_of(asked, piece.prompt, piece.choice, "instance"))
    if piece.finish is not None:
        found["finish_reason"] = piece.finish
    return found
