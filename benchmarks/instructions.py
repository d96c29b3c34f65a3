"""Counts the processor instructions of a request: `make bench ARGS=--instructions`.

The real application answers requests in one process, between transports without sockets (in_process.py), under
valgrind's callgrind. The counts repeat within a thousandth on a busy machine, where times do not. They include what
stands in for clients and predictor, a few percent, and exclude the kernel.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.in_process import forms
from benchmarks.options import Options
from benchmarks.pairs import Checkout
from benchmarks.processes import ROOT, variables

DRIVER: Final = ROOT / "benchmarks" / "in_process.py"
REQUESTS: Final = 500
"""Requests of each form, after a warm-up."""
SECONDS: Final = 1800.0
CALLGRIND: Final = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--combine-dumps=yes")
DUMPS: Final = re.compile(r"^desc: Trigger: Client Request: (.*)\n(?:.*\n)*?summary: (\d+)$", re.MULTILINE)
"""The name and the count of each dump in a file of callgrind."""


@dataclass(frozen=True, slots=True)
class Count:
    """Instructions per request, and the mean number of texts in a batch."""

    instructions: float
    rows: float


def read_counts(dumps: str, output: str, requests: int) -> dict[str, Count]:
    """The counts by form, from callgrind's file and the driver's output."""
    rows: Mapping[str, float] = json.loads(output)
    return {name: Count(int(total) / requests, rows[name]) for name, total in DUMPS.findall(dumps)}


def count(options: Options, checkout: Checkout, folder: Path) -> dict[str, Count]:
    """The counts of a checkout. Raises SystemExit with the driver's errors if it fails."""
    dumps = folder / f"{checkout.name}.callgrind"
    *prefix, python = checkout.command(options.python, options.own_python)
    only = [f"--only={form.name}" for form in options.pick(forms(), lambda form: form.name)]
    command = [*prefix, *CALLGRIND, f"--callgrind-out-file={dumps}", python, "-P", str(DRIVER), *only]
    environ = checkout.environ({**variables(), "PYTHONHASHSEED": "0"})  # for the same order of sets
    command += ["--callgrind", f"--requests={REQUESTS}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=SECONDS)
    if done.returncode or not dumps.is_file():
        raise SystemExit(f"{checkout.name}: the requests could not be counted:\n{done.stderr[-4000:]}")
    return read_counts(dumps.read_text(), done.stdout, REQUESTS)


def measure_instructions(options: Options, folder: Path) -> int:
    """Prints the table; returns the exit code. ``folder`` gets callgrind's files, for callgrind_annotate."""
    if shutil.which("valgrind") is None:
        print("valgrind is not installed (on Debian and Ubuntu: apt install valgrind).", file=sys.stderr)
        return 1
    checkouts = [Checkout("this", ROOT), *options.checkout]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda checkout: count(options, checkout, folder), checkouts))
    print("\n".join(table(dict(zip([checkout.name for checkout in checkouts], results, strict=True)))))
    return 0


def table(results: Mapping[str, Mapping[str, Count]]) -> Sequence[str]:
    """The lines of a Markdown table of counts by version and form. The first version is compared with the others."""
    first, *alternatives = results
    columns = ["form", "texts in a batch", first, *(f"{name} | {first} / {name}" for name in alternatives)]
    lines = [f"| {' | '.join(columns)} |", f"|---|{'---:|' * (2 + 2 * len(alternatives))}"]
    for form, ours in results[first].items():
        cells = [form, f"{ours.rows:.1f}", f"{ours.instructions:,.0f}"]
        for name in alternatives:
            theirs = results[name][form].instructions
            cells += [f"{theirs:,.0f}", f"{ours.instructions / theirs:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
