"""``hf-transformer bench``: measures a running service, or starts a service and measures it.

Exit codes: 0 if every request succeeded, 1 after an error, 2 for an invalid flag, 128+n after signal n.
"""

from __future__ import annotations

import os
import platform
import ssl
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
from hf_transformer.commands.bench.requests import Plan, make_plan, random_texts, read_lengths, read_texts
from hf_transformer.commands.bench.sweep import Setup, sweep, triton_means, triton_statistics
from hf_transformer.commands.demo import add_triton_environment
from hf_transformer.commands.doctor.network import WIRES, probe
from hf_transformer.commands.flags import FlagParser
from hf_transformer.commands.other_servers import ITSELF, any_server
from hf_transformer.commands.terminal import Terminal, bar
from hf_transformer.config.option import Converter, integer, name_list, number
from hf_transformer.errors import ConfigError, LoadError, without_userinfo
from hf_transformer.types.request import Json

KEY_VARIABLE = "HF_TRANSFORMER_BENCH_API_KEY"
"""Environment variable for the API key. Bench ignores OPENAI_API_KEY, to avoid sending it to other servers."""


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Returns the exit code. Raises ConfigError for invalid flags or texts, LoadError for an unusable service."""
    flags, terminal = _parser(environ).parse_args(argv), Terminal(environ)
    if flags.url and (flags.sweep or flags.service_flags or flags.model_repository):
        raise ConfigError(
            "--url: bench can't change the settings of a running service, so --sweep, --service_flags and "
            "--model_repository don't go with it; omit --url to let bench start the service"
        )
    with ExitStack() as stack:
        terminal.progress("Starting ...")
        setup = None if flags.url else Setup(stack, flags, environ)
        headers = {"Authorization": f"Bearer {flags.api_key}"} if flags.api_key else {}
        server = replace(setup.restart({}) if setup else Target.at(flags.url), headers=headers)
        texts = read_texts(flags.texts) if flags.texts else random_texts(flags.words)
        plan = _plan(server, texts, flags, setup)
        triton = Target.at(flags.triton_url) if flags.triton_url else setup.triton if setup else None
        at_triton = setup.at_triton if setup else plan.served_name
        numbers, runs = sorted(map(int, flags.concurrency)), []
        for index, connections in enumerate(numbers, 1):
            before = triton_statistics(triton, at_triton) if triton else {}
            runs.append(figures := _run(server, plan, flags, connections, f"run {index} of {len(numbers)}", terminal))
            if triton:
                figures.triton = triton_means(before, triton_statistics(triton, at_triton))
        tables, notes = [speeds(runs, streamed=plan.streamed), times(runs), errors(runs)], [warning(runs)]
        print_tables(tables, terminal)
        for note in filter(None, notes):
            terminal.say(terminal.styled(note, "yellow"))
        if flags.sweep and setup:
            terminal.say(f"\nTrying settings with {numbers[-1]} connections ...")
            trials, verdict = sweep(
                setup,
                lambda started, title: _run(
                    replace(started, headers=headers), plan, flags, numbers[-1], title, terminal
                ),
                lambda share, line: terminal.say(f"{bar(share, 12)} {line}"),
            )
            tables.append(tried(trials))
            notes.append(verdict)
            terminal.say(f"\n{terminal.styled(verdict, 'bold')}")
    if flags.report:
        facts = {
            "model": plan.model,
            "request": f"POST {plan.path}, {len(plan.bodies)} different bodies",
            "service": flags.url or "started by bench",
            "run": f"{flags.seconds:g} s after {flags.warmup_seconds:g} s",
            "load generator": f"hf-transformer {__version__} on {os.cpu_count()} CPUs, {platform.machine()}",
            "date": time.strftime("%Y-%m-%d %H:%M %Z"),
        }
        flags.report.write_text(html(facts, notes, tables), encoding="utf-8")
        terminal.say(f"\nWrote the report to {flags.report}")
    return int(any(run.errors for run in runs))


def _plan(server: Target, texts: Sequence[Json], flags: Namespace, setup: Setup | None) -> Plan:
    """The plan of ``make_plan``. An error names --url, and the server there if that is no service."""
    try:
        return make_plan(server, texts, flags, setup.model if setup else flags.model_name)
    except (LoadError, ConfigError) as error:
        if setup:
            raise
        context = ssl.create_default_context() if server.address.use_ssl else None
        server_name = any_server(server.address, context)
        if not server_name and probe(server.address, WIRES["grpc-v2"], context).answer == "understood":
            server_name = "a port for gRPC"
        if server_name in ("", ITSELF):
            raise type(error)(f"--url: {error}") from error
        url = without_userinfo(flags.url)
        problem = f"--url={url} is {server_name}; bench needs the address of a service of hf-transformer"
        raise LoadError(problem) from error


def _run(server: Target, plan: Plan, flags: Namespace, connections: int, title: str, terminal: Terminal) -> Figures:
    """Performs a run of --seconds and shows a progress bar."""

    def show(share: float, count: int) -> None:
        terminal.progress(f"{bar(share)} {title}: {connections} connections, {count:,} answers")

    requests, times = [server.request(plan.path, body) for body in plan.bodies], (flags.seconds, flags.warmup_seconds)
    try:
        return uvloop.run(send(server, requests, connections, *times, streamed=plan.streamed, progress=show))
    finally:
        terminal.clear()


def _parser(environ: Mapping[str, str]) -> FlagParser:
    parser = FlagParser(
        "bench",
        "Measure a service's throughput, latency, and time in each stage. Without --url bench starts the service: the "
        "demo, or one according to --service_flags and --model_repository.",
    )
    add = parser.add
    counts = name_list("N,...", "different numbers of connections, such as 1,8,32", "[1-9][0-9]{0,4}")
    lengths = Converter("WORDS", "numbers or ranges of words, such as 8 or 4-32 or 8,8,100-200", read_lengths)
    add("url", metavar="URL", help="a running service, such as http://localhost:8080")
    add("service_flags", metavar="FLAGS", help="start the service with these flags of hf-transformer serve")
    add(
        "model_repository",
        type=Path,
        metavar="PATH",
        help="start Triton with --model_name of this repository [the demo's]",
    )
    add("model_name", metavar="NAME", help="name of the model, if the service has several")
    add("api", choices=("v1", "v2", "openai"), help="API of the requests [v1; openai if the model generates text]")
    add("concurrency", counts, default=("1", "8", "32"), help="numbers of connections; one run for each [1,8,32]")
    add("seconds", number(0, 3600, metavar="SECONDS"), default=5.0, help="duration of each run [5]")
    add("warmup_seconds", number(0, 600, zero=True, metavar="SECONDS"), default=1.0, help="warm-up before each run [1]")
    add("texts", type=Path, metavar="FILE", help="file with a text, or an instance of the task as JSON, in each line")
    add("words", lengths, default=read_lengths("4-32"), help="lengths of random texts, without --texts [4-32]")
    add("max_tokens", integer(1), default=64, help="tokens to generate for each text [64]")
    add("sweep", action="store_true", help="try settings and recommend the fastest")
    add("report", type=Path, metavar="FILE", help="write a report as one HTML file")
    add(
        "triton_url",
        metavar="URL",
        help="Triton's REST address, for its statistics [known if bench starts the service]",
    )
    add_triton_environment(parser, environ)
    add(
        "api_key",
        default=environ.get(KEY_VARIABLE),
        metavar="KEY",
        help=f"key of the service; better set the variable {KEY_VARIABLE}",
    )
    return parser
