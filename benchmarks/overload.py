"""Measures the service under ten times its peak load.

    python -m benchmarks.overload [--seconds 6] [--triton_environment .venv-triton] [--only short]

A real Triton runs classifiers that take a known time for each token, so capacity is known and independent of the
machine. First closed-loop clients keep the model busy, which gives the peak. Then an open loop offers ten times the
peak, with a check of every answer. Writes results/overload.md. The exit code is 1 if a goal was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop
from tokenizers import Tokenizer

from benchmarks.open_loop import Ask, Clients, Outcome, ask
from benchmarks.pairs import environment
from benchmarks.processes import RESULTS, ROOT, ServiceProcess, cpu_seconds, resident_bytes
from benchmarks.repository import CODE, TOKENS, python_config
from hf_transformer import __version__
from hf_transformer.commands.local_triton import LocalTriton

DEMO: Final = ROOT / "deploy" / "model_repository" / "bert"
"""The demo model, whose tokenizer has 1,024 tokens."""
POSITIONS: Final = 128
"""The most tokens of a text."""
LABELS: Final = 64
BATCH: Final = 32
OVERLOAD_FACTOR: Final = 10
PATIENCE_SECONDS: Final = 3.0
"""Timeout of a client."""
CLIENTS: Final = (32, 64)
"""Numbers of closed-loop clients in the search of the peak; they keep the next batch waiting."""
DISTINCT: Final = 64
"""Different requests."""
SPECIAL: Final = 2
"""Special tokens of a text: [CLS] and [SEP]."""
NO_LIMIT: Final = 10**9
NO_LIMITS: Final = "no limits"
SECONDS_OF_TOKENS: Final = 0.4
"""The token budget, as seconds of the model's work."""
GOAL: Final = 0.9
"""Smallest ratio of goodput under overload to the peak, with limits."""
HEAD: Final = """\
| limits | offered, requests/s | goodput, instances/s | of the peak | p50 ms | p99 ms | refused \
| gave up | lost | failed | wrong | MB before, most, after | CPU |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of load: requests of ``shapes`` (instances, tokens of each) in rotation. ``microseconds`` is the model's
    time for a padded token."""

    name: str
    model: str
    microseconds: float
    shapes: tuple[tuple[int, int], ...]

    def limits(self) -> dict[str, tuple[str, ...]]:
        """Name -> flags of each configuration of limits."""
        requests, tokens = 64, int(1e6 / self.microseconds * SECONDS_OF_TOKENS)
        forms = {
            f"`--max_concurrent_requests={requests}`": (requests, NO_LIMIT),
            f"`--max_queued_tokens={tokens}`": (NO_LIMIT, tokens),
            NO_LIMITS: (NO_LIMIT, NO_LIMIT),
        }
        return {
            name: (f"--max_concurrent_requests={most}", f"--max_queued_tokens={budget}")
            for name, (most, budget) in forms.items()
        }

    def goodput(self, outcomes: dict[str, Outcome]) -> int:
        """The number of instances in correct answers during the load."""
        answered = ((count, outcomes.get(kind(count))) for count, _ in self.shapes)
        return sum(count * outcome.in_time for count, outcome in answered if outcome is not None)


CASES: Final = (
    Case("short texts (9 tokens)", "short", 900.0, ((1, 9),)),
    Case("long texts (120 tokens)", "long", 70.0, ((1, 120),)),
    Case("1 and 64 instances (9 tokens each)", "mixed", 25.0, ((1, 9), (64, 9))),
)
STUCK: Final = Case("stuck", "stuck", 700_000.0, ((1, 9),))
"""A model that blocks its slot during the measurement of refusals."""


def kind(instances: int) -> str:
    return f"{instances} instance{'s' if instances > 1 else ''}"


class Texts:
    """Makes random texts of one-token words."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
        self._words = sorted(word for word in self._tokenizer.get_vocab() if word.isascii() and word.isalpha())
        self._random = random.Random(1)

    def make(self, tokens: int) -> str:
        """A text of ``tokens``, special tokens included."""
        return " ".join(self._random.choices(self._words, k=tokens - SPECIAL))

    def label(self, text: str, limit: int = POSITIONS) -> int:
        """The model's label for a text, which is cut at ``limit`` tokens."""
        ids = self._tokenizer.encode(text).ids
        return (sum(ids[: limit - 1]) + ids[-1] if len(ids) > limit else sum(ids)) % LABELS

    def requests(self, case: Case) -> list[Ask]:
        """DISTINCT different requests."""
        made = []
        for number in range(DISTINCT):
            instances, tokens = case.shapes[number % len(case.shapes)]
            chosen = [self.make(tokens) for _ in range(instances)]
            answer = json.dumps({"predictions": [self.label(text) for text in chosen]}, separators=(",", ":"))
            made.append(ask(kind(instances), path_of(case), body_of(chosen), answer.encode()))
        return made


def path_of(case: Case) -> str:
    return f"/v1/models/{case.model}:predict"


def body_of(texts: Sequence[str]) -> bytes:
    return json.dumps({"instances": texts}).encode()


def lay_out(target: Path) -> Path:
    """Writes target/triton, the model repository, and target/<model>, tokenizer and config.json; returns the former."""
    for case in (*CASES, STUCK):
        lay_out_model(target, case.model, microseconds=case.microseconds)
    return target / "triton"


def lay_out_model(target: Path, model: str, *, microseconds: float, run_microseconds: float = 0.0) -> None:
    """Writes target/triton/<model>, a classifier of models/slow_classifier.py, and target/<model>."""
    config = json.loads((DEMO / "config.json").read_text())
    config["architectures"] = ["BertForSequenceClassification"]
    config["id2label"] = {str(label): f"L{label}" for label in range(LABELS)}
    config["label2id"] = {f"L{label}": label for label in range(LABELS)}
    version, folder = target / "triton" / model / "1", target / model
    version.mkdir(parents=True)
    shutil.copyfile(CODE / "slow_classifier.py", version / "model.py")
    outputs = [("logits", "FP32", (LABELS,))]
    settings = python_config(
        model, TOKENS, outputs, batch=BATCH, microseconds=microseconds, run_microseconds=run_microseconds
    )
    (version.parent / "config.pbtxt").write_text(settings)
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copyfile(DEMO / name, folder / name)
    (folder / "config.json").write_text(json.dumps(config))


@dataclass(slots=True)
class Peak:
    """The peak: instances and requests per second, and the service's CPU seconds per request."""

    goodput: float = 0.0
    rate: float = 0.0
    cpu: float = 0.0


def run(
    service: ServiceProcess, work: Callable[[Clients], Awaitable[float | None]], patience: float = PATIENCE_SECONDS
) -> tuple[dict[str, Outcome], float | None]:
    """Runs ``work`` with new clients; returns the outcomes of requests and the result of ``work``."""

    async def clients() -> tuple[dict[str, Outcome], float | None]:
        made = Clients(service.port, patience)
        returned = await work(made)
        await made.close()
        return made.outcomes, returned

    return uvloop.run(clients())


def find_peak(service: ServiceProcess, case: Case, requests: Sequence[Ask], seconds: float) -> Peak:
    """The best throughput over CLIENTS."""
    best = Peak()
    for count in CLIENTS:
        before = cpu_seconds(service.child)
        outcomes, _ = run(service, lambda clients, count=count: clients.ask_in_turn(requests, count, seconds))
        goodput, answered = case.goodput(outcomes) / seconds, sum(len(outcome.right) for outcome in outcomes.values())
        if not answered or answered != sum(outcome.sent for outcome in outcomes.values()):
            raise SystemExit(f"not all answers were right without overload: {outcomes}")
        if goodput > best.goodput:
            rate = sum(outcome.in_time for outcome in outcomes.values()) / seconds
            best = Peak(goodput, rate, (cpu_seconds(service.child) - before) / answered)
    return best


@dataclass(slots=True)
class Round:
    """One overload. ``megabytes`` are memory before, maximum and after; ``cpu`` is the service's share of one CPU."""

    limits: str
    offered: float
    goodput: float
    outcomes: dict[str, Outcome]
    megabytes: tuple[float, float, float]
    cpu: float

    def count(self, name: str) -> int:
        """The sum of a field over all outcomes."""
        return sum(int(getattr(one, name)) for one in self.outcomes.values())

    def row(self, peak: Peak) -> str:
        """A row of the case's table."""
        right = [value for one in self.outcomes.values() for value in one.right]
        quantiles = statistics.quantiles(right, n=100) if len(right) > 1 else [float("nan")] * 99
        counts = " | ".join(str(self.count(name)) for name in ("lost", "failed", "wrong"))
        return (
            f"| {self.limits} | {self.offered:.0f} | {self.goodput:.0f} | {self.goodput / peak.goodput:.2f} | "
            f"{1000 * quantiles[49]:.0f} | {1000 * quantiles[98]:.0f} | "
            f"{100 * self.count('refused') / self.count('sent'):.0f} % | "
            f"{self.count('gave_up')} ({self.count('not_connected')}) | {counts} | "
            f"{', '.join(f'{size:.0f}' for size in self.megabytes)} | {100 * self.cpu:.0f} % |"
        )

    def missed(self, case: Case, peak: Peak) -> list[str]:
        """The missed goals of a configuration with limits."""
        misses = []
        if self.limits != NO_LIMITS:
            if self.goodput < GOAL * peak.goodput:
                misses.append(f"goodput {self.goodput:.0f}/s is under {GOAL} of the peak, {peak.goodput:.0f}/s")
            if bad := sum(self.count(name) for name in ("lost", "gave_up", "wrong", "failed")):
                misses.append(f"{bad} accepted requests did not get their answer")
        return [f"{case.name}, {self.limits}: {line}" for line in misses]


def overload(
    service: ServiceProcess, case: Case, limits: str, requests: Sequence[Ask], rate: float, seconds: float
) -> Round:
    """One open loop, until the last answer."""
    process = Path(f"/proc/{service.child.pid}")
    (process / "clear_refs").write_text("5")  # resets the peak of resident memory (proc(5))
    before, cpu = resident_bytes(service.child), cpu_seconds(service.child)
    outcomes, offered = run(service, lambda clients: clients.offer(requests, rate, seconds))
    status = (process / "status").read_text()
    most = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    sizes = (before / 1e6, most / 1e6, resident_bytes(service.child) / 1e6)
    used = (cpu_seconds(service.child) - cpu) / seconds
    return Round(limits, offered or 0.0, case.goodput(outcomes) / seconds, outcomes, sizes, used)


def measure(case: Case, folder: Path, triton: LocalTriton, texts: Texts, seconds: float) -> tuple[list[str], list[str]]:
    """The lines of one case on the page, and its missed goals."""
    requests = texts.requests(case)
    rounds: list[Round] = []
    peak = Peak()
    for limits, flags in reversed(case.limits().items()):
        with ServiceProcess(triton, folder, case.model, flags) as service:
            service.wait()
            if not rounds:
                peak = find_peak(service, case, requests, seconds / 2)
            rounds.insert(0, overload(service, case, limits, requests, OVERLOAD_FACTOR * peak.rate, seconds))
            print(rounds[0].row(peak), file=sys.stderr, flush=True)
    lines = [
        f"## {case.name}\n",
        f"The model does {1e6 / case.microseconds:,.0f} tokens a second. The peak is {peak.rate:.0f} requests a "
        f"second, at {1e6 * peak.cpu:.0f} microseconds of the service's CPU for each.\n",
        HEAD,
        *(result.row(peak) for result in rounds),
    ]
    if len(case.shapes) > 1:
        lines.append("\nRefused of each kind: " + "; ".join(map(refused_by_kind, rounds)) + ".")
    return [*lines, ""], [line for result in rounds for line in result.missed(case, peak)]


def refused_by_kind(result: Round) -> str:
    """The share of refused requests for each kind."""
    outcomes = sorted(result.outcomes.items())
    shares = (f"{name} {100 * outcome.refused / outcome.sent:.1f} %" for name, outcome in outcomes)
    return f"{result.limits}: " + ", ".join(shares)


def measure_refusals(folder: Path, triton: LocalTriton, texts: Texts, seconds: float) -> list[str]:
    """Rows with the CPU time of a refusal, while another request occupies the only slot."""
    rows = []
    holding = ask("holding", path_of(STUCK), body_of([texts.make(9)]))
    for name, instances, tokens in (("1 instance", 1, 9), ("64 instances", 64, 9), ("1,000 instances", 1000, 60)):
        body = body_of([texts.make(tokens) for _ in range(instances)])
        refused = ask(name, path_of(STUCK), body)
        with ServiceProcess(triton, folder, STUCK.model, ["--max_concurrent_requests=1"]) as service:
            service.wait()

            async def load(clients: Clients, refused: Ask = refused, service: ServiceProcess = service) -> float:
                held = asyncio.create_task(clients.ask_in_turn([holding], 1, 0.01))
                await asyncio.sleep(0.2)
                before = cpu_seconds(service.child)
                await clients.ask_in_turn([refused], 16, seconds)
                held.cancel()
                return cpu_seconds(service.child) - before

            outcomes, cpu = run(service, load, patience=60.0)
        outcome = outcomes[name]
        if outcome.refused != outcome.sent:
            raise SystemExit(f"{outcome.sent - outcome.refused} of {outcome.sent} requests were not refused")
        rows.append(f"| {name} | {len(body):,} | {outcome.refused:,} | {1e6 * (cpu or 0) / outcome.refused:.0f} |")
    return rows


def main() -> int:
    """Measures and writes the page; returns 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="duration of each overload [6]")
    parser.add_argument("--triton_environment", type=environment, default=ROOT / ".venv-triton")
    parser.add_argument("--only", default="", help="only cases whose names contain this; writes no page")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the page [benchmarks/results]")
    options = parser.parse_args()
    lines, misses, texts = [], [], Texts()
    with tempfile.TemporaryDirectory(prefix="hf-transformer-overload-") as name:
        folder = Path(name)
        with LocalTriton(lay_out(folder), environment=options.triton_environment, config_name=None) as triton:
            for case in CASES:
                if options.only in case.name:
                    more, bad = measure(case, folder, triton, texts, options.seconds)
                    lines += more
                    misses += bad
            refusals = measure_refusals(folder, triton, texts, options.seconds / 2)
    page = "\n".join(
        [
            "# Overload\n",
            f"Written by `python -m benchmarks.overload --seconds {options.seconds:g}`. hf-transformer {__version__}, "
            f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}. "
            "[The columns](../README.md#overload).\n",
            *lines,
            "## Refusing\n",
            "One request occupies the only slot; the service refuses all others.\n",
            "| body | bytes | refused | microseconds of CPU each |\n|---|---:|---:|---:|",
            *refusals,
            "",
            "All goals were reached." if not misses else "Goals that were missed:\n\n- " + "\n- ".join(misses),
            "",
        ]
    )
    print(page)
    if not options.only:
        options.results.mkdir(parents=True, exist_ok=True)
        (options.results / "overload.md").write_text(page)
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
