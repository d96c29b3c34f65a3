"""``hf-transformer bench``: measures a running service, or one that it starts.

    hf-transformer bench [--url=http://HOST:PORT] [--concurrency=1,8,32] [--report=FILE] [--sweep]

Exit codes: 0 if every request was answered, 1 if some were not or something failed, 2 for a bad flag, 130 after Ctrl-C,
128 and the number of another signal that ended it.
"""

from __future__ import annotations

import os
import platform
import shlex
import signal
import ssl
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

import uvloop

from hf_transformer import __version__
from hf_transformer.commands.bench.load import Figures, LoadRun, Server
from hf_transformer.commands.bench.report import Measured, Report, html, print_report
from hf_transformer.commands.bench.requests import Plan, made_up, make_plan, read_lengths, read_texts
from hf_transformer.commands.bench.sweep import Setup, Trial, sweep, triton_means, triton_statistics
from hf_transformer.commands.demo import CHECKOUT, ENVIRONMENT_VARIABLE
from hf_transformer.commands.flags import FlagParser
from hf_transformer.commands.terminal import Terminal, bar
from hf_transformer.config.option import Converter, integer, name_list, number
from hf_transformer.errors import ConfigError

LENGTHS = Converter("WORDS", "numbers or ranges of words, such as 8 or 4-32 or 8,8,100-200", read_lengths)
COUNTS = name_list("N,...", "different numbers of connections, such as 1,8,32", "[1-9][0-9]{0,4}")
KEY_VARIABLE = "HF_TRANSFORMER_BENCH_API_KEY"
"""Of its own: a key for OpenAI must not go to another server."""
FORM = "http://HOST:PORT or https://HOST:PORT, without a path"


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Measures; returns the exit code.

    Raises:
        ConfigError: a flag has a bad value, or does not go with another.
        LoadError: the service does not answer, or does not start.
    """
    given, terminal = _parser(environ).parse_args(argv), Terminal(environ)
    if given.url and (given.sweep or given.service_flags or given.model_repository):
        raise ConfigError(
            "--url: the settings of a running service can't be changed from here, so --sweep, --service_flags and "
            "--model_repository don't go with it; without --url bench starts the service itself"
        )
    with ExitStack() as stack:
        for signaled in (signal.SIGTERM, signal.SIGHUP):
            stack.callback(signal.signal, signaled, signal.signal(signaled, _end))
        setup = None
        if not given.url:
            terminal.progress("Starting ...")
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hf-transformer-bench-")))
            flags = shlex.split(given.service_flags or "")
            setup = Setup(
                stack, folder, environ, flags, given.model_repository, given.model_name, given.triton_environment
            )
        server = setup.restart() if setup else address(given.url, given.ca_file)
        server = replace(server, headers={"Authorization": f"Bearer {given.api_key}"} if given.api_key else {})
        plan = make_plan(
            server,
            read_texts(given.texts) if given.texts else made_up(given.words),
            model=setup.model if setup else given.model_name,
            api=given.api,
            openai=given.openai_route_prefix,
            texts=given.texts_per_request,
            tokens=given.max_tokens,
        )
        bench = Bench(given, terminal, plan)
        report = bench.measure(server, setup)
        print_report(report, terminal)
        if given.sweep and setup:
            report = bench.sweep(setup, server, report)
    if given.report:
        given.report.write_text(html(report), encoding="utf-8")
        terminal.say(f"\nThe report: {given.report}")
    return 1 if report.errors else 0


def _end(number: int, frame: FrameType | None) -> None:
    """Unwinds the program, as Ctrl-C does, so that what was started ends."""
    raise SystemExit(128 + number)


def address(url: str, ca_file: str | None = None) -> Server:
    """Where a URL leads. Raises ConfigError."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    try:
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ValueError(url)
        tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        return Server(parts.hostname, parts.port or (443 if tls else 80), tls)
    except ValueError:
        raise ConfigError(f"{url}: expected {FORM}") from None
    except OSError as error:
        raise ConfigError(f"--ca_file={ca_file}: can't be read: {error}") from error


class Bench:
    """Makes the runs that the flags ask for."""

    def __init__(self, given: Namespace, terminal: Terminal, plan: Plan) -> None:
        self._given, self._terminal, self._plan = given, terminal, plan
        self._connections = sorted(map(int, given.concurrency))

    def measure(self, server: Server, setup: Setup | None) -> Report:
        """A run for each number of connections. Raises LoadError where Triton has no statistics."""
        given, plan, runs = self._given, self._plan, []
        triton = address(given.triton_url) if given.triton_url else setup.triton if setup else None
        for index, connections in enumerate(self._connections, 1):
            before = triton_statistics(triton, plan.model) if triton else None
            figures = self._send(server, connections, f"run {index} of {len(self._connections)}")
            means = triton_means(before, triton_statistics(triton, plan.model)) if triton else {}
            runs.append(Measured(connections, figures, means))
        facts = {
            "model": plan.model,
            "request": f"POST {plan.path}, texts in each: {plan.texts}, different ones: {len(plan.bodies)}",
            "service": "started by bench" if setup else given.url,
            "run": f"{given.seconds:g} s after {given.warmup_seconds:g} s",
            "load generator": f"hf-transformer {__version__} on {os.cpu_count()} CPUs, {platform.machine()}",
            "date": time.strftime("%Y-%m-%d %H:%M %Z"),
        }
        return Report(facts, runs, plan.texts, plan.streamed)

    def sweep(self, setup: Setup, server: Server, report: Report) -> Report:
        """The report with settings tried at the highest number of connections."""
        connections = self._connections[-1]
        self._terminal.say(f"\nTrying settings with {connections} connections ...")

        def measure(started: Server, title: str) -> Figures:
            return self._send(replace(started, headers=server.headers), connections, title)

        def say(share: float, trial: Trial) -> None:
            result = f"{trial.throughput:,.1f}/s" if trial.throughput else "fails"
            self._terminal.say(f"{bar(share, 12)} {result:>12}  {trial.shown}")

        trials, verdict = sweep(setup, measure, say)
        self._terminal.say(f"\n{self._terminal.styled(verdict, 'bold')}")
        return replace(report, trials=trials, verdict=verdict)

    def _send(self, server: Server, connections: int, title: str) -> Figures:
        """One run, with a progress bar."""

        def show(share: float, count: int) -> None:
            self._terminal.progress(f"{bar(share)} {title}: {connections} connections, {count:,} answers")

        requests = [server.request(self._plan.path, body) for body in self._plan.bodies]
        load = LoadRun(server, requests, self._given.seconds, self._given.warmup_seconds, self._plan.streamed)
        try:
            return uvloop.run(load.send(connections, show))
        finally:
            self._terminal.clear()


def _parser(environ: Mapping[str, str]) -> FlagParser:
    in_checkout = CHECKOUT / ".venv-triton"
    triton = environ.get(ENVIRONMENT_VARIABLE) or (in_checkout if in_checkout.is_dir() else None)
    parser = FlagParser(
        "bench",
        "Measure a service: throughput, latency, and where the time goes. Without --url bench starts one: the demo, "
        "or what --service_flags and --model_repository say.",
    )
    add = parser.add
    add("url", metavar="URL", help="a running service, such as http://localhost:8080")
    add("service_flags", metavar="FLAGS", help="start the service with these flags of hf-transformer serve")
    add("model_repository", type=Path, metavar="PATH", help="start Triton too, with --model_name of this repository")
    add("model_name", metavar="NAME", help="the model [the first that the service has]")
    add("api", choices=("v1", "v2", "openai"), help="what is asked [v1; openai if the model generates text]")
    add("concurrency", COUNTS, default=("1", "8", "32"), help="connections, with a run for each number [1,8,32]")
    add("seconds", number(0, 3600, metavar="SECONDS"), default=5.0, help="of each run [5]")
    add("warmup_seconds", number(0, 600, zero=True, metavar="SECONDS"), default=1.0, help="before each run [1]")
    add("texts", type=Path, metavar="FILE", help="a text per line, or an instance of the task as JSON")
    add("words", LENGTHS, default=read_lengths("4-32"), help="lengths of texts that are made up [4-32]")
    add("texts_per_request", integer(1, 10**4), default=1, help="[1]")
    add("max_tokens", integer(1), default=64, help="new ones of each text, where the model generates [64]")
    add("sweep", action="store_true", help="try the settings that matter, and recommend")
    add("report", type=Path, metavar="FILE", help="write a report as one HTML file")
    add("triton_url", metavar="URL", help="Triton's REST port, for its statistics [known if bench starts the service]")
    add("triton_environment", type=Path, default=triton, metavar="PATH", help="as of hf-transformer demo")
    add("openai_route_prefix", default="openai", metavar="PREFIX", help="as of hf-transformer serve [openai]")
    add("ca_file", metavar="FILE", help="certificates to trust, for https [the system's]")
    add("api_key", default=environ.get(KEY_VARIABLE), metavar="KEY", help=f"better: the variable {KEY_VARIABLE}")
    return parser
