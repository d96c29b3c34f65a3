"""From which size on outputs are faster through shared memory than in the response.

    python benchmarks/shared_memory_threshold.py [--triton FOLDER] [--seconds 0.2] [--rounds 15]

A real Triton answers with as many numbers as it is asked for. Each size is asked for over REST and gRPC, inline and
through shared memory, alternating, one call at a time and 8 side by side. Prints one Markdown table: milliseconds per
call / CPU time of this process per call (Triton's is not in it). Each is the best of many short rounds: what else the
machine does only ever adds to it. The numbers are touched, as a task would: an argmax.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np

from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.predictor import PROTOCOLS
from hf_transformer.predictor.base import Predictor, PredictorSettings
from hf_transformer.predictor.shared_memory import SharedMemory
from hf_transformer.types import Tensor

KIB = 2**10
SIZES = tuple(size * KIB for size in (16, 32, 64, 96, 128, 192, 256, 384, 512, 1024))
CLIENTS = (1, 8)
MODEL = "numbers"
CONFIG = """
name: "numbers"
backend: "python"
max_batch_size: 0
input [ { name: "count", data_type: TYPE_INT64, dims: [ 1 ] } ]
output [ { name: "logits", data_type: TYPE_FP32, dims: [ -1 ] } ]
"""
CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.numbers = np.random.default_rng(0).random(2**22, np.float32)

    def execute(self, requests):
        counts = [int(pb_utils.get_input_tensor_by_name(request, "count").as_numpy()[0]) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("logits", self.numbers[:count])]) for count in counts]
"""


async def call(predictor: Predictor, size: int) -> None:
    count = Tensor("count", "INT64", np.array([size // 4]))
    reply = await predictor.infer([count], ["logits"], {}, sizes={"logits": size})
    reply.tensors["logits"].data.argmax()
    reply.release()


async def timed(predictor: Predictor, size: int, clients: int, seconds: float) -> tuple[float, float]:
    """Wall and CPU milliseconds per call."""
    calls = 0
    end = time.perf_counter() + seconds

    async def client() -> None:
        nonlocal calls
        while time.perf_counter() < end:
            await call(predictor, size)
            calls += 1

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(client() for _ in range(clients)))
    return 1e3 * (time.perf_counter() - wall) / calls, 1e3 * (time.process_time() - cpu) / calls


async def opened(stack: AsyncExitStack, server: LocalTriton) -> Mapping[str, Predictor]:
    """Each way that there is, by its name in the table."""
    ways: dict[str, Predictor] = {}
    for protocol, address in (("v2", server.http_address), ("grpc-v2", server.grpc_address)):
        settings = PredictorSettings(MODEL, address)
        ways[f"{protocol}, inline"] = await stack.enter_async_context(PROTOCOLS[protocol](settings))
        shared = SharedMemory(PROTOCOLS[protocol](settings), 64 * 2**20, 1)
        ways[f"{protocol}, shared"] = await stack.enter_async_context(shared)
        while not shared.use().registered:
            await call(shared, SIZES[0])
    return ways


async def measure(server: LocalTriton, seconds: float, rounds: int, show: Callable[[str], None]) -> None:
    async with AsyncExitStack() as stack:
        ways = await opened(stack, server)
        show(f"| KiB | clients | {' | '.join(ways)} |")
        show("|" + "---|" * (2 + len(ways)))
        for clients in CLIENTS:
            for size in SIZES:
                found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
                for _ in range(rounds):
                    for name, predictor in ways.items():
                        found[name].append(await timed(predictor, size, clients, seconds))
                cells = (
                    " / ".join(f"{min(values):.3f}" for values in zip(*results, strict=True))
                    for results in found.values()
                )
                show(f"| {size // KIB} | {clients} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triton", type=Path, help="folder of a virtual environment with nvidia-pytriton")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder, MODEL, "1")
        version.mkdir(parents=True)
        version.joinpath("model.py").write_text(CODE)
        version.parent.joinpath("config.pbtxt").write_text(CONFIG)
        with LocalTriton(Path(folder), environment=arguments.triton, config_name=None) as server:
            asyncio.run(measure(server, arguments.seconds, arguments.rounds, print))


if __name__ == "__main__":
    main()
