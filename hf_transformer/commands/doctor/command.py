"""hf-transformer doctor: finds faults between the service, its model's files and the predictor."""

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

Checks everything between the service, its model's files and the predictor, and says what to change. It takes the flags
and variables of hf-transformer serve (see hf-transformer --help), and serves nothing.

  --json      print the results as JSON
  --strict    exit with 1 if there are warnings
  -h, --help  show this text and exit

Exit codes: 0 nothing has failed (there may be warnings), 1 there are warnings and --strict is set, 2 something does
not work or a flag has a bad value.

Checks: {checks}.
"""

COLOURS: Mapping[Status, str] = {"ok": "green", "warning": "yellow", "failed": "red", "skipped": "dim"}
_ONE_ROW = 'set "max_batch_size: 1" in config.pbtxt if the model can\'t batch'
_NAME, _STATUS = 18, 9  # columns of a check's name and of its status


def _advice(check: Callable[[Any], list[Finding]]) -> Callable[[Subject], Awaitable[Sequence[Finding]]]:
    async def run(subject: Subject) -> Sequence[Finding]:
        return check(subject.pair)

    return run


_SAME_MODEL = (
    "serve the model with the tokenizer and the config.json that it was exported from (--model_dir, --model_id), or "
    "set --task; the predictor's log may say more"
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
    Check("shared memory", inference.shared_memory, ("inference",), "--predictor_shared_memory=off", predictive=True),
    Check("golden text", inference.smoke_test, ("inference",), _SAME_MODEL),
)
"""All checks, in the order in which they are made."""


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Makes all checks and prints what they find; the exit code. Raises ConfigError for a bad flag or variable."""
    if "-h" in argv or "--help" in argv:
        print(HELP.format(checks=", ".join(check.name for check in CHECKS)), end="")
        return 0
    own = ("--json", "--strict")
    as_json, strict = (flag in argv for flag in own)
    config, notes = parse_config([word for word in argv if word not in own], environ)
    terminal = Terminal(environ)
    if not as_json:
        where = f"{config.predictor_host} over {config.predictor_protocol}"
        terminal.say(f"hf-transformer {__version__} doctor: model {config.model_name!r}, predictor {where}\n")

    async def results() -> list[Finding]:
        found = []
        progress = (lambda text: None) if as_json else terminal.progress
        async for one in examine(Subject(config, notes), CHECKS, progress):
            found.append(one)
            if not (as_json or one.blocked):
                terminal.say(row(one, terminal))
        return found

    # The findings say what the service would log. Errors are bugs, and are shown.
    log, errors = logging.getLogger("hf_transformer"), logging.StreamHandler()
    errors.setLevel(logging.ERROR)
    log.addHandler(errors)  # without any handler, logging prints warnings too
    try:
        found = asyncio.run(results())
    finally:
        log.removeHandler(errors)
    code = exit_code(found, strict=strict)
    if as_json:
        print(json_text(config.model_name, found, code))
    else:
        terminal.say(f"{rest(found, terminal)}\n{summary(found, code)}")
    return code


def exit_code(results: Sequence[Finding], *, strict: bool) -> int:
    """2 if anything failed, 1 if there are warnings and they count, else 0."""
    statuses = {one.status for one in results}
    return 2 if "failed" in statuses else int(strict and "warning" in statuses)


def row(result: Finding, terminal: Terminal) -> str:
    """A row of the table: status, name and finding. What to change follows on lines of its own."""
    margin = " " * (_STATUS + _NAME)
    wrapper = textwrap.TextWrapper(terminal.columns, break_long_words=False, break_on_hyphens=False)
    wrapper.initial_indent, wrapper.subsequent_indent = f"{result.status:<{_STATUS}}{result.name:<{_NAME}}", margin
    rows = wrapper.fill(" ".join(result.found.split()))
    rows = terminal.styled(result.status, COLOURS[result.status]) + rows.removeprefix(result.status)
    if not result.change:
        return rows
    wrapper.initial_indent, wrapper.subsequent_indent = margin, margin + "   "
    change = wrapper.fill(" ".join(f"-> {result.change}".split())).removeprefix(margin)
    return f"{rows}\n{margin}{terminal.styled(change, 'bold')}"


def rest(results: Sequence[Finding], terminal: Terminal) -> str:
    """One row for all checks that were not made because others failed, and a line break; empty if there are none."""
    names = [one.name for one in results if one.blocked]
    found = f"not made, since others come first: {', '.join(names)}"
    return f"{row(Finding('skipped', found, name=f'{len(names)} checks'), terminal)}\n" if names else ""


def summary(results: Sequence[Finding], code: int) -> str:
    """How many there are of each status, and the exit code."""
    counts = Counter(one.status for one in results)
    plural = "s" if counts["warning"] > 1 else ""
    shown = (f"{counts[one]} {one}{plural if one == 'warning' else ''}" for one in get_args(Status) if counts[one])
    return f"{', '.join(shown)}; exit code {code}"


def json_text(model_name: str, results: Sequence[Finding], code: int) -> str:
    """{"version", "model", "exit_code", "results": [{"name", "status", "found", "change", "seconds"}]}, indented."""
    names = ("name", "status", "found", "change")
    rows = [{name: getattr(one, name) for name in names} | {"seconds": round(one.seconds, 4)} for one in results]
    document = {"version": __version__, "model": model_name, "exit_code": code, "results": rows}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
