"""Mutated bodies for the V2 codec over HTTP: how to make them, and what has to hold for each."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from hf_transformer.protocol.inbound import InferRequest
from hf_transformer.protocol.rest import parse_header_length
from hf_transformer.protocol.rest_inbound import decode_infer_request
from tests.protocol.fuzzing import MAX_ELEMENTS, peak, request_in, run
from tests.protocol.mutations import NUMBERS, dump, json_mutations, mutations

PER_BYTE, AT_LEAST = 64, 64 * 1024
"""Bytes that may be allocated per byte of a body: `[],` in JSON is a Python list of 56 bytes, and a pointer to it."""

Body = tuple[bytes, str | None]
"""A body, and the value of the HTTP header with the length of its JSON."""


def framed(texts: list[bytes]) -> bytes:
    """The elements of a BYTES tensor as they are sent."""
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def tensor(name: str, shape: list[int], **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": shape, **more}


RAW_TEXTS = framed([b"The capital of France is [MASK].", "Überraschung".encode()])
RAW_NUMBERS = bytes(range(16))
VALID: tuple[tuple[dict[str, Any], bytes], ...] = (
    ({"inputs": [tensor("text", [2], data=["Hello.", "Привет"])]}, b""),
    (
        {
            "id": "17",
            "model_name": "bert",
            "parameters": {"top_k": 3, "binary_data_output": True},
            "inputs": [tensor("question", [1, 1], data=[["Who?"]]), tensor("context", [1], data=["Nobody."])],
            "outputs": [{"name": "output-0", "parameters": {"binary_data": False}}],
        },
        b"",
    ),
    (
        {
            "inputs": [tensor("text", [2], parameters={"binary_data_size": len(RAW_TEXTS)})],
            "outputs": [{"name": "output-0", "parameters": {"binary_data": True}}],
        },
        RAW_TEXTS,
    ),
    (
        {
            "inputs": [
                tensor("query", [1], data=["rain"]),
                tensor("texts", [1, 2], parameters={"binary_data_size": len(RAW_TEXTS)}),
                {"name": "x", "datatype": "INT32", "shape": [4], "parameters": {"binary_data_size": 16}},
                {"name": "y", "datatype": "FP32", "shape": [2, 1], "data": [[0.5], [1]]},
            ]
        },
        RAW_TEXTS + RAW_NUMBERS,
    ),
)
"""Headers of valid bodies, and the raw elements behind them."""


def bodies(random: Random) -> Iterator[Body]:
    """Valid bodies, each damaged: in its JSON, its bytes, or the length that its header gives."""
    texts = [(dump(header), raw) for header, raw in VALID]
    headers = [json_mutations(header, random) for header, _ in VALID]
    whole = [mutations(text + raw, random) for text, raw in texts]
    lengths = (None, "", "-1", "x", "1e3", "٣", "1" * 50, *map(str, NUMBERS))
    while True:
        index = random.randrange(len(VALID))
        text, raw = texts[index]
        kind = random.randrange(10)
        if kind < 5:
            text = dump(next(headers[index]))
            yield text + raw, str(len(text)) if raw or random.random() < 0.5 else None
        elif kind < 9:
            yield next(whole[index]), str(len(text)) if raw else None
        else:
            yield text + raw, random.choice(lengths)


def decode(body: Body) -> InferRequest | None:
    """The request, or None for a body that was refused."""
    return request_in(
        lambda: decode_infer_request(
            body[0], None if body[1] is None else parse_header_length(body[1].encode()), MAX_ELEMENTS
        )
    )


def assert_bounded(body: Body) -> None:
    allocated = peak(lambda: decode(body))
    assert allocated <= AT_LEAST + PER_BYTE * len(body[0]), f"{allocated} bytes for {len(body[0])}: {body!r:.2000}"


def fuzz(count: int, seed: int, sample: int = 100) -> int:
    """Decodes so many mutated bodies; how many of them were valid still."""
    return run(bodies, decode, assert_bounded, count, seed, sample)
