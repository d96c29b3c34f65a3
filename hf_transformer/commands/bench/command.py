"""``hf-transformer bench``: measures a running service, or one that it starts.

Exit codes: 0 if every request was answered, 1 if some were not or something failed, 2 for a bad flag, 130 after Ctrl-C,
128 and the number of another signal that ended it.
"""

from __future__ import annotations

import os
import platform
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import uvloop

from hf_transformer import __version__
from hf_transformer.commands.bench.load import Figures, Target, send
from hf_transformer.commands.bench.report import errors, html, print_tables, speeds, times, tried, warning
from hf_transformer.commands.bench.requests import Plan, made_up, make_plan, read_lengths, read_texts
from hf_transformer.commands.bench.sweep import Setup, sweep, triton_means, triton_statistics
from hf_transformer.commands.demo import add_triton_environment
from hf_transformer.commands.flags import FlagParser
from hf_transformer.commands.terminal import Terminal, bar
from hf_transformer.config.option import Converter, integer, name_list, number
from hf_transformer.errors import ConfigError

KEY_VARIABLE = "HF_TRANSFORMER_BENCH_API_KEY"
"""Of its own: a key for OpenAI must not go to another server."""


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Measures; returns the exit code. Raises ConfigError if a flag has a bad value or does not go with another,
    LoadError if the service does not answer or start."""
    given, terminal = _parser(environ).parse_args(argv), Terminal(environ)
    if given.url and (given.sweep or given.service_flags or given.model_repository):
        raise ConfigError(
            "--url: the settings of a running service can't be changed from here, so --sweep, --service_flags and "
            "--model_repository don't go with it; without --url bench starts the service itself"
        )
    with ExitStack() as stack:
        terminal.progress("Starting ...")
        setup = None if given.url else Setup(stack, given, environ)
        headers = {"Authorization": f"Bearer {given.api_key}"} if given.api_key else {}
        server = replace(setup.restart({}) if setup else Target.at(given.url), headers=headers)
        texts = read_texts(given.texts) if given.texts else made_up(given.words)
        plan = make_plan(server, texts, given, setup.model if setup else given.model_name)
        triton = Target.at(given.triton_url) if given.triton_url else setup.triton if setup else None
        numbers, runs = sorted(map(int, given.concurrency)), []
        for index, connections in enumerate(numbers, 1):
            before = triton_statistics(triton, plan.model) if triton else {}
            runs.append(figures := _run(server, plan, given, connections, f"run {index} of {len(numbers)}", terminal))
            if triton:
                figures.triton = triton_means(before, triton_statistics(triton, plan.model))
        tables, notes = [speeds(runs, streamed=plan.streamed), times(runs), errors(runs)], [warning(runs)]
        print_tables(tables, terminal)
        for note in filter(None, notes):
            terminal.say(terminal.styled(note, "yellow"))
        if given.sweep and setup:
            terminal.say(f"\nTrying settings with {numbers[-1]} connections ...")
            trials, verdict = sweep(
                setup,
                lambda started, title: _run(
                    replace(started, headers=headers), plan, given, numbers[-1], title, terminal
                ),
                lambda share, line: terminal.say(f"{bar(share, 12)} {line}"),
            )
            tables.append(tried(trials))
            notes.append(verdict)
            terminal.say(f"\n{terminal.styled(verdict, 'bold')}")
    if given.report:
        facts = {
            "model": plan.model,
            "request": f"POST {plan.path}, {len(plan.bodies)} different ones",
            "service": given.url or "started by bench",
            "run": f"{given.seconds:g} s after {given.warmup_seconds:g} s",
            "load generator": f"hf-transformer {__version__} on {os.cpu_count()} CPUs, {platform.machine()}",
            "date": time.strftime("%Y-%m-%d %H:%M %Z"),
        }
        given.report.write_text(html(facts, notes, tables), encoding="utf-8")
        terminal.say(f"\nThe report: {given.report}")
    return int(any(run.errors for run in runs))


def _run(server: Target, plan: Plan, given: Namespace, connections: int, title: str, terminal: Terminal) -> Figures:
    """Sends for a while, with a progress bar."""

    def show(share: float, count: int) -> None:
        terminal.progress(f"{bar(share)} {title}: {connections} connections, {count:,} answers")

    requests, times = [server.request(plan.path, body) for body in plan.bodies], (given.seconds, given.warmup_seconds)
    try:
        return uvloop.run(send(server, requests, connections, *times, streamed=plan.streamed, progress=show))
    finally:
        terminal.clear()


def _parser(environ: Mapping[str, str]) -> FlagParser:
    parser = FlagParser(
        "bench",
        "Measure a service: throughput, latency, and where the time goes. Without --url bench starts one: the demo, "
        "or what --service_flags and --model_repository say.",
    )
    add = parser.add
    counts = name_list("N,...", "different numbers of connections, such as 1,8,32", "[1-9][0-9]{0,4}")
    lengths = Converter("WORDS", "numbers or ranges of words, such as 8 or 4-32 or 8,8,100-200", read_lengths)
    add("url", metavar="URL", help="a running service, such as http://localhost:8080")
    add("service_flags", metavar="FLAGS", help="start the service with these flags of hf-transformer serve")
    add("model_repository", type=Path, metavar="PATH", help="start Triton too, with --model_name of this repository")
    add("model_name", metavar="NAME", help="the model [the first that the service has]")
    add("api", choices=("v1", "v2", "openai"), help="what is asked [v1; openai if the model generates text]")
    add("concurrency", counts, default=("1", "8", "32"), help="connections, with a run for each number [1,8,32]")
    add("seconds", number(0, 3600, metavar="SECONDS"), default=5.0, help="of each run [5]")
    add("warmup_seconds", number(0, 600, zero=True, metavar="SECONDS"), default=1.0, help="before each run [1]")
    add("texts", type=Path, metavar="FILE", help="a text per line, or an instance of the task as JSON")
    add("words", lengths, default=read_lengths("4-32"), help="lengths of texts that are made up [4-32]")
    add("max_tokens", integer(1), default=64, help="new ones of each text, where the model generates [64]")
    add("sweep", action="store_true", help="try the settings that matter, and recommend")
    add("report", type=Path, metavar="FILE", help="write a report as one HTML file")
    add("triton_url", metavar="URL", help="Triton's REST port, for its statistics [known if bench starts the service]")
    add_triton_environment(parser, environ)
    add("api_key", default=environ.get(KEY_VARIABLE), metavar="KEY", help=f"better: the variable {KEY_VARIABLE}")
    return parser
