"""The fault suite: known answers from the real Triton under load, while things break.

    python -m tests.faults [--write] [--faults NAME,...] [--setups 0,1,2,3] [--requests N]

Exits 1 if a request ended as none may, or anything was left behind; docs/reliability.md says what is done.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from hf_transformer.commands.local_triton import SHARED_MEMORY
from tests.faults.environment import SETUPS, FaultEnvironment
from tests.faults.faults import FAULTS
from tests.faults.private_namespace import NoNamespace, enter, inside
from tests.faults.records import Record, kinds, statuses
from tests.faults.suite import DRAIN, DRAIN_TITLE, ROUNDS, Result, Suite, drain
from tests.faults.texts import make_texts, write_model_folder

PRIVATE = {fault.name for fault in FAULTS if fault.private}
REQUESTS = 1700
"""Of each fault in each setup: 18 faults in 4 setups make more than 100,000."""
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- begin: written by scripts/test_faults --write -->", "<!-- end -->"
TITLES = {fault.name: fault.title for fault in FAULTS} | {DRAIN: DRAIN_TITLE}
HEAD = (
    "| fault | requests | right | clean errors | not answered | left | wrong "
    "| hanging | first right answer | 99 % right |\n|---|---|---|---|---|---|---|---|---|---|"
)


def row(title: str, results: Sequence[Result]) -> str:
    """One fault, all its runs together; the longest recovery of them."""
    records: list[Record] = [record for result in results for record in result.records]
    seen, errors = kinds(records), statuses(records)
    clean = ", ".join(f"{count:,} × {status}" for status, count in sorted(errors.items())) or "0"
    times = [result.recovery for result in results if result.recovery is not None]
    longest = [f"{max(column):.2f} s" for column in zip(*times, strict=True)] or ["", ""]
    unanswered, left = seen["dropped"] + seen["refused"], seen["left"] + seen["own deadline"]
    cells = [len(records), seen["right"], clean, unanswered, left, seen["wrong"] + seen["bad error"], seen["hang"]]
    texts = [one if isinstance(one, str) else f"{one:,}" for one in cells]
    return f"| {' | '.join([title, *texts, *longest])} |"


def table(results: Sequence[Result]) -> str:
    rows = [
        row(title, [result for result in results if result.fault == name])
        for name, title in TITLES.items()
        if any(result.fault == name for result in results)
    ]
    total = [Result("", "", result.records) for result in results]
    return "\n".join([HEAD, *rows, row("**all**", total)])


def write(results: Sequence[Result]) -> None:
    """Replaces what stands between the markers of docs/reliability.md."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.faults", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="write the table of docs/reliability.md")
    parser.add_argument("--faults", default=",".join(TITLES), help="only these, e.g. kill,hang")
    parser.add_argument("--setups", default="0,1,2,3", help="only these: REST with and without shared memory, gRPC so")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="at least, for each fault in each setup")
    arguments = parser.parse_args()
    try:
        enter(sys.argv[1:])
    except NoNamespace as error:
        print(f"no mount namespace of our own ({error}): two of the faults are left out", file=sys.stderr)
        if arguments.write:
            return 1
    names = [name for name in arguments.faults.split(",") if inside() or name not in PRIVATE]
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="hf-transformer-faults-") as name:
        folder = Path(name)
        write_model_folder(folder / "hugging_face")
        for number in map(int, arguments.setups.split(",")):
            results += run_setup(number, folder, names, arguments.requests)
    print(table(results))
    problems = [f"{one.fault} ({one.setup}): {problem}" for one in results for problem in one.problems]
    if arguments.write and not problems:
        write(results)
    print("\n".join(problems) or "no problems", file=sys.stderr)
    return 1 if problems else 0


def run_setup(number: int, folder: Path, names: Sequence[str], requests: int) -> list[Result]:
    model_folder = folder / "hugging_face"
    results: list[Result] = []
    there = set(SHARED_MEMORY.iterdir())

    def do(work: Callable[[], Result]) -> None:
        began = time.monotonic()
        results.append(result := work())
        done = row(f"{result.fault}, {result.setup}", [result])
        print(f"{time.monotonic() - began:5.1f} s  {done}", *result.problems, sep="\n  PROBLEM ", flush=True)

    with FaultEnvironment(SETUPS[number], folder / str(number), model_folder, make_texts(model_folder)) as environment:
        suite = Suite(environment, requests)
        for fault in FAULTS:
            if fault.name in names:
                do(partial(suite.run, fault))
        if results:
            results[-1].problems.extend(suite.close())
        for flags in ROUNDS if DRAIN in names else ():
            do(partial(drain, environment, *flags))
    if inside() and (left := set(SHARED_MEMORY.iterdir()) - there):
        results[-1].problems.append(f"left in shared memory: {sorted(path.name for path in left)}")
    return results


if __name__ == "__main__":
    sys.exit(main())
