"""What the service adds to a stream of tokens, and what stepping many sequences together gains.

    python -m benchmarks.generation [--seconds 5] [--rounds 5] [--triton_environment .venv-triton]
        [--checkout NAME=PATH]

A real Triton runs models whose tokens come at a known pace, so any delay beyond it is that of passing them on. They
are asked by the same number of streams, straight and through the service, over gRPC and over REST, in turn. Then a tiny
GPT-2 whose tokens the service chooses itself is asked by one stream after the other and by 16 at a time. Writes
results/generation.md and ends with 1 where a goal was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.pairs import Checkout, checkout, paired
from benchmarks.streams.clients import Client, GenerateClient, ServiceClient, Timed, TritonClient
from benchmarks.streams.ground import STEPPED, TENSORS, lay_out, model_of
from benchmarks.stress.ground import ROOT, Service
from benchmarks.stress.usage import cpu_seconds
from hf_transformer.commands.local_triton import LocalTriton

RESULTS: Final = ROOT / "benchmarks" / "results" / "generation.md"
MILLISECONDS: Final = 20.0
"""Between two tokens of a stream."""
STREAMS: Final = (1, 32)
PROTOCOLS: Final = {"grpc-v2": "gRPC", "v2": "REST"}
"""Of the service's predictor: Triton's ModelStreamInfer, and its generate_stream."""
OURS: Final = "service"
TOKENS: Final = 100
"""Of each stream at a known pace."""
STEPPED_TOKENS: Final = 100
"""Of each stream of a logits model."""
TOGETHER: Final = 16
MOST_FIRST_MS: Final = 0.5
"""The goal of what the service adds to the time to the first token."""
MOST_CPU_MS: Final = 0.1
"""The goal of its CPU time per token, with the most streams."""
LEAST_GAIN: Final = 4.0
"""The goal of how many times as many tokens a second TOGETHER streams get as one."""
MOST_BUSY: Final = 0.7
"""Of a processor; a load generator that uses more may be what is measured."""


@dataclass(frozen=True, slots=True)
class Run:
    """One subject under one load. ``cpu`` is the service's seconds per token, 0 for Triton alone; ``busy`` is the load
    generator's share of a processor."""

    streams: Sequence[Timed]
    seconds: float
    cpu: float
    busy: float

    @property
    def first_ms(self) -> float:
        """The median time to the first token."""
        return 1000 * statistics.median(one.first for one in self.streams)

    @property
    def late_ms(self) -> float:
        """The 99th percentile of the time between two tokens, beyond the model's own pace."""
        gaps = sorted(gap for one in self.streams for gap in one.gaps)
        return 1000 * gaps[int(0.99 * (len(gaps) - 1))] - MILLISECONDS

    @property
    def per_token_ms(self) -> float:
        """The mean time between two tokens."""
        return 1000 * statistics.fmean(gap for one in self.streams for gap in one.gaps)

    @property
    def rate(self) -> float:
        """Tokens a second, of all streams."""
        return sum(one.count for one in self.streams) / self.seconds


async def load(client: Client, streams: int, tokens: int, seconds: float, cpu: Callable[[], float]) -> Run:
    """So many streams at a time, one after the other for about so long; a first round is not counted."""
    await asyncio.gather(*(client(tokens) for _ in range(streams)))
    found: list[Timed] = []
    end = time.perf_counter() + seconds

    async def one(number: int) -> None:
        await asyncio.sleep(number * MILLISECONDS / 1000 / streams)  # not all tokens at the same moment
        while time.perf_counter() < end or not found:
            found.append(await client(tokens))

    before, own, started = cpu(), time.process_time(), time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(streams)))
    took = time.perf_counter() - started
    count = sum(stream.count for stream in found)
    return Run(found, took, (cpu() - before) / count, (time.process_time() - own) / took)


async def through_service(service: Service, streams: int, tokens: int, seconds: float) -> Run:
    """Streams of OpenAI's completions."""
    client = ServiceClient(service.port, service.model)
    try:
        return await load(client, streams, tokens, seconds, lambda: cpu_seconds(service.process.pid))
    finally:
        await client.close()


async def straight(triton: LocalTriton, protocol: str, model: str, streams: int, seconds: float) -> Run:
    """The same of Triton alone."""
    client = (
        GenerateClient(triton.http_address, model) if protocol == "v2" else TritonClient(triton.grpc_address, model)
    )
    try:
        return await load(client, streams, TOKENS, seconds, lambda: 0.0)
    finally:
        await client.close()


def measure_pace(
    triton: LocalTriton, versions: Mapping[str, Mapping[str, Service]], kind: str, options: argparse.Namespace
) -> tuple[list[str], list[str]]:
    """Rows of one kind of model, and after them the goals that were missed, which begin with an exclamation mark; then
    the rows that compare this version with others.

    ``versions``: the name of a version -> protocol -> its service; OURS is there, and others take turns with it.
    """
    rows, missed, pairs = [], [], []
    for streams in STREAMS:
        for protocol, name in PROTOCOLS.items():
            alone: list[Run] = []
            served: dict[str, list[Run]] = {version: [] for version in versions}
            for number in range(options.rounds):
                alone.append(uvloop.run(straight(triton, protocol, kind, streams, options.seconds)))
                for version in reversed(list(versions)) if number % 2 else versions:
                    service = versions[version][protocol]
                    served[version].append(uvloop.run(through_service(service, streams, TOKENS, options.seconds)))
            rows += pace_rows(f"{kind} | {name}", streams, alone, served[OURS])
            missed += missed_pace(f"{kind} over {name}", streams, alone, served[OURS])
            for version in versions:
                if version != OURS:
                    pairs += pair_rows(f"{kind} | {name} | {streams}", version, served[OURS], served[version])
    return rows + missed, pairs


def pair_rows(where: str, version: str, ours: Sequence[Run], theirs: Sequence[Run]) -> list[str]:
    """A row per figure of this version and another one."""
    figures: dict[str, Callable[[Run], float]] = {
        "first token, ms": lambda run: run.first_ms,
        "service's CPU per token, ms": lambda run: 1000 * run.cpu,
    }
    return [
        f"| {where} | {name} | {version} | {middle(ours, figure):.3f} | {middle(theirs, figure):.3f} | "
        f"{paired([figure(run) for run in ours], [figure(run) for run in theirs])} |"
        for name, figure in figures.items()
    ]


def pace_rows(name: str, streams: int, alone: Sequence[Run], served: Sequence[Run]) -> list[str]:
    """What one model over one protocol, with so many streams, has in the table."""
    rows = []
    for subject, runs in (("Triton alone", alone), ("service", served)):
        cpu = 1000 * middle(runs, lambda run: run.cpu)
        rows.append(
            f"| {name} | {streams} | {subject} | {middle(runs, lambda run: run.first_ms):.2f} | "
            f"{middle(runs, lambda run: run.per_token_ms):.2f} | {middle(runs, lambda run: run.late_ms):.2f} | "
            f"{f'{cpu:.3f}' if cpu else ''} | {100 * middle(runs, lambda run: run.busy):.0f} % |"
        )
    rows.append(f"| {name} | {streams} | *added by the service* | {added_ms(alone, served):.2f} | | | | |")
    return rows


def missed_pace(name: str, streams: int, alone: Sequence[Run], served: Sequence[Run]) -> list[str]:
    """The goals that these runs miss."""
    missed, added = [], added_ms(alone, served)
    if added > MOST_FIRST_MS:
        missed.append(f"!{name}, {streams} streams: {added:.2f} ms more to the first token, goal {MOST_FIRST_MS}")
    cpu = 1000 * middle(served, lambda run: run.cpu)
    if streams == STREAMS[-1] and cpu > MOST_CPU_MS:
        missed.append(f"!{name}, {streams} streams: {cpu:.3f} ms of CPU per token, goal {MOST_CPU_MS}")
    if (busy := max(run.busy for run in (*alone, *served))) > MOST_BUSY:
        missed.append(f"!{name}, {streams} streams: the load generator used {100 * busy:.0f} % of a processor")
    return missed


def added_ms(alone: Sequence[Run], served: Sequence[Run]) -> float:
    """What the service adds to the first token: of each round, whose two runs follow one another; the median."""
    return statistics.median(two.first_ms - one.first_ms for one, two in zip(alone, served, strict=True))


def measure_steps(service: Service, options: argparse.Namespace) -> list[str]:
    """One row of a logits model, and the goal if it was missed."""
    name = service.model
    single, many = [], []
    for _ in range(options.rounds):
        single.append(uvloop.run(through_service(service, 1, STEPPED_TOKENS, options.seconds)))
        many.append(uvloop.run(through_service(service, TOGETHER, STEPPED_TOKENS, options.seconds)))
    one, together = middle(single, lambda run: run.rate), middle(many, lambda run: run.rate)
    gain = statistics.median(two.rate / first.rate for first, two in zip(single, many, strict=True))
    cpu = 1000 * middle(many, lambda run: run.cpu)
    rows = [f"| {name} | {one:,.0f} | {together:,.0f} | {gain:.1f} | {cpu:.3f} |"]
    if gain < LEAST_GAIN:
        rows.append(f"!{name}: {gain:.1f} times the tokens a second at {TOGETHER} streams, goal {LEAST_GAIN}")
    return rows


def middle(runs: Sequence[Run], value: Callable[[Run], float]) -> float:
    """The median over the rounds."""
    return statistics.median(map(value, runs))


def report(
    pace: Sequence[str], pairs: Sequence[str], steps: Sequence[str], options: argparse.Namespace
) -> tuple[str, list[str]]:
    """The page, and the goals that were missed."""
    missed = [line[1:] for line in (*pace, *steps) if line.startswith("!")]
    lines = [
        "# Text generation\n",
        f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}; "
        f"`python -m benchmarks.generation --seconds {options.seconds:g} --rounds {options.rounds}`; medians of the "
        "rounds. ../README.md says what is measured.\n",
        "## Streams at a known pace\n",
        f"Tokens come every {MILLISECONDS:g} ms, and the first one that long after the request.\n",
        "| model | protocol | streams | | first token, ms | per token, ms | p99 later than the pace, ms | "
        "service's CPU per token, ms | load generator |\n|---|---|---:|---|---:|---:|---:|---:|---:|",
        *(line for line in pace if not line.startswith("!")),
        *(
            [
                "\n## This version and others\n",
                "| model | protocol | streams | figure | other | this | other | this / other | 95 % |\n"
                "|---|---|---:|---|---|---:|---:|---:|---|",
                *pairs,
            ]
            if pairs
            else []
        ),
        "\n## Stepping sequences together\n",
        f"| model | tokens/s, one by one | tokens/s, {TOGETHER} at a time | times | service's CPU per token, ms |\n"
        "|---|---:|---:|---:|---:|",
        *(line for line in steps if not line.startswith("!")),
        "\n## Goals\n",
        *([f"- missed: {line}" for line in missed] or ["All are met."]),
    ]
    return "\n".join(lines) + "\n", missed


def main() -> int:
    """Measures, writes the page; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--triton_environment", type=Path, default=ROOT / ".venv-triton")
    parser.add_argument("--only", default="", help="the models whose name has this; nothing is written then")
    parser.add_argument(
        "--checkout",
        action="append",
        default=[],
        type=checkout,
        help="another version, NAME=PATH; nothing is written then",
    )
    options = parser.parse_args()
    checkouts: dict[str, Checkout | None] = {OURS: None, **{one.name: one for one in options.checkout}}
    pace: list[str] = []
    pairs: list[str] = []
    steps: list[str] = []
    with tempfile.TemporaryDirectory(prefix="hf-transformer-generation-") as name:
        folder = Path(name)
        repository = lay_out(folder, MILLISECONDS)
        with LocalTriton(repository, environment=options.triton_environment, config_name=None) as triton:
            for model in (*TENSORS, *STEPPED):
                if options.only not in model:
                    continue
                with ExitStack() as stack:
                    versions = {
                        name: {
                            protocol: stack.enter_context(
                                Service(folder, model_of(model), triton, protocol=protocol, checkout=other)
                            )
                            for protocol in (PROTOCOLS if model in TENSORS else ["grpc-v2"])
                        }
                        for name, other in checkouts.items()
                        if model in TENSORS or name == OURS
                    }
                    for services in versions.values():
                        for service in services.values():
                            service.wait()
                    if model in TENSORS:
                        rows, compared = measure_pace(triton, versions, model, options)
                        pace += rows
                        pairs += compared
                    else:
                        steps += measure_steps(versions[OURS]["grpc-v2"], options)
    page, missed = report(pace, pairs, steps, options)
    print(page)
    if not (options.only or options.checkout):
        RESULTS.write_text(page)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
