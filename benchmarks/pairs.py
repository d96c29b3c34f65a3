"""Comparison of two versions in one run: other checkouts of the service, and ratios of paired runs."""

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
    """Another checkout of this project: its name in results, and the folder of its package."""

    name: str
    folder: Path

    def command(self, python: Path, own_python: bool) -> list[str]:
        """The command of its Python: ``python``, or with ``own_python`` the Python of its .venv, if it has one."""
        local = self.folder / ".venv" / "bin" / "python"
        chosen = local if own_python and local.is_file() else python
        # Python imports from the current folder before PYTHONPATH, so the folder changes. Hence the path of Python is
        # absolute, with its links, which identify the environment.
        return ["env", f"--chdir={self.folder}", str(chosen.absolute())]

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables of its processes, based on ``environ``."""
        return {**environ, "PYTHONPATH": str(self.folder)}

    def version(self, python: Path, own_python: bool) -> str:
        """The version of its package. Raises SystemExit if its Python imports another package."""
        command = [*self.command(python, own_python), "-c", _PACKAGE]
        environ = self.environ({"PATH": os.environ["PATH"]})
        result = subprocess.run(command, capture_output=True, text=True, env=environ)
        file, _, version = result.stdout.strip().rpartition(" ")
        if result.returncode or not Path(file).is_relative_to(self.folder):
            raise SystemExit(f"--checkout {self.name}: no package in {self.folder}: {file or result.stderr}")
        return version


def checkout(text: str) -> Checkout:
    """Reads NAME=PATH. Raises ArgumentTypeError for anything else."""
    name, _, path = text.partition("=")
    folder = Path(path).expanduser().resolve()
    if not (name and path and (folder / "hf_transformer" / "__init__.py").is_file()):
        raise ArgumentTypeError(f"{text!r} is not NAME=PATH with the package hf_transformer in PATH")
    return Checkout(name, folder)


def environment(text: str) -> Path:
    """Reads the folder of a virtual environment: absolute, with links kept."""
    return Path(text).expanduser().absolute()


def add_flags(parser: ArgumentParser) -> None:
    """Adds --checkout and --own_python."""
    parser.add_argument(
        "--checkout", action="append", default=[], type=checkout, metavar="NAME=PATH",
        help="compare with the service of another checkout, in alternating runs; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--own_python", action="store_true", help="run a checkout with its own .venv/bin/python, if it has one"
    )


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of paired ratios and its 95 percent interval, None with fewer than six pairs."""

    median: float
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        limits = "-" if self.interval is None else f"{self.interval[0]:.3f} to {self.interval[1]:.3f}"
        return f"{self.median:.3f} | {limits}"


def paired(new: Sequence[float], old: Sequence[float]) -> Ratio:
    """The ratios of new to old, by round."""
    ratios = [after / before for after, before in zip(new, old, strict=False)]
    return Ratio(statistics.median(ratios), interval(ratios))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 percent interval of the median; None with fewer than six values.

    It follows from order statistics: from the k-th smallest to the k-th largest value. k is the largest rank for which
    the interval contains the true median with a probability of 95 percent, for any distribution. For nine values it is
    the second, with 96.1 percent.
    """
    ordered, rank = sorted(values), _rank(len(values))
    return (ordered[rank - 1], ordered[-rank]) if rank else None


def _rank(count: int) -> int:
    """The rank k of ``interval``; 0 for too few values."""
    rank, outside = 0, 0.0
    while (outside := outside + 2 * comb(count, rank) / 2**count) <= 1 - COVERAGE:
        rank += 1
    return rank
