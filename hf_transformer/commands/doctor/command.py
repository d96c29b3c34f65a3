"""hf-transformer doctor: what is wrong between the service, its model's files and the predictor.

    hf-transformer doctor [--json] <the flags of serve>

Exit codes: 0 when all is well, 1 when there are warnings, 2 when something does not work (or a flag is bad).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from hf_transformer import __version__
from hf_transformer.commands.doctor import report
from hf_transformer.commands.doctor.findings import Result
from hf_transformer.commands.doctor.subject import Subject
from hf_transformer.commands.doctor.table import CHECKS, examine
from hf_transformer.config.options import Config, parse_config

WIDTHS = (72, 120)
"""Columns of the table, at least and at most."""

HELP = """\
Usage: hf-transformer doctor [--json] --predictor_host=HOST:PORT [flags]

Checks everything between the service, its model's files and the predictor, and says what to change. It takes the flags
and variables of hf-transformer serve (see hf-transformer --help), and serves nothing.

  --json      print the results as JSON
  -h, --help  show this text and exit

Exit codes: 0 all is well, 1 there are warnings, 2 something does not work.

Checks: {checks}.
"""


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Makes all checks and prints what they find; the exit code.

    Raises:
        ConfigError: a flag or variable has a bad value.
    """
    if "-h" in argv or "--help" in argv:
        print(HELP.format(checks=", ".join(check.name for check in CHECKS)), end="")
        return 0
    config, notes = parse_config([word for word in argv if word != "--json"], environ)
    as_json = "--json" in argv
    columns = min(WIDTHS[1], max(WIDTHS[0], shutil.get_terminal_size().columns))
    if not as_json:
        where = f"{config.predictor_host} over {config.predictor_protocol}"
        print(f"hf-transformer {__version__} doctor: model {config.model_name!r}, predictor {where}\n")

    def show(result: Result) -> None:
        if not (as_json or result.blocked):
            print(report.line(result, columns), flush=True)

    with _quiet():
        results = asyncio.run(_examine(config, notes, show))
    if as_json:
        print(report.as_json(config.model_name, __version__, results))
        return report.exit_code(results)
    if rest := report.blocked(results, columns):
        print(rest)
    print(f"\n{report.summary(results)}")
    return report.exit_code(results)


async def _examine(config: Config, notes: Sequence[str], show: Callable[[Result], None]) -> list[Result]:
    results = []
    async for result in examine(Subject(config, notes)):
        show(result)
        results.append(result)
    return results


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps to itself what the service would log: the findings say the same. Faults of ours are still shown."""
    ours, faults = logging.getLogger("hf_transformer"), logging.StreamHandler()
    faults.setLevel(logging.ERROR)
    ours.addHandler(faults)  # with a handler of its own, none of last resort prints the rest
    try:
        yield
    finally:
        ours.removeHandler(faults)
