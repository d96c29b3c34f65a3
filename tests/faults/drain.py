"""The end of the service itself, under load."""

from __future__ import annotations

import time

from tests.faults.records import Record
from tests.faults.rig import MODEL, Rig
from tests.faults.suite import HOLD_SECONDS, Result, end, examples

ROUNDS: tuple[tuple[str, ...], ...] = ((), (), ("--workers=2",))
"""Flags of the services that are ended, one after the other."""
NAME, TITLE = "drain", "the service ended (SIGTERM) under load"
ACCEPTED_SECONDS = 0.2
"""A request sent so long before the signal has certainly been read."""
END_SECONDS = 30.0
UNDER_WAY = 64
"""Requests that end before the signal: two rounds of the clients."""


def drain(rig: Rig, *flags: str) -> Result:
    """SIGTERM to a service with requests under way, since the model is slow.

    Each request that was sent 0.2 s before the signal or earlier has to be answered, and rightly. Later ones may be
    refused, or cross with the end of their connection.
    """
    rig.control(delay=0.2, every=1)
    service = rig.serve(*flags).wait_until(f"/v1/models/{MODEL}")
    load = rig.load(service, until_refused=True)
    problems: list[str] = []
    load.start()
    try:
        load.wait_for(UNDER_WAY, HOLD_SECONDS)
        told = time.monotonic()
        service.begin_stop()
        if not service.process.wait(END_SECONDS):
            problems.append(f"it did not end within {END_SECONDS:g} s")
    finally:
        records = load.end()
        rig.control()
    problems += end(service)
    accepted = [one for one in records if one.sent < told - ACCEPTED_SECONDS]
    if not any(one.ended > told for one in accepted):
        problems.append("no request was under way at the signal")
    for kind, wrong in (
        ("accepted and not answered", [one for one in accepted if one.kind not in ("right", "left", "own deadline")]),
        ("never allowed", [one for one in records if one.kind in ("wrong", "hang", "bad error")]),
    ):
        problems += [_say(kind, wrong)] if wrong else []
    return Result(NAME, rig.setup.title, records, None, problems)


def _say(kind: str, records: list[Record]) -> str:
    return f"{len(records)} x {kind}: {examples(records, [one.kind for one in records])}"
