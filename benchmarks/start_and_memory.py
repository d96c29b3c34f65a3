"""Measures the service's start-up time and memory, with REST and gRPC to Triton.

    python -m benchmarks.start_and_memory [--rounds 5] [--requests 1000] [--triton_environment .venv-triton]

A real Triton serves the demo model. Each round starts the service as a user does. It measures the seconds from the
process start to the first 200 of GET /v1/models/bert, and resident memory (VmRSS, which counts shared pages in full)
then and after the requests. The protocols alternate. Prints one Markdown table.
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
from typing import Final

import psutil

from benchmarks.pairs import environment
from benchmarks.processes import ROOT
from hf_transformer.commands.local_triton import HOST, LocalTriton, free_ports, is_ready

REPOSITORY: Final = ROOT / "deploy" / "model_repository"
BODY: Final = b'{"instances": ["The capital of france is [MASK]."]}'
ANSWER: Final = b'{"predictions":["paris"]}'
POLL_SECONDS: Final = 0.002
PACKAGES: Final = ("hf-transformer", "tokenizers", "grpcio", "numpy", "starlette", "uvicorn")


def main() -> None:
    """Runs the rounds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--triton_environment", type=environment, default=ROOT / ".venv-triton")
    options = parser.parse_args()
    figures: dict[str, list[tuple[float, float, float]]] = {"v2": [], "grpc-v2": []}
    with LocalTriton(REPOSITORY, environment=options.triton_environment, models=["bert"]) as triton:
        addresses = {"v2": triton.http_address, "grpc-v2": triton.grpc_address}
        for _ in range(options.rounds + 1):
            for protocol, address in addresses.items():
                figures[protocol].append(measure(protocol, address, options.requests))
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES))
    print(f"\nMedian (least to most) of {options.rounds} rounds, after one that is not counted.\n")
    print(f"| predictor protocol | start to ready, s | resident at ready, MB | after {options.requests} requests, MB |")
    print("|---|---|---|---|")
    for protocol, rounds in figures.items():
        columns = (
            f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
            for values in zip(*rounds[1:], strict=True)
        )
        print(f"| {protocol} | {' | '.join(columns)} |")


def measure(protocol: str, address: str, requests: int) -> tuple[float, float, float]:
    """One round: seconds to ready, MB at ready, MB after the requests."""
    port = free_ports(1)[0]
    flags = [
        *(f"--host={HOST}", f"--http_port={port}", "--model_name=bert", f"--model_dir={REPOSITORY / 'bert'}"),
        *(f"--predictor_host={address}", f"--predictor_protocol={protocol}"),
        *("--tensor_input_names=input_ids", "--log_level=warning"),
    ]
    started = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", "hf_transformer", *flags]) as service:
        try:
            while not is_ready(port, "/v1/models/bert"):
                if service.poll() is not None:
                    raise SystemExit(f"the service ended with {service.returncode}")
                time.sleep(POLL_SECONDS)
            seconds, memory = time.perf_counter() - started, psutil.Process(service.pid).memory_info
            before = memory().rss / 1e6
            send(port, requests)
            return seconds, before, memory().rss / 1e6
        finally:
            service.terminate()


def send(port: int, requests: int) -> None:
    """Sends the requests over one connection and checks every answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=30.0)
    for _ in range(requests):
        connection.request("POST", "/v1/models/bert:predict", BODY)
        answer = connection.getresponse().read()
        if answer != ANSWER:
            raise SystemExit(f"wrong answer: {answer!r}")
    connection.close()


if __name__ == "__main__":
    main()
