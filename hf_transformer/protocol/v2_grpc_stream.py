"""ModelStreamInfer: the V2 protocol's requests with any number of responses, as bytes <-> tensors. No sockets."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from hf_transformer.by_identity import ByIdentity
from hf_transformer.errors import PredictorError
from hf_transformer.protocol.datatypes import Malformed, raw_view
from hf_transformer.protocol.message_fields import DELIMITED, parts, with_field
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.v2_grpc import PLAIN, decode_tensors, plain_tensors
from hf_transformer.types import Tensor

EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"
"""The request's parameter that asks for a last response where the model has nothing more to send either."""

FINAL_RESPONSE = "triton_final_response"
"""The response's parameter that says whether it is the last one."""


class StreamResponse(NamedTuple):
    """One message of a stream. ``error`` is empty where there is none; ``final`` says that nothing more comes."""

    error: str
    outputs: dict[str, Tensor]
    final: bool


KEPT_HEADS = 256
"""Requests of which what stands before the raw contents is kept: a model's differ in their prompts' lengths alone."""

KEPT_INPUTS, LONGEST_KEPT = 256, 1024
"""Tensors whose contents are kept, and their bytes."""


class _Input(NamedTuple):
    """What a request says of a tensor, and its raw contents as they stand there."""

    said: tuple[object, ...]
    contents: bytes


_SAID, _CONTENTS = itemgetter(0), itemgetter(1)


class StreamEncoder:
    """Writes the requests of one model. What stands before their raw contents is written once for each shape of the
    inputs (measured with nine of them: half the time of writing all), and so is a value that nobody can change: most of
    a request's tensors are the very same as the last one's."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._heads: dict[tuple[object, ...], bytes] = {}
        self._kept = ByIdentity[_Input](KEPT_INPUTS)

    def encode(self, inputs: Sequence[Tensor], outputs: Sequence[str]) -> bytes:
        """A serialized ModelInferRequest with raw contents, whose responses end with one that says so.

        Raises:
            PredictorError: an input's data doesn't fit its datatype.
        """
        kept = self._kept
        found = [kept.get(id(one)) or self._input(one) for one in inputs]
        key = (*outputs, *map(_SAID, found))
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) == KEPT_HEADS:
                self._heads.clear()
            head = self._heads[key] = self._head(inputs, outputs)
        return b"".join((head, *map(_CONTENTS, found)))

    def _input(self, tensor: Tensor) -> _Input:
        try:
            raw = raw_view(tensor)
        except Malformed as exc:
            raise PredictorError(f"the request can't be written: {exc}") from exc
        data, size = tensor.data, len(raw)
        contents = _SHORT_CONTENTS[size] + raw if size < 128 else with_field(b"", RAW_INPUT_CONTENTS, (raw,))
        found = _Input((tensor.name, tensor.datatype, data.shape), contents)
        if data.size == 1 and size <= LONGEST_KEPT and not data.flags.writeable:
            self._kept.keep(tensor, found)
        return found

    def _head(self, inputs: Sequence[Tensor], outputs: Sequence[str]) -> bytes:
        request = pb.ModelInferRequest(model_name=self._model_name)
        request.parameters[EMPTY_FINAL_RESPONSE].bool_param = True
        for name in outputs:
            request.outputs.add(name=name)
        for one in inputs:
            request.inputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
        return request.SerializeToString()


def decode_stream_response(body: bytes) -> StreamResponse:
    """What a serialized ModelStreamInferResponse says; its tensors are views into bytes that nobody else has.

    Such a message is small, so protobuf's class parses it whole, as it does small ones of ModelInfer.

    Raises:
        PredictorError: the message breaks the protocol.
    """
    try:
        message = pb.ModelStreamInferResponse.FromString(body)
        if message.error_message:
            return StreamResponse(message.error_message, {}, False)
        response = message.infer_response
        parameters = response.parameters
        final = FINAL_RESPONSE in parameters and parameters[FINAL_RESPONSE].bool_param
        outputs = response.outputs
        if not outputs:
            return StreamResponse("", {}, final)
        raw = response.raw_output_contents
        tensors = plain_tensors(outputs, raw) or decode_tensors(outputs, [memoryview(contents) for contents in raw])
        return StreamResponse("", tensors, final)
    except DecodeError as exc:
        raise PredictorError(f"the predictor's response is malformed: not a ModelStreamInferResponse: {exc}") from exc
    except Malformed as exc:
        raise PredictorError(f"the predictor's response is malformed: {exc}") from exc


KEPT_LAYOUTS = 64
"""Layouts that are kept: messages have a few lengths, as tokens have."""
PATIENCE = 256
"""Messages of other lengths, once so many are kept, after which all are forgotten."""


class StreamDecoder:
    """``decode_stream_response`` for the messages of one model's streams.

    These differ in little but their raw contents. What stands around them is parsed once for each length of a message,
    and compared from then on, which takes a third of the time or less. Last messages are parsed each.
    """

    def __init__(self) -> None:
        self._layouts: dict[int, _Layout] = {}
        self._others = 0

    def decode(self, body: bytes) -> StreamResponse:
        """What a message says. Raises PredictorError as decode_stream_response does."""
        found = self.usual(body)
        if found is not None:
            return found
        response = decode_stream_response(body)
        if response.outputs and not response.final and self._has_room(len(body)):
            made = _layout_of(body, response)
            if made is not None:
                self._layouts[len(body)] = made
        return response

    def _has_room(self, length: int) -> bool:
        """Whether the layout of messages of this length is kept."""
        if len(self._layouts) < KEPT_LAYOUTS or length in self._layouts:
            return True
        self._others += 1
        if self._others < PATIENCE:
            return False
        self._others = 0
        self._layouts.clear()
        return True

    def usual(self, body: bytes | memoryview) -> StreamResponse | None:
        """What a message says that looks like one before it; None for any other."""
        layout = self._layouts.get(len(body))
        return None if layout is None or type(body) is not bytes else layout.read(body)


class _Room(NamedTuple):
    """Where a tensor's contents stand; ``dtype`` is None for one element of BYTES."""

    name: str
    datatype: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    start: int
    end: int


class _Layout(NamedTuple):
    """A message, not the last one, without its raw contents: the pieces between them and where they begin, and the
    rooms for contents."""

    pieces: list[tuple[int, int, bytes]]
    rooms: list[_Room]

    def read(self, body: bytes) -> StreamResponse | None:
        """What a message of the same length says, None if it is another one."""
        for start, end, piece in self.pieces:
            if body[start:end] != piece:
                return None
        tensors: dict[str, Tensor] = {}
        for name, datatype, dtype, shape, start, end in self.rooms:
            if dtype is not None:
                tensors[name] = Tensor(name, datatype, np.ndarray(shape, dtype, body, start))
            elif int.from_bytes(body[start : start + 4], "little") == end - start - 4:
                data = np.empty(shape, np.object_)
                data.fill(body[start + 4 : end])
                tensors[name] = Tensor(name, datatype, data)
            else:
                return None
        return StreamResponse("", tensors, False)


def _layout_of(body: bytes, response: StreamResponse) -> _Layout | None:
    """The layout of a message that was read; None for an unusual one."""
    outer = [*parts(memoryview(body))]
    if len(outer) != 1 or outer[0].key != _INFER_RESPONSE:
        return None
    piece_start, position = 0, len(body) - len(outer[0].value)
    spans, pieces = [], []
    for part in parts(outer[0].value):
        position += len(part.whole)
        if part.key == _RAW_CONTENTS:
            start = position - len(part.value)
            spans.append((start, position))
            pieces.append((piece_start, start, body[piece_start:start]))
            piece_start = position
    pieces.append((piece_start, len(body), body[piece_start:]))
    rooms = []
    if len(spans) != len(response.outputs):
        return None
    for tensor, (start, end) in zip(response.outputs.values(), spans, strict=True):
        dtype = PLAIN.get(tensor.datatype)
        size = tensor.data.size
        if size * dtype.itemsize != end - start if dtype is not None else (tensor.datatype, size) != ("BYTES", 1):
            return None
        rooms.append(_Room(tensor.name, tensor.datatype, dtype, tensor.data.shape, start, end))
    return _Layout(pieces, rooms)


_INFER_RESPONSE = 2 << 3 | DELIMITED
"""The key of ModelStreamInferResponse.infer_response."""

_RAW_CONTENTS = 6 << 3 | DELIMITED
"""The key of ModelInferResponse.raw_output_contents."""

RAW_INPUT_CONTENTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER

_SHORT_CONTENTS = [bytes((RAW_INPUT_CONTENTS << 3 | DELIMITED, size)) for size in range(128)]
"""What stands before contents of fewer than 128 bytes."""
