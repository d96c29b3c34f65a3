"""One call of ModelStreamInfer: a request, and its responses until the last."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Protocol

from hf_transformer.errors import PredictorError
from hf_transformer.following import Followed
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
    def peek(self) -> bytes | memoryview | None: ...
    def drop(self) -> object: ...
    def follow(self, wake: Callable[[], object]) -> bool: ...
    def unfollow(self) -> None: ...
    def cancel(self) -> None: ...


Outputs = Mapping[str, Tensor]


def responses(
    begin: Callable[[], Awaitable[StreamCall]],
    outputs: frozenset[str],
    decoder: StreamDecoder,
    where: str,
    seconds: float,
) -> Followed[Outputs]:
    """The outputs of each response that has any; ends with the call.

    Closed early it cancels the call, which the model sees. ``begin`` makes the call; it is made once more if the server
    has not begun with it. ``decoder`` is the model's. ``where`` names the predictor in messages, ``seconds`` is its
    timeout.

    Raises:
        RequestError: the call's, an error of the model's, or what breaks the protocol.
    """
    made = _Responses(begin, outputs, decoder, where, seconds)
    return Followed(made.read(), made)


class _Responses:
    """Those of one call, and a Source of them."""

    def __init__(
        self,
        begin: Callable[[], Awaitable[StreamCall]],
        outputs: frozenset[str],
        decoder: StreamDecoder,
        where: str,
        seconds: float,
    ) -> None:
        self._begin = begin
        self._outputs = outputs
        self._where = where
        self._seconds = seconds
        self._decoder = decoder
        self._call: StreamCall | None = None

    async def read(self) -> AsyncGenerator[Outputs, None]:
        decoder = self._decoder
        try:
            call = self._call = await self._begin()
            try:
                body = await call.read()
            except RpcError as refusal:
                if not refusal.refused:
                    raise
                call = self._call = await self._begin()
                body = await call.read()
            while body is not None:
                error, tensors, final = decoder.decode(body)
                if error:
                    raise said(error, self._where)
                if tensors:
                    if not self._knows(tensors):
                        unknown = ", ".join(repr(name) for name in tensors if name not in self._outputs)
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
            raise mapped(exc, self._where, self._seconds) from exc
        finally:
            if self._call is not None:
                self._call.cancel()

    def take(self) -> Outputs | None:
        """Whatever is not like a response that ``read`` has given is left to that."""
        call = self._call
        body = None if call is None else call.peek()
        found = None if body is None else self._decoder.usual(body)
        if call is None or found is None or not self._knows(found.outputs):
            return None
        call.drop()
        return found.outputs

    def follow(self, wake: Callable[[], object]) -> bool:
        return self._call is not None and self._call.follow(wake)

    def unfollow(self) -> None:
        if self._call is not None:
            self._call.unfollow()

    def _knows(self, tensors: Outputs) -> bool:
        """Whether all were asked for."""
        return not self._outputs or tensors.keys() <= self._outputs
