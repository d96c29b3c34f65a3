"""A queueing model of clients, a load balancer, services and Tritons, simulated event by event.

The services form batches with the package's own Queue, BatchLimits and BatchCosts. Everything else is a model: a
process is one thread that does its work in order, cores are shared equally among the processes that have work, and a
model instance runs one batch at a time. All times are in seconds of the simulated clock.
"""

from __future__ import annotations

import heapq
import math
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final, Protocol

from hf_transformer.core.batch_costs import BatchCosts, BatchTimer
from hf_transformer.core.departures import Departures
from hf_transformer.core.queue import BatchLimits, Queue

Then = Callable[[], None]


class Simulation:
    """The clock, and the events in their order. Events of the same time run in the order of their creation."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Then]] = []
        self._numbers = count()

    def after(self, seconds: float, then: Then) -> None:
        """Calls ``then`` after ``seconds``."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), then))

    def run(self, until: float = math.inf) -> None:
        """Runs all events until the given time."""
        while self._events and self._events[0][0] <= until:
            self.now, _, then = heapq.heappop(self._events)
            then()


class Cores:
    """``number`` cores, shared equally by all running processes, with at most one core for each (processor sharing)."""

    def __init__(self, simulation: Simulation, number: float) -> None:
        self._simulation = simulation
        self._number = number
        self._remaining: dict[Process, float] = {}
        self._updated = 0.0
        self._version = 0
        self.busy_seconds = 0.0

    def start(self, process: Process, seconds: float) -> None:
        """Runs ``seconds`` of work of an idle process, and calls its ``finish`` at the end."""
        self._advance()
        self._remaining[process] = seconds
        self._plan()

    def _speed(self) -> float:
        return min(1.0, self._number / len(self._remaining))

    def _advance(self) -> None:
        """Subtracts the work done since the last change."""
        elapsed = self._simulation.now - self._updated
        self._updated = self._simulation.now
        if self._remaining and elapsed:
            work = elapsed * self._speed()
            self.busy_seconds += work * len(self._remaining)
            for process in self._remaining:
                self._remaining[process] -= work

    def _plan(self) -> None:
        """Schedules the end of the job that finishes next. Replaces the earlier schedule."""
        self._version += 1
        if self._remaining:
            process = min(self._remaining, key=self._remaining.__getitem__)
            seconds = max(0.0, self._remaining[process]) / self._speed()
            version = self._version
            self._simulation.after(seconds, lambda: self._end(version, process))

    def _end(self, version: int, process: Process) -> None:
        if version == self._version:
            self._advance()
            del self._remaining[process]
            self._plan()
            process.finish()


class Process:
    """One thread, such as an event loop: its jobs run one after another, in their order of arrival."""

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._jobs: deque[tuple[float, Then]] = deque()
        self._running: Then | None = None

    def run(self, seconds: float, then: Then, *, next_one: bool = False) -> None:
        """Appends a job. ``next_one`` puts it before all waiting jobs, to continue the current one."""
        if next_one:
            self._jobs.appendleft((seconds, then))
        else:
            self._jobs.append((seconds, then))
        if self._running is None:
            self._start()

    def _start(self) -> None:
        seconds, self._running = self._jobs.popleft()
        self._cores.start(self, seconds)

    def finish(self) -> None:
        """Ends the running job, and starts the next one."""
        then = self._running
        assert then is not None
        then()  # still counts as running, so that a continuation runs next
        self._running = None
        if self._jobs:
            self._start()


@dataclass(eq=False, slots=True)
class Request:
    """A request of one text with ``length`` tokens. ``due`` and ``answered`` are times; NaN means not answered yet."""

    length: int
    due: float
    connection: int = 0
    answered: float = math.nan
    key: str = ""


RunTime = Callable[[int, int], float]
"""Seconds of one run of the model, by rows and by tokens with padding."""


class Triton:
    """A model with ``instances``, and a queue of calls in front of them.

    Args:
        process: the frontend, which takes ``call_cpu`` seconds per call, half before the model and half after it.
        max_rows: the maximum number of rows that the dynamic batcher joins from waiting calls of equal width; 0 for
            no dynamic batcher.
    """

    def __init__(
        self,
        simulation: Simulation,
        run_time: RunTime,
        *,
        instances: int = 1,
        max_rows: int = 0,
        process: Process | None = None,
        call_cpu: float = 0.0,
    ) -> None:
        self._simulation = simulation
        self._run_time = run_time
        self._free = instances
        self._max_rows = max_rows
        self._process = process
        self._call_cpu = call_cpu
        self._waiting: deque[tuple[int, int, Then]] = deque()
        self.busy_seconds = 0.0
        self.runs = 0

    def call(self, rows: int, width: int, then: Then) -> None:
        """Runs ``rows`` rows of ``width`` tokens, and calls ``then`` with the answer."""
        self._frontend(lambda: self._add(rows, width, lambda: self._frontend(then)))

    def _frontend(self, then: Then) -> None:
        if self._process is None:
            then()
        else:
            self._process.run(self._call_cpu / 2, then)

    def _add(self, rows: int, width: int, then: Then) -> None:
        self._waiting.append((rows, width, then))
        self._start()

    def _start(self) -> None:
        if not self._free or not self._waiting:
            return
        self._free -= 1
        rows, width, then = self._waiting.popleft()
        answers = [then]
        while self._waiting and self._waiting[0][1] == width and rows + self._waiting[0][0] <= self._max_rows:
            more, _, then = self._waiting.popleft()
            rows += more
            answers.append(then)
        seconds = self._run_time(rows, rows * width)
        self.busy_seconds += seconds
        self.runs += 1
        self._simulation.after(seconds, lambda: self._end(answers))

    def _end(self, answers: Sequence[Then]) -> None:
        self._free += 1
        for then in answers:
            then()
        self._start()


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """CPU seconds of the service: for each request before and after the model, and for each batch before and after
    it. ``call`` is the time of a call to Triton without computing."""

    request: float
    answer: float
    batch: float
    reply: float
    call: float


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Limits of batches, as the flags of the service set them."""

    max_rows: int
    in_flight: int
    max_tokens: int = 16384
    instances: int = 1
    holds: bool = True


TIMER_SECONDS: Final = 0.001
"""The resolution of the event loop's timers."""


class Service:
    """One instance of the service: an event loop that forms batches as core/scheduler.py does for requests over HTTP.

    A request that finds a free slot starts a batch. The batch forms after the work already queued on the event loop,
    so requests that arrive meanwhile join it. The slot becomes free once the answers of its batch are written.

    Args:
        call: sends rows of a width to a Triton, and calls its third argument with the answer.
    """

    def __init__(
        self,
        simulation: Simulation,
        process: Process,
        times: ServiceTimes,
        settings: BatchSettings,
        call: Callable[[int, int, Then], None],
    ) -> None:
        self._simulation = simulation
        self._process = process
        self._times = times
        self._settings = settings
        self._call = call
        self._costs = BatchCosts(settings.instances)
        self._departures = Departures(self._costs)
        self._is_held = False
        self._holds = 0
        limits = BatchLimits(
            max_rows=settings.max_rows,
            max_tokens=settings.max_tokens,
            max_output_bytes=sys.maxsize,
            output_bytes=lambda width: 0,
            padding=True,
            costs=self._costs,
        )
        self._queue: Queue[Request] = Queue(lambda request: limits)
        self._answers: dict[Request, Then] = {}
        self._taken = 0
        self._is_forming = False
        self.rows = self.batches = 0

    def ask(self, request: Request, then: Then) -> None:
        """Accepts a request, and calls ``then`` once its answer is written."""
        self._process.run(self._times.request, lambda: self._submit(request, then))

    def _submit(self, request: Request, then: Then) -> None:
        self._answers[request] = then
        self._queue.add(request)
        self._departures.arrived(self._simulation.now)
        self._start_batch()

    def _start_batch(self) -> None:
        """Starts a batch, or holds it, if requests are queued and fewer batches run than may."""
        if self._is_forming or not self._queue or self._taken >= self._settings.in_flight:
            return
        if self._settings.holds and len(self._queue) < self._settings.max_rows:
            if self._is_held and not self._departures.is_complete:
                return
            held = 0.0 if self._is_held else self._departures.hold(self._simulation.now, len(self._answers))
            if held:
                self._is_held = True
                self._holds += 1
                ends = partial(self._end_hold, self._holds)
                seconds = max(TIMER_SECONDS, round(held / TIMER_SECONDS) * TIMER_SECONDS)
                self._simulation.after(seconds, lambda: self._process.run(0.0, ends))
                return
        self._is_held = False
        self._taken += 1
        self._is_forming = True
        self._process.run(0.0, self._form)

    def _end_hold(self, number: int) -> None:
        """Ends the hold with this number at its time, if no batch has left since."""
        if self._is_held and number == self._holds:
            self._is_held = False
            if self._queue and not self._is_forming and self._taken < self._settings.in_flight:
                self._taken += 1
                self._is_forming = True
                self._process.run(0.0, self._form)

    def _form(self) -> None:
        self._is_forming = False
        recent, holds = self._queue.recent, self._settings.holds
        most = self._departures.share(self._simulation.now, recent, 1) if holds else None
        batch = self._queue.take(self._settings.in_flight + 1, most)
        self._start_batch()
        self.rows += len(batch)
        self.batches += 1
        self._process.run(self._times.batch, lambda: self._send(batch), next_one=True)

    def _send(self, batch: Sequence[Request]) -> None:
        width = max(request.length for request in batch)
        timer = self._departures.sent(self._simulation.now, len(batch) * width)

        def call() -> None:
            self._call(len(batch), width, lambda: self._simulation.after(self._times.call / 2, reply))

        def reply() -> None:
            self._process.run(self._times.reply, lambda: self._reply(batch, timer))

        self._simulation.after(self._times.call / 2, call)

    def _reply(self, batch: Sequence[Request], timer: BatchTimer) -> None:
        self._departures.answered(timer, self._simulation.now, len(batch), len(batch))
        if self._is_held:
            self._is_held = False
            self._process.run(0.0, self._start_batch)
        self._queue.answered(len(batch))
        for request in batch:
            self._process.run(self._times.answer, self._answers.pop(request))
        self._process.run(0.0, self._release)

    def _release(self) -> None:
        self._taken -= 1
        self._start_batch()


class Balancer(Protocol):
    """Chooses the target of a request."""

    def choose(self, connection: int, in_flight: Sequence[int]) -> int:
        """Returns the index of a target. ``in_flight`` has the number of unanswered requests of each target."""
        ...


class RoundRobin:
    """The targets in turn."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, connection: int, in_flight: Sequence[int]) -> int:
        self._next += 1
        return (self._next - 1) % len(in_flight)


class LeastConnections:
    """The target with the fewest requests in flight; equal ones in turn, as nginx does."""

    def __init__(self) -> None:
        self._last = 0

    def choose(self, connection: int, in_flight: Sequence[int]) -> int:
        fewest, targets = min(in_flight), len(in_flight)
        order = ((self._last + step) % targets for step in range(1, targets + 1))
        self._last = next(target for target in order if in_flight[target] == fewest)
        return self._last


class AtRandom:
    """Any target."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def choose(self, connection: int, in_flight: Sequence[int]) -> int:
        return self._chance.randrange(len(in_flight))


class Pinned:
    """A random target for each connection, which keeps it, like a gRPC connection through a Service."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._targets: dict[int, int] = {}

    def choose(self, connection: int, in_flight: Sequence[int]) -> int:
        target = self._targets.get(connection)
        if target is None:
            target = self._targets[connection] = self._chance.randrange(len(in_flight))
        return target


POLICIES: Final[dict[str, Callable[[random.Random], Balancer]]] = {
    "round_robin": lambda chance: RoundRobin(),
    "least_connections": lambda chance: LeastConnections(),
    "random": AtRandom,
    "pinned": Pinned,
}


class Group:
    """Targets behind a balancer."""

    def __init__(self, balancer: Balancer, targets: int) -> None:
        self._balancer = balancer
        self.in_flight = [0] * targets

    def ask(self, connection: int, ask: Callable[[int, Then], None], then: Then) -> None:
        """Chooses a target, and calls ``ask`` with its index and a function to call with the answer."""
        target = self._balancer.choose(connection, self.in_flight)
        self.in_flight[target] += 1

        def answered() -> None:
            self.in_flight[target] -= 1
            then()

        ask(target, answered)


@dataclass(frozen=True, slots=True)
class Hop:
    """A process between client and service. Half of its CPU seconds per request come before the answer, half after."""

    process: Process
    seconds: float

    def pass_through(self, ask: Callable[[Then], None], then: Then) -> None:
        """Asks after the first half of the work, and calls ``then`` after the second half."""
        half = self.seconds / 2
        self.process.run(half, lambda: ask(lambda: self.process.run(half, then)))


@dataclass(frozen=True, slots=True)
class Load:
    """Requests at random moments (Poisson), regardless of answers.

    Args:
        rate: requests per second.
        seconds: duration of the load; the first tenth is not counted.
        tokens: lengths of texts, all equally probable.
        connections: the number of the clients' connections. Requests share them, as in gRPC.
        tick: the resolution of the clients' clock. A request is sent at the next multiple, but its latency counts from
            its due time.
    """

    rate: float
    seconds: float
    tokens: Sequence[int]
    connections: int = 64
    tick: float = 0.0


@dataclass(slots=True)
class Outcome:
    """Results of the requests due after the warm-up: latencies in seconds, and the number without an answer."""

    seconds: float
    latencies: list[float] = field(default_factory=list)
    unanswered: int = 0
    answered_in_time: int = 0

    def percentile(self, share: float) -> float:
        """A percentile of all requests' latencies, by a ``share`` from 0 to 1. A missing answer counts as infinite."""
        ordered = sorted(self.latencies)
        index = max(0, math.ceil(share * (len(ordered) + self.unanswered)) - 1)
        return ordered[index] if index < len(ordered) else math.inf

    @property
    def rate(self) -> float:
        """Answers per second during the load."""
        return self.answered_in_time / self.seconds


FIRST_SECONDS: Final = 0.05
"""The time in which the clients of a closed loop send their first requests."""
WARM_UP: Final = 0.3
"""The share of the load, at its start, whose requests are not counted."""
GRACE_SECONDS: Final = 2.0
"""Time after the load in which requests may still be answered."""


def offer(simulation: Simulation, load: Load, ask: Callable[[Request, Then], None], chance: random.Random) -> Outcome:
    """Runs the simulation under a load. ``ask`` gets each request, and a function to call with its answer."""
    start = WARM_UP * load.seconds
    outcome = Outcome(load.seconds - start)
    counted: list[Request] = []

    def answered(request: Request) -> None:
        request.answered = simulation.now
        outcome.answered_in_time += start <= simulation.now < load.seconds

    def arrive(due: float) -> None:
        following = due + chance.expovariate(load.rate)
        if following < load.seconds:
            leaves = math.ceil(following / load.tick) * load.tick if load.tick else following
            simulation.after(max(0.0, leaves - simulation.now), lambda: arrive(following))
        request = Request(chance.choice(load.tokens), due, chance.randrange(load.connections))
        if due >= start:
            counted.append(request)
        ask(request, lambda: answered(request))

    simulation.after(0.0, lambda: arrive(0.0))
    simulation.run(load.seconds + GRACE_SECONDS)
    outcome.latencies = [one.answered - one.due for one in counted if not math.isnan(one.answered)]
    outcome.unanswered = len(counted) - len(outcome.latencies)
    return outcome


def offer_in_turn(
    simulation: Simulation,
    clients: int,
    seconds: float,
    tokens: Sequence[int],
    ask: Callable[[Request, Then], None],
    chance: random.Random,
    think: float = 0.0002,
) -> Outcome:
    """Runs the simulation under a closed loop of ``clients`` clients.

    Each sends its next request after an answer and an exponentially distributed time with the mean ``think`` seconds.
    """
    start = WARM_UP * seconds
    outcome = Outcome(seconds - start)

    def send(number: int) -> None:
        request = Request(chance.choice(tokens), simulation.now, number)

        def answered() -> None:
            if start <= simulation.now < seconds:
                outcome.answered_in_time += 1
                outcome.latencies.append(simulation.now - request.due)
            simulation.after(chance.expovariate(1 / think), lambda: send(number))

        ask(request, answered)

    for number in range(clients):
        simulation.after(chance.random() * FIRST_SECONDS, partial(send, number))
    simulation.run(seconds)
    return outcome
