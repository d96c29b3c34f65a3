"""What was measured, as tables for a terminal and as one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from hf_transformer.commands.bench.load import Figures, percentile_ms
from hf_transformer.commands.bench.sweep import Trial
from hf_transformer.commands.terminal import Terminal, table

PERCENTILES: Final = (50, 75, 90, 95, 99, 99.9)
BUSY: Final = 0.7
"""Of a processor: a load generator that uses more may be what is measured."""
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 240, 64, 40
"""Of a chart and its margins, in its own units; the page scales it."""
COLOURS: Final = ("#2f6fdb", "#e07a1f", "#2a9d66", "#b5479a", "#8a6d3b", "#5b5fc7", "#c0392b", "#4a8c9e")
STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5d6877; --line: #d9dee5; --page: #fff }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa5b4; --line: #38414d; --page: #14181e } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem } p, figcaption, th { color: var(--soft) } figure { margin: 1rem 0 }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line) }
th:first-child, td:first-child { text-align: left } svg { width: 100%; height: auto }
svg text { fill: var(--soft); font-size: 12px } svg line { stroke: var(--line) }
"""

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Head and rows."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: how many connections, what came out, and Triton's own means, which may be empty."""

    connections: int
    figures: Figures
    triton: Mapping[str, float]

    @property
    def stages(self) -> dict[str, float]:
        """Mean milliseconds of a request by stage of the service, and what is left of the client's latency."""
        found = self.figures
        if not found.timed or not found.latencies:
            return {}
        stages = {name: total / found.timed for name, total in found.stages.items()}
        mean = sum(found.latencies) / len(found.latencies) * 1000
        return stages | {"HTTP and client": max(0.0, mean - sum(stages.values()))}


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is shown. ``facts``: what was measured, and where. ``texts``: in one request. A sweep has
    ``trials`` and a ``verdict``."""

    facts: Mapping[str, str]
    runs: Sequence[Measured]
    texts: int
    streamed: bool
    trials: Sequence[Trial] = ()
    verdict: str = ""

    @property
    def errors(self) -> Counter[str]:
        """Requests that failed, by reason."""
        return sum((run.figures.errors for run in self.runs), Counter())

    def units(self, run: Measured) -> int:
        """Tokens of streams, else texts."""
        return run.figures.tokens if self.streamed else len(run.figures.latencies) * self.texts

    @property
    def warning(self) -> str:
        """Says where the load generator itself may have been too slow; else empty."""
        busy = max(run.figures.busy for run in self.runs)
        return f"The load generator used {busy:.0%} of a processor: it may be the limit." if busy > BUSY else ""

    @property
    def speeds(self) -> Table:
        """Throughput and latency, a row per run."""
        if self.streamed:
            head = ["streams", "streams/s", "tokens/s", "first token ms: p50", "p99", "between tokens ms: p50", "p99"]
        else:
            head = ["connections", "requests/s", "texts/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms"]
        rows = []
        for run in self.runs:
            found = run.figures
            cells = [found.per_second(one) for one in (len(found.latencies), self.units(run))]
            if self.streamed:
                cells += [percentile_ms(times, percent) for times in (found.first, found.gaps) for percent in (50, 99)]
            else:
                cells += [percentile_ms(found.latencies, percent) for percent in (50, 90, 99, 99.9)]
            rows.append([str(run.connections), *map(number, cells), str(sum(found.errors.values()))])
        return [*head, "errors"], rows

    @property
    def times(self) -> Table:
        """Where the time of a request goes, in milliseconds, a column per run; no rows where nothing is known."""
        runs = [run.stages | {f"Triton: {name}": value for name, value in run.triton.items()} for run in self.runs]
        names = dict.fromkeys(name for run in runs for name in run)
        rows = [[name, *(number(run.get(name, math.nan)) for run in runs)] for name in names]
        return ["mean ms", *(str(run.connections) for run in self.runs)], rows


def number(value: float) -> str:
    """Three digits or more; - for NaN."""
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def print_report(report: Report, terminal: Terminal) -> None:
    """The tables for people."""
    terminal.say(table(*report.speeds, terminal))
    if report.times[1]:
        terminal.say(f"\nWhere the time of a request goes, by {report.speeds[0][0]}\n{table(*report.times, terminal)}")
    for why, count in report.errors.most_common(5):
        terminal.say(terminal.styled(f"{count} x {why}", "red"))
    if report.warning:
        terminal.say(terminal.styled(report.warning, "yellow"))


def html(report: Report) -> str:
    """The whole page."""
    facts = "; ".join(f"{escape(name)}: {escape(value)}" for name, value in report.facts.items())
    parts = [f"<h1>hf-transformer bench</h1><p>{facts}</p><p>{report.warning}</p>"]
    parts.append(f"<p><strong>{escape(report.verdict)}</strong></p>")
    parts.append(f"<h2>Throughput and latency</h2>{html_table(*report.speeds)}")
    rates = [run.figures.per_second(report.units(run)) for run in report.runs]
    names = [str(run.connections) for run in report.runs]
    parts.append(chart(f"{report.speeds[0][2]} by {report.speeds[0][0]}", names, {"": rates}))
    series = {
        f"{run.connections} connections": [percentile_ms(run.figures.latencies, one) for one in PERCENTILES]
        for run in report.runs
    }
    parts.append(chart("Latency of a request in ms, by percentile", [f"p{one:g}" for one in PERCENTILES], series))
    if report.times[1]:
        title = f"Where the time of a request goes, by {report.speeds[0][0]}"
        parts.append(f"<h2>{title}</h2>{html_table(*report.times)}")
    if report.errors:
        rows = [[why, str(count)] for why, count in report.errors.most_common(20)]
        parts.append(f"<h2>Errors</h2>{html_table(['reason', 'requests'], rows)}")
    if report.trials:
        rows = [[one.shown, number(one.throughput or math.nan), one.note] for one in report.trials]
        parts.append(f"<h2>Settings tried</h2>{html_table(['settings', 'throughput/s', ''], rows)}")
    parts.append(
        "<p>Closed loop: each connection sends its next request when it has the answer. The service's stages are those "
        "of its header Server-Timing, Triton's those of its statistics.</p>"
    )
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><style>{STYLE}</style>"
    return (
        f"<!doctype html><html lang=en>{head}<title>hf-transformer bench</title>\n" + "\n".join(parts) + "\n</html>\n"
    )


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; all texts are escaped."""
    lines = [f"<tr>{''.join(f'<td>{escape(cell)}' for cell in row)}" for row in rows]
    return f"<table><tr>{''.join(f'<th>{escape(cell)}' for cell in head)}\n{chr(10).join(lines)}</table>"


def chart(caption: str, places: Sequence[str], series: Mapping[str, Sequence[float]]) -> str:
    """A figure with a line per series over named places; its axis begins at 0. NaN is left out."""
    top = max((one for values in series.values() for one in values if not math.isnan(one)), default=0.0) * 1.05 or 1.0
    across = (WIDTH - LEFT - 24) / max(len(places) - 1, 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - value / top * (HEIGHT - BOTTOM - 16), 1)

    drawn = []
    for value in (0.0, top / 4, top / 2, top * 3 / 4, top):
        drawn.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y(value)}" y2="{y(value)}"/>')
        drawn.append(f'<text x="{LEFT - 8}" y="{y(value) + 4}" text-anchor="end">{number(value)}</text>')
    for index, name in enumerate(places):
        x = LEFT + index * across
        drawn.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{escape(name)}</text>')
    for colour, values in zip(COLOURS, series.values(), strict=False):
        points = [f"{LEFT + index * across:.1f},{y(one)}" for index, one in enumerate(values) if not math.isnan(one)]
        drawn.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        centres = (point.split(",") for point in points)
        drawn += [f'<circle cx="{x}" cy="{centre}" r="3" fill="{colour}"/>' for x, centre in centres]
    said = escape(caption)
    named = zip(COLOURS, filter(None, series), strict=False)
    keys = "".join(f'<b style="color:{colour}"> &#9679; {escape(name)}</b>' for colour, name in named)
    box = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{said}">{"".join(drawn)}</svg>'
    return f"<figure>{box}<figcaption>{said}{keys}</figcaption></figure>"
