"""Measures the service's CPU time for requests by protocol, and by their arrival in pieces.

    python -m benchmarks.request_forms [--requests 3000] [--rounds 9]

One process contains connections without sockets, the service's server protocol, application, pipeline and scheduler,
the demo's tokenizer, a task of two labels, and a predictor with immediate answers. Each of 32 connections has one
request in flight. Prints a Markdown table: CPU time per request, the median of alternating rounds, and its ratio to the
first form. The figures exclude the kernel's work for sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import uvloop
from uvicorn.lifespan.on import LifespanOn
from uvicorn.server import ServerState

from benchmarks.wire import cpu_per_request
from hf_transformer import __version__
from hf_transformer.app import application
from hf_transformer.commands.serve import server_config
from hf_transformer.config.options import Config, parse_config
from hf_transformer.predictor.base import ModelCall, Predictor, Reply
from hf_transformer.server.http import HttpConnection
from hf_transformer.server.memory import freeze_garbage_collector
from hf_transformer.types.tensors import ModelSpec, Tensor, TensorSpec

TEXTS = [f"the capital of {name} is a large city ." for name in ("france", "italy", "spain", "poland")]
BERT = Path(__file__).parents[1] / "deploy" / "model_repository" / "bert"
TURNS = 3
"""Turns of the event loop until the predictor answers, during which requests queue."""


class Instant(Predictor):
    """A predictor that answers any number of texts with zero logits."""

    async def model_spec(self) -> ModelSpec:
        inputs = tuple(TensorSpec(name, "INT64", (-1,)) for name in ("input_ids", "attention_mask"))
        return ModelSpec("m", "1", inputs, (TensorSpec("logits", "FP32", (2,)),), 64, dynamic_batching=True)

    async def model_ready(self) -> bool:
        return True

    async def infer(self, call: ModelCall) -> Reply:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return Reply({"logits": Tensor("logits", "FP32", np.zeros((call.inputs[0].shape[0], 2), np.float32))})

    def stream(self, call: ModelCall) -> Any:
        raise NotImplementedError  # this task asks for no streams


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
    server = server_config(config, partial(application.build_app, config))
    server.load()
    lifespan = LifespanOn(server)
    await lifespan.startup()
    await asyncio.sleep(1)  # until the model is bound
    state = ServerState()
    freeze_garbage_collector()
    seconds_by_form: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for name, reads in forms().items():
            spent = await cpu_per_request(lambda: HttpConnection(server, state, lifespan.state), reads, requests)
            if number:  # the first round warms up
                seconds_by_form.setdefault(name, []).append(spent)
    await lifespan.shutdown()
    return {name: statistics.median(values) for name, values in seconds_by_form.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=3000, help="requests of each form and round [3000]")
    parser.add_argument("--rounds", type=int, default=9, help="number of rounds [9]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (Path(folder) / name).write_bytes((BERT / name).read_bytes())
        about = {"model_type": "bert", "num_labels": 2, "id2label": {"0": "no", "1": "yes"}}
        (Path(folder) / "config.json").write_text(json.dumps(about))
        flags = ["--model_name=m", f"--model_dir={folder}", "--task=sequence_classification", "--enable_grpc=false"]
        config, _ = parse_config([*flags, "--enable_latency_logging=false", "--predictor_host=127.0.0.1:1"], {})
        with patch.object(application, "open_predictor", lambda *args, **more: Instant()):
            seconds_by_form = uvloop.run(measure(config, options.requests, options.rounds))
    print(f"hf-transformer {__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs\n")
    print("| request | CPU, us | times the first |\n|---|---:|---:|")
    first = next(iter(seconds_by_form.values()))
    for name, seconds in seconds_by_form.items():
        print(f"| {name} | {seconds * 1e6:.0f} | {seconds / first:.1f} |")


if __name__ == "__main__":
    main()
