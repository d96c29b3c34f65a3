"""Measures the service's CPU time for a ModelInfer call, relative to a bare grpc.aio server.

    .venv-bench/bin/python -m benchmarks.grpc_calls [--checkout NAME=PATH] [--rounds 6] [--seconds 2] [--in_flight 32]

A real Triton serves the classifier of benchmarks.speed, one short text a call. This service, those of other
checkouts and the bare server take turns in alternating order, under calls of grpc.aio over one connection. Prints one
Markdown table: medians of the rounds, and ratios of CPU time per call to the bare server's, by round. Calls per second
mean little if the client is the slower side; give it a processor of its own. All servers run in the service's
environment; the texts need the tokenizer package that scripts/bench installs.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import uvloop

from benchmarks.cases import CLASSIFIER, Case, requests_of
from benchmarks.grpc_load import infer_bodies, run_grpc
from benchmarks.load import LoadFailed
from benchmarks.pairs import Checkout, add_flags, environment, paired
from benchmarks.processes import ROOT, ServiceProcess, cpu_seconds, variables
from benchmarks.repository import lay_out
from hf_transformer.commands.local_triton import HOST, ChildProcess, LocalTriton, free_ports, poll
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb

BARE: Final = "bare grpc.aio"
OURS: Final = "this"


@dataclass(slots=True)
class Server:
    """One server, with calls per second and CPU ms per call of each round."""

    name: str
    child: ChildProcess
    port: int
    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def measure(self, bodies: Sequence[bytes], in_flight: int, seconds: float) -> None:
        """Adds the figures of a round."""
        before = cpu_seconds(self.child)
        load = run_grpc(self.port, bodies, in_flight, seconds)
        if load.errors:
            raise LoadFailed(f"{self.name}: {load.errors} calls failed")
        self.rates.append(load.requests / load.seconds)
        self.cpu.append(1e3 * (cpu_seconds(self.child) - before) / load.requests)


async def serve_bare(port: int) -> None:
    """Answers each call with the same message until SIGTERM."""
    answer = pb.ModelInferResponse(model_name=CLASSIFIER.name, model_version="1")
    answer.outputs.add(name="output-0", datatype="INT64", shape=[1])
    answer.raw_output_contents.append(bytes(8))
    content = answer.SerializeToString()

    async def infer(body: bytes, context: Any) -> bytes:
        return content

    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    handlers = {"ModelInfer": grpc.unary_unary_rpc_method_handler(infer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"{HOST}:{port}")
    await server.start()
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    await over.wait()
    await server.stop(0)


def start(
    folder: Path, triton: LocalTriton, python: Path, checkouts: Sequence[Checkout], own_python: bool, stack: ExitStack
) -> list[Server]:
    """Starts this service, other checkouts and the bare server, which end with the stack."""
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
    port = free_ports(1)[0]
    command = [str(python), "-m", "benchmarks.grpc_calls", f"--bare={port}"]
    bare = ChildProcess(command, variables(), folder / "bare.log")
    stack.callback(bare.terminate, 10.0)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, port)) == 0

    if not poll(listens, 60.0):
        raise SystemExit(f"{BARE} did not get ready:\n{bare.output()}")
    servers = [Server(name, process.wait().child, process.grpc_port) for name, process in started.items()]
    return [*servers, Server(BARE, bare, port)]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6, help="[6]")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run [2]")
    parser.add_argument("--in_flight", type=int, default=32, help="calls [32]")
    parser.add_argument("--service_environment", type=environment, default=ROOT / ".venv", help="[.venv]")
    parser.add_argument("--triton_environment", type=environment, default=ROOT / ".venv-triton", help="[.venv-triton]")
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    add_flags(parser)
    options = parser.parse_args()
    if options.bare:
        uvloop.run(serve_bare(options.bare))
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
                server.measure(bodies, options.in_flight, options.seconds)
    bare = servers[-1].cpu[1:]  # the first round warms up
    print("| server | calls/s | CPU ms per call | CPU over bare | 95 % |\n|---|---:|---:|---:|---|")
    for server in servers:
        rate, cpu = statistics.median(server.rates[1:]), server.cpu[1:]
        print(f"| {server.name} | {rate:,.0f} | {statistics.median(cpu):.3f} | {paired(cpu, bare)} |")
    for server in servers[1:-1]:
        print(f"\nCPU of this over {server.name}: {paired(servers[0].cpu[1:], server.cpu[1:])}")


if __name__ == "__main__":
    main()
