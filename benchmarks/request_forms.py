"""Measures the service's CPU time for requests by protocol, and by their arrival in pieces.

    python -m benchmarks.request_forms [--requests 3000] [--rounds 9]

One process contains connections without sockets, the service's server protocol, application, pipeline, scheduler and
HTTP client, the demo's tokenizer, a task of two labels, and a predictor with immediate answers. Each of 32 connections
has one request in flight. Prints a Markdown table: CPU time per request, the median of alternating rounds, and its
ratio to the first form. The figures exclude the kernel's work for sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
from typing import Any

from benchmarks.in_process import Loop, Service, configuration
from benchmarks.wire import cpu_per_request
from hf_transformer import __version__
from hf_transformer.config.options import Config

TEXTS = [f"the capital of {name} is a large city ." for name in ("france", "italy", "spain", "poland")]


def forms() -> dict[str, list[list[bytes]]]:
    """Name -> the reads of several requests."""
    predict, infer = "/v1/models/m:predict", "/v2/models/m/infer"
    usual = [(predict, {"instances": [text]}) for text in TEXTS]
    more = {"return_probabilities": True}
    return {
        "V1, one text": [[b"".join(one)] for one in map(_json, usual)],
        "V1, head and body apart": [list(_json(one)) for one in usual],
        "V1, an object": _whole((predict, {"instances": [{"text": text}]}) for text in TEXTS),
        "V1, with a parameter": _whole((predict, {"instances": [text], "parameters": more}) for text in TEXTS),
        "V1, eight texts": _whole((predict, {"instances": [text] * 8}) for text in TEXTS),
        "V2, JSON": _whole((infer, _tensors(text)) for text in TEXTS),
        "V2, raw": [[b"".join(_raw(infer, text))] for text in TEXTS],
        "V2, raw, head and body apart": [list(_raw(infer, text)) for text in TEXTS],
    }


def _whole(requests: Any) -> list[list[bytes]]:
    return [[b"".join(_json(one))] for one in requests]


def _tensors(text: str) -> Any:
    return {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}]}


def _json(request: tuple[str, Any]) -> tuple[bytes, bytes]:
    path, content = request
    body = json.dumps(content).encode()
    return _head(path, len(body)), body


def _raw(path: str, text: str) -> tuple[bytes, bytes]:
    raw = len(text).to_bytes(4, "little") + text.encode()
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(raw)}}
    wanted = [{"name": "output-0", "parameters": {"binary_data": True}}]
    header = json.dumps({"inputs": [tensor], "outputs": wanted}).encode()
    body = header + raw
    return _head(path, len(body), f"Inference-Header-Content-Length: {len(header)}"), body


def _head(path: str, length: int, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *more]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


async def measure(config: Config, requests: int, rounds: int) -> dict[str, float]:
    """The median CPU seconds per request of each form."""
    seconds_by_form: dict[str, list[float]] = {}
    async with Service(config) as service:
        for number in range(rounds + 1):
            for name, reads in forms().items():
                spent = await cpu_per_request(service.protocol, reads, requests)
                if number:  # the first round warms up
                    seconds_by_form.setdefault(name, []).append(spent)
    return {name: statistics.median(values) for name, values in seconds_by_form.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=3000, help="requests of each form and round [3000]")
    parser.add_argument("--rounds", type=int, default=9, help="number of rounds [9]")
    options = parser.parse_args()
    with configuration() as config, asyncio.Runner(loop_factory=Loop) as runner:
        seconds_by_form = runner.run(measure(config, options.requests, options.rounds))
    print(f"hf-transformer {__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs\n")
    print("| request | CPU, us | times the first |\n|---|---:|---:|")
    first = next(iter(seconds_by_form.values()))
    for name, seconds in seconds_by_form.items():
        print(f"| {name} | {seconds * 1e6:.0f} | {seconds / first:.1f} |")


if __name__ == "__main__":
    main()
