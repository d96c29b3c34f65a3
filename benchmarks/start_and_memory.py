"""How long a start takes and how much memory the service holds, over REST and gRPC.

    python benchmarks/start_and_memory.py [--rounds 5] [--requests 1000] [--triton_environment .venv-triton]

A real Triton serves the demo model. Each round starts the service as a user does and measures the seconds from the
start of the process to the first GET /v1/models/bert that is answered with 200, and then the resident memory
(VmRSS of /proc, which counts shared pages in full) after the requests. Protocols alternate, so that both meet the same
noise. Prints one Markdown table.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

from hf_transformer.commands.local_triton import LocalTriton, free_ports

ROOT = Path(__file__).parents[1]
REPOSITORY = ROOT / "deploy" / "model_repository"
BODY = b'{"instances": ["The capital of france is [MASK]."]}'
ANSWER = b'{"predictions":["paris"]}'
POLL_SECONDS = 0.002
PACKAGES = ("hf-transformer", "tokenizers", "grpcio", "numpy", "starlette", "uvicorn")


def main() -> None:
    """Runs the rounds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--triton_environment", type=Path, default=ROOT / ".venv-triton")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float, float]]] = {"v2": [], "grpc-v2": []}
    with LocalTriton(REPOSITORY, environment=options.triton_environment, models=["bert"]) as triton:
        addresses = {"v2": triton.http_address, "grpc-v2": triton.grpc_address}
        for _ in range(options.rounds + 1):
            for protocol, address in addresses.items():
                found[protocol].append(measure(protocol, address, options.requests))
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES))
    print(f"\nMedian (least to most) of {options.rounds} rounds, after one that is not counted.\n")
    print(f"| predictor protocol | start to ready, s | resident at ready, MB | after {options.requests} requests, MB |")
    print("|---|---|---|---|")
    for protocol, rounds in found.items():
        columns = zip(*rounds[1:], strict=True)
        print(f"| {protocol} | " + " | ".join(spread(column) for column in columns) + " |")


def spread(values: tuple[float, ...]) -> str:
    """The median, the least and the most."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def measure(protocol: str, address: str, requests: int) -> tuple[float, float, float]:
    """One round: seconds to ready, MB at ready, MB after the requests."""
    port = free_ports(1)[0]
    flags = [
        "--host=127.0.0.1",
        f"--http_port={port}",
        "--model_name=bert",
        f"--model_dir={REPOSITORY / 'bert'}",
        f"--predictor_host={address}",
        f"--predictor_protocol={protocol}",
        "--tensor_input_names=input_ids",
        "--log_level=warning",
    ]
    started = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", "hf_transformer", *flags]) as service:
        try:
            while not ready(port):
                if service.poll() is not None:
                    raise SystemExit(f"the service ended with {service.returncode}")
                time.sleep(POLL_SECONDS)
            seconds = time.perf_counter() - started
            before = resident_megabytes(service.pid)
            send(port, requests)
            return seconds, before, resident_megabytes(service.pid)
        finally:
            service.terminate()


def ready(port: int) -> bool:
    """Whether the model is ready."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
    try:
        connection.request("GET", "/v1/models/bert")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def send(port: int, requests: int) -> None:
    """Sends the requests over one connection and checks every answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30.0)
    for _ in range(requests):
        connection.request("POST", "/v1/models/bert:predict", BODY)
        answer = connection.getresponse().read()
        if answer != ANSWER:
            raise SystemExit(f"wrong answer: {answer!r}")
    connection.close()


def resident_megabytes(pid: int) -> float:
    """VmRSS in units of 10^6 bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit(f"process {pid} has no VmRSS")


if __name__ == "__main__":
    main()
