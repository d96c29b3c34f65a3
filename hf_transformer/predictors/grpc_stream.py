"""One call of ModelStreamInfer: a request, and its responses until the last."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Protocol

from hf_transformer.errors import PredictorError
from hf_transformer.predictors.answers import said
from hf_transformer.predictors.grpc_errors import mapped
from hf_transformer.predictors.grpc_status import RpcError
from hf_transformer.types import Tensor
from hf_transformer.wire.v2_grpc_stream import StreamDecoder

ERROR_STATUS = ("triton_grpc_error", "true")
"""Metadata that asks Triton (24.08 and newer) to end a stream that fails with the error's own status. Without it, and
from an older one, only its message comes."""


class StreamCall(Protocol):
    """A call with one request and many responses; see grpc_call.StreamingCall."""

    async def read(self) -> bytes | None: ...
    def cancel(self) -> None: ...


async def responses(
    begin: Callable[[], Awaitable[StreamCall]], outputs: frozenset[str], where: str, seconds: float
) -> AsyncGenerator[Mapping[str, Tensor], None]:
    """The outputs of each response that has any; ends with the call.

    Closed early it cancels the call, which the model sees. ``begin`` makes the call; it is made once more if the server
    has not begun with it. ``where`` names the predictor in messages, ``seconds`` is its timeout.

    Raises:
        RequestError: the call's, an error of the model's, or what breaks the protocol.
    """
    decoder = StreamDecoder()
    call: StreamCall | None = None
    try:
        call = await begin()
        try:
            body = await call.read()
        except RpcError as refusal:
            if not refusal.refused:
                raise
            call = await begin()
            body = await call.read()
        while body is not None:
            error, tensors, final = decoder.decode(body)
            if error:
                raise said(error, where)
            if tensors:
                if outputs and not tensors.keys() <= outputs:
                    unknown = ", ".join(repr(name) for name in tensors if name not in outputs)
                    raise PredictorError(f"the predictor answered with {unknown}, which was not asked for")
                yield tensors
            if final:
                break
            body = await call.read()
        else:
            return
        # The predictor ends the call by itself; cancelling what has ended would be news to it.
        while await call.read() is not None:
            pass
    except RpcError as exc:
        raise mapped(exc, where, seconds) from exc
    finally:
        if call is not None:
            call.cancel()
