"""One call of ModelStreamInfer: a request, and its responses until the last."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from hf_transformer.errors import PredictorError
from hf_transformer.predictor.answers import said
from hf_transformer.predictor.grpc_errors import mapped
from hf_transformer.predictor.grpc_status import RpcError
from hf_transformer.predictor.responses import Outputs, Responses, Watch
from hf_transformer.protocol.grpc import StreamDecoder
from hf_transformer.types import Tensor

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


Begin = Callable[[Sequence[Tensor], Sequence[str], Mapping[str, str]], Awaitable[StreamCall]]


class StreamInfers:
    """What the calls of one model have in common."""

    def __init__(self, begin: Begin, where: str, seconds: float) -> None:
        """begin: makes a call; where: names the predictor in messages; seconds: its timeout, for them."""
        self.begin = begin
        self.where = where
        self.seconds = seconds
        self.decoder = StreamDecoder()
        self.watch: Watch | None = None


class GrpcResponses(Responses):
    """The outputs of each response that has any; ends with the call.

    The call is made when the first is asked for, and once more if the server has not begun with it. Closed early it is
    cancelled, which the model sees.

    Raises:
        RequestError: the call's, an error of the model's, or what breaks the protocol.
    """

    _call: StreamCall | None = None
    _final = False  # whether the predictor has said that nothing more comes

    def __init__(
        self, streams: StreamInfers, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]
    ) -> None:
        """outputs: those wanted, all if there are none."""
        self._streams = streams
        self._watch = streams.watch
        self._inputs = inputs
        self._outputs = outputs
        self._known = frozenset(outputs)
        self._headers = headers

    async def __anext__(self) -> Outputs:
        if self._call is None:
            self.begins()
        try:
            tensors: Outputs = {}
            while not tensors and not self._final and (body := await self._message()) is not None:
                error, tensors, self._final = self._streams.decoder.decode(body)
                if error:
                    raise said(error, self._streams.where)
                if not self._knows(tensors):
                    unknown = ", ".join(repr(name) for name in tensors if name not in self._known)
                    raise PredictorError(f"the predictor answered with {unknown}, which was not asked for")
            if not tensors:
                # The predictor ends the call by itself; cancelling what has ended would be news to it.
                while self._final and await self._message() is not None:
                    pass
                self.close()
        except RpcError as exc:
            raise self.ended(mapped(exc, self._streams.where, self._streams.seconds)) from exc
        except BaseException as error:
            self.ended(error)
            raise
        self.answered()
        if not tensors:
            raise StopAsyncIteration
        return tensors

    async def _message(self) -> bytes | None:
        """The next message, None at the end."""
        call = self._call
        if call is not None:
            return await call.read()
        call = self._call = await self._streams.begin(self._inputs, self._outputs, self._headers)
        try:
            return await call.read()
        except RpcError as refusal:
            if not refusal.refused:
                raise
        call = self._call = await self._streams.begin(self._inputs, self._outputs, self._headers)
        return await call.read()

    def close(self) -> None:
        self._is_over = True
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def take(self) -> Outputs | None:
        """Whatever is not like a response that has come before is left to ``__anext__``."""
        call = self._call
        body = None if call is None else call.peek()
        found = None if body is None else self._streams.decoder.usual(body)
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
        return not self._known or tensors.keys() <= self._known
