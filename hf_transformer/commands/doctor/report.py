"""Results for people and for programs."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

import orjson

from hf_transformer.commands.doctor.findings import Result, Status

STATUSES: Sequence[Status] = ("ok", "warning", "failed", "skipped")
_NAME = 18
"""Columns of a check's name."""
_STATUS = max(map(len, STATUSES)) + 2


def exit_code(results: Sequence[Result]) -> int:
    """2 if anything failed, 1 if there are warnings, else 0."""
    found = {one.status for one in results}
    return 2 if "failed" in found else 1 if "warning" in found else 0


def line(result: Result, columns: int) -> str:
    """A row of the table: status, name, what was found, and on lines of its own what to change."""
    margin = " " * (_STATUS + _NAME)
    head = f"{result.status:<{_STATUS}}{result.name:<{_NAME}}"
    rows = _filled(result.found, head, margin, columns)
    if result.change:
        rows += "\n" + _filled(f"-> {result.change}", margin, margin + "   ", columns)
    return rows


def blocked(results: Sequence[Result], columns: int) -> str:
    """The checks that were not made because others failed, in one row; empty if there are none."""
    names = [one.name for one in results if one.blocked]
    if not names:
        return ""
    margin = " " * (_STATUS + _NAME)
    head = f"{'skipped':<{_STATUS}}{f'{len(names)} checks':<{_NAME}}"
    return _filled(f"not made, since others come first: {', '.join(names)}", head, margin, columns)


def _filled(text: str, first: str, following: str, columns: int) -> str:
    return textwrap.fill(
        " ".join(text.split()),
        columns,
        initial_indent=first,
        subsequent_indent=following,
        break_long_words=False,
        break_on_hyphens=False,
    )


def summary(results: Sequence[Result]) -> str:
    """How many there are of each status, and the exit code that follows."""
    counts = Counter(one.status for one in results)
    plural = "s" if counts["warning"] > 1 else ""
    names = {"warning": f"warning{plural}"}
    shown = ", ".join(f"{counts[status]} {names.get(status, status)}" for status in STATUSES if counts[status])
    return f"{shown}; exit code {exit_code(results)}"


def as_json(model: str, version: str, results: Sequence[Result]) -> str:
    """{"version", "model", "exit_code", "results": [{"name", "status", "found", "change", "seconds"}]}, indented."""
    document = {
        "version": version,
        "model": model,
        "exit_code": exit_code(results),
        "results": [
            {
                "name": one.name,
                "status": one.status,
                "found": one.found,
                "change": one.change,
                "seconds": round(one.seconds, 4),
            }
            for one in results
        ],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
