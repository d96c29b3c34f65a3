"""Text as it is generated, over ModelStreamInfer with the parameter stream=true: a response per piece.

Each has ``output-0`` BYTES [1], and parameters that say which text it belongs to where there are several: ``instance``
counts the instances, ``choice`` the texts of one. The last piece of a text has ``finish_reason``; the last of all
responses has triton_final_response=true, the others false.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hf_transformer.apis.base import Model
from hf_transformer.apis.generation import generating, place_of
from hf_transformer.apis.streaming import OpenStreams, shutting_down
from hf_transformer.apis.tensors import to_query
from hf_transformer.generation.types import GenerationRequest, Piece
from hf_transformer.tasks.tensors import bytes_tensor
from hf_transformer.types import Context
from hf_transformer.wire import v2_grpc_inbound as wire
from hf_transformer.wire.infer import InferRequest, InferResponse

Emit = Callable[[bytes], Awaitable[None]]
"""Sends a serialized ModelInferResponse that more will follow; waits while the client does not read."""


async def pieces(model: Model, request: InferRequest, context: Context, streams: OpenStreams, emit: Emit) -> bytes:
    """Sends all responses to a request but the last one, and gives that.

    Raises:
        RequestError: it can't be answered, or no further; the service ends.
    """
    asked = generating(model, "a stream").request(to_query(model.task, request))
    version = model.describe().version
    left = len(asked.prompts) * asked.sampling.n
    final = b""
    with streams.one() as end:
        try:
            async with await model.generate(asked, context) as running:
                async for piece in running:
                    if piece.finish is not None:
                        left -= 1
                    elif not piece.text:
                        continue
                    response = InferResponse(model.name, version, [bytes_tensor([piece.text.encode()])], request.id)
                    message = wire.encode_infer_response(
                        response, request, final=not left, parameters=_parameters(asked, piece)
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
