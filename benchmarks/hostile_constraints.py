"""Sends hostile constraints to a service in a memory group, while another client asks 20 times a second.

    python -m benchmarks.hostile_constraints [--checkout FOLDER] [--memory 1024] [--at_once 4] [NAME ...]

Starts Triton and, for each constraint, a service of FOLDER (this checkout by default) in a group of version 1 under
/sys/fs/cgroup/memory, which needs root. Prints a row per constraint: the statuses, the seconds until all are answered,
the group's memory at its peak and five seconds later, and the other client's latency.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.demo import default_model_repository
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.commands.loopback import reserved_port
from tests.generation.hostile_constraints import COMPILED
from tests.support.triton_environment import triton_environment

FIELDS: Final = {"json_schema": "json", "regex": "regex", "grammar": "grammar", "choice": "choice"}
PATH: Final = "/openai/v1/completions"
SECONDS: Final = 60.0
"""Time limit of a constraint."""


@contextlib.contextmanager
def memory_group(megabytes: int) -> Iterator[Path]:
    group = Path(f"/sys/fs/cgroup/memory/hostile_constraints_{os.getpid()}")
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(megabytes << 20))
        yield group
    finally:
        poll(lambda: not (group / "cgroup.procs").read_text(), 10)
        group.rmdir()


@contextlib.contextmanager
def service(checkout: Path, triton: str, group: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    flags = [f"--predictor_host={triton}", "--host=127.0.0.1", f"--http_port={port}", "--enable_grpc=false"]
    model = [f"--model_dir={default_model_repository() / 'gpt2'}", "--model_name=gpt2", "--log_level=error"]
    process = subprocess.Popen([sys.executable, "-m", "hf_transformer", *model, *flags], cwd=checkout)
    try:
        (group / "cgroup.procs").write_text(str(process.pid))
        yield process
    finally:
        process.kill()
        process.wait()


def asked(kind: str, source: Any, number: int) -> dict[str, Any]:
    """The same constraint under another key of the cache."""
    if kind == "json_schema":
        source = {**source, "description": str(number)}
    elif kind == "grammar":
        source = f"{source}# {number}\n"
    elif kind == "choice":
        source = [*source, str(number)]
    else:
        source = f"{source}|{number}"
    return {"model": "gpt2", "prompt": "a", "max_tokens": 100, "structured_outputs": {FIELDS[kind]: source}}


async def attack(process: subprocess.Popen[bytes], group: Path, port: int, constraint: Any, at_once: int) -> str:
    latencies: list[float] = []
    statuses: Counter[object] = Counter()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=SECONDS, trust_env=False) as client:
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get("/v2/health/ready")).status_code == 200:
                    break
            await asyncio.sleep(0.1)

        async def probe() -> None:
            began = time.perf_counter()
            with contextlib.suppress(httpx.TransportError):
                await client.post(PATH, json={"model": "gpt2", "prompt": "a", "max_tokens": 1})
            latencies.append(time.perf_counter() - began)

        async def other_client() -> None:
            async with asyncio.TaskGroup() as probes:
                while True:
                    probes.create_task(probe())
                    await asyncio.sleep(0.05)

        async def send(number: int) -> None:
            try:
                response = await client.post(PATH, json=asked(*constraint, number))
                statuses[response.status_code] += 1
            except httpx.TransportError as error:
                statuses[type(error).__name__] += 1

        other_clients = asyncio.create_task(other_client())
        await asyncio.sleep(1)
        began = time.perf_counter()
        await asyncio.gather(*(send(number) for number in range(at_once)))
        took = time.perf_counter() - began
        await asyncio.sleep(5)
        other_clients.cancel()
        await asyncio.wait([other_clients])
    peak, end = (int((group / f"memory.{name}").read_text()) >> 20 for name in ("max_usage_in_bytes", "usage_in_bytes"))
    state = "alive" if process.poll() is None else f"DIED {process.returncode}"
    percentile = statistics.quantiles(latencies, n=100)[98] * 1e3
    return f"{dict(statuses)!s:32} {took:6.1f} {peak:6} {end:6} {percentile:8.0f}  {state}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, default=Path.cwd())
    parser.add_argument("--memory", type=int, default=1024, help="megabytes of the group")
    parser.add_argument("--at_once", type=int, default=4, help="number of hostile requests")
    parser.add_argument("names", nargs="*", default=list(COMPILED))
    options = parser.parse_args()
    print(f"{'constraint':26} {'statuses':32} {'s':>6} {'peak':>6} {'end MB':>6} {'p99 ms':>8}")
    died = 0
    with LocalTriton(default_model_repository(), environment=triton_environment(), models=["gpt2"]) as triton:
        for name in options.names:
            with memory_group(options.memory) as group, reserved_port() as port:
                with service(options.checkout, triton.http_address, group, port) as process:
                    row = asyncio.run(attack(process, group, port, COMPILED[name], options.at_once))
            died += "DIED" in row
            print(f"{name:26} {row}", flush=True)
    return 1 if died else 0


if __name__ == "__main__":
    sys.exit(main())
