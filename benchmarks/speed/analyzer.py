"""NVIDIA's load generator, perf_analyzer: one run of it, and the service's own V2 API under it."""

from __future__ import annotations

import csv
import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from benchmarks.speed.cases import Cell, Model
from benchmarks.speed.http_calls import get_text
from benchmarks.speed.load import Load, LoadFailed
from benchmarks.speed.subjects import Ground, Service
from hf_transformer.commands.local_triton import HOST, free_ports

LONGEST_SECONDS = 30
"""For one run of some seconds; perf_analyzer may hang where it sees no end."""
MOST_IN_FLIGHT = 32
"""It has a thread for each: with 128 on two cores a run may never end."""
COMPARED = (1, 16, 32)
"""Numbers in flight at which figures over gRPC are compared."""
WINDOW_MS = 500
WINDOWS = 3


def run_analyzer(
    command: Sequence[str],
    flags: Sequence[str],
    environ: Mapping[str, str],
    cell: Cell,
    seconds: int,
    count: Callable[[], int],
) -> Load:
    """One run, of WINDOWS windows, of which it gives the mean.

    Args:
        flags: what is asked, and where.
        count: how many requests were answered so far, as the server says: those of its warm-up cost CPU time too.

    Raises LoadFailed.
    """
    window = max(WINDOW_MS, seconds * 1000 // WINDOWS)
    before = count()
    with tempfile.TemporaryDirectory(prefix="hf-transformer-bench-") as folder:
        table = Path(folder) / "table.csv"
        usual = (
            *(f"--concurrency-range={cell.connections}", f"--max-threads={max(16, cell.connections)}"),
            *("-p", str(window), "-r", str(WINDOWS), "-s", "999", "-f", str(table)),
        )
        run_program([*command, *flags, *usual], environ)
        served = count() - before
        with table.open() as file:
            row = next(csv.DictReader(file), None)
    if row is None:
        raise LoadFailed("perf_analyzer has written an empty table")
    rate, measured = float(row["Inferences/Second"]), WINDOWS * window / 1000
    micro = {percent: float(row[f"p{percent} latency"]) for percent in (50, 99)}
    return Load(round(rate * measured), measured, micro[50] / 1000, micro[99] / 1000, served=served)


def run_program(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """What a load generator prints. Raises LoadFailed where it fails, or does not end."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=LONGEST_SECONDS)
    except subprocess.TimeoutExpired as exc:
        raise LoadFailed(f"{command[0]} did not end in {LONGEST_SECONDS} s") from exc
    if ended.returncode:
        raise LoadFailed(f"{command[0]} ended with {ended.returncode}: {ended.stdout[-800:]} {ended.stderr[-800:]}")
    return ended.stdout


class Inbound(Service):
    """The service asked in the open inference protocol: perf_analyzer sends texts, in turn, as BYTES."""

    kind: ClassVar[str] = "inbound"

    def __init__(
        self,
        name: str,
        ground: Ground,
        model: Model,
        python: Path,
        service_flags: Sequence[str],
        analyzer: Sequence[str],
        protocol: str,
    ) -> None:
        """``protocol`` is http or grpc."""
        super().__init__(name, ground, model, python, service_flags)
        self._analyzer = analyzer
        self._protocol = protocol
        self._grpc_port = 0

    def command(self, port: int) -> list[str]:
        self._grpc_port = free_ports(1)[0]  # of a flag that is given twice the last one counts
        return [*super().command(port), f"--grpc_port={self._grpc_port}"]

    def takes(self, cell: Cell) -> bool:
        """Where perf_analyzer's figures over gRPC are: each of its runs takes some seconds."""
        return cell.case.lengths == "9" and cell.connections in COMPARED

    def measure(self, cell: Cell, seconds: int) -> Load:
        port = self._grpc_port if self._protocol == "grpc" else self.port
        with tempfile.NamedTemporaryFile("w", prefix="hf-transformer-bench-", suffix=".json") as file:
            json.dump({"data": [{"text": [text]} for text in self.ground.texts_of(cell.case)]}, file)
            file.flush()
            flags = ["-m", self.model.name, "-u", f"{HOST}:{port}", "-i", self._protocol]
            flags += ["--input-data", file.name, "--shape", "text:1"]
            return run_analyzer(self._analyzer, flags, self.ground.environ, cell, seconds, self._answered)

    def _answered(self) -> int:
        """Requests that the service has answered, over whichever API."""
        lines = get_text(self.port, "/metrics").splitlines()
        return round(sum(float(line.split()[-1]) for line in lines if line.startswith("hf_transformer_requests_total")))
