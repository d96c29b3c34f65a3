"""ModelStreamInfer, towards the predictor."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from hf_transformer.errors import PredictorError
from hf_transformer.protocol.grpc import (
    KEPT_HEADS,
    KEPT_INPUTS,
    KEPT_LAYOUTS,
    PATIENCE,
    StreamDecoder,
    StreamEncoder,
    StreamResponse,
    decode_stream_response,
)
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.types import Tensor


def response(*tensors: tuple[str, str, list[int], bytes], final: bool | None = None) -> bytes:
    message = pb.ModelStreamInferResponse()
    for name, datatype, shape, raw in tensors:
        message.infer_response.outputs.add(name=name, datatype=datatype, shape=shape)
        message.infer_response.raw_output_contents.append(raw)
    if final is not None:
        message.infer_response.parameters["triton_final_response"].bool_param = final
    return message.SerializeToString()


IDS = ("output_ids", "INT32", [1, 1, 2], np.array([5, 6], "<i4").tobytes())


def test_a_request_asks_for_a_last_response() -> None:
    body = StreamEncoder("gpt2").encode([Tensor("input_ids", "INT32", np.array([[1, 2]], "<i4"))], ["output_ids"])
    request = pb.ModelInferRequest.FromString(body)
    assert request.model_name == "gpt2"
    assert request.parameters["triton_enable_empty_final_response"].bool_param
    assert [one.name for one in request.inputs] == ["input_ids"]
    assert [one.name for one in request.outputs] == ["output_ids"]
    assert list(request.raw_input_contents) == [np.array([1, 2], "<i4").tobytes()]


@pytest.mark.parametrize("final", [None, False, True])
def test_a_response(final: bool | None) -> None:
    text = ("text_output", "BYTES", [1], b"\x02\x00\x00\x00\xc3\xa9")
    for tensors in ([IDS], [IDS, text]):
        error, outputs, last = decode_stream_response(response(*tensors, final=final))
        assert (error, last) == ("", bool(final))
        assert list(outputs) == [one[0] for one in tensors]
        assert outputs["output_ids"].datatype == "INT32"
        assert outputs["output_ids"].data.tolist() == [[[5, 6]]]
    assert outputs["text_output"].data.tolist() == ["é".encode()]


def test_a_last_response_without_outputs() -> None:
    assert decode_stream_response(response(final=True)) == ("", {}, True)


def test_an_error() -> None:
    body = pb.ModelStreamInferResponse(error_message="why").SerializeToString()
    assert decode_stream_response(body) == ("why", {}, False)


@pytest.mark.parametrize(
    "datatype",
    ["UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT64", "FP16", "FP32", "FP64", "BOOL", "BF16"],
)
def test_every_datatype(datatype: str) -> None:
    size = {"8": 1, "L": 1, "6": 2, "2": 4, "4": 8}[datatype[-1]]
    _, outputs, _ = decode_stream_response(response(("a", datatype, [3], bytes(3 * size))))
    assert outputs["a"].data.tolist() == [0, 0, 0]


def test_empty_outputs() -> None:
    _, outputs, _ = decode_stream_response(response(("a", "INT32", [1, 0], b""), IDS))
    assert (outputs["a"].data.shape, outputs["output_ids"].data.size) == ((1, 0), 2)


def test_typed_contents() -> None:
    message = pb.ModelStreamInferResponse()
    output = message.infer_response.outputs.add(name="a", datatype="INT64", shape=[2])
    output.contents.int64_contents.extend([1, 2])
    assert decode_stream_response(message.SerializeToString()).outputs["a"].data.tolist() == [1, 2]


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xff",
        response(("a", "INT32", [2], b"\x00" * 4)),
        response(("a", "INT32", [-1], b"\x00" * 4)),
        response(("a", "INT32", [-1, -1], b"\x00" * 4)),
        response(("a", "INT33", [1], b"\x00" * 4)),
        response(IDS, IDS),
        response(("a", "BYTES", [1], b"\x09\x00\x00\x00x")),
        response(IDS)[:-1],
    ],
    ids=["garbage", "too short", "free axis", "two free axes", "unknown datatype", "twice", "cut text", "cut off"],
)
def test_what_breaks_the_protocol(body: bytes) -> None:
    with pytest.raises(PredictorError, match="response is malformed"):
        decode_stream_response(body)


EMPTY = StreamResponse("", {}, False)


def told(response: StreamResponse) -> Any:
    """All of a response, to compare."""
    outputs = [(name, one.name, one.datatype, one.data.tolist(), one.data.dtype) for name, one in response[1].items()]
    return response[0], outputs, response[2]


def token(number: int, final: bool = False, text: bytes = b" a") -> bytes:
    ids = ("output_ids", "INT32", [1, 1, 1], np.array([number], "<i4").tobytes())
    return response(ids, ("text", "BYTES", [1], len(text).to_bytes(4, "little") + text), final=final)


def test_the_messages_of_a_stream_are_read_as_each_alone() -> None:
    decoder = StreamDecoder()
    messages = [token(number, number == 99, b" " + b"x" * (number % 20)) for number in range(100)]
    messages += [response(final=True), pb.ModelStreamInferResponse(error_message="why").SerializeToString()]
    messages += [response(("a", "BOOL", [1], b"\x01")), response(("a", "INT32", [1, 0], b""), IDS), token(5)]
    for message in messages * 2:
        assert told(decoder.decode(message)) == told(decode_stream_response(message))


def test_a_message_that_differs_in_any_byte_is_read_as_it_is() -> None:
    chance = random.Random(3)
    decoder, plain = StreamDecoder(), token(7)
    decoder.decode(plain)
    for place in range(len(plain)):
        for _ in range(8):
            changed = bytearray(plain)
            changed[place] = chance.randrange(256)
            outcomes = []
            for decode in (decode_stream_response, decoder.decode):
                try:
                    outcomes.append(repr(told(decode(bytes(changed)))))
                except PredictorError as error:
                    outcomes.append(str(error))
            assert outcomes[0] == outcomes[1]


def test_a_stream_of_ever_longer_messages_keeps_few_of_them() -> None:
    decoder = StreamDecoder()
    for length in range(3 * KEPT_LAYOUTS):
        decoder.decode(token(1, text=b"x" * length))
    assert len(decoder._layouts) == KEPT_LAYOUTS


def test_lengths_that_come_no_more_make_room_for_others() -> None:
    decoder = StreamDecoder()
    for length in range(KEPT_LAYOUTS):
        decoder.decode(token(1, text=b"x" * length))
    late = token(1, text=b"x" * 2 * KEPT_LAYOUTS)
    for _ in range(PATIENCE):
        assert decoder.usual(late) is None
        decoder.decode(late)
    assert told(decoder.usual(late) or EMPTY) == told(decode_stream_response(late))


def test_only_what_looks_like_a_message_before_is_usual() -> None:
    decoder = StreamDecoder()
    decoder.decode(token(1, final=True))
    assert decoder.usual(token(2, final=True)) is None  # the last one of a stream is never
    assert decoder.usual(token(2, final=False)) is None
    decoder.decode(token(3, final=False))
    assert told(decoder.usual(token(4, final=False)) or EMPTY)[1][0][3] == [[[4]]]
    assert decoder.usual(token(5, final=True)) is None
    assert decoder.usual(memoryview(token(6, final=False))) is None


def test_requests_of_any_shapes_are_those_that_protobuf_writes() -> None:
    encoder = StreamEncoder("gpt2")
    for count in (0, 1, 31, 32, 33, 5000, 1, 33):
        ids = np.arange(count, dtype="<i4").reshape(1, count)
        inputs = [
            Tensor("input_ids", "INT32", ids),
            Tensor("seed", "UINT64", np.array([count], "<u8")),
            Tensor("text", "BYTES", np.array(["é" * count], np.object_)),
        ]
        for outputs in (["output_ids"], [], ["output_ids", "sequence_length"]):
            request = pb.ModelInferRequest.FromString(encoder.encode(inputs, outputs))
            assert [(one.name, one.datatype, list(one.shape)) for one in request.inputs] == [
                ("input_ids", "INT32", [1, count]),
                ("seed", "UINT64", [1]),
                ("text", "BYTES", [1]),
            ]
            assert [one.name for one in request.outputs] == outputs
            assert request.parameters["triton_enable_empty_final_response"].bool_param
            text = ("é" * count).encode()
            assert list(request.raw_input_contents) == [
                ids.tobytes(),
                count.to_bytes(8, "little"),
                len(text).to_bytes(4, "little") + text,
            ]


def test_few_shapes_of_requests_are_kept() -> None:
    encoder = StreamEncoder("gpt2")
    for count in range(2 * KEPT_HEADS + 1):
        encoder.encode([Tensor("input_ids", "INT32", np.zeros((1, count), "<i4"))], [])
    assert len(encoder._heads) == 1


def test_values_that_come_again() -> None:
    encoder = StreamEncoder("gpt2")

    def frozen(name: str, value: int | str, datatype: str = "INT32") -> Tensor:
        tensor = Tensor(name, datatype, np.array([value], np.object_ if datatype == "BYTES" else "<i4"))
        tensor.data.flags.writeable = False
        return tensor

    kept = [frozen("a", 5), frozen("b", 5), frozen("text", "x", "BYTES")]
    changing = Tensor("c", "INT32", np.array([0], "<i4"))
    for count in range(2 * KEPT_INPUTS + 1):
        changing.data[0] = count
        inputs = [*kept, changing, frozen("seed", count)]  # the last one's place in memory is soon another one's
        request = pb.ModelInferRequest.FromString(encoder.encode(inputs, []))
        assert [one.name for one in request.inputs] == ["a", "b", "text", "c", "seed"]
        numbers = [number.to_bytes(4, "little") for number in (5, 5, count, count)]
        assert list(request.raw_input_contents) == [*numbers[:2], b"\1\0\0\0x", *numbers[2:]]
    assert len(encoder._kept) <= KEPT_INPUTS


def test_a_request_whose_data_do_not_fit_says_so() -> None:
    with pytest.raises(PredictorError, match="'a' is INT32, its data is float64"):
        StreamEncoder("gpt2").encode([Tensor("a", "INT32", np.array([0.5]))], [])
