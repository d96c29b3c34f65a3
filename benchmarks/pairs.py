"""Two versions of the service in one run: how another checkout starts, and what the ratios of paired runs say."""

from __future__ import annotations

import os
import statistics
import subprocess
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Final

COVERAGE: Final = 0.95
_PACKAGE = "import hf_transformer; print(hf_transformer.__file__, hf_transformer.__version__)"


@dataclass(frozen=True, slots=True)
class Checkout:
    """Another checkout of this project: its name in the results, and the folder that holds its package."""

    name: str
    folder: Path

    def command(self, python: Path, own_python: bool) -> list[str]:
        """How its Python starts: ``python``, or with ``own_python`` that of its own .venv, where there is one."""
        own = self.folder / ".venv" / "bin" / "python"
        chosen = own if own_python and own.is_file() else python
        # A module is looked for in the current folder before PYTHONPATH, so the folder has to change. The path of
        # Python must not depend on it, and its links must stay: they tell which environment it belongs to.
        return ["env", f"--chdir={self.folder}", str(chosen.absolute())]

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment of its processes, made from ours."""
        return {**environ, "PYTHONPATH": str(self.folder)}

    def version(self, python: Path, own_python: bool) -> str:
        """The version of its package. Raises SystemExit if its Python imports another one."""
        command = [*self.command(python, own_python), "-c", _PACKAGE]
        environ = self.environ({"PATH": os.environ["PATH"]})
        said = subprocess.run(command, capture_output=True, text=True, env=environ)
        file, _, version = said.stdout.strip().rpartition(" ")
        if said.returncode or not Path(file).is_relative_to(self.folder):
            raise SystemExit(f"--checkout {self.name}: no package in {self.folder}: {file or said.stderr}")
        return version


def checkout(text: str) -> Checkout:
    """Reads NAME=PATH. Raises ArgumentTypeError for anything else."""
    name, _, path = text.partition("=")
    folder = Path(path).expanduser().resolve()
    if not (name and path and (folder / "hf_transformer" / "__init__.py").is_file()):
        raise ArgumentTypeError(f"{text!r} is not NAME=PATH, where PATH holds the package hf_transformer")
    return Checkout(name, folder)


def environment(text: str) -> Path:
    """Reads the folder of a virtual environment: absolute, with links kept."""
    return Path(text).expanduser().absolute()


def add_flags(parser: ArgumentParser) -> None:
    """Adds --checkout and --own_python."""
    parser.add_argument(
        "--checkout", action="append", default=[], type=checkout, metavar="NAME=PATH",
        help="compare this service with that of another checkout, in turn; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--own_python", action="store_true", help="start a checkout that has .venv/bin/python with that"
    )


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of paired ratios and its 95 percent interval; the interval is None with fewer than six pairs."""

    median: float
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        limits = "-" if self.interval is None else f"{self.interval[0]:.3f} to {self.interval[1]:.3f}"
        return f"{self.median:.3f} | {limits}"


def paired(new: Sequence[float], old: Sequence[float]) -> Ratio:
    """new over old, round by round.

    The interval is that of the median by order statistics: from the k-th smallest to the k-th largest ratio. k is the
    largest rank for which the interval holds the true median with a probability of 95 percent, whatever the
    distribution. Of nine pairs it is the second, with 96.1 percent.
    """
    ratios = sorted(one / other for one, other in zip(new, old, strict=False))
    rank = _rank(len(ratios))
    return Ratio(statistics.median(ratios), (ratios[rank - 1], ratios[-rank]) if rank else None)


def _rank(count: int) -> int:
    """The k of ``paired``; 0 if there is none."""
    rank, outside = 0, 0.0
    while (outside := outside + 2 * comb(count, rank) / 2**count) <= 1 - COVERAGE:
        rank += 1
    return rank
