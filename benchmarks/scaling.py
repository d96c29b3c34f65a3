"""Finds the number of pods for a rate of requests and a p99, by simulation (benchmarks/simulation.py).

    python -m benchmarks.scaling --figures benchmarks/figures/h100_bert_large.json --rate 2000 --p99 150
    python -m benchmarks.scaling --check [--nginx /usr/sbin/nginx]

With --figures it reads service times from a file; benchmarks/README.md describes it. With --check it measures them
with a service in front of a real Triton, compares the simulation with two services behind nginx, and writes
results/scaling.md. The exit code is 1 if a comparison is not within the goal.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.pairs import environment
from benchmarks.processes import RESULTS, ROOT
from benchmarks.simulation import (
    GRACE_SECONDS,
    POLICIES,
    BatchSettings,
    Cores,
    Group,
    Hop,
    Load,
    Outcome,
    Process,
    Request,
    Service,
    ServiceTimes,
    Simulation,
    Then,
    Triton,
    offer,
)

FIGURES: Final = Path(__file__).with_name("figures")
REQUESTS: Final = 20_000
"""Simulated requests per plan; 200 of them are above the p99."""
LEAST_SECONDS: Final = 1.0
SKETCH: Final = 0.1
"""The share of the requests in a first, short simulation, which rules out plans with a far too high p99."""
TOO_HIGH: Final = 1.5
"""The factor by which the p99 of the short simulation may exceed the wanted one."""
FULLEST: Final = 0.85
"""The maximum share of its capacity that a plan may use. Above it, a simulation of seconds tells little about hours."""
MOST: Final = 2
"""The maximum number of services, or Tritons, as a multiple of those that the rate needs. More hardly lower the p99."""
CONNECTIONS: Final = (2, 4, 16, 64)
"""Numbers of pinned connections for each pod in the table of balancers."""
BALANCED_PODS: Final = 4
BALANCED_SHARE: Final = 0.7
"""The share of the pods' capacity in the table of balancers."""


@dataclass(frozen=True, slots=True)
class Model:
    """The model on one Triton.

    Args:
        run: milliseconds of a run by tokens with padding, at least two points; linear between and beyond them.
        row: further milliseconds for each row.
        dynamic_batching: whether Triton joins calls of equal width that wait for the model.
    """

    run: tuple[tuple[float, float], ...]
    instances: int
    max_rows: int
    row: float = 0.0
    dynamic_batching: bool = True

    def seconds(self, rows: int, tokens: int) -> float:
        """Seconds of one run of ``rows`` rows and ``tokens`` tokens with padding."""
        index = min(max(1, bisect_right(self.run, (tokens, math.inf))), len(self.run) - 1)
        (left, low), (right, high) = self.run[index - 1], self.run[index]
        return max(0.0, low + (tokens - left) * (high - low) / (right - left) + rows * self.row) / 1000


@dataclass(frozen=True, slots=True)
class Figures:
    """Service times, see benchmarks/README.md. ``client`` is the time from client to service and back."""

    name: str
    times: ServiceTimes
    client: float
    model: Model
    settings: BatchSettings
    tokens: tuple[int, ...]

    @property
    def rows(self) -> int:
        """The most rows that one batch of the longest text can have."""
        longest = max(self.tokens)
        return max(1, min(self.model.max_rows, self.settings.max_tokens // longest))

    @property
    def service_capacity(self) -> float:
        """Requests per second that one CPU of the service has time for, in full batches."""
        times = self.times
        return 1 / (times.request + times.answer + (times.batch + times.reply) / self.rows)

    @property
    def triton_capacity(self) -> float:
        """Requests per second of one Triton in full batches of texts of mean length."""
        tokens = round(self.rows * sum(self.tokens) / len(self.tokens))
        return self.model.instances * self.rows / self.model.seconds(self.rows, tokens)


def read_figures(path: Path) -> Figures:
    """Reads a file of figures. Raises ValueError with the key for a missing, unknown or wrong value."""
    return figures_of(json.loads(path.read_text()))


def figures_of(content: Mapping[str, Any]) -> Figures:
    """Figures from their JSON form."""
    top = {"name", "service", "call_ms", "client_ms", "model", "flags", "tokens"}
    parts = {
        "": (content, top),
        "service.": (content.get("service", {}), {"request_ms", "answer_ms", "batch_ms", "reply_ms"}),
        "model.": (content.get("model", {}), {"run_ms", "row_ms", "instances", "max_rows", "dynamic_batching"}),
        "flags.": (content.get("flags", {}), {"max_batches_in_flight", "max_batch_tokens"}),
    }
    for prefix, (part, known) in parts.items():
        for key in part.keys() - known:
            raise ValueError(f"unknown key {prefix}{key}")
    try:
        service, model, flags = content["service"], content["model"], content.get("flags", {})
        names = ("request_ms", "answer_ms", "batch_ms", "reply_ms")
        instances = int(model.get("instances", 1))
        run = tuple(sorted((float(tokens), float(ms)) for tokens, ms in model["run_ms"]))
        max_rows = int(model["max_rows"])
        figures = Figures(
            name=str(content["name"]),
            times=ServiceTimes(
                *(float(value) / 1000 for value in (*map(service.__getitem__, names), content["call_ms"]))
            ),
            client=float(content.get("client_ms", 0.0)) / 1000,
            model=Model(
                run, instances, max_rows, float(model.get("row_ms", 0.0)), bool(model.get("dynamic_batching", True))
            ),
            settings=BatchSettings(
                max_rows,
                int(flags.get("max_batches_in_flight", instances + 1)),
                int(flags.get("max_batch_tokens", 16384)),
                instances,
            ),
            tokens=tuple(int(length) for length in content["tokens"]),
        )
    except KeyError as exc:
        raise ValueError(f"the key {exc.args[0]} is missing") from None
    if len({tokens for tokens, _ in run}) < max(2, len(run)):
        raise ValueError("model.run_ms needs at least two points, each with another number of tokens")
    if not figures.tokens or min(figures.tokens) < 1:
        raise ValueError("tokens needs at least one length, of at least 1")
    return figures


def json_of(figures: Figures) -> dict[str, Any]:
    """The JSON form of figures."""
    times, model, settings = figures.times, figures.model, figures.settings
    return {
        "name": figures.name,
        "service": {
            f"{name}_ms": round(getattr(times, name) * 1000, 4) for name in ("request", "answer", "batch", "reply")
        },
        "call_ms": round(times.call * 1000, 4),
        "client_ms": round(figures.client * 1000, 4),
        "model": {
            "run_ms": [[tokens, round(ms, 4)] for tokens, ms in model.run],
            "row_ms": round(model.row, 4),
            "instances": model.instances,
            "max_rows": model.max_rows,
            "dynamic_batching": model.dynamic_batching,
        },
        "flags": {"max_batches_in_flight": settings.in_flight, "max_batch_tokens": settings.max_tokens},
        "tokens": list(figures.tokens),
    }


@dataclass(frozen=True, slots=True)
class Plan:
    """Services and Tritons. ``tritons`` 0 puts a Triton into each pod with a service.

    Args:
        policy: how requests choose a service.
        call_policy: how calls choose a Triton, if there are several apart from the services.
    """

    services: int
    tritons: int = 0
    policy: str = "round_robin"
    call_policy: str = "round_robin"

    def __str__(self) -> str:
        if self.tritons == 0:
            return f"{_number(self.services, 'pod')}, a Triton in each"
        return f"{_number(self.services, 'service')}, {_number(self.tritons, 'Triton')} apart"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Machine:
    """Processes beside the services in the check on one machine.

    Args:
        services: cores that all services share.
        others: cores of all other processes; None means the services' cores.
        generator, proxy: CPU seconds for each request.
        triton: CPU seconds of Triton for each call.
    """

    services: float
    others: float | None
    generator: float
    proxy: float
    triton: float


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a simulated load. ``service`` and ``triton`` are the busy shares of a service's CPU and of a
    Triton's model instances, ``rows`` the mean size of the services' batches."""

    outcome: Outcome
    service: float
    triton: float
    rows: float

    @property
    def p50(self) -> float:
        return self.outcome.percentile(0.5)

    @property
    def p99(self) -> float:
        return self.outcome.percentile(0.99)


def simulate(figures: Figures, plan: Plan, load: Load, seed: int, machine: Machine | None = None) -> Result:
    """Simulates a load. Without ``machine`` each service has its own core, and Triton's frontend takes no CPU time."""
    simulation, chance = Simulation(), random.Random(seed)
    tritons, services, all_cores, hops = _parts(figures, plan, simulation, chance, machine)
    group = Group(POLICIES[plan.policy](chance), plan.services)

    def ask(request: Request, then: Then) -> None:
        def over(hops: Sequence[Hop], then: Then) -> None:
            if hops:
                hops[0].pass_through(lambda answered: over(hops[1:], answered), then)
            else:
                group.ask(request.connection, lambda target, answered: services[target].ask(request, answered), then)

        half = figures.client / 2
        simulation.after(half, lambda: over(hops, lambda: simulation.after(half, then)))

    outcome = offer(simulation, load, ask, chance)
    busy = sum(cores.busy_seconds for cores in all_cores) / (len(all_cores) * load.seconds)
    triton = sum(server.busy_seconds for server in tritons)
    return Result(
        outcome,
        service=min(1.0, busy),
        triton=min(1.0, triton / (len(tritons) * figures.model.instances * load.seconds)),
        rows=sum(server.rows for server in services) / max(1, sum(server.batches for server in services)),
    )


def _parts(
    figures: Figures, plan: Plan, simulation: Simulation, chance: random.Random, machine: Machine | None
) -> tuple[list[Triton], list[Service], list[Cores], list[Hop]]:
    """The Tritons, the services, the services' cores, and the processes between client and service."""
    frontend, call_cpu, hops = None, 0.0, []
    if machine is None:
        all_cores = [Cores(simulation, 1) for _ in range(plan.services)]
        core_sets = all_cores
    else:
        all_cores = [Cores(simulation, machine.services)]
        core_sets = all_cores * plan.services
        others = all_cores[0] if machine.others is None else Cores(simulation, machine.others)
        hops = [Hop(Process(others), machine.generator), Hop(Process(others), machine.proxy)]
        frontend, call_cpu = Process(others), machine.triton
    model = figures.model
    tritons = [
        Triton(
            simulation,
            model.seconds,
            instances=model.instances,
            max_rows=model.max_rows if model.dynamic_batching else 0,
            process=frontend,
            call_cpu=call_cpu,
        )
        for _ in range(plan.tritons or plan.services)
    ]
    calls = Group(POLICIES[plan.call_policy](chance), len(tritons))

    def caller(number: int) -> Callable[[int, int, Then], None]:
        if plan.tritons == 0:
            return tritons[number].call
        return lambda rows, width, then: calls.ask(
            number, lambda target, answered: tritons[target].call(rows, width, answered), then
        )

    services = [
        Service(simulation, Process(cores), figures.times, figures.settings, caller(number))
        for number, cores in enumerate(core_sets)
    ]
    return tritons, services, all_cores, hops


def load_of(figures: Figures, rate: float) -> Load:
    """A load of about REQUESTS requests."""
    return Load(rate, max(LEAST_SECONDS, REQUESTS / rate), figures.tokens)


def smallest(figures: Figures, rate: float, p99: float, plans: Iterator[Plan]) -> tuple[Plan, Result] | None:
    """The first plan that meets a p99 in seconds at this rate; None if none does."""
    for plan in plans:
        load = load_of(figures, rate)
        if simulate(figures, plan, replace(load, seconds=SKETCH * load.seconds), seed=2).p99 > TOO_HIGH * p99:
            continue
        result = simulate(figures, plan, load, seed=1)
        if result.p99 <= p99:
            return plan, result
    return None


def steps(least: int, most: int) -> Iterator[int]:
    """Numbers to try, in steps of a tenth."""
    number = least
    while number <= most:
        yield number
        number += max(1, number // 10)


def collocated(figures: Figures, rate: float, policy: str) -> Iterator[Plan]:
    """Pods with a Triton in each. The first plan has as many as the busier of service and Triton needs."""
    least = math.ceil(rate / FULLEST / min(figures.service_capacity, figures.triton_capacity))
    for number in steps(least, MOST * least + 2):
        yield Plan(number, 0, policy)


def apart(figures: Figures, rate: float, policy: str, call_policy: str) -> Iterator[Plan]:
    """Plans in ascending order of Tritons, since a GPU costs more than a CPU, then of services."""
    services = math.ceil(rate / FULLEST / figures.service_capacity)
    tritons = math.ceil(rate / FULLEST / figures.triton_capacity)
    for number in steps(tritons, MOST * tritons + 2):
        for count in steps(services, MOST * services + 2):
            yield Plan(count, number, policy, call_policy)


HEAD: Final = """\
| requests/s | p99 wanted, ms | smallest plan | p50 ms | p99 ms | rows per batch | service's CPU | Triton |
|---:|---:|---|---:|---:|---:|---:|---:|"""


def table(
    figures: Figures, rates: Sequence[float], wanted: Sequence[float], policy: str, call_policy: str
) -> list[str]:
    """Rows for each rate and each p99 in milliseconds, collocated and apart."""
    lines = [HEAD]
    for rate in rates:
        for p99 in wanted:
            kinds = {
                "a Triton in each pod": collocated(figures, rate, policy),
                "Tritons apart": apart(figures, rate, policy, call_policy),
            }
            for kind, plans in kinds.items():
                smallest_plan = smallest(figures, rate, p99 / 1000, plans)
                if smallest_plan is None:
                    lines.append(f"| {rate:,.0f} | {p99:g} | none holds it, {kind} | - | - | - | - | - |")
                    continue
                plan, result = smallest_plan
                lines.append(
                    f"| {rate:,.0f} | {p99:g} | {plan} | {1000 * result.p50:.1f} | {1000 * result.p99:.1f} "
                    f"| {result.rows:.1f} | {100 * result.service:.0f} % | {100 * result.triton:.0f} % |"
                )
    return lines


def balancers(
    figures: Figures, pods: int = BALANCED_PODS, share: float = BALANCED_SHARE, requests: int = REQUESTS // 2
) -> tuple[float, list[str]]:
    """The rate, and p50 and p99 with each balancer for pods with a Triton in each, at a share of their capacity.

    Each row has the median and the worst of several seeds, since chance decides the pods of pinned connections.
    """
    rate = pods * share * min(figures.service_capacity, figures.triton_capacity)
    lines = ["| balancer | p50 ms | p99 ms | worst p99 of 9 tries, ms |\n|---|---:|---:|---:|"]
    rows = [(policy, 64) for policy in POLICIES if policy != "pinned"]
    rows += [("pinned", pods * each) for each in CONNECTIONS]
    for policy, connections in rows:
        load = Load(rate, max(LEAST_SECONDS, requests / rate), figures.tokens, connections)
        results = [simulate(figures, Plan(pods, 0, policy), load, seed) for seed in range(9)]
        p50, p99 = (sorted(1000 * getattr(one, name) for one in results) for name in ("p50", "p99"))
        name = f"pinned, {connections} connections" if policy == "pinned" else policy.replace("_", " ")
        lines.append(f"| {name} | {_ms(p50[4])} | {_ms(p99[4])} | {_ms(p99[8])} |")
    return rate, lines


def _ms(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else f"over {1000 * GRACE_SECONDS:,.0f}"


def default_rates(figures: Figures) -> list[float]:
    """Half, three and ten times the capacity of one Triton, with two digits."""
    rates = (share * min(figures.triton_capacity, figures.service_capacity) for share in (0.5, 3, 10))
    return [float(f"{rate:.2g}") for rate in rates]


def default_p99(figures: Figures) -> list[float]:
    """Two and six times the time of a full batch, with two digits."""
    full = 1000 * figures.model.seconds(figures.rows, figures.rows * max(figures.tokens))
    return [float(f"{factor * full:.2g}") for factor in (2, 6)]


def section(
    figures: Figures,
    rates: Sequence[float] = (),
    wanted: Sequence[float] = (),
    policy: str = "round_robin",
    call_policy: str = "round_robin",
) -> list[str]:
    """The lines of one file of figures: capacities, and the table."""
    return [
        f"One CPU of the service has time for {figures.service_capacity:,.0f} requests/s, one Triton for "
        f"{figures.triton_capacity:,.0f}, both in full batches of {figures.rows} rows: "
        f"{figures.triton_capacity / figures.service_capacity:.2f} services for each Triton. Requests choose a service "
        f"by {policy.replace('_', ' ')}, calls a Triton apart by {call_policy.replace('_', ' ')}.\n",
        *table(figures, rates or default_rates(figures), wanted or default_p99(figures), policy, call_policy),
        "",
    ]


def main() -> int:
    """Prints the plans; returns 1 if the check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--figures", type=Path, help="file of service times; measured without it")
    add("--rate", type=float, nargs="+", default=[], help="requests per second [multiples of one Triton's capacity]")
    add("--p99", type=float, nargs="+", default=[], help="the p99 to meet, in ms [multiples of a full batch's time]")
    add("--policy", choices=[*POLICIES], default="round_robin", help="how requests choose a service [round_robin]")
    add("--call_policy", choices=[*POLICIES], default="round_robin", help="how calls choose a Triton [round_robin]")
    add("--check", action="store_true", help="compare with two real services behind nginx, and write the page")
    add("--rounds", type=int, default=5, help="rounds of the check [5]")
    add("--seconds", type=float, default=8.0, help="duration of each load of the check [8]")
    add("--nginx", type=Path, default=Path(shutil.which("nginx") or "/usr/sbin/nginx"), help="nginx for --check")
    add("--triton_environment", type=environment, default=ROOT / ".venv-triton", help="environment of Triton")
    add("--results", type=Path, default=RESULTS, help="folder for the page [benchmarks/results]")
    options = parser.parse_args()
    if options.figures and options.check:
        parser.error("--check measures its own figures, so it takes no --figures")
    if options.figures:
        figures = read_figures(options.figures)
        lines = section(figures, options.rate, options.p99, options.policy, options.call_policy)
        print("\n".join([f"## {figures.name}\n", *lines]))
        return 0
    from benchmarks import scaling_check  # uvloop, psutil and a Triton, which --figures does not need

    return scaling_check.run(options)


if __name__ == "__main__":
    sys.exit(main())
