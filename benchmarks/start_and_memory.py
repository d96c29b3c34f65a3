"""Measures the service's start-up time and memory, with REST and gRPC to Triton, and without a predictor.

The last row is without a predictor too, with a vocabulary of 30,522 pieces, as many as BERT's, in place of 768.

    python -m benchmarks.start_and_memory [--checkout NAME=PATH] [--rounds 9] [--requests 1000]

A real Triton serves the demo model. Each round starts the service as a user does. It measures the seconds from the
process start to the first 200 of GET /v1/models/bert, and resident memory (which counts shared pages in full) then and
after the requests, which only tokenize without a predictor. Protocols and checkouts alternate. Prints Markdown tables:
medians with their 95 percent intervals, and ratios to other checkouts, by round.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.metadata
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from benchmarks.pairs import Checkout, add_flags, environment, interval, paired
from benchmarks.processes import ROOT, variables
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.commands.loopback import HOST, is_ready, reserved_port

REPOSITORY: Final = ROOT / "deploy" / "model_repository"
BODY: Final = b'{"instances": ["The capital of france is [MASK]."]}'
LARGE: Final = "none, 30,522 pieces"
PIECES: Final = 30_522
PREDICT, TOKENIZE = "/v1/models/bert:predict", "/v1/models/bert:tokenize"
ANSWER, TOKENS = b'{"predictions":["paris"]}', b'{"predictions":[{"ids":[2,'
OURS: Final = "this"
POLL_SECONDS: Final = 0.002
PACKAGES: Final = ("hf-transformer", "tokenizers", "grpcio", "numpy", "starlette", "uvicorn")
Figures = tuple[float, float, float, float]


def main() -> None:
    """Runs the rounds and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--triton_environment", type=environment, default=ROOT / ".venv-triton")
    add_flags(parser)
    options = parser.parse_args()
    versions = {OURS: None, **{checkout.name: checkout for checkout in options.checkout}}
    rounds: dict[tuple[str, str], list[Figures]] = {}
    with (
        LocalTriton(REPOSITORY, environment=options.triton_environment, models=["bert"]) as triton,
        tempfile.TemporaryDirectory() as folder,
    ):
        addresses = {"v2": triton.http_address, "grpc-v2": triton.grpc_address, "none": "", LARGE: ""}
        large = with_pieces(Path(folder) / "bert", PIECES)
        for number in range(options.rounds + 1):
            for protocol, address in addresses.items():
                for name, checkout in reversed(versions.items()) if number % 2 else versions.items():
                    command, environ = start_command(checkout, options.own_python)
                    with reserved_port() as port:
                        model_dir = large if protocol == LARGE else REPOSITORY / "bert"
                        figures = measure(port, command, environ, protocol, address, model_dir, options.requests)
                    if number:  # the first round warms up
                        rounds.setdefault((protocol, name), []).append(figures)
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES))
    print(f"\nMedian (95 % interval) of {options.rounds} rounds, after one that is not counted.\n")
    titles = (
        "start to ready, s",
        "CPU until then, s",
        "resident at ready, MB",
        f"after {options.requests} requests, MB",
    )
    print(f"| protocol | version | {' | '.join(titles)} |\n|---|---|---|---|---|---|")
    for (protocol, name), found in rounds.items():
        print(f"| {protocol} | {name} | {' | '.join(map(spread, zip(*found, strict=True)))} |")
    if options.checkout:
        print("\n| protocol | other | figure | this / other | 95 % |\n|---|---|---|---|---|")
    for protocol, checkout in itertools.product(addresses, options.checkout):
        ours, other = (zip(*rounds[protocol, name], strict=True) for name in (OURS, checkout.name))
        for title, new, old in zip(titles, ours, other, strict=True):
            print(f"| {protocol} | {checkout.name} | {title} | {paired(new, old)} |")


def with_pieces(folder: Path, pieces: int) -> Path:
    """A copy of the demo model's folder whose vocabulary has so many pieces: those of the model, and made-up words."""
    shutil.copytree(REPOSITORY / "bert", folder, ignore=shutil.ignore_patterns("1", "__pycache__"))
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"piece{index}": index for index in range(len(vocabulary), pieces)}
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


def spread(values: Sequence[float]) -> str:
    """The median, with its interval if there is one."""
    limits = interval(values)
    return f"{statistics.median(values):.2f}" + (f" ({limits[0]:.2f} to {limits[1]:.2f})" if limits else "")


def start_command(checkout: Checkout | None, own_python: bool) -> tuple[list[str], dict[str, str]]:
    """The Python of a version, and its variables."""
    if checkout is None:
        return [sys.executable], variables()
    return checkout.command(Path(sys.executable), own_python), checkout.environ(variables())


def measure(
    port: int,
    python: Sequence[str],
    environ: Mapping[str, str],
    protocol: str,
    address: str,
    model_dir: Path,
    requests: int,
) -> Figures:
    """One round of a service on ``port``: seconds and CPU seconds to ready, MB at ready, MB after the requests."""
    flags = [
        *(f"--host={HOST}", f"--http_port={port}", "--model_name=bert", f"--model_dir={model_dir}"),
        *([f"--predictor_host={address}"] if address else []),
        f"--predictor_protocol={protocol.partition(',')[0]}",
        *("--tensor_input_names=input_ids", "--log_level=warning"),
    ]
    started = time.perf_counter()
    with subprocess.Popen([*python, "-m", "hf_transformer", *flags], env=environ) as service:
        try:
            while not is_ready(port, "/v1/models/bert"):
                if service.poll() is not None:
                    raise SystemExit(f"the service ended with {service.returncode}")
                time.sleep(POLL_SECONDS)
            seconds, process = time.perf_counter() - started, psutil.Process(service.pid)
            cpu, before = sum(process.cpu_times()[:2]), process.memory_info().rss / 1e6
            send(port, requests, *((PREDICT, ANSWER) if address else (TOKENIZE, TOKENS)))
            return seconds, cpu, before, process.memory_info().rss / 1e6
        finally:
            service.terminate()


def send(port: int, requests: int, path: str, expected: bytes) -> None:
    """Sends the requests over one connection and checks the beginning of every answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=30.0)
    for _ in range(requests):
        connection.request("POST", path, BODY)
        answer = connection.getresponse().read()
        if not answer.startswith(expected):
            raise SystemExit(f"wrong answer: {answer!r}")
    connection.close()


if __name__ == "__main__":
    main()
