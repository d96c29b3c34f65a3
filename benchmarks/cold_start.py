"""Time from the start of the service and of a Triton, at the same moment, to the first answer.

    python -m benchmarks.cold_start [--rounds 5] [--predictor_protocol grpc-v2] [--triton_environment PATH]

The demo's fill-mask model runs in Triton's Python backend. Each round starts both as new processes, with warm file
caches, as on a node that has the image and the model already. A client asks every 10 ms from the start on.
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from hf_transformer.commands.child_process import ChildProcess
from hf_transformer.commands.demo import DEFAULT_TASK, default_model_repository, demos
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.commands.loopback import HOST, exchange, is_ready, reserved_ports

MODEL = demos()[DEFAULT_TASK]
PAUSE_SECONDS, MOST_SECONDS = 0.01, 120.0


class Round:
    """Asks until the first answer. ``seen`` has the seconds until each event, ``statuses`` counts the responses."""

    def __init__(self, port: int, triton: LocalTriton) -> None:
        self.seen: dict[str, float] = {}
        self.statuses: Counter[int] = Counter()
        self._port = port
        self._triton = triton
        self._began = time.perf_counter()

    def ask(self) -> None:
        """Asks the service for a prediction."""
        while not self.statuses[200] and time.perf_counter() < self._began + MOST_SECONDS:
            try:
                status, _ = exchange(self._port, MODEL.path, MODEL.body)
            except (OSError, http.client.HTTPException):
                status = 0
            self.statuses[status] += 1
            if status:
                self._note("live")
            if status == 200:
                self._note("answer")
            time.sleep(PAUSE_SECONDS)

    def watch(self) -> None:
        """Asks Triton whether it has the model."""
        while "model" not in self.seen and time.perf_counter() < self._began + MOST_SECONDS:
            if is_ready(self._triton.http_port, f"/v2/models/{MODEL.model}/ready"):
                self._note("model")
            time.sleep(PAUSE_SECONDS)

    def _note(self, event: str) -> None:
        self.seen.setdefault(event, time.perf_counter() - self._began)


def measure(triton: LocalTriton, protocol: str, http_port: int, grpc_port: int) -> dict[str, float]:
    """Starts both, and returns what a Round has seen. Raises RuntimeError for another status than 503 and 200."""
    address = triton.http_address if protocol == "v2" else triton.grpc_address
    flags = [f"--model_name={MODEL.model}", f"--model_dir={triton.model_repository / MODEL.model}", *MODEL.flags]
    flags += [f"--predictor_host={address}", f"--predictor_protocol={protocol}"]
    flags += [f"--host={HOST}", f"--http_port={http_port}", f"--grpc_port={grpc_port}"]
    triton.kill()
    with tempfile.TemporaryDirectory() as folder:
        asked = Round(http_port, triton)
        environ = {**os.environ, "LOG_LEVEL": "WARNING"}
        service = ChildProcess([sys.executable, "-m", "hf_transformer", *flags], environ, Path(folder) / "log")
        clients = [threading.Thread(target=work) for work in (asked.ask, asked.watch)]
        for client in clients:
            client.start()
        try:
            triton.restart()
            for client in clients:
                client.join()
        finally:
            service.terminate()
    if not asked.statuses[200] or not asked.statuses.keys() <= {0, 200, 503}:
        raise RuntimeError(f"the service's responses by status: {dict(asked.statuses)}")
    return {**asked.seen, "503s": float(asked.statuses[503])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--predictor_protocol", choices=("v2", "grpc-v2"), default="v2")
    parser.add_argument("--triton_environment", type=Path, default=None)
    arguments = parser.parse_args()
    repository, environment = default_model_repository(), arguments.triton_environment
    with (
        reserved_ports(2) as ports,
        LocalTriton(repository, environment=environment, models=[MODEL.model]) as triton,
    ):
        rounds = [measure(triton, arguments.predictor_protocol, *ports) for _ in range(arguments.rounds)]
    for name in ("live", "model", "answer", "503s"):
        values = sorted(one[name] for one in rounds)
        print(f"{name:7} median {statistics.median(values):7.2f}, from {values[0]:.2f} to {values[-1]:.2f}")


if __name__ == "__main__":
    main()
