"""One Triton call after the other with tritonclient, for so many seconds; prints one line of JSON.

A program of its own, since tritonclient's stubs can't be loaded beside the service's.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shared

from benchmarks.speed.bare_calls import figures, flags

WARM_UP = 20


def main() -> None:
    """Measures and prints."""
    options = flags(__doc__)
    api: Any = tritonclient.http if options.protocol == "http" else tritonclient.grpc
    with api.InferenceServerClient(options.url) as client:
        if options.shared_memory == "none":
            print(json.dumps(measure(options, api, client, inline(options, api))))
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


def inline(options: argparse.Namespace, api: Any) -> Any:
    """The output within the response, binary."""
    more = {"binary_data": True} if options.protocol == "http" else {}
    return api.InferRequestedOutput(options.output, **more)


def measure(options: argparse.Namespace, api: Any, client: Any, output: Any) -> dict[str, float]:
    """Calls until the time is over."""
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
    return repeat(call, options.seconds)


def repeat(call: Callable[[], None], seconds: float) -> dict[str, float]:
    """Requests, seconds and percentiles in ms."""
    times = []
    started = now = time.perf_counter()
    while now - started < seconds:
        call()
        before, now = now, time.perf_counter()
        times.append(now - before)
    return figures(times, now - started)


if __name__ == "__main__":
    main()
