"""``hf-transformer doctor``: checks the service's flags, its model's files and the predictor, and prints remedies."""

from __future__ import annotations

import asyncio
import io
import logging
import textwrap
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, get_args

import orjson

from hf_transformer import __version__
from hf_transformer.app.pipelines import FittedBinding
from hf_transformer.app.settings import predictor_settings
from hf_transformer.commands.doctor import inference, model, network, tokens
from hf_transformer.commands.doctor.advice import ADVICE
from hf_transformer.commands.doctor.examination import Check, Finding, Status, Subject, examine
from hf_transformer.commands.terminal import Terminal
from hf_transformer.config.entries import ModelEntries
from hf_transformer.config.options import Config, described_predictor, parse_config

HELP = """\
Usage: hf-transformer doctor [--json] [--strict] --predictor_host=HOST:PORT [flags]

Checks that flags, model files and predictor fit together, and says what to change. It takes the flags and variables of
hf-transformer serve (see hf-transformer --help), and serves nothing. With --models or --model_repository it examines
each model, and ends with the worst exit code.

  --json      print the results as JSON
  --strict    exit with 1 if there are warnings
  -h, --help  show this text and exit

Exit codes: 0 no check failed (there may be warnings), 1 there are warnings and --strict is set, 2 a check failed or a
flag has a bad value.

Checks: {checks}.
With --predictor_protocol=none: flags, model files, tokens, {other}.
"""

COLOURS: Mapping[Status, str] = {"ok": "green", "warning": "yellow", "failed": "red", "skipped": "dim"}
_ONE_ROW = 'set "max_batch_size: 1" in config.pbtxt if the model can\'t batch'
_CERTIFICATES = "see --predictor_ca_file, --predictor_cert_file and --predictor_key_file"
_NAME_WIDTH, _STATUS_WIDTH = 18, 9


def _advice(check: Callable[[Any], list[Finding]]) -> Callable[[Subject], Awaitable[Sequence[Finding]]]:
    async def run(subject: Subject) -> Sequence[Finding]:
        return check(subject.binding)

    return run


_SAME_MODEL = (
    "serve the model with the tokenizer and config.json of its export (--model_dir, --model_id), or set --task; the "
    "predictor's log may say more"
)

FLAGS = Check("flags", model.flags)  # of the whole service
FILES = Check("model files", model.model_files, hint="see --model_dir, --model_id and --task")
TOKENS = Check("tokens", tokens.tokens, ("model files",), "see the files of the tokenizer")
CHECKS: Sequence[Check] = (
    FLAGS,
    FILES,
    TOKENS,
    Check("address", network.address, hint="correct --predictor_host", again=network.nothing),
    Check("connection", network.connection, ("address",), again=network.nothing),
    Check("protocol", network.protocol, ("connection",), again=network.nothing),
    Check("TLS", network.tls, ("protocol",), _CERTIFICATES, again=network.nothing),
    Check("server", model.server, ("TLS",), again=model.connect),
    Check("server ready", model.server_ready, ("server",), again=network.nothing),
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
    Check("structured output", inference.structured_output, ("inference",), "see --structured_output_form"),
    Check("golden text", inference.smoke_test, ("inference",), _SAME_MODEL),
)
"""All checks of a model with a predictor, in order of execution."""
TOKENIZER = Check("tokenizer", model.tokenizer, ("model files",), "see --chat_template, and the files of the tokenizer")
"""The check in place of all that need a predictor, for --predictor_protocol=none."""


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs all checks, prints the findings and returns the exit code. Raises ConfigError for a bad flag or variable."""
    if "-h" in argv or "--help" in argv:
        print(HELP.format(checks=", ".join(check.name for check in CHECKS), other=TOKENIZER.name), end="")
        return 0
    as_json, strict = (flag in argv for flag in ("--json", "--strict"))
    flags = [word for word in argv if word not in ("--json", "--strict")]
    entries, (config, notes) = ModelEntries(flags, environ), parse_config(flags, environ)
    terminal = Terminal(environ, io.StringIO() if as_json else None)
    # The findings include the service's warnings. Errors indicate bugs, and go to stderr.
    log, errors = logging.getLogger("hf_transformer"), logging.StreamHandler()
    errors.setLevel(logging.ERROR)
    log.addHandler(errors)  # without any handler, logging prints warnings too
    try:
        if entries.path is None:
            result = asyncio.run(examine_one(Subject(config, notes), terminal, strict=strict))
        else:
            configs, more = entries.read()
            service = Subject(config, [*notes, *more])
            result = asyncio.run(examine_several(service, entries.path, configs, terminal, strict=strict))
    finally:
        log.removeHandler(errors)
    if as_json:
        print(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode())
    return int(result["exit_code"])


async def examine_one(subject: Subject, terminal: Terminal, *, strict: bool) -> dict[str, Any]:
    """Examines the only model, and prints the findings. Returns the JSON about it."""
    terminal.say(f"hf-transformer {__version__} doctor: {title(subject.config)}\n")
    findings = await report(subject, checks_of(subject.config), terminal)
    code = exit_code(findings, strict=strict)
    terminal.say(f"{blocked_row(findings, terminal)}\n{summary(findings, code)}")
    return document(subject.config.model_name, findings, code)


async def examine_several(
    service: Subject, path: str, configs: Sequence[Config], terminal: Terminal, *, strict: bool
) -> dict[str, Any]:
    """Examines each model of --models or --model_repository, and each predictor once. Prints the findings under the
    models' names, and an overview. Returns the JSON: the highest exit code, results of the flags, and the models."""
    terminal.say(f"hf-transformer {__version__} doctor: {len(configs)} models of {path}\n")
    findings = await report(service, [FLAGS], terminal)
    codes, documents, rows = [exit_code(findings, strict=strict)], [], []
    known: dict[object, dict[str, Sequence[Finding]]] = {}
    for config in configs:
        terminal.say(f"\n{terminal.styled(title(config), 'bold')}\n")
        connection = config.predictor_protocol, predictor_settings(config).connection
        subject = Subject(config, (), known.setdefault(connection, {}))
        results = await report(subject, [check for check in checks_of(config) if check is not FLAGS], terminal)
        terminal.say(f"{blocked_row(results, terminal)}\n{counts(results)}")
        task = subject.loaded.task.name if hasattr(subject, "loaded") else config.task or "?"
        codes.append(exit_code(results, strict=strict))
        documents.append(document(config.model_name, results, codes[-1]))
        rows.append((config.model_name, task, results))
    terminal.say(f"\n{overview(rows, terminal)}\nexit code {max(codes)}")
    head = {"version": __version__, "exit_code": max(codes)}
    return head | {"results": result_rows(findings), "models": documents}


def checks_of(config: Config) -> Sequence[Check]:
    """The checks that apply to a model."""
    return (FLAGS, FILES, TOKENS, TOKENIZER) if config.predictor_protocol == "none" else CHECKS


async def report(subject: Subject, checks: Sequence[Check], terminal: Terminal) -> list[Finding]:
    """Runs the checks, and prints their findings: a repeated one, as of ``examine``, only if something is wrong."""
    findings = []
    async for finding in examine(subject, checks, terminal.progress):
        findings.append(finding)
        if not finding.blocked and (finding.status in ("warning", "failed") or not finding.repeated):
            terminal.say(row(finding, terminal))
    return findings


def overview(models: Sequence[tuple[str, str, Sequence[Finding]]], terminal: Terminal) -> str:
    """A table with the name, task, result and first problem of each model: a failure, or else a warning."""
    cells = [("model", "task", "result", "first problem")]
    for name, task, findings in models:
        bad = [finding for status in ("failed", "warning") for finding in findings if finding.status == status]
        cells.append((name, task, bad[0].status, f"{bad[0].name}: {bad[0].found}") if bad else (name, task, "ok", ""))
    widths = [max(map(len, column)) + 2 for column in list(zip(*cells, strict=True))[:3]]
    wrapper = textwrap.TextWrapper(terminal.columns, break_long_words=False, break_on_hyphens=False)
    wrapper.subsequent_indent, lines = " " * sum(widths), []
    for *texts, problem in cells:
        wrapper.initial_indent = "".join(text.ljust(width) for text, width in zip(texts, widths, strict=True))
        lines.append(wrapper.fill(problem) or wrapper.initial_indent.rstrip())
    return "\n".join([terminal.styled(lines[0], "bold"), *lines[1:]]) + "\n" if models else ""


def title(config: Config) -> str:
    return f"model {config.model_name!r}, {described_predictor(config)}"


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
    return f"{counts(results)}; exit code {code}"


def counts(results: Sequence[Finding]) -> str:
    """The number of findings by status."""
    numbers = Counter(finding.status for finding in results)
    names = {"warning": "warnings"} if numbers["warning"] > 1 else {}
    return ", ".join(f"{numbers[status]} {names.get(status, status)}" for status in get_args(Status) if numbers[status])


def document(model_name: str, results: Sequence[Finding], code: int) -> dict[str, Any]:
    """The JSON about a model: version, model, exit_code and results."""
    return {"version": __version__, "model": model_name, "exit_code": code, "results": result_rows(results)}


def result_rows(results: Sequence[Finding]) -> list[dict[str, Any]]:
    """Name, status, found, change and seconds of each finding."""
    names = ("name", "status", "found", "change")
    return [{name: getattr(row, name) for name in names} | {"seconds": round(row.seconds, 4)} for row in results]
