"""Damaged requests for both V2 codecs, reproducible by their seed, and the invariants of decoding."""

from __future__ import annotations

import tracemalloc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from typing import Any

import orjson

from hf_transformer.errors import RequestError
from hf_transformer.protocol import grpc_server_codec, rest_server_codec
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.rest import parse_header_length
from hf_transformer.protocol.server_codec import InferRequest
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.tasks.question_answering import QuestionAnswering
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tasks.sequence_classification import SequenceClassification
from hf_transformer.tasks.tensors import read_instances

MAX_ELEMENTS = 2048
FIELDS = (SequenceClassification.fields, QuestionAnswering.fields, Rerank.fields)
MAX_ALLOCATED_PER_BYTE = 64
"""Allocated bytes per byte of a body: `[],` in JSON is a Python list of 56 bytes, and a pointer to it."""

# Damage

NUMBERS = (0, 1, 2, 3, 4, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**48, 2**60, 2**63 - 1)
ODD_BYTES = (
    *(number.to_bytes(size, "little") for size in (1, 2, 4, 8) for number in NUMBERS if number < 256**size),
    *(b'"', b"[", b"]", b"{", b"}", b",", b":", b"\\", b"\\ud800", b"null", b"1e308", b"-1", b"[[[[", b'"":', b"\xff"),
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # 2**64 - 1 as a varint
)
"""Bytes that have broken codecs: limits of integers, JSON's own characters, broken UTF-8."""

DEEP = "deep"
"""A placeholder for nested lists, at the depth limit of JSON parsers and beyond Python's recursion limit."""
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "x", "BYTES", "INT64", "\0", "é" * 300, DEEP, 0.5, -0.0, -1, *NUMBERS, 2**64 - 1, 1e308),
    *([], {}, [[], []], [[1], 1], [2**40, 2**40], [0, 2**40], [2**40, 0], [1] * 40, [-1], ["a"] * 50),
    *({"name": "text", "parameters": {"binary_data": True}}, {"shared_memory_region": "x"}),
)
"""Unexpected values for a place in JSON."""
ODD_KEYS = ("name", "data", "shape", "datatype", "parameters", "id", "binary_data_size", "binary_data_output", "x", "")


def dump(value: Any) -> bytes:
    """JSON text, with DEEP as nested lists."""
    return orjson.dumps(value).replace(b'"%b"' % DEEP.encode(), b"[" * 1000 + b"]" * 1000)


def mutations(seed: bytes, random: Random) -> Iterator[bytes]:
    """Bodies that differ from a valid one in a few bytes."""
    while True:
        body = bytearray(seed)
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            _damage(body, random)
        yield bytes(body)


def _damage(body: bytearray, random: Random) -> None:
    start = random.randrange(len(body) + 1)
    end = min(start + random.choice((1, 1, 2, 4, 8, 64)), len(body))
    match random.randrange(7):
        case 0:
            body[start:end] = b""
        case 1:
            body[start:start] = body[start:end] * random.choice((1, 1, 2, 50))
        case 2:
            body[start:start] = random.choice(ODD_BYTES)
        case 3:
            piece = random.choice(ODD_BYTES)
            body[start : start + len(piece)] = piece
        case 4:
            del body[start:]
        case 5:
            body[start:end] = random.randbytes(end - start)
        case _:
            if start < len(body):
                body[start] ^= 1 << random.randrange(8)


def json_mutations(seed: Any, random: Random) -> Iterator[Any]:
    """JSON values that differ from a valid one in a few places."""
    while True:
        value = seed
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            value = _mutate(value, random)
        yield value


def _mutate(value: Any, random: Random) -> Any:
    if not isinstance(value, list | dict) or not value or random.random() < 0.15:
        return random.choice(ODD_VALUES)
    key = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    match random.randrange(8):
        case 0:
            del copy[key]
        case 1 if isinstance(value, dict):
            copy[random.choice(ODD_KEYS)] = copy.pop(key)
        case 1:
            copy.insert(key, value[key])
        case 2 if isinstance(value, dict):
            copy[random.choice(ODD_KEYS)] = random.choice(ODD_VALUES)
        case _:
            copy[key] = _mutate(value[key], random)
    return copy


# Invariants

Body = tuple[bytes, str | None]
"""A body and, over REST, the value of the HTTP header with the length of its JSON."""


class Bodies(ABC):
    """Damaged bodies for one codec, and checks of its decoding."""

    base_allocation = 64 * 1024
    """Bytes that decoding may allocate for any body."""

    @abstractmethod
    def bodies(self, random: Random) -> Iterator[Body]:
        """Damaged copies of valid bodies."""

    @abstractmethod
    def read(self, body: Body) -> InferRequest:
        """Decodes a body."""

    def decode(self, body: Body) -> InferRequest | None:
        """The request, None where it is refused. Another exception is a bug of the codec."""
        try:
            request = self.read(body)
        except (Malformed, RequestError) as error:
            assert len(str(error)) < 2000, f"a message of {len(str(error))} characters"
            return None
        for fields in FIELDS:
            try:
                read_instances(request.inputs, fields)
            except RequestError as error:
                assert len(str(error)) < 2000, f"a message of {len(str(error))} characters"
        return request

    def assert_bounded(self, body: Body) -> None:
        """Checks the memory that Python allocates. The codec limits protobuf's own through the number of fields."""
        tracemalloc.start()
        try:
            self.decode(body)
            allocated = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        limit = self.base_allocation + MAX_ALLOCATED_PER_BYTE * len(body[0])
        assert allocated <= limit, f"{allocated} bytes for {len(body[0])}: {body!r:.2000}"

    def fuzz(self, count: int, seed: int, sample: int = 100) -> int:
        """Decodes ``count`` bodies, measures every ``sample``-th one, and returns the number of valid ones."""
        accepted = 0
        for number, body in enumerate(islice(self.bodies(Random(seed)), count)):
            try:
                accepted += self.decode(body) is not None
            except BaseException as error:
                raise AssertionError(f"body {number} of seed {seed}: {body!r:.2000}") from error
            if number % sample == 0:
                self.assert_bounded(body)
        return accepted


# REST


def framed(texts: list[bytes]) -> bytes:
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def tensor(name: str, shape: list[int], **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": shape, **more}


RAW_TEXTS = framed([b"The capital of France is [MASK].", "Überraschung".encode()])
RAW_NUMBERS = bytes(range(16))
SIZED = {"parameters": {"binary_data_size": len(RAW_TEXTS)}}
PAIR = [tensor("question", [1, 1], data=[["Who?"]]), tensor("context", [1], data=["Nobody."])]
WANTED = {"name": "output-0", "parameters": {"binary_data": False}}
FLAGS = {"top_k": 3, "binary_data_output": True}
MIXED = [
    tensor("query", [1], data=["rain"]),
    tensor("texts", [1, 2], **SIZED),
    {"name": "x", "datatype": "INT32", "shape": [4], "parameters": {"binary_data_size": 16}},
    {"name": "y", "datatype": "FP32", "shape": [2, 1], "data": [[0.5], [1]]},
]
HEADERS: tuple[tuple[dict[str, Any], bytes], ...] = (
    ({"inputs": [tensor("text", [2], data=["Hello.", "Привет"])]}, b""),
    ({"id": "17", "model_name": "bert", "parameters": FLAGS, "inputs": PAIR, "outputs": [WANTED]}, b""),
    ({"inputs": [tensor("text", [2], **SIZED)], "outputs": [WANTED]}, RAW_TEXTS),
    ({"inputs": MIXED}, RAW_TEXTS + RAW_NUMBERS),
)
"""Valid bodies: a header, and the raw elements behind it."""


class RestBodies(Bodies):
    """Bodies with damage in their JSON, their bytes, or the HTTP header with the length."""

    def bodies(self, random: Random) -> Iterator[Body]:
        texts = [(dump(header), raw) for header, raw in HEADERS]
        headers = [json_mutations(header, random) for header, _ in HEADERS]
        whole = [mutations(text + raw, random) for text, raw in texts]
        lengths = (None, "", "-1", "x", "1e3", "٣", "1" * 50, *map(str, NUMBERS))
        while True:
            index = random.randrange(len(HEADERS))
            text, raw = texts[index]
            kind = random.randrange(10)
            if kind < 5:
                text = dump(next(headers[index]))
                yield text + raw, str(len(text)) if raw or random.random() < 0.5 else None
            elif kind < 9:
                yield next(whole[index]), str(len(text)) if raw else None
            else:
                yield text + raw, random.choice(lengths)

    def read(self, body: Body) -> InferRequest:
        length = None if body[1] is None else parse_header_length(body[1].encode())
        return rest_server_codec.decode_infer_request(body[0], length, MAX_ELEMENTS)


# gRPC


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


DATATYPES = ("BYTES", "INT8", "UINT64", "BOOL", "FP16", "BF16", "FP64", "", "TYPE_STRING", "x" * 500)
NAMES = ("", "text", "binary_data", "binary_data_size", "shared_memory_region", "é" * 300, "\0")


def _damage_message(message: pb.ModelInferRequest, random: Random) -> None:
    entry, name = random.choice(message.inputs), random.choice(NAMES)
    changes: tuple[Callable[[], object], ...] = (
        lambda: entry.shape.extend(random.choices((-1, *NUMBERS), k=random.choice((1, 1, 2, 33)))),
        lambda: entry.shape and entry.shape.pop(),
        lambda: setattr(entry, "datatype", random.choice(DATATYPES)),
        lambda: setattr(random.choice((entry, *message.outputs)), "name", name),
        lambda: entry.contents.bytes_contents.extend([random.choice(ODD_BYTES)] * random.choice((1, 5000))),
        lambda: entry.contents.bool_contents.extend([True] * random.choice((1, 5000))),
        lambda: message.raw_input_contents.append(random.choice((b"", *ODD_BYTES, RAW_TEXTS, RAW_NUMBERS * 1000))),
        lambda: setattr(random.choice((message, entry)).parameters[name], "int64_param", 16),
        lambda: setattr(random.choice((message, entry)).parameters[name], "string_param", "x" * 300),
    )
    random.choice(changes)()


class GrpcBodies(Bodies):
    """Messages with damage in a few fields, or in their bytes."""

    base_allocation = 512 * 1024

    def bodies(self, random: Random) -> Iterator[Body]:
        valid = (typed_request(), raw_request())
        whole = [mutations(message.SerializeToString(), random) for message in valid]
        while True:
            index = random.randrange(len(valid))
            if random.random() < 0.5:
                yield next(whole[index]), None
                continue
            message = pb.ModelInferRequest()
            message.CopyFrom(valid[index])
            for _ in range(random.choice((1, 1, 2))):
                _damage_message(message, random)
            yield message.SerializeToString(), None

    def read(self, body: Body) -> InferRequest:
        grpc_server_codec.request_id(body[0])
        return grpc_server_codec.decode_infer_request(body[0], MAX_ELEMENTS)
