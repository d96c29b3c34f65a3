"""Measures the service's CPU time for a ModelInfer call, relative to a bare grpc.aio server.

    .venv-bench/bin/python -m benchmarks.grpc_calls [--checkout NAME=PATH] [--rounds 6] [--seconds 2] [--in_flight 1 32]

A real Triton serves the classifier of benchmarks.speed, one short text a call. This service, those of other
checkouts and three bare servers take turns in alternating order, under calls of grpc.aio over one connection. The bare
servers answer at once, with grpc.aio, with grpc's synchronous server, and with the same server, whose threads wait for
an event loop. Prints a Markdown table for each number of calls in flight: medians of the rounds, and ratios of CPU time
per call to that of grpc.aio, by round. Calls per second mean little if the client is the slower side; give it a
processor of its own. All servers run in the service's environment; the texts need the tokenizer package that
scripts/bench installs.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import socket
import statistics
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import uvloop

from benchmarks.cases import CLASSIFIER, Case, requests_of
from benchmarks.grpc_load import infer_bodies, run_grpc
from benchmarks.load import LoadFailed, get
from benchmarks.pairs import Checkout, add_flags, environment, paired
from benchmarks.processes import ROOT, ServiceProcess, cpu_seconds, variables
from benchmarks.repository import lay_out
from hf_transformer.commands.child_process import ChildProcess, poll
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.commands.loopback import HOST, reserved_port
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb

OURS: Final = "this"
AIO: Final = "bare grpc.aio"
BARE: Final = {AIO: "aio", "bare synchronous": "threads", "synchronous, with an event loop": "bridge"}
"""Servers that answer at once, and their names on the command line."""
THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one run: calls per second, CPU ms per call, latencies in ms, and rows per batch (0 if unknown)."""

    rate: float
    cpu: float
    p50: float
    p99: float
    rows: float


@dataclass(slots=True)
class Server:
    """One server, with its rounds by the number of calls in flight. ``http_port`` has the metrics of a service."""

    name: str
    child: ChildProcess
    port: int
    http_port: int | None = None
    rounds: dict[int, list[Round]] = field(default_factory=dict)

    def measure(self, bodies: Sequence[bytes], in_flight: int, seconds: float) -> None:
        """Adds the figures of a round."""
        rows, batches = self._batches()
        before = cpu_seconds(self.child)
        load = run_grpc(self.port, bodies, in_flight, seconds)
        if load.errors:
            raise LoadFailed(f"{self.name}: {load.errors} calls failed")
        cpu = 1e3 * (cpu_seconds(self.child) - before) / load.requests
        later_rows, later_batches = self._batches()
        per_batch = (later_rows - rows) / max(later_batches - batches, 1.0)
        figures = Round(load.requests / load.seconds, cpu, load.p50_ms, load.p99_ms, per_batch)
        self.rounds.setdefault(in_flight, []).append(figures)

    def _batches(self) -> tuple[float, float]:
        """Rows and batches so far."""
        if self.http_port is None:
            return 0.0, 0.0
        text = get(self.http_port, "/metrics").decode()
        found = [
            re.search(rf"^hf_transformer_batch_instances_{kind}\S* (\S+)$", text, re.M) for kind in ("sum", "count")
        ]
        rows, batches = (float(match[1]) if match else 0.0 for match in found)
        return rows, batches

    def median(self, in_flight: int, name: str) -> float:
        """The median of a figure, without the first round, which warms up."""
        return float(statistics.median(getattr(figures, name) for figures in self.rounds[in_flight][1:]))

    def cpu(self, in_flight: int) -> list[float]:
        """CPU ms per call of each round but the first."""
        return [figures.cpu for figures in self.rounds[in_flight][1:]]


def answer() -> bytes:
    """The serialized answer of the bare servers."""
    message = pb.ModelInferResponse(model_name=CLASSIFIER.name, model_version="1")
    message.outputs.add(name="output-0", datatype="INT64", shape=[1])
    message.raw_output_contents.append(bytes(8))
    return message.SerializeToString()


async def serve_bare(kind: str, port: int) -> None:
    """Answers each call with the same message until SIGTERM."""
    content, loop = answer(), asyncio.get_running_loop()

    async def infer(body: bytes, context: Any) -> bytes:
        return content

    behavior: Callable[[bytes, Any], Any] = infer
    if kind == "aio":
        server: Any = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    else:
        threads = THREADS if kind == "threads" else 64
        server = grpc.server(ThreadPoolExecutor(threads), options=(("grpc.so_reuseport", 0),))
        behavior = (lambda body, context: content) if kind == "threads" else Bridge(loop, content).infer
    handlers = {"ModelInfer": grpc.unary_unary_rpc_method_handler(behavior)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"{HOST}:{port}")
    started = server.start()
    if kind == "aio":
        await started
    over = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    await over.wait()
    stopped = server.stop(0)
    await (stopped if kind == "aio" else asyncio.to_thread(stopped.wait))


class Bridge:
    """Passes calls from the threads of grpc's synchronous server to a task each on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, content: bytes) -> None:
        self._loop = loop
        self._content = content
        self._calls: deque[threading.Lock] = deque()
        self._is_scheduled = False

    def infer(self, body: bytes, context: Any) -> bytes:
        """Waits in a thread until the event loop has answered."""
        waiting = threading.Lock()
        waiting.acquire()
        self._calls.append(waiting)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._begin)
        waiting.acquire()
        return self._content

    def _begin(self) -> None:
        self._is_scheduled = False
        while self._calls:
            self._loop.create_task(self._answer(self._calls.popleft()))

    async def _answer(self, waiting: threading.Lock) -> None:
        waiting.release()


def start(
    folder: Path, triton: LocalTriton, python: Path, checkouts: Sequence[Checkout], own_python: bool, stack: ExitStack
) -> list[Server]:
    """Starts this service, other checkouts and the bare servers, which end with the stack."""
    services = {OURS: None, **{checkout.name: checkout for checkout in checkouts}}
    flags = [f"--task={CLASSIFIER.task}"]
    started = {
        name: stack.enter_context(
            ServiceProcess(
                triton, folder, CLASSIFIER.name, flags, python=python, checkout=checkout, own_python=own_python
            )
        )
        for name, checkout in services.items()
    }
    bare = [start_bare(name, kind, folder, python, stack) for name, kind in BARE.items()]
    services_ready = [
        Server(name, process.wait().child, process.grpc_port, process.port) for name, process in started.items()
    ]
    return [*services_ready, *bare]


def start_bare(name: str, kind: str, folder: Path, python: Path, stack: ExitStack) -> Server:
    """Starts a bare server, which ends with the stack."""
    port = stack.enter_context(reserved_port())
    command = [str(python), "-m", "benchmarks.grpc_calls", "--bare", kind, str(port)]
    child = ChildProcess(command, variables(), folder / f"{kind}.log")
    stack.callback(child.terminate, 10.0)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, port)) == 0

    if not poll(listens, 60.0):
        raise SystemExit(f"{name} did not get ready:\n{child.output()}")
    return Server(name, child, port)


def report(servers: Sequence[Server], in_flight: int) -> None:
    """Prints the table for a number of calls in flight."""
    bare = next(server for server in servers if server.name == AIO).cpu(in_flight)
    print(f"\n| {in_flight} in flight | calls/s | p50 ms | p99 ms | rows | CPU ms per call | CPU over bare | 95 % |")
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    for server in servers:
        rate, p50, p99, rows, cpu = (server.median(in_flight, name) for name in ("rate", "p50", "p99", "rows", "cpu"))
        shown = f"{rows:.1f}" if rows else ""
        ratio = paired(server.cpu(in_flight), bare)
        print(f"| {server.name} | {rate:,.0f} | {p50:.1f} | {p99:.1f} | {shown} | {cpu:.3f} | {ratio} |")
    ours = servers[0]
    for server in servers[1 : -len(BARE)]:
        rates = [[figures.rate for figures in side.rounds[in_flight][1:]] for side in (ours, server)]
        print(f"\nThis over {server.name}: CPU {paired(ours.cpu(in_flight), server.cpu(in_flight))}", end="")
        print(f" | calls/s {paired(*rates)}")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6, help="[6]")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run [2]")
    parser.add_argument("--in_flight", type=int, nargs="+", default=[1, 32], help="calls [1 32]")
    parser.add_argument("--service_environment", type=environment, default=ROOT / ".venv", help="[.venv]")
    parser.add_argument("--triton_environment", type=environment, default=ROOT / ".venv-triton", help="[.venv-triton]")
    parser.add_argument("--bare", nargs=2, help=argparse.SUPPRESS)
    add_flags(parser)
    options = parser.parse_args()
    if options.bare:
        kind, port = options.bare
        uvloop.run(serve_bare(kind, int(port)))
        return
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        lay_out(folder, folder, None)
        bodies = infer_bodies(CLASSIFIER.name, requests_of(Case(CLASSIFIER, "short"), folder / CLASSIFIER.name))
        at, models = options.triton_environment, [CLASSIFIER.name]
        triton = LocalTriton(folder / "triton", environment=at, environ=variables(), models=models)
        stack.enter_context(triton)
        python = options.service_environment / "bin" / "python"
        servers = start(folder, triton, python, options.checkout, options.own_python, stack)
        for number in range(options.rounds + 1):
            for server in servers if number % 2 else reversed(servers):
                for in_flight in options.in_flight:
                    server.measure(bodies, in_flight, options.seconds)
    for in_flight in options.in_flight:
        report(servers, in_flight)


if __name__ == "__main__":
    main()
