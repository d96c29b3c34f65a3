"""One Triton call after the other with tritonclient, for so many seconds; prints one line of JSON.

A program of its own: tritonclient's generated stubs can't be loaded beside the service's.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shared

WARM_UP = 20


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("url", "protocol", "shared_memory", "model", "output"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("tokens", "output_bytes", "seconds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    api: Any = tritonclient.http if options.protocol == "http" else tritonclient.grpc
    with api.InferenceServerClient(options.url) as client:
        if options.shared_memory == "none":
            more = {"binary_data": True} if options.protocol == "http" else {}
            print(json.dumps(measure(options, api, client, api.InferRequestedOutput(options.output, **more))))
            return
        name = f"hf_transformer_bench_{os.getpid()}"
        handle = shared.create_shared_memory_region(name, f"/{name}", options.output_bytes)
        try:
            client.register_system_shared_memory(name, f"/{name}", options.output_bytes)
            output = api.InferRequestedOutput(options.output)
            output.set_shared_memory(name, options.output_bytes)
            print(json.dumps(measure(options, api, client, output)))
            client.unregister_system_shared_memory(name)
        finally:
            shared.destroy_shared_memory_region(handle)


def measure(options: argparse.Namespace, api: Any, client: Any, output: Any) -> dict[str, float]:
    """Calls until the time is over: requests, seconds and percentiles in ms."""
    inputs = []
    for name in ("input_ids", "attention_mask"):
        tensor = api.InferInput(name, [1, options.tokens], "INT64")
        tensor.set_data_from_numpy(np.ones((1, options.tokens), np.int64))
        inputs.append(tensor)

    def call() -> None:
        result = client.infer(options.model, inputs, outputs=[output])
        if options.shared_memory == "none":
            result.as_numpy(options.output)

    for _ in range(WARM_UP):
        call()
    times = []
    started = now = time.perf_counter()
    while now - started < options.seconds:
        call()
        before, now = now, time.perf_counter()
        times.append(now - before)
    p50, p99 = np.percentile(times, (50, 99)) * 1000
    return {"requests": len(times), "seconds": now - started, "p50_ms": float(p50), "p99_ms": float(p99)}


if __name__ == "__main__":
    main()
