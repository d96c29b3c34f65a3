"""What the service does when ten times as much is asked of it as it can do.

    python -m benchmarks.overload [--seconds 6] [--triton_environment .venv-triton] [--only short]

A real Triton runs classifiers that take a known time for each token, so that the capacity is known and is not that of
the machine. First the peak is found: so many clients, each with one request after the other, that the model is never
idle. Then ten times the peak is offered in an open loop. Every answer is checked. Writes results/overload.md and ends
with 1 where a goal was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.stress.ground import ROOT, Service, lay_out
from benchmarks.stress.open_loop import Generator, Request, request_of
from benchmarks.stress.overload_cases import CASES, STUCK, Case, limits_of, requests_of
from benchmarks.stress.overload_report import HEAD, Peak, Round, missed, refused_alike, report, row_of
from benchmarks.stress.texts import Texts
from benchmarks.stress.usage import cpu_seconds, forget_peak, usage_of
from hf_transformer.commands.local_triton import LocalTriton

RESULTS: Final = ROOT / "benchmarks" / "results" / "overload.md"
TIMES: Final = 10
PATIENCE: Final = 3.0
"""Seconds until a client gives up."""
CLIENTS: Final = (32, 64)
"""How many clients ask in turn while the peak is looked for: enough that the next batch always waits."""


def find_peak(service: Service, case: Case, requests: Sequence[Request], seconds: float) -> Peak:
    """The best of several numbers of clients."""
    best = Peak(0.0, 0.0, 0.0)
    for clients in CLIENTS:
        before = cpu_seconds(service.process.pid)
        generator = asked_in_turn(service, requests, clients, seconds)
        outcomes = list(generator.outcomes.values())
        goodput = case.instances(generator.outcomes) / seconds
        answered = sum(len(one.right) for one in outcomes)
        if not answered or answered != sum(one.sent for one in outcomes):
            raise SystemExit(f"not all answers were right without overload: {outcomes}")
        rate = sum(one.in_time for one in outcomes) / seconds
        if goodput > best.goodput:
            best = Peak(goodput, rate, (cpu_seconds(service.process.pid) - before) / answered)
    return best


def asked_in_turn(service: Service, requests: Sequence[Request], clients: int, seconds: float) -> Generator:
    """A closed loop, from its start to its end."""

    async def run() -> Generator:
        generator = Generator(service.port, PATIENCE)
        await generator.ask_in_turn(requests, clients, seconds)
        await generator.close()
        return generator

    return uvloop.run(run())


def overload(
    service: Service, case: Case, limits: str, requests: Sequence[Request], rate: float, seconds: float
) -> Round:
    """One open loop, from its start to the last answer."""
    pid = service.process.pid
    forget_peak(pid)
    before, cpu = usage_of(pid), cpu_seconds(pid)

    async def run() -> tuple[Generator, float]:
        generator = Generator(service.port, PATIENCE)
        offered = await generator.offer(requests, rate, seconds)
        await generator.close()
        return generator, offered

    generator, offered = uvloop.run(run())
    after = usage_of(pid)
    return Round(
        limits,
        offered,
        case.instances(generator.outcomes) / seconds,
        generator.outcomes,
        (before.resident, after.peak, after.resident),
        (cpu_seconds(pid) - cpu) / seconds,
        generator.connections,
    )


def measure_refusals(folder: Path, triton: LocalTriton, texts: Texts, seconds: float) -> list[str]:
    """Rows: the CPU of refusing one request while another one holds the only place."""
    rows = []
    for name, instances, tokens in (("1 instance", 1, 9), ("64 instances", 64, 9), ("1,000 instances", 1000, 60)):
        body = json.dumps({"instances": [texts.make(tokens) for _ in range(instances)]}).encode()
        asked = request_of(name, f"/v1/models/{STUCK.name}:predict", body, b"")
        with Service(folder, STUCK, triton, "--max_concurrent_requests=1") as service:
            service.wait()
            refused, cpu = _refuse(service, asked, texts, seconds)
        rows.append(f"| {name} | {len(body):,} | {refused:,} | {1e6 * cpu / refused:.0f} |")
    return rows


def _refuse(service: Service, asked: Request, texts: Texts, seconds: float) -> tuple[int, float]:
    """How many were refused, and the service's CPU seconds for all of them."""
    body = json.dumps({"instances": [texts.make(9)]}).encode()
    holding = request_of("holding", f"/v1/models/{STUCK.name}:predict", body, b"")

    async def run() -> tuple[int, float]:
        generator = Generator(service.port, 60.0)
        held = asyncio.create_task(generator.ask_in_turn([holding], 1, 0.01))
        await asyncio.sleep(0.2)
        before = cpu_seconds(service.process.pid)
        await generator.ask_in_turn([asked], 16, seconds)
        cpu = cpu_seconds(service.process.pid) - before
        outcome = generator.outcomes[asked.kind]
        if outcome.accepted:
            raise SystemExit(f"{outcome.accepted} of {outcome.sent} requests were not refused")
        held.cancel()
        await generator.close()
        return len(outcome.refused), cpu

    return uvloop.run(run())


def measure(case: Case, folder: Path, triton: LocalTriton, texts: Texts, seconds: float) -> tuple[list[str], list[str]]:
    """The lines of one case, and the goals that it missed."""
    requests = requests_of(case, texts)
    rounds: list[Round] = []
    peak = Peak(0.0, 0.0, 0.0)
    for limits, flags in reversed(limits_of(case).items()):
        with Service(folder, case.model, triton, *flags) as service:
            service.wait()
            if not rounds:
                peak = find_peak(service, case, requests, seconds / 2)
            rounds.append(overload(service, case, limits, requests, TIMES * peak.rate, seconds))
            print(row_of(peak, rounds[-1]), file=sys.stderr, flush=True)
    rounds.reverse()
    lines = [
        f"## {case.name}\n",
        f"The model does {case.tokens_per_second:,.0f} tokens a second. The peak is {peak.rate:.0f} requests a second, "
        f"at {1e6 * peak.cpu:.0f} microseconds of the service's CPU for each.\n",
        HEAD,
        *(row_of(peak, one) for one in rounds),
    ]
    if len(case.shapes) > 1:
        lines.append("\nRefused of each kind: " + "; ".join(map(refused_alike, rounds)) + ".")
    return [*lines, ""], [line for one in rounds for line in missed(case, peak, one)]


def main() -> int:
    """Measures, writes the page; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each overload")
    parser.add_argument("--triton_environment", type=Path, default=ROOT / ".venv-triton")
    parser.add_argument("--only", default="", help="the cases whose name has this")
    options = parser.parse_args()
    lines, misses, texts = [], [], Texts()
    with tempfile.TemporaryDirectory(prefix="hf-transformer-overload-") as name:
        folder = Path(name)
        repository = lay_out(folder, [*(case.model for case in CASES), STUCK])
        with LocalTriton(repository, environment=options.triton_environment, config_name=None) as triton:
            for case in CASES:
                if options.only in case.name:
                    more, bad = measure(case, folder, triton, texts, options.seconds)
                    lines += more
                    misses += bad
            refusals = measure_refusals(folder, triton, texts, options.seconds / 2)
    page = report(lines, refusals, misses, options.seconds)
    print(page)
    if not options.only:
        RESULTS.write_text(page)
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
