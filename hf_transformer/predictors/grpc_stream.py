"""One call of ModelStreamInfer: a request, and its responses until the last."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from hf_transformer.errors import PredictorError
from hf_transformer.predictors.answers import said
from hf_transformer.types import Tensor
from hf_transformer.wire.v2_grpc_stream import decode_stream_response

ERROR_STATUS = ("triton_grpc_error", "true")
"""Metadata that asks Triton (24.08 and newer) to end a stream that fails with the error's own status. Without it, and
from an older one, only its message comes."""


class StreamCall(Protocol):
    """What is used of a call of grpc.aio with one request and many responses."""

    async def read(self) -> object: ...
    def cancel(self) -> bool: ...


async def responses(
    call: StreamCall, outputs: frozenset[str], where: str
) -> AsyncGenerator[Mapping[str, Tensor], None]:
    """The outputs of each response that has any; ends with the call.

    Closed early it cancels the call, which the model sees. ``where`` names the predictor in messages.

    Raises:
        PredictorError: an error of the model's, or what breaks the protocol.
        PredictorUnavailable: an error that says that the predictor can't now.
        grpc.RpcError: the call ended with another status than OK.
    """
    try:
        while isinstance(body := await call.read(), bytes):  # and not grpc.aio.EOF
            error, tensors, final = decode_stream_response(body)
            if error:
                raise said(error, where)
            if tensors:
                if outputs and not tensors.keys() <= outputs:
                    unknown = ", ".join(repr(name) for name in tensors if name not in outputs)
                    raise PredictorError(f"the predictor answered with {unknown}, which was not asked for")
                yield tensors
            if final:
                break
        else:
            return
        # The predictor ends the call by itself; cancelling what has ended would be news to it.
        while isinstance(await call.read(), bytes):
            pass
    finally:
        call.cancel()
