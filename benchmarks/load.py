"""Request bodies, single calls, and two load generators: wrk and NVIDIA's perf_analyzer."""

from __future__ import annotations

import csv
import http.client
import json
import math
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.cases import DIMENSIONS, Case, Model
from benchmarks.repository import ANSWER
from hf_transformer.commands.loopback import HOST

HEADER: Final = "Inference-Header-Content-Length"
SCRIPT: Final = Path(__file__).with_name("wrk.lua")
WRK_SECONDS: Final = 60
"""Grace period for wrk after the end of a run."""
PROGRAM_SECONDS: Final = 30
"""Timeout of perf_analyzer, which may hang if its figures do not stabilize."""
WINDOWS: Final = 3
WINDOW_MS: Final = 500
"""perf_analyzer's number of measurement windows, and the minimum length of each."""


class LoadFailed(Exception):
    """A load generator failed, or returned no usable figures."""


@dataclass(frozen=True, slots=True)
class Load:
    """One run: answered requests, seconds, percentiles of latency, failed requests.

    ``served`` also counts the answers to unmeasured requests, which cost CPU time too. ``beside`` is the rate of the
    other clients, in requests/s.
    """

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    errors: int = 0
    served: int | None = None
    beside: float | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """The body of one request. ``json_length`` is the start of Triton's binary part, 0 without one."""

    content: bytes
    json_length: int = 0


@dataclass(frozen=True, slots=True)
class Region:
    """A registered region of shared memory with ``slots`` for one output each."""

    name: str
    slot_bytes: int
    slots: int

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.slots * self.slot_bytes


def v1_bodies(requests: Sequence[Sequence[str]]) -> list[Body]:
    """Bodies of KServe's V1 protocol."""
    return [Body(json.dumps({"instances": texts}).encode()) for texts in requests]


def v2_bodies(requests: Sequence[Sequence[str]]) -> list[Body]:
    """Bodies of the open inference protocol with binary strings, for the service."""
    bodies = []
    for texts in requests:
        encoded = [text.encode() for text in texts]
        raw = b"".join(len(one).to_bytes(4, "little") + one for one in encoded)
        parameters = {"binary_data_size": len(raw)}
        tensor = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "parameters": parameters}
        wanted = [{"name": "output-0", "parameters": {"binary_data": True}}]
        header = json.dumps({"inputs": [tensor], "outputs": wanted}).encode()
        bodies.append(Body(header + raw, len(header)))
    return bodies


def ensemble_bodies(texts: Sequence[str]) -> list[Body]:
    """Bodies of the open inference protocol with the text as a string, for Triton's ensemble."""
    tensors = ({"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]} for text in texts)
    return [Body(json.dumps({"inputs": [tensor]}).encode()) for tensor in tensors]


def binary_bodies(model: Model, ids: Sequence[Sequence[int]], region: Region | None) -> list[Body]:
    """Bodies with tensors in Triton's binary form; Triton returns the output in the same form, or in the region."""
    return [_binary(model, row, region, index) for index, row in enumerate(ids)]


def _binary(model: Model, ids: Sequence[int], region: Region | None, index: int) -> Body:
    tensors = {name: tensor.astype(np.int64) for name, tensor in tensors_of(model, ids).items()}
    inputs = [
        {"name": name, "shape": [1, len(ids)], "datatype": "INT64", "parameters": {"binary_data_size": tensor.nbytes}}
        for name, tensor in tensors.items()
    ]
    parameters: dict[str, Any] = {"binary_data": True}
    if region is not None:
        parameters = {
            "shared_memory_region": region.name,
            "shared_memory_offset": index % region.slots * region.slot_bytes,
            "shared_memory_byte_size": region.slot_bytes,
        }
    text = json.dumps({"inputs": inputs, "outputs": [{"name": model.output, "parameters": parameters}]}).encode()
    return Body(text + b"".join(tensor.tobytes() for tensor in tensors.values()), len(text))


def tensors_of(model: Model, ids: Sequence[int]) -> dict[str, np.ndarray]:
    """The inputs of a text with these ids; token types are 0."""
    filled = {"input_ids": np.array(ids), "attention_mask": np.ones(len(ids), int)}
    return {name: filled.get(name, np.zeros(len(ids), int)) for name in model.inputs}


def check_prediction(case: Case, prediction: Any) -> None:
    """Raises ValueError for a wrong answer to a text of the case."""
    task = case.model.task
    if task == "text_embedding":
        good = len(prediction) == DIMENSIONS and math.isclose(math.hypot(*prediction), 1.0, abs_tol=1e-3)
    elif task == "fill_mask":
        good = prediction == ANSWER
    else:
        good = prediction == 1
    if not good:
        raise ValueError(f"{case.name}: wrong answer {str(prediction)[:200]}")


def get(port: int, path: str) -> bytes:
    """The body of a GET. Raises ValueError for any status but 200."""
    return _exchange(port, "GET", path, None, {})[0]


def post(port: int, path: str, body: Body) -> Any:
    """The JSON of a POST's answer, None for an empty one. Raises ValueError for any status but 200."""
    headers = {"Content-Type": "application/json"}
    if body.json_length:
        headers = {"Content-Type": "application/octet-stream", HEADER: str(body.json_length)}
    content, length = _exchange(port, "POST", path, body.content, headers)
    return json.loads(content[:length]) if length else None


def _exchange(port: int, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[bytes, int]:
    """The body of an answer, and the length of its JSON part."""
    connection = http.client.HTTPConnection(HOST, port, timeout=60.0)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise ValueError(f"{path} answered {response.status}: {content[:500]!r}")
        return content, int(response.headers.get(HEADER, len(content)))
    finally:
        connection.close()


def run_wrk(url: str, bodies: Sequence[Body], connections: int, seconds: int) -> Load:
    """POSTs the bodies in rotation over a number of connections.

    Raises LoadFailed if wrk fails or gets no answer in time.
    """
    with tempfile.NamedTemporaryFile(prefix="hf-transformer-bench-") as file:
        for body in bodies:
            file.write(b"%d %d\n" % (len(body.content), body.json_length))
            file.write(body.content)
        file.flush()
        times = [f"-d{seconds}s", f"--timeout={WRK_SECONDS}s"]
        command = ["wrk", "-t1", f"-c{connections}", *times, f"-s{SCRIPT}", url, "--", file.name]
        output = run_program(command, None, seconds + WRK_SECONDS)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    figures = json.loads(lines[-1]) if lines else {"requests": 0}
    if not figures["requests"]:
        raise LoadFailed(f"no request was answered within {seconds} s: {output[-500:]}")
    errors = figures.pop("refused") + figures.pop("broken")
    return Load(errors=errors, **figures)


def run_analyzer(
    command: Sequence[str],
    flags: Sequence[str],
    environ: Mapping[str, str],
    connections: int,
    seconds: int,
    count: Callable[[], int],
) -> Load:
    """One run of perf_analyzer; figures are means of its WINDOWS.

    Args:
        command: the program.
        flags: perf_analyzer's flags for model, address and inputs.
        count: returns the server's own count of answers, which includes the warm-up.

    Raises LoadFailed.
    """
    window = max(WINDOW_MS, seconds * 1000 // WINDOWS)
    before = count()
    with tempfile.TemporaryDirectory(prefix="hf-transformer-bench-") as folder:
        table = Path(folder) / "table.csv"
        usual = (
            *(f"--concurrency-range={connections}", f"--max-threads={max(16, connections)}"),
            *("-p", str(window), "-r", str(WINDOWS), "-s", "999", "-f", str(table)),
        )
        run_program([*command, *flags, *usual], environ)
        served = count() - before
        with table.open() as file:
            row = next(csv.DictReader(file), None)
    if row is None:
        raise LoadFailed("perf_analyzer wrote an empty table")
    rate, measured = float(row["Inferences/Second"]), WINDOWS * window / 1000
    p50, p99 = (float(row[f"p{percent} latency"]) / 1000 for percent in (50, 99))
    return Load(round(rate * measured), measured, p50, p99, served=served)


def run_program(command: Sequence[str], environ: Mapping[str, str] | None, seconds: float = PROGRAM_SECONDS) -> str:
    """The output of a load generator. Raises LoadFailed if it fails or exceeds ``seconds``."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=seconds)
    except subprocess.TimeoutExpired as exc:
        raise LoadFailed(f"{command[0]} did not end in {seconds:g} s") from exc
    if ended.returncode:
        raise LoadFailed(f"{command[0]} ended with {ended.returncode}: {ended.stdout[-800:]} {ended.stderr[-800:]}")
    return ended.stdout
