"""The table of docs/reliability.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.faults import drain
from tests.faults.faults import FAULTS
from tests.faults.records import Record, kinds, statuses
from tests.faults.suite import Result

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- begin: written by scripts/test_faults --write -->", "<!-- end -->"
TITLES = {fault.name: fault.title for fault in FAULTS} | {drain.NAME: drain.TITLE}
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
    cells = [
        title,
        f"{len(records):,}",
        f"{seen['right']:,}",
        clean,
        f"{seen['dropped'] + seen['refused']:,}",
        f"{seen['left'] + seen['own deadline']:,}",
        f"{seen['wrong'] + seen['bad error']:,}",
        f"{seen['hang']:,}",
        *longest,
    ]
    return f"| {' | '.join(cells)} |"


def table(results: Sequence[Result]) -> str:
    """A row per fault, and one for all."""
    rows = [
        row(title, [one for one in results if one.fault == name])
        for name, title in TITLES.items()
        if any(one.fault == name for one in results)
    ]
    total = [Result("", "", one.records) for one in results]
    return "\n".join([HEAD, *rows, row("**all**", total)])


def write(results: Sequence[Result]) -> None:
    """Replaces what stands between the markers of the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}", encoding="utf-8")
