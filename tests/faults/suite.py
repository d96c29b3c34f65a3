"""Does the faults to an environment, one after the other, and says what was wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import httpx

from hf_transformer.commands.child_process import poll
from hf_transformer.errors import LoadError
from tests.faults.environment import REGION_BYTES, FaultEnvironment, Use, regions, settle, use_of
from tests.faults.faults import Fault, Scene
from tests.faults.records import Kind, Record, kinds, recovery
from tests.faults.texts import MODEL
from tests.support.service import Service

NEVER: tuple[Kind, ...] = ("wrong", "hang", "bad error", "dropped", "refused")
"""How no request may end, except as a fault allows."""
RECOVERY_SECONDS = 60.0
HOLD_SECONDS = 60.0
"""How long anything may take; a suite that waits for ever says nothing."""
NOTICE_SECONDS = 30.0
REGISTER_SECONDS = 30.0
WARM_UP = 300
ATTEMPTS = 3
"""At a fault that may end Triton itself."""
PROBE_SECONDS = 0.5
"""Between two probes."""
ROUNDS: tuple[tuple[str, ...], ...] = ((), (), ("--workers=2",))
"""Flags of the services that are ended, one after the other."""
DRAIN, DRAIN_TITLE = "drain", "the service ended (SIGTERM) under load"
ACCEPTED_SECONDS = 0.2
"""A request sent so long before the signal has certainly been read."""
END_SECONDS = 30.0
UNDER_WAY = 64
"""Requests that end before the signal: two rounds of the clients."""


class Probes(NamedTuple):
    """Statuses of / and of the model's path, 0 where there was no answer."""

    live: list[int]
    ready: list[int]


@contextmanager
def probing(service: Service) -> Iterator[Probes]:
    """Asks a service for its health all the time, as a kubelet does, for as long as the context lasts."""
    probes, ended = Probes([], []), threading.Event()

    def status(path: str) -> int:
        try:
            return httpx.get(f"{service.url}{path}", timeout=10.0, trust_env=False, verify=False).status_code
        except httpx.TransportError:
            return 0

    def run() -> None:
        while not ended.wait(PROBE_SECONDS):
            probes.live.append(status("/"))
            probes.ready.append(status(f"/v1/models/{MODEL}"))

    thread = threading.Thread(target=run, name="probes")
    thread.start()
    try:
        yield probes
    finally:
        ended.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class Result:
    """One fault, done to one environment."""

    fault: str
    setup: str
    records: Sequence[Record]
    recovery: tuple[float, float] | None = None
    problems: list[str] = field(default_factory=list)
    triton_ended: bool = False
    """By itself: nobody ended it."""


class Suite:
    """The faults of one environment.

    Args:
        requests: that each fault is to have at least; the load goes on after the recovery until there are as many.
    """

    def __init__(self, environment: FaultEnvironment, requests: int) -> None:
        self._environment = environment
        self._requests = requests
        self._shared: Service | None = None
        self._before: Use | None = None

    def run(self, fault: Fault) -> Result:
        """Does one fault. What is wrong is in the result, also when the fault could not be done.

        One that may end Triton is done again where it has. Of the time before counts how requests have ended.
        """
        result = self._run(fault)
        for _ in range(ATTEMPTS - 1 if fault.may_end_triton else 0):
            if not result.triton_ended:
                break
            before, result = result.records, self._run(fault)
            problems = [*_problems(fault, before), *result.problems]
            result = replace(result, records=[*before, *result.records], problems=problems)
        return result

    def _run(self, fault: Fault) -> Result:
        if fault.prepare is not None:
            fault.prepare(self._environment)
        try:
            service = self._service(fault)
        except AssertionError as error:
            died = self._died()
            problems = [f"no service: {error}"[:2000], *died]
            return Result(fault.name, self._environment.setup.title, (), None, problems, bool(died))
        load = self._environment.load(service)
        scene = Scene(self._environment, service, load)
        problems = []
        with probing(service) as probes:
            load.start()
            recovered = None
            try:
                recovered = self._stages(fault, scene, probes, problems)
            except (AssertionError, OSError, LoadError) as error:
                problems.append(f"it could not be done: {error}"[:2000])
            finally:
                records = load.end()
        if any(status != 200 for status in probes.live if status or "dropped" not in fault.allowed):
            problems.append(f"not alive: {probes.live}")
        problems += _problems(fault, records)
        problems += self._after(fault, scene)
        died = self._died()
        return Result(fault.name, self._environment.setup.title, records, recovered, problems + died, bool(died))

    def _died(self) -> list[str]:
        """Says whether Triton has ended though nobody ended it, and starts it again for what follows."""
        code = self._environment.triton.child.exit_code
        if code is None:
            return []
        output = self._environment.triton.child.output()[-2000:]
        self._environment.triton.restart()
        if self._shared is not None:  # or the next fault would see the service find out about this one
            service, text = self._shared, self._environment.texts[0].text
            poll(lambda: service.post({"instances": [text]}).status_code == 200, RECOVERY_SECONDS)
        return [f"Triton has ended by itself with {code}, and said last: {output}"]

    def _service(self, fault: Fault) -> Service:
        if fault.flags is not None:
            service = self._environment.serve(*fault.flags, host=fault.host)
            return service.wait_until("/" if fault.noticed else f"/v1/models/{MODEL}")
        if self._shared is None:
            self._shared = self._environment.serve().wait_until(f"/v1/models/{MODEL}")
            load = self._environment.load(self._shared)
            load.start()
            load.wait_for(WARM_UP, HOLD_SECONDS)
            load.end()
            self._before = use_of(self._shared)
        return self._shared.wait_until(f"/v1/models/{MODEL}")

    def _stages(self, fault: Fault, scene: Scene, probes: Probes, problems: list[str]) -> tuple[float, float] | None:
        load = scene.load
        if not fault.from_start:
            load.wait_for(WARM_UP, HOLD_SECONDS)
            if not self._uses_shared_memory(scene.service):
                problems.append("shared memory is not in use before the fault")
            seen = kinds(load.records)
            if bad := {kind: seen[kind] for kind in (*NEVER, "error") if seen[kind]}:
                problems.append(f"before the fault: {bad}, {examples(load.records, *bad)}")
        began, probed = time.monotonic(), len(probes.ready)
        fault.begin(scene)
        if not load.wait_for(fault.hold, HOLD_SECONDS):
            problems.append(f"fewer than {fault.hold} requests ended during the fault")
        if fault.noticed and not poll(lambda: 503 in probes.ready[probed:], NOTICE_SECONDS):
            problems.append(f"the model was never said not to be ready: {probes.ready[probed:]}")
        time.sleep(max(0.0, began + fault.hold_seconds - time.monotonic()))
        fault.end(scene)
        ended = time.monotonic()
        if not poll(lambda: recovery(load.records, ended) is not None, RECOVERY_SECONDS):
            problems.append(f"not recovered after {RECOVERY_SECONDS:g} s: {examples(load.records[-50:], 'error')}")
        found = recovery(load.records, ended)
        load.wait_for(self._requests - len(load.records), HOLD_SECONDS)
        return found

    def _uses_shared_memory(self, service: Service) -> bool:
        """Waits for it: after a restart of the predictor it takes some seconds. True where it is not wanted."""
        if not self._environment.setup.shared_memory:
            return True
        # With workers the batcher tells it, within a second.
        return poll(lambda: service.metric("hf_transformer_shared_memory_registered", 0) == 1, REGISTER_SECONDS)

    def _after(self, fault: Fault, scene: Scene) -> list[str]:
        fault.restore(scene)
        if fault.flags is not None:
            return end(scene.service)
        assert self._before is not None
        quarantine = (REGION_BYTES // 2 if fault.abandons else 0) if self._environment.setup.shared_memory else None
        return [f"afterwards {one}" for one in settle(scene.service, self._before, quarantine)]

    def close(self) -> list[str]:
        """Ends the service that the faults shared; what is wrong about that."""
        return [] if self._shared is None else end(self._shared)


def end(service: Service) -> list[str]:
    """Ends a service with SIGTERM, unless it has ended; what is wrong about that."""
    code = service.stop()
    problems = [] if code == 0 else [f"the service ended with {code}"]
    if "Traceback" in service.log:
        problems.append("a traceback in the log: " + service.log[service.log.index("Traceback") :][:2000])
    return problems + [f"left in {path.parent}: {path.name}" for path in regions(service)]


def _problems(fault: Fault, records: Sequence[Record]) -> list[str]:
    seen = kinds(records)
    forbidden = tuple(kind for kind in (*NEVER, *(("error",) if fault.hidden else ())) if kind not in fault.allowed)
    return [f"{seen[kind]} x {kind}: {examples(records, kind)}" for kind in forbidden if seen[kind]]


def examples(records: Sequence[Record], *wanted: Kind) -> str:
    """Some requests that ended in one of these ways, or in any, for people to read."""
    found = {
        f"{one.api} {one.kind} {one.status or ''} {one.says}" for one in records if one.kind in wanted or not wanted
    }
    return "; ".join(sorted(found)[:3])


# The end of the service itself


def drain(environment: FaultEnvironment, *flags: str) -> Result:
    """SIGTERM to a service with requests under way, since the model is slow.

    Each request that was sent 0.2 s before the signal or earlier has to be answered, and rightly. Later ones may be
    refused, or cross with the end of their connection.
    """
    environment.control(delay=0.2, every=1)
    service = environment.serve(*flags).wait_until(f"/v1/models/{MODEL}")
    load = environment.load(service, until_refused=True)
    problems: list[str] = []
    load.start()
    try:
        load.wait_for(UNDER_WAY, HOLD_SECONDS)
        signalled = time.monotonic()
        service.begin_stop()
        if not service.process.wait(END_SECONDS):
            problems.append(f"it did not end within {END_SECONDS:g} s")
    finally:
        records = load.end()
        environment.control()
    problems += end(service)
    accepted = [record for record in records if record.sent < signalled - ACCEPTED_SECONDS]
    if not any(record.ended > signalled for record in accepted):
        problems.append("no request was under way at the signal")
    for kind, wrong in (
        (
            "accepted and not answered",
            [record for record in accepted if record.kind not in ("right", "left", "own deadline")],
        ),
        ("never allowed", [record for record in records if record.kind in ("wrong", "hang", "bad error")]),
    ):
        if wrong:
            problems.append(f"{len(wrong)} x {kind}: {examples(wrong)}")
    return Result(DRAIN, environment.setup.title, records, None, problems)
