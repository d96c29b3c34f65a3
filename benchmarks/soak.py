"""Whether the service holds more and more of anything, over a long time of everything.

    python -m benchmarks.soak [--minutes 30] [--rate 200] [--triton_environment .venv-triton]

Two services in front of one real Triton, over REST and over gRPC, get all kinds of requests from clients that check
every answer. Memory, descriptors, threads and shared memory of each are read every ten seconds. Writes results/soak.md
and ends with 1 if one of them has grown by more than 2 percent over the second half, or if an answer was wrong or
missing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
import uvloop

from benchmarks.stress.ground import ROOT, Model, Service, lay_out
from benchmarks.stress.mixed_load import Client
from benchmarks.stress.texts import Texts
from benchmarks.stress.usage import Usage, usage_of
from hf_transformer.commands.local_triton import LocalTriton

RESULTS: Final = ROOT / "benchmarks" / "results" / "soak.md"
EMBEDDING: Final = Model("embed", "BertModel")
PROTOCOLS: Final = {"REST to Triton": "v2", "gRPC to Triton": "grpc-v2"}
FLAGS: Final = ("--predictor_shared_memory_min_bytes=16384",)
"""So that a good part of the outputs travels through shared memory."""
CLIENTS: Final = 12
"""Of each service."""
EVERY: Final = 10.0
MOST_GROWTH: Final = 2.0
"""Percent."""
READ: Final[Mapping[str, tuple[str, float]]] = {
    "resident": ("resident, MB", 1e6),
    "descriptors": ("descriptors", 1),
    "threads": ("threads", 1),
    "shared": ("shared memory, MB", 1e6),
}
SLACK: Final = {"resident": 1e6, "descriptors": 3.0, "threads": 1.0, "shared": 0.0}
"""What may come on top of MOST_GROWTH: a connection more or less is no leak."""
ROWS: Final = 20


def growth(values: Sequence[float]) -> tuple[float, float]:
    """How much the line through the second half rises, absolutely and in percent of where it begins."""
    half = np.asarray(values[len(values) // 2 :], np.float64)
    if len(half) < 2:
        return 0.0, 0.0
    slope, start = np.polyfit(np.arange(len(half)), half, 1)
    rise = float(slope) * (len(half) - 1)
    return rise, 100 * rise / float(start) if start else 0.0


def has_grown(what: str, values: Sequence[float]) -> bool:
    """Whether that is more than it may be."""
    rise, percent = growth(values)
    return percent > MOST_GROWTH and rise > SLACK[what]


async def soak(
    services: Mapping[str, Service], seconds: float, rate: float
) -> tuple[list[Client], dict[str, list[Usage]]]:
    """Runs all clients and reads what the services use; ends with the clients."""
    loop = asyncio.get_running_loop()
    texts = Texts()
    clients = [Client(service, texts, seed) for service in services.values() for seed in range(CLIENTS)]
    end = loop.time() + seconds
    running = asyncio.gather(*(client.run(end, rate / len(clients)) for client in clients))
    read: dict[str, list[Usage]] = {name: [] for name in services}
    while not running.done():
        await asyncio.wait((running,), timeout=EVERY)
        if loop.time() < end:
            for name, service in services.items():
                read[name].append(usage_of(service.process.pid))
    await running
    return clients, read


def table_of(name: str, read: Sequence[Usage]) -> tuple[list[str], bool]:
    """What one service used, and whether something has grown."""
    series = {what: [float(getattr(one, what)) for one in read] for what in READ}
    titles = [title for title, _ in READ.values()]
    lines = [f"## {name}\n", "| after s | " + " | ".join(titles) + " |", "|---:" * (len(titles) + 1) + "|"]
    step = max(1, len(read) // ROWS)
    for number in range(0, len(read), step):
        cells = (f"{series[what][number] / unit:.1f}" for what, (_, unit) in READ.items())
        lines.append(f"| {(number + 1) * EVERY:.0f} | " + " | ".join(cells) + " |")
    rises = (f"{growth(values)[1]:+.2f} %" for values in series.values())
    lines += ["| **growth over the second half** | " + " | ".join(rises) + " |", ""]
    return lines, any(has_grown(what, values) for what, values in series.items())


def report(options: argparse.Namespace, clients: Sequence[Client], read: Mapping[str, list[Usage]]) -> tuple[str, int]:
    """The page, and the exit code."""
    counts: Counter[str] = sum((client.counts for client in clients), Counter())
    failures = [failure for client in clients for failure in client.failures]
    tables = {name: table_of(name, values) for name, values in read.items()}
    grown = [name for name, (_, has) in tables.items() if has]
    lines = [
        "# Soak\n",
        f"Written by `python -m benchmarks.soak --minutes {options.minutes:g} --rate {options.rate:g}`. "
        f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}.\n",
        f"{sum(counts.values()):,} requests; {len(failures)} wrong or missing answers.\n",
        "| kind | requests |\n|---|---:|",
        *(f"| {kind} | {count:,} |" for kind, count in sorted(counts.items())),
        "",
        *(line for table, _ in tables.values() for line in table),
        *(f"- {failure}" for failure in failures[:20]),
        f"More than {MOST_GROWTH:g} percent of growth: {', '.join(grown) or 'nothing'}.",
        "",
    ]
    return "\n".join(lines), 1 if grown or failures else 0


def main() -> int:
    """Runs it all; 1 if something has grown or failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second, of all clients together")
    parser.add_argument("--triton_environment", type=Path, default=ROOT / ".venv-triton")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hf-transformer-soak-") as name, ExitStack() as stack:
        folder = Path(name)
        triton = stack.enter_context(
            LocalTriton(lay_out(folder, [EMBEDDING]), environment=options.triton_environment, config_name=None)
        )
        services = {
            title: stack.enter_context(Service(folder, EMBEDDING, triton, *FLAGS, protocol=protocol))
            for title, protocol in PROTOCOLS.items()
        }
        for service in services.values():
            service.wait()
        clients, read = uvloop.run(soak(services, 60 * options.minutes, options.rate))
        faults = [title for title, service in services.items() if "Traceback" in service.process.output()]
    page, code = report(options, clients, read)
    if faults:
        page += f"\nA traceback is in the log of: {', '.join(faults)}.\n"
    RESULTS.write_text(page)
    print(page)
    return 1 if faults else code


if __name__ == "__main__":
    sys.exit(main())
