"""Mutated ModelInferRequests: how to make them, and what has to hold for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from hf_transformer.protocol.grpc_inbound import decode_infer_request, request_id
from hf_transformer.protocol.inbound import InferRequest
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.protocol.fuzz_v2_rest import RAW_NUMBERS, RAW_TEXTS
from tests.protocol.fuzzing import MAX_ELEMENTS, peak, request_in, run
from tests.protocol.mutations import NUMBERS, ODD_BYTES, mutations

PER_BYTE, AT_LEAST = 64, 512 * 1024
"""Bytes that may be allocated per byte of a body, and for the thousand fields that any may have."""


def typed_request() -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="bert", model_version="1", id="17")
    message.parameters["top_k"].int64_param = 3
    message.parameters["binary_data_output"].bool_param = True
    message.parameters["parameters"].string_param = '{"targets": ["a"]}'
    message.parameters["threshold"].double_param = 0.5
    message.parameters["seed"].uint64_param = 2**64 - 1
    message.inputs.add(name="question", datatype="BYTES", shape=[2, 1]).contents.bytes_contents.extend([b"Who?", b"I."])
    message.inputs.add(name="context", datatype="BYTES", shape=[1]).contents.bytes_contents.append("Привет".encode())
    message.inputs.add(name="x", datatype="INT64", shape=[3]).contents.int64_contents.extend([1, -2, 2**60])
    message.inputs.add(name="y", datatype="FP32", shape=[1]).contents.fp32_contents.append(0.5)
    message.outputs.add(name="output-0").parameters["binary_data"].bool_param = False
    message.outputs.add(name="offset_mapping")
    return message


def raw_request() -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="cross")
    message.inputs.add(name="query", datatype="BYTES", shape=[2])
    message.inputs.add(name="texts", datatype="BYTES", shape=[1, 2])
    entry = message.inputs.add(name="z", datatype="BOOL", shape=[4, 4])
    entry.parameters["binary_data_size"].int64_param = len(RAW_NUMBERS)
    message.raw_input_contents.extend([RAW_TEXTS, RAW_TEXTS, RAW_NUMBERS])
    return message


VALID = (typed_request(), raw_request())

Change = Callable[[pb.ModelInferRequest, Random], None]


def _shape(message: pb.ModelInferRequest, random: Random) -> None:
    random.choice(message.inputs).shape[:] = random.choices((-1, *NUMBERS), k=random.choice((0, 1, 1, 2, 2, 3, 33)))


def _datatype(message: pb.ModelInferRequest, random: Random) -> None:
    names = ("BYTES", "INT8", "UINT64", "BOOL", "FP16", "BF16", "FP64", "", "TYPE_STRING", "x" * 500)
    random.choice(message.inputs).datatype = random.choice(names)


def _name(message: pb.ModelInferRequest, random: Random) -> None:
    named: Any = random.choice((*message.inputs, *message.outputs))
    named.name = random.choice(("", "text", "query", "output-0", "é" * 300, "\0"))


def _contents(message: pb.ModelInferRequest, random: Random) -> None:
    contents = random.choice(message.inputs).contents
    random.choice(
        (
            lambda: contents.bytes_contents.append(random.choice(ODD_BYTES)),
            lambda: contents.int64_contents.append(-1),
            lambda: contents.bool_contents.extend([True] * random.choice((1, 5000))),
            lambda: contents.bytes_contents.extend([b""] * random.choice((1, 5000))),
            contents.Clear,
        )
    )()


def _raw(message: pb.ModelInferRequest, random: Random) -> None:
    message.raw_input_contents.append(random.choice((b"", *ODD_BYTES, RAW_TEXTS, RAW_NUMBERS * 1000)))


def _parameter(message: pb.ModelInferRequest, random: Random) -> None:
    holder: Any = random.choice((message, *message.inputs, *message.outputs))
    names = (
        "binary_data",
        "binary_data_output",
        "binary_data_size",
        "shared_memory_region",
        "classification",
        "é" * 99,
    )
    parameter = holder.parameters[random.choice(names)]
    if kind := random.choice((None, "bool", "int64", "string")):
        setattr(parameter, f"{kind}_param", {"bool": True, "int64": 16, "string": "x" * 300}[kind])


CHANGES: tuple[Change, ...] = (_shape, _datatype, _name, _contents, _raw, _parameter)


def bodies(random: Random) -> Iterator[bytes]:
    """Valid messages, each damaged: in a field or two, or in its bytes."""
    whole = [mutations(message.SerializeToString(), random) for message in VALID]
    while True:
        index = random.randrange(len(VALID))
        if random.random() < 0.5:
            yield next(whole[index])
            continue
        message = pb.ModelInferRequest()
        message.CopyFrom(VALID[index])
        for change in random.choices(CHANGES, k=random.choice((1, 1, 2))):
            change(message, random)
        yield message.SerializeToString()


def decode(body: bytes) -> InferRequest | None:
    """The request, or None for a body that was refused."""
    request_id(body)
    return request_in(lambda: decode_infer_request(body, MAX_ELEMENTS))


def assert_bounded(body: bytes) -> None:
    """Of what Python allocates; what protobuf does in C grows with the number of fields, which the codec bounds."""
    allocated = peak(lambda: decode(body))
    assert allocated <= AT_LEAST + PER_BYTE * len(body), f"{allocated} bytes for {len(body)}: {body!r:.2000}"


def fuzz(count: int, seed: int, sample: int = 100) -> int:
    """Decodes so many mutated bodies; how many of them were valid still."""
    return run(bodies, decode, assert_bounded, count, seed, sample)
