"""The load: wrk, one thread, which costs a few microseconds per request."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.speed.bodies import Body

SCRIPT = Path(__file__).with_name("wrk.lua")
TIMEOUT_SECONDS = 60
"""How much longer than it should wrk may run."""


class LoadFailed(Exception):
    """A load generator did not run, or what it measured is of no use."""


@dataclass(frozen=True, slots=True)
class Load:
    """One run: requests answered, seconds, percentiles of their latency, requests that failed.

    ``served`` are the requests that cost CPU time, where a generator also sends some that it does not measure.
    """

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    errors: int = 0
    served: int | None = None


def run_wrk(url: str, bodies: Sequence[Body], connections: int, seconds: int) -> Load:
    """POSTs the bodies in turn over so many connections.

    Raises LoadFailed if wrk fails, or has no answer before the end.
    """
    with tempfile.NamedTemporaryFile(prefix="hf-transformer-bench-") as file:
        for body in bodies:
            file.write(b"%d %d\n" % (len(body.content), body.json_length))
            file.write(body.content)
        file.flush()
        times = [f"-d{seconds}s", f"--timeout={TIMEOUT_SECONDS}s"]
        command = ["wrk", "-t1", f"-c{connections}", *times, f"-s{SCRIPT}", url, "--", file.name]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds + TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as exc:
            raise LoadFailed(f"wrk did not end in {seconds + TIMEOUT_SECONDS} s") from exc
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode or not lines:
        raise LoadFailed(f"wrk ended with {ended.returncode}: {ended.stdout[-500:]} {ended.stderr[-500:]}")
    found = json.loads(lines[-1])
    if not found["requests"]:
        raise LoadFailed(f"no request was answered within {seconds} s")
    errors = found.pop("refused") + found.pop("broken")
    return Load(errors=errors, **found)
