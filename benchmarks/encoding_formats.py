"""Measures what each form of vectors costs in an answer: bytes and CPU time per number of the vector.

    python -m benchmarks.encoding_formats [--rounds 15]

Each row quantizes the vectors and writes the answer with the service's own functions, in one thread. All forms take
turns; the figures are the fastest turns, since other processes only add time. Random vectors of length 1 stand for
those of a model: their digits are as many. The answers are those of OpenAI's embeddings, of /v1/multi-vector and of V2
with binary tensors, from which gRPC differs by some bytes for each answer. Prints a Markdown table: for each shape the
bytes of the answer for each number of the vectors, and the millions of such numbers in a second of CPU time.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import orjson

from benchmarks.report import machine
from hf_transformer import __version__
from hf_transformer.api.documents import to_base64
from hf_transformer.api.large_json import write_in_steps
from hf_transformer.tasks.quantization import quantize

Vectors: TypeAlias = Any
Render: TypeAlias = Callable[[Vectors], bytes]


@dataclass(frozen=True, slots=True)
class Shape:
    """Vectors of an answer: of ``texts`` texts, each with ``tokens`` vectors (0 for a single one)."""

    name: str
    texts: int
    tokens: int
    size: int

    def make(self) -> Vectors:
        """Returns float32 [texts, size], or [texts, tokens, size]."""
        shape = (self.texts, self.tokens, self.size) if self.tokens else (self.texts, self.size)
        vectors = np.random.default_rng(1).standard_normal(shape, np.float32)
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


SHAPES: Final = (
    Shape("32 vectors of 384", 32, 0, 384),
    Shape("32 vectors of 1,024", 32, 0, 1024),
    Shape("vectors of 180 tokens of 32 texts, 128 each", 32, 180, 128),
)


def as_json(precision: str) -> Render:
    return lambda vectors: _answer([quantize(vector, precision) for vector in vectors])


def as_base64(precision: str) -> Render:
    def render(vectors: Vectors) -> bytes:
        rows = [quantize(vector, precision) for vector in vectors]
        if vectors.ndim > 2:
            return _answer([[to_base64(row) for row in tokens] for tokens in rows])
        return _answer([to_base64(row) for row in rows])

    return render


def _answer(rows: list[Any]) -> bytes:
    data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
    return write_in_steps({"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 1}})


def as_tensor(precision: str) -> Render:
    def render(vectors: Vectors) -> bytes:
        rows = quantize(vectors, precision)
        parameters = {"binary_data_size": rows.nbytes}
        tensor = {"name": "embedding", "datatype": "FP32", "shape": rows.shape, "parameters": parameters}
        header = orjson.dumps({"model_name": "m", "outputs": [tensor]})
        return b"".join([header, rows.tobytes()])

    return render


FORMS: Final[Mapping[str, Render]] = {
    "numbers": as_json("float32"),
    "numbers, int8": as_json("int8"),
    "numbers, binary": as_json("binary"),
    "base64": as_base64("float32"),
    "base64, int8": as_base64("int8"),
    "base64, binary": as_base64("binary"),
    "binary tensor of V2 or gRPC": as_tensor("float32"),
    "binary tensor, int8": as_tensor("int8"),
    "binary tensor, binary": as_tensor("binary"),
}
"""The forms of an answer by name: numbers or base64 in JSON, each with a precision, and tensors of bytes."""


def measure(vectors: Vectors, rounds: int) -> Mapping[str, tuple[float, float]]:
    """Returns the bytes per number and the millions of numbers per CPU second of each form."""
    seconds: dict[str, list[float]] = {name: [] for name in FORMS}
    sizes = {name: len(render(vectors)) / vectors.size for name, render in FORMS.items()}
    repeats = max(1, 200_000 // vectors.size)
    for _ in range(rounds):
        for name, render in FORMS.items():
            started = time.thread_time()
            for _ in range(repeats):
                render(vectors)
            seconds[name].append((time.thread_time() - started) / repeats)
    return {name: (sizes[name], vectors.size / min(seconds[name]) / 1e6) for name in FORMS}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="turns of each form [15]")
    options = parser.parse_args()
    versions = f"hf-transformer {__version__}, Python {platform.python_version()}, orjson {orjson.__version__}"
    print(f"{versions}, {machine()}.\n")
    columns = [f"{shape.name}: bytes | million/s" for shape in SHAPES]
    print(f"| form | {' | '.join(columns)} |\n|---|{'---:|' * (2 * len(SHAPES))}")
    results = [measure(shape.make(), options.rounds) for shape in SHAPES]
    for name in FORMS:
        cells = [f"{size:.2f} | {rate:,.0f}" for size, rate in (result[name] for result in results)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
