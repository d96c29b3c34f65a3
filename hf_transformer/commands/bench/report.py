"""Tables of results, for a terminal and as a self-contained HTML file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

import numpy as np

from hf_transformer.commands.bench.load import ROWS, Figures
from hf_transformer.commands.bench.sweep import Trial
from hf_transformer.commands.terminal import Terminal, table

PERCENTILES: Final = (50, 90, 99, 99.9)
PAGE: Final = """\
<!doctype html><html lang=en><meta charset=utf-8><title>hf-transformer bench</title><style>
:root {{ color-scheme: light dark }} body {{ font: 15px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }}
th, td {{ padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #8886 }}
td {{ background: linear-gradient(90deg, #48f5 var(--bar, 0%), #0000 0) content-box }}
th:first-child, td:first-child {{ text-align: left }}
</style><h1>hf-transformer bench</h1>
{body}
<p>Closed loop: each connection sends its next request when it has the answer. The service's stages come from its header
Server-Timing, Triton's from its statistics. A bar compares a value with the largest in its column.</p>
"""

Cell = str | float
Table = tuple[str, Sequence[str], Sequence[Sequence[Cell]]]
"""Title, column headings and rows. NaN represents a missing number."""


def speeds(runs: Sequence[Figures], *, streamed: bool) -> Table:
    """Throughput and latency, with a row per run."""
    if streamed:
        head = ["streams", "streams/s", "tokens/s", "first token ms: p50", "p99", "between tokens ms: p50", "p99"]
    else:
        head = ["connections", "requests/s", *(f"p{percent:g} ms" for percent in PERCENTILES)]
    batched = any(ROWS in run.triton for run in runs)
    rows: list[list[Cell]] = []
    for run in runs:
        cells = [run.per_second(len(run.latencies))]
        if streamed:
            cells += [run.throughput, *percentiles(run.first, 50, 99), *percentiles(run.gaps, 50, 99)]
        else:
            cells += percentiles(run.latencies, *PERCENTILES)
        if batched:
            cells.append(run.triton.get(ROWS, math.nan))
        rows.append([str(run.connections), *cells, str(run.errors.total())])
    return "Throughput and latency", [*head, *([ROWS] if batched else []), "errors"], rows


def times(runs: Sequence[Figures]) -> Table:
    """Mean time per request and stage, with a column per run. Without timings the table has no rows."""
    means = [run.means for run in runs]
    names = dict.fromkeys(name for stages in means for name in stages)
    rows: list[list[Cell]] = [[name, *(stages.get(name, math.nan) for stages in means)] for name in names]
    return "Where the time goes, by connections", ["mean ms", *(str(run.connections) for run in runs)], rows


def errors(runs: Sequence[Figures]) -> Table:
    """The ten most frequent reasons for failed requests."""
    counts = sum((run.errors for run in runs), Counter())
    return "Errors", ["requests"], [[f"{count} x {reason}"] for reason, count in counts.most_common(10)]


def tried(trials: Sequence[Trial]) -> Table:
    """The trials of a sweep."""
    rows: list[list[Cell]] = [
        [name, math.nan if run.errors else run.throughput, next(iter(run.errors), "")] for name, run in trials
    ]
    return "Settings tried", ["settings", "throughput/s", ""], rows


def warning(runs: Sequence[Figures]) -> str:
    """A warning if the load generator may limit the result, otherwise an empty string."""
    busy = max(run.busy for run in runs)
    return f"The load generator used {busy:.0%} of a processor: it may be the limit." if busy > 0.7 else ""


def percentiles(times: Sequence[float], *percents: float) -> list[float]:
    """Percentiles, in milliseconds, of times in seconds. Without times, all percentiles are NaN."""
    return [float(np.percentile(times, percent)) * 1000 if len(times) else math.nan for percent in percents]


def cell_text(cell: Cell) -> str:
    """Formats a number with at least three digits, and NaN as a hyphen. Text stays unchanged."""
    if isinstance(cell, str):
        return cell
    if math.isnan(cell):
        return "-"
    return f"{cell:,.0f}" if cell >= 100 else f"{cell:.1f}" if cell >= 10 else f"{cell:.2f}"


def print_tables(tables: Sequence[Table], terminal: Terminal) -> None:
    """Prints all tables that have rows."""
    for title, head, rows in tables:
        if rows:
            terminal.say(f"\n{title}\n{table(head, [list(map(cell_text, row)) for row in rows], terminal)}")


def html(facts: Mapping[str, str], notes: Sequence[str], tables: Sequence[Table]) -> str:
    """Renders the page as HTML with escaped text. Skips empty notes."""
    parts = [f"<p>{escape('; '.join(f'{name}: {value}' for name, value in facts.items()))}</p>"]
    parts += [f"<p><strong>{escape(note)}</strong></p>" for note in notes if note]
    for caption, head, rows in tables:
        if rows:
            body = "\n".join(f"<tr>{''.join(map(_cell, row, _largest(rows)))}" for row in rows)
            parts.append(
                f"<h2>{caption}</h2><table><tr>{''.join(f'<th>{escape(title)}' for title in head)}\n{body}</table>"
            )
    return PAGE.format(body="\n".join(parts))


def _largest(rows: Sequence[Sequence[Cell]]) -> list[float]:
    """The largest number in each column, or 0.0 for a column without numbers."""
    numbers = [[cell for cell in column if isinstance(cell, float)] for column in zip(*rows, strict=True)]
    return [float(np.nanmax([0.0, *column])) for column in numbers]


def _cell(cell: Cell, largest: float) -> str:
    """Renders a cell as HTML, with a bar behind a number."""
    share = cell / largest if isinstance(cell, float) and largest else 0.0
    return f"<td{f' style=--bar:{share:.0%}' if share > 0 else ''}>{escape(cell_text(cell))}"
