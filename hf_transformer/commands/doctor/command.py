"""``hf-transformer doctor``: checks the service's flags, its model's files and the predictor, and prints remedies."""

from __future__ import annotations

import asyncio
import logging
import textwrap
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, get_args

import orjson

from hf_transformer import __version__
from hf_transformer.app.wiring import FittedBinding
from hf_transformer.commands.doctor import inference, model, network
from hf_transformer.commands.doctor.advice import ADVICE
from hf_transformer.commands.doctor.examination import Check, Finding, Status, Subject, examine
from hf_transformer.commands.terminal import Terminal
from hf_transformer.config.options import parse_config

HELP = """\
Usage: hf-transformer doctor [--json] [--strict] --predictor_host=HOST:PORT [flags]

Checks that flags, model files and predictor fit together, and says what to change. It takes the flags and variables of
hf-transformer serve (see hf-transformer --help), and serves nothing.

  --json      print the results as JSON
  --strict    exit with 1 if there are warnings
  -h, --help  show this text and exit

Exit codes: 0 no check failed (there may be warnings), 1 there are warnings and --strict is set, 2 a check failed or a
flag has a bad value.

Checks: {checks}.
"""

COLOURS: Mapping[Status, str] = {"ok": "green", "warning": "yellow", "failed": "red", "skipped": "dim"}
_ONE_ROW = 'set "max_batch_size: 1" in config.pbtxt if the model can\'t batch'
_NAME_WIDTH, _STATUS_WIDTH = 18, 9


def _advice(check: Callable[[Any], list[Finding]]) -> Callable[[Subject], Awaitable[Sequence[Finding]]]:
    async def run(subject: Subject) -> Sequence[Finding]:
        return check(subject.binding)

    return run


_SAME_MODEL = (
    "serve the model with the tokenizer and config.json of its export (--model_dir, --model_id), or set --task; the "
    "predictor's log may say more"
)

CHECKS: Sequence[Check] = (
    Check("flags", model.flags),
    Check("model files", model.model_files, hint="see --model_dir, --model_id and --task"),
    Check("address", network.address, hint="correct --predictor_host"),
    Check("connection", network.connection, ("address",)),
    Check("protocol", network.protocol, ("connection",)),
    Check("TLS", network.tls, ("protocol",), "see --predictor_ca_file, --predictor_cert_file and --predictor_key_file"),
    Check("server", model.server, ("TLS",)),
    Check("server ready", model.server_ready, ("server",)),
    Check("model", model.model, ("server",)),
    Check("description", model.description, ("model",)),
    Check("contract", model.contract, ("description", "model files")),
    *(Check(name, _advice(check), ("contract",), predictive=kind is FittedBinding) for name, check, kind in ADVICE),
    Check("inference", inference.inference, ("contract",), _SAME_MODEL),
    Check("other text", inference.other_text, ("inference",), _SAME_MODEL, predictive=True),
    Check("longest text", inference.longest_text, ("inference",), "see --max_model_len, and the predictor's log"),
    Check("highest token id", inference.highest_id, ("inference",)),
    Check("shared batch", inference.batch_invariance, ("inference",), _ONE_ROW),
    Check(
        "shared memory", inference.shared_memory, ("inference",), "set --predictor_shared_memory=off", predictive=True
    ),
    Check("golden text", inference.smoke_test, ("inference",), _SAME_MODEL),
)
"""All checks, in order of execution."""


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs all checks, prints the findings and returns the exit code. Raises ConfigError for a bad flag or variable."""
    if "-h" in argv or "--help" in argv:
        print(HELP.format(checks=", ".join(check.name for check in CHECKS)), end="")
        return 0
    as_json, strict = (flag in argv for flag in ("--json", "--strict"))
    config, notes = parse_config([word for word in argv if word not in ("--json", "--strict")], environ)
    terminal = Terminal(environ)
    if not as_json:
        predictor = f"{config.predictor_host} over {config.predictor_protocol}"
        terminal.say(f"hf-transformer {__version__} doctor: model {config.model_name!r}, predictor {predictor}\n")

    async def examination() -> list[Finding]:
        findings = []
        progress = (lambda text: None) if as_json else terminal.progress
        async for finding in examine(Subject(config, notes), CHECKS, progress):
            findings.append(finding)
            if not (as_json or finding.blocked):
                terminal.say(row(finding, terminal))
        return findings

    # The findings include the service's warnings. Errors indicate bugs, and go to stderr.
    log, errors = logging.getLogger("hf_transformer"), logging.StreamHandler()
    errors.setLevel(logging.ERROR)
    log.addHandler(errors)  # without any handler, logging prints warnings too
    try:
        findings = asyncio.run(examination())
    finally:
        log.removeHandler(errors)
    code = exit_code(findings, strict=strict)
    if as_json:
        print(json_text(config.model_name, findings, code))
    else:
        terminal.say(f"{blocked_row(findings, terminal)}\n{summary(findings, code)}")
    return code


def exit_code(results: Sequence[Finding], *, strict: bool) -> int:
    """The exit code: 2 after a failure, 1 after a warning with ``strict``, otherwise 0."""
    statuses = {finding.status for finding in results}
    return 2 if "failed" in statuses else int(strict and "warning" in statuses)


def row(result: Finding, terminal: Terminal) -> str:
    """A table row with status, name and finding, before the lines of the remedy."""
    margin = " " * (_STATUS_WIDTH + _NAME_WIDTH)
    wrapper = textwrap.TextWrapper(terminal.columns, break_long_words=False, break_on_hyphens=False)
    wrapper.initial_indent, wrapper.subsequent_indent = (
        f"{result.status:<{_STATUS_WIDTH}}{result.name:<{_NAME_WIDTH}}",
        margin,
    )
    rows = wrapper.fill(" ".join(result.found.split()))
    rows = terminal.styled(result.status, COLOURS[result.status]) + rows.removeprefix(result.status)
    if not result.change:
        return rows
    wrapper.initial_indent, wrapper.subsequent_indent = margin, margin + "   "
    change = wrapper.fill(" ".join(f"-> {result.change}".split())).removeprefix(margin)
    return f"{rows}\n{margin}{terminal.styled(change, 'bold')}"


def blocked_row(results: Sequence[Finding], terminal: Terminal) -> str:
    """A single row for all blocked checks, with a line break. Empty without a blocked check."""
    names = [finding.name for finding in results if finding.blocked]
    text = f"not run, because they need a check that failed: {', '.join(names)}"
    return f"{row(Finding('skipped', text, name=f'{len(names)} checks'), terminal)}\n" if names else ""


def summary(results: Sequence[Finding], code: int) -> str:
    """The number of findings by status, and the exit code."""
    counts = Counter(finding.status for finding in results)
    names = {"warning": "warnings"} if counts["warning"] > 1 else {}
    parts = (f"{counts[status]} {names.get(status, status)}" for status in get_args(Status) if counts[status])
    return f"{', '.join(parts)}; exit code {code}"


def json_text(model_name: str, results: Sequence[Finding], code: int) -> str:
    """Indented JSON with version, model, exit_code, and results (name, status, found, change, seconds)."""
    names = ("name", "status", "found", "change")
    rows = [{name: getattr(row, name) for name in names} | {"seconds": round(row.seconds, 4)} for row in results]
    document = {"version": __version__, "model": model_name, "exit_code": code, "results": rows}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
