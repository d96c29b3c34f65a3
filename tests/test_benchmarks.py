"""The benchmarks' own command line, in the service's environment: what else they need is asked for when they run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.speed.options import parse
from benchmarks.speed.report import command_of

ROOT = Path(__file__).parents[1]


def test_the_help_of_the_speed_benchmark_needs_no_more_than_the_service() -> None:
    command = [sys.executable, "-m", "benchmarks.speed", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "make bench"),
        (["--quick"], "make bench ARGS=--quick"),
        (["--quick", "--rounds", "3"], 'make bench ARGS="--quick --rounds 3"'),
        (["--seconds", "3"], 'make bench ARGS="--seconds 3"'),
    ],
)
def test_the_results_tell_how_they_were_made(argv: list[str], told: str) -> None:
    options = parse(argv)
    assert command_of(("--quick" * options.quick + options.more).strip()) == told
