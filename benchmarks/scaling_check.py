"""Measures service times with a real Triton, and compares the simulation with two services behind nginx.

The model is models/slow_classifier.py, which sleeps as long as a device would compute, so the model takes no CPU. What
computes are the services, nginx, Triton's frontend and the load generator; the simulation has them all, and shares the
cores among them as the kernel does.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import psutil
import uvloop

from benchmarks import scaling
from benchmarks.open_loop import Clients, Outcome, ask
from benchmarks.overload import BATCH, POSITIONS, Texts, body_of, lay_out_model
from benchmarks.processes import ServiceProcess, settle
from benchmarks.scaling import Figures, Machine, Model, Plan
from benchmarks.simulation import WARM_UP, BatchSettings, Load, ServiceTimes
from hf_transformer import __version__
from hf_transformer.commands.child_process import ChildProcess, session_members
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.commands.loopback import HOST, exchange, is_ready, reserved_port

GOAL: Final = 0.2
"""The largest relative error of the simulation."""
LOADS: Final = (0.3, 0.6, 0.8)
"""Loads of the comparison, as shares of the capacity."""
SERVICES: Final = 2
POLL: Final = 0.001
"""Seconds between two checks of the load generator for due requests; timers have a resolution of 1 ms."""
PATIENCE_SECONDS: Final = 5.0
DISTINCT: Final = 64
BUSY_CLIENTS: Final = 48
"""Clients that keep the services busy, one request after the other."""
FITTED: Final = (0.1, 0.25, 0.45, 0.7)
"""The open loads from which CPU times are fitted, as shares of the rate of these clients. The bursts of such clients
themselves take less CPU: the event loop wakes once for many requests."""
RUN_ROWS: Final = (1, 2, 8, 32)
RUN_WIDTHS: Final = (16, 64, 120)
RUNS: Final = 8
CALLERS: Final = 3
"""Timed runs of each caller, and callers, for each number of rows and each width."""
BEFORE: Final = 0.7
"""The share of the service's CPU time for a request, and for a batch, that comes before the model's answer. It is an
assumption: only the sum is measured."""
SIMULATIONS: Final = 15
"""Seeds of the simulation of one load; the figures are medians."""
BALANCERS: Final = {"round_robin": "", "least_connections": "least_conn;"}
"""Policy of the simulation -> directive of nginx."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One form of the comparison.

    Args:
        run, token: microseconds of the model for a run, and for a token with padding.
        words: the length of a text in tokens, before it is cut at POSITIONS.
        is_pinned: whether the services have one core and everything else the other.
        flags: of the services.
    """

    name: str
    model: str
    run: float
    token: float
    words: int
    is_pinned: bool
    policies: tuple[str, ...]
    flags: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """The tokens of a text that the model gets."""
        return min(self.words, POSITIONS)


NO_CACHE: Final = "--enable_word_cache=false"
"""The load repeats its texts; without the cache each is tokenized as if it were new."""
SETUPS: Final = (
    Setup("the model is the limit", "slow_model", 4000.0, 50.0, 20, False, ("round_robin", "least_connections")),
    Setup("the services' CPU is the limit", "fast_model", 2000.0, 1.0, 300, True, ("round_robin",), (NO_CACHE,)),
)


@dataclass(frozen=True, slots=True)
class Use:
    """CPU seconds of each kind of process and of the whole machine, calls and rows of the services, and the monotonic
    time, so far."""

    services: float
    proxy: float
    triton: float
    generator: float
    machine: float
    calls: float
    rows: float
    at: float

    @property
    def other_work(self) -> float:
        """CPU seconds of everything that is not part of the benchmark."""
        return max(0.0, self.machine - self.services - self.proxy - self.triton - self.generator)

    def since(self, before: Use) -> Use:
        """The difference to an earlier use."""
        return Use(*(getattr(self, name) - getattr(before, name) for name in Use.__slots__))


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one round of an open load: requests/s, and p50 and p99 in seconds; the shares of a core that each
    kind of process took."""

    rate: float
    p50: float
    p99: float
    bad: int
    cores: Use


class Testbed:
    """Triton, the services and nginx of one setup, all running."""

    def __init__(self, setup: Setup, triton: LocalTriton, services: Sequence[ServiceProcess], texts: Texts) -> None:
        self.setup = setup
        self.triton = triton
        self.services = services
        chosen = [texts.make(setup.words) for _ in range(DISTINCT)]
        path = f"/v1/models/{setup.model}:predict"
        self.requests = [ask("one", path, body_of([text]), answer_of(texts, text)) for text in chosen]
        self.proxy: ChildProcess | None = None
        self.port = 0

    def children(self) -> list[ChildProcess]:
        """All processes besides this one."""
        return [
            *(service.child for service in self.services),
            self.triton.child,
            *([self.proxy] if self.proxy else []),
        ]

    @contextmanager
    def behind(self, nginx: Path, folder: Path, policy: str) -> Iterator[None]:
        """Runs nginx with a policy in front of the services."""
        with reserved_port() as self.port:
            config = folder / f"{self.setup.model}-{policy}.conf"
            config.write_text(nginx_config(self.port, [service.port for service in self.services], BALANCERS[policy]))
            command = [str(nginx), "-p", str(folder), "-c", str(config), "-e", "stderr"]
            proxy = ChildProcess(command, {"PATH": os.environ["PATH"]}, folder / f"{config.stem}.log")
            try:
                proxy.wait_until(lambda: is_ready(self.port, "/v2/health/live"), "nginx", 10.0)
                self.proxy = proxy
                pin(self)
                yield
            finally:
                self.proxy = None
                proxy.terminate()

    def use(self) -> Use:
        """CPU seconds and counters of all processes so far."""
        assert self.proxy is not None
        calls = rows = 0.0
        for service in self.services:
            _, text = exchange(service.port, "/metrics")
            for line in text.splitlines():
                if line.startswith("hf_transformer_batch_instances_count"):
                    calls += float(line.split()[-1])
                elif line.startswith("hf_transformer_batch_instances_sum"):
                    rows += float(line.split()[-1])
        times = psutil.cpu_times()
        return Use(
            machine=sum(times) - times.idle - times.iowait - times.guest - times.guest_nice,
            services=sum(exact_cpu_seconds(session_members(service.child.pid)) for service in self.services),
            proxy=exact_cpu_seconds(session_members(self.proxy.pid)),
            triton=exact_cpu_seconds(session_members(self.triton.child.pid)),
            generator=exact_cpu_seconds([os.getpid()]),
            calls=calls,
            rows=rows,
            at=time.monotonic(),
        )

    def closed(self, clients: int, seconds: float) -> tuple[Outcome, Use]:
        """Clients that send one request after the other. Raises SystemExit if an answer is not right."""
        settle(self.children())

        async def work() -> Outcome:
            made = Clients(self.port, PATIENCE_SECONDS)
            await made.ask_in_turn(self.requests, clients, seconds)
            await made.close()
            return made.outcomes["one"]

        before = self.use()
        outcome = uvloop.run(work())
        used = self.use().since(before)
        if len(outcome.right) != outcome.sent:
            raise SystemExit(f"{outcome.sent - len(outcome.right)} of {outcome.sent} answers were not right")
        return outcome, used

    def open(self, rate: float, seconds: float, seed: int) -> Measured:
        """One open load, after a warm-up of a tenth that is not counted."""
        settle(self.children())

        async def work() -> tuple[Outcome, Use]:
            clients = Clients(self.port, PATIENCE_SECONDS, poll=POLL, seed=seed)
            await clients.offer(self.requests, rate, max(0.5, seconds / 10))
            clients.outcomes.clear()
            before = await asyncio.to_thread(self.use)
            await clients.offer(self.requests, rate, seconds)
            used = (await asyncio.to_thread(self.use)).since(before)
            await clients.close()
            return clients.outcomes["one"], used

        outcome, used = uvloop.run(work())
        latencies = np.sort(outcome.right)
        share = {name: getattr(used, name) / used.at for name in Use.__slots__}
        return Measured(
            rate=outcome.in_time / seconds,
            p50=float(np.quantile(latencies, 0.5, method="higher")),
            p99=float(np.quantile(latencies, 0.99, method="higher")),
            bad=outcome.sent - len(outcome.right),
            cores=Use(**share),
        )


def answer_of(texts: Texts, text: str) -> bytes:
    """The right answer to a text."""
    return json.dumps({"predictions": [texts.label(text)]}, separators=(",", ":")).encode()


def nginx_config(port: int, services: Sequence[int], directive: str) -> str:
    """A proxy with one worker that keeps its connections to the services."""
    servers = " ".join(f"server {HOST}:{service};" for service in services)
    user = "user root;" if os.geteuid() == 0 else ""
    return f"""{user} daemon off; worker_processes 1; pid nginx.pid; events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi; scgi_temp_path scgi; keepalive_requests 10000000;
  upstream services {{ {directive} {servers} keepalive 512; keepalive_requests 10000000; }}
  server {{
    listen {HOST}:{port} backlog=4096;
    location / {{
      proxy_pass http://services; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_next_upstream off;
    }}
  }}
}}
"""


def exact_cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time of all threads of processes, in the scheduler's nanoseconds, not in the ticks of 10 ms."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                continue  # the thread has ended
    return total / 1e9


def pin(testbed: Testbed) -> None:
    """Gives the services the first core and all others the second, or all of them to all."""
    cores = sorted(ALL_CORES)[:2]
    service_cores, other_cores = ({cores[0]}, {cores[1]}) if testbed.setup.is_pinned else (set(cores), set(cores))
    services = [pid for service in testbed.services for pid in session_members(service.child.pid)]
    assert testbed.proxy is not None
    rest = [os.getpid(), *session_members(testbed.proxy.pid), *session_members(testbed.triton.child.pid)]
    for pids, affinity in ((services, service_cores), (rest, other_cores)):
        for pid in pids:
            for task in Path(f"/proc/{pid}/task").glob("*"):
                try:
                    os.sched_setaffinity(int(task.name), affinity)
                except ProcessLookupError:
                    continue  # the thread has ended


ALL_CORES: Final = frozenset(os.sched_getaffinity(0))


def time_runs(triton: LocalTriton, model: str) -> list[tuple[int, int, float]]:
    """Rows, width, and milliseconds of a run while the next ones wait, from one end to the next."""
    return [(rows, width, time_run(triton, model, rows, width)) for rows in RUN_ROWS for width in RUN_WIDTHS]


def time_run(triton: LocalTriton, model: str, rows: int, width: int) -> float:
    """Median milliseconds between two answers. Calls of CALLERS clients wait for the model, each of another width, so
    none are joined."""

    def calls(width: int) -> list[float]:
        moments = []
        with closing(http.client.HTTPConnection(HOST, triton.http_port, timeout=30)) as connection:
            for _ in range(RUNS):
                infer(connection, model, rows, width)
                moments.append(1000 * time.perf_counter())
        return moments

    with ThreadPoolExecutor(CALLERS) as pool:
        moments = sorted(moment for each in pool.map(calls, range(width, width + CALLERS)) for moment in each)
    return statistics.median(later - earlier for earlier, later in pairwise(moments))


def infer(connection: http.client.HTTPConnection, model: str, rows: int, width: int) -> None:
    """One inference of zeros."""
    raw = bytes(8 * rows * width)
    inputs = [
        {"name": name, "shape": [rows, width], "datatype": "INT64", "parameters": {"binary_data_size": len(raw)}}
        for name in ("input_ids", "attention_mask")
    ]
    head = json.dumps({"inputs": inputs}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    connection.request("POST", f"/v2/models/{model}/infer", head + raw + raw, headers)
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise SystemExit(f"Triton answered {response.status}: {body[:300]!r}")


def fit_runs(cells: Sequence[tuple[int, int, float]]) -> tuple[float, float, float]:
    """Milliseconds for a run, a row and a token, by least squares of relative errors, none below 0."""
    kept = [0, 1, 2]
    times = np.array([ms for _, _, ms in cells])
    columns = np.array([(1.0, rows, rows * width) for rows, width, _ in cells]) / times[:, None]
    while True:
        factors = np.linalg.lstsq(columns[:, kept], np.ones(len(cells)), rcond=None)[0]
        if (factors >= 0).all():
            result = dict(zip(kept, map(float, factors), strict=True))
            return result.get(0, 0.0), result.get(1, 0.0), result.get(2, 0.0)
        kept = [column for column, value in zip(kept, factors, strict=True) if value >= 0]


def fit_batches(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """CPU seconds of a request and of a batch, from points of (rows per batch, CPU seconds per request)."""
    x = np.array([1 / rows for rows, _ in points])
    y = np.array([cpu for _, cpu in points])
    slope, base = np.polyfit(x, y, 1, w=1 / y)
    if slope < 0 or base < 0:
        return (float(y.mean()), 0.0) if slope < 0 else (0.0, float((y / x).mean()))
    return float(base), float(slope)


def measure_figures(testbed: Testbed, seconds: float) -> tuple[Figures, Machine, list[tuple[int, int, float]]]:
    """Fits the service times: of runs while others wait, of one client's latency, and of the CPU under open loads."""
    setup = testbed.setup
    cells = time_runs(testbed.triton, setup.model)
    run, row, token = fit_runs(cells)
    busy, _ = testbed.closed(BUSY_CLIENTS, seconds)
    alone, _ = testbed.closed(1, seconds)
    rate = busy.in_time / seconds
    uses = [testbed.open(share * rate, 2 * seconds, seed=100).cores for share in FITTED]
    request, batch = fit_batches([(used.rows / used.calls, used.services / used.rows) for used in uses])
    busiest = uses[-1]
    machine = Machine(
        services=1 if setup.is_pinned else 2,
        others=1 if setup.is_pinned else None,
        generator=busiest.generator / busiest.rows,
        proxy=busiest.proxy / busiest.rows,
        triton=statistics.median(used.triton / used.calls for used in uses),
    )
    times = ServiceTimes(request * BEFORE, request * (1 - BEFORE), batch * BEFORE, batch * (1 - BEFORE), 0.0)
    model = Model(((0.0, run), (1000.0, run + 1000 * token)), 1, BATCH, row)
    figures = Figures(setup.name, times, 0.0, model, BatchSettings(BATCH, 2), (setup.tokens,))
    spent = request + batch + machine.generator + machine.proxy + machine.triton + model.seconds(1, setup.tokens)
    figures = replace(figures, times=replace(times, call=max(0.0, statistics.median(alone.right) - spent)))
    return figures, machine, cells


def tick() -> float:
    """The mean interval of the load generator's checks in seconds, on an idle loop."""

    async def sleeps() -> float:
        start = time.perf_counter()
        for _ in range(200):
            await asyncio.sleep(POLL)
        return (time.perf_counter() - start) / 200

    return uvloop.run(sleeps())


def capacity(figures: Figures, machine: Machine) -> float:
    """Requests per second that fill the model, or all cores, with full batches; or the services' own core with batches
    of one text, since larger ones form only when it is full."""
    times, calls = figures.times, 1 / figures.rows
    other_seconds = machine.generator + machine.proxy + machine.triton * calls
    if machine.others is None:
        return min(figures.triton_capacity, machine.services / (1 / figures.service_capacity + other_seconds))
    alone = times.request + times.answer + times.batch + times.reply
    return min(figures.triton_capacity, machine.services / alone, machine.others / other_seconds)


HEAD: Final = """\
| limit | balancer | load | requests/s | simulated | p50 ms | simulated | p99 ms | simulated | largest error \
| other work, cores |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"""
QUIET: Final = 0.1
"""Cores of other work below which the machine counts as quiet."""
USED: Final = ("services", "proxy", "triton", "generator", "other_work")


@dataclass(frozen=True, slots=True)
class Compared:
    """A row of the table, its largest relative error, and the cores that other work took."""

    row: str
    error: float
    other_work: float


def compare(
    testbed: Testbed, figures: Figures, machine: Machine, policy: str, rounds: int, seconds: float
) -> list[Compared]:
    """Compares the loads of one policy. Every second round has the reverse order of loads."""
    most = capacity(figures, machine)
    measured: dict[float, list[Measured]] = {share: [] for share in LOADS}
    for number in range(rounds):
        for share in reversed(LOADS) if number % 2 else LOADS:
            measured[share].append(testbed.open(share * most, seconds, seed=number))
    compared, interval = [], tick()
    for share, samples in measured.items():
        if bad := sum(sample.bad for sample in samples):
            raise SystemExit(f"{bad} answers were not right")
        load = Load(share * most, seconds / (1 - WARM_UP), figures.tokens, tick=interval)
        plan = Plan(SERVICES, 1, policy)
        results = [scaling.simulate(figures, plan, load, seed, machine) for seed in range(SIMULATIONS)]
        cells, worst = [], 0.0
        for name, factor in (("rate", 1.0), ("p50", 1000.0), ("p99", 1000.0)):
            values = sorted(factor * getattr(sample, name) for sample in samples)
            sources = [result.outcome if name == "rate" else result for result in results]
            simulated = statistics.median(factor * getattr(source, name) for source in sources)
            real = statistics.median(values)
            cells.append(f"{real:,.1f} ({values[0]:,.1f} to {values[-1]:,.1f}) | {simulated:,.1f}")
            worst = max(worst, simulated / real - 1, 1 - simulated / real)
        cores = [sample.cores for sample in samples]
        used = {name: statistics.median(getattr(core, name) for core in cores) for name in USED}
        row = (
            f"| {testbed.setup.name} | {policy.replace('_', ' ')} | {100 * share:.0f} % | {' | '.join(cells)} "
            f"| {100 * worst:.0f} % | {used['other_work']:.2f} |"
        )
        compared.append(Compared(row, worst, used["other_work"]))
        batches = [
            statistics.median(core.rows / core.calls for core in cores),
            statistics.median(r.rows for r in results),
        ]
        print(row, f"cores: {used}, rows per batch: {batches}", file=sys.stderr, flush=True)
    return compared


def run(options: argparse.Namespace) -> int:
    """Measures the figures of each setup; with --check compares and writes the page. Returns 1 for a large error."""
    lines: list[str] = []
    compared: list[Compared] = []
    texts = Texts()
    with tempfile.TemporaryDirectory(prefix="hf-transformer-scaling-") as name, ExitStack() as stack:
        folder = Path(name)
        for setup in SETUPS:
            lay_out_model(folder, setup.model, microseconds=setup.token, run_microseconds=setup.run)
        triton = LocalTriton(folder / "triton", environment=options.triton_environment, config_name=None)
        stack.enter_context(triton)
        for setup in SETUPS:
            with ExitStack() as inner:
                services = [
                    inner.enter_context(ServiceProcess(triton, folder, setup.model, setup.flags))
                    for _ in range(SERVICES)
                ]
                testbed = Testbed(setup, triton, [service.wait() for service in services], texts)
                with testbed.behind(options.nginx, folder, "round_robin"):
                    figures, machine, cells = measure_figures(testbed, options.seconds / 4)
                lines += described(figures, machine, cells)
                print("\n".join(lines[-20:]), file=sys.stderr, flush=True)
                for policy in setup.policies if options.check else ():
                    with testbed.behind(options.nginx, folder, policy):
                        compared += compare(testbed, figures, machine, policy, options.rounds, options.seconds)
            if setup is SETUPS[0] and not options.check:
                lines += scaling.section(figures, options.rate, options.p99, options.policy, options.call_policy)
                break
    if not options.check:
        print("\n".join(lines))
        return 0
    page = page_of(options, compared, lines)
    print(page)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "scaling.md").write_text(page)
    return 1 if any(one.error > GOAL for one in compared) else 0


def described(figures: Figures, machine: Machine, cells: Sequence[tuple[int, int, float]]) -> list[str]:
    """The figures of a setup, for the page and for a file."""
    widths = sorted({width for _, width, _ in cells})
    by_cell = {(rows, width): ms for rows, width, ms in cells}
    table = [f"| rows | {' | '.join(f'{width} tokens' for width in widths)} |", "|---:|" + "---:|" * len(widths)]
    for rows in sorted({rows for rows, _, _ in cells}):
        table.append(f"| {rows} | {' | '.join(f'{by_cell[rows, width]:.2f}' for width in widths)} |")
    return [
        f"### {figures.name[0].upper()}{figures.name[1:]}\n",
        "A run of the model while others wait, in ms:\n",
        *table,
        f"\nCPU of the others, in ms: load generator {1000 * machine.generator:.3f} and nginx "
        f"{1000 * machine.proxy:.3f} for each request, Triton {1000 * machine.triton:.3f} for each call.\n",
        "```json",
        json.dumps(scaling.json_of(figures)),
        "```\n",
    ]


def page_of(options: argparse.Namespace, compared: Sequence[Compared], lines: Sequence[str]) -> str:
    """results/scaling.md."""
    example = scaling.read_figures(scaling.FIGURES / "h100_bert_large.json")
    rate, balanced = scaling.balancers(example)
    within = sum(pair.error <= GOAL for pair in compared)
    other_work = max(pair.other_work for pair in compared)
    noise = (
        f"The machine was not quiet: other programs took up to {other_work:.1f} of its two cores. They delay the real "
        "processes, not the simulated ones: the p99 most, and most of all where the services' CPU is the limit.\n"
    )
    return "\n".join(
        [
            "# Scaling\n",
            f"Written by `python -m benchmarks.scaling --check --rounds {options.rounds} --seconds "
            f"{options.seconds:g}` at niceness {os.nice(0)}. hf-transformer {__version__}, {platform.platform()}, "
            f"{os.cpu_count()} CPUs, Python {platform.python_version()}. [What is simulated](../README.md#scaling).\n",
            f"## {example.name}\n",
            "Figures of the file `benchmarks/figures/h100_bert_large.json`, derived from [gpu.md](gpu.md); no "
            "cluster was measured.\n",
            *scaling.section(example),
            f"{scaling.BALANCED_PODS} pods with a Triton in each, at {rate:,.0f} requests/s "
            f"({100 * scaling.BALANCED_SHARE:.0f} % of their capacity). A pinned connection stays at the pod that it "
            "got at random, and each has an equal share of the requests.\n",
            *balanced,
            "\n## The simulation against two services behind nginx\n",
            f"{within} of {len(compared)} loads are within {100 * GOAL:.0f} percent in requests/s, p50 and p99; the "
            f"largest error is {100 * max(pair.error for pair in compared):.0f} percent. Measured figures are medians "
            "of the rounds, with the smallest and the largest; simulated ones are medians of "
            f"{SIMULATIONS} seeds. Latencies are the load generator's, from when a request is due. *Other work* is "
            "what else ran on the machine.\n",
            *([noise] if other_work > QUIET else []),
            HEAD,
            *(pair.row for pair in compared),
            "\nThe machine has two cores for everything: services, nginx, Triton and the load generator. So the model "
            "sleeps as long as a device would compute, and takes no CPU. Where *the model is the limit*, all "
            "processes share both cores, in the simulation too. Where *the services' CPU is the limit*, both services "
            "share one core and everything else has the other. There the load is a share of the rate that fills "
            "that core with batches of one text; else of the rate that fills the model with full batches.\n",
            "## Measured service times\n",
            *lines,
            "",
        ]
    )
