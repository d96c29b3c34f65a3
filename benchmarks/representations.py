"""Compares three representations of a text from one pass of the model with those of three services.

    python -m benchmarks.representations [--seconds 3] [--rounds 3] [--minilm FOLDER] [--output FILE]

One service in front of a model with three outputs (dense, sparse and multi-vector, as ``export`` writes a BGE-M3) gets
all three in one request. Three services in front of the same encoder, each with one of the outputs, get a request each.
Every service is measured alone, with the whole machine, so the time of a text is the sum of three: a texts/s that three
services can't exceed on this machine. The answers are compared before.

It needs what benchmarks.gpu needs. Without a GPU the encoder is MiniLM on the CPU, else MiniLM and one of BERT-large's
size, which is that of BGE-M3.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.gpu import MAX_BATCH_SIZE, TOLERANCE, VOCABULARY, gpu_name, minilm_folder, texts, version, write_service
from benchmarks.gpu import WEIGHTS as WEIGHTS_FILE
from benchmarks.load import Body, get, post
from benchmarks.pairs import environment
from benchmarks.processes import RESULTS, ServiceProcess
from benchmarks.repository import CODE, TensorConfig, python_config
from hf_transformer.commands.bench.load import Target, send
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.commands.loopback import HOST
from hf_transformer.predictor.base import Address

WORDS: Final = (9, 60, 250)
WARM_UP_SECONDS: Final = 0.5
ENCODERS: Final = {"minilm": (6, 384, 12), "large": (24, 1024, 16)}
"""Layers, hidden size and heads."""
OUTPUTS: Final[Mapping[str, Sequence[TensorConfig]]] = {
    "dense": [("sentence_embedding", "FP32", (-1,)), ("embedding_norm", "FP32", (1,))],
    "sparse": [("token_weights", "FP32", (-1,))],
    "multi_vector": [("token_vectors", "FP16", (-1, 128))],
}
ONE_PASS: Final = "one_pass"
SYSTEMS: Final = (ONE_PASS, *OUTPUTS)


@dataclass(slots=True)
class Cell:
    """Texts/s of each system by round, for texts of some length and a number of connections."""

    encoder: str
    words: int
    connections: int
    rates: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SYSTEMS})

    def ratios(self) -> list[float]:
        """Texts/s of one pass over those of three services, of each round."""
        rounds = zip(*(self.rates[name] for name in SYSTEMS), strict=True)
        return [one * sum(1 / rate for rate in three) for one, *three in rounds]

    def markdown(self) -> str:
        """A row of the results' table."""
        rates = [statistics.median(self.rates[name]) for name in SYSTEMS]
        three = 1 / sum(1 / rate for rate in rates[1:])
        ratios = sorted(self.ratios())
        cells = [self.encoder, self.words, self.connections, *(f"{rate:,.1f}" for rate in (*rates, three))]
        cells.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Measures all cells, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement, after a warm-up [3]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--minilm", type=Path, default=None, help="folder of MiniLM [the installed package]")
    parser.add_argument("--triton_environment", type=environment, default=Path(sys.prefix))
    parser.add_argument("--output", type=Path, default=RESULTS / "representations.md")
    options = parser.parse_args()
    device = gpu_name()
    encoders = list(ENCODERS) if device else ["minilm"]
    with tempfile.TemporaryDirectory(prefix="hf-transformer-passes-") as name, minilm_folder(options.minilm) as minilm:
        folder = Path(name)
        names = [write_model(folder, encoder, kind, minilm) for encoder in encoders for kind in SYSTEMS]
        triton = LocalTriton(
            folder / "triton", environment=options.triton_environment, models=names, environ=dict(os.environ),
            any_numpy=True, timeout_seconds=180.0,
        )  # fmt: skip
        with triton:
            cells = [cell for encoder in encoders for cell in measure(triton, folder, encoder, options)]
    options.output.write_text(page(device, cells, options), encoding="utf-8")
    print(f"\nwritten to {options.output}")


def write_model(folder: Path, encoder: str, kind: str, minilm: Path) -> str:
    """Writes folder/triton/NAME for Triton and folder/NAME for the service, and returns the name."""
    name, (layers, hidden, heads) = f"{encoder}_{kind}", ENCODERS[encoder]
    version_folder = folder / "triton" / name / "1"
    version_folder.mkdir(parents=True)
    (version_folder / "model.py").write_bytes((CODE / "encoder.py").read_bytes())
    if encoder == "minilm" and (minilm / WEIGHTS_FILE).exists():
        (version_folder / WEIGHTS_FILE).symlink_to((minilm / WEIGHTS_FILE).resolve())
    outputs = [
        (output, datatype, (hidden,) if output == "sentence_embedding" else shape)
        for one in OUTPUTS
        if kind in (one, ONE_PASS)
        for output, datatype, shape in OUTPUTS[one]
    ]
    inputs = [("input_ids", "INT64", (-1,)), ("attention_mask", "INT64", (-1,))]
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "vocabulary": VOCABULARY}
    wanted = "+".join(output for output, _, _ in outputs)
    config = python_config(name, inputs, outputs, batch=MAX_BATCH_SIZE, output=wanted, **sizes)
    (version_folder.parent / "config.pbtxt").write_text(config)
    write_service(folder / name, minilm, "BertModel", hidden)
    return name


def measure(triton: LocalTriton, folder: Path, encoder: str, options: argparse.Namespace) -> list[Cell]:
    """Measures the systems in turn, round by round. Raises SystemExit if answers differ or a request fails."""
    cells = [Cell(encoder, words, count) for words in WORDS for count in options.connections]
    with services(triton, folder, encoder) as ports:
        check_equal(ports, encoder, triton)
        for number in range(options.rounds):
            for cell in cells:
                for kind in SYSTEMS[:: 1 if number % 2 == 0 else -1]:
                    cell.rates[kind].append(rate(ports[kind], encoder, kind, cell, options.seconds))
                print(cell.markdown(), flush=True)
    return cells


@contextmanager
def services(triton: LocalTriton, folder: Path, encoder: str) -> Iterator[dict[str, int]]:
    """Starts a service for each model of an encoder. Yields their HTTP ports."""
    running: dict[str, ServiceProcess] = {}
    try:
        for kind in SYSTEMS:
            process = ServiceProcess(triton, folder, f"{encoder}_{kind}", ("--task=text_embedding",))
            running[kind] = process.__enter__()
            process.wait()
        yield {kind: process.port for kind, process in running.items()}
    finally:
        for process in running.values():
            process.__exit__(None, None, None)


def body(kind: str, content: str) -> dict[str, Any]:
    """The request for one text."""
    wanted = list(OUTPUTS) if kind == ONE_PASS else [kind]
    return {"instances": [content], "parameters": {"representations": wanted}}


def path(encoder: str, kind: str) -> str:
    return f"/v1/models/{encoder}_{kind}:predict"


def rate(port: int, encoder: str, kind: str, cell: Cell, seconds: float) -> float:
    """Texts per second of one service."""
    target = Target(Address(HOST, port, False))
    requests = [target.request(path(encoder, kind), body(kind, text)) for text in texts(cell.words)]
    figures = uvloop.run(send(target, requests, cell.connections, seconds, WARM_UP_SECONDS))
    if figures.errors or not figures.latencies:
        raise SystemExit(f"{encoder}, {kind}: {figures.errors or 'no answer'}")
    return figures.throughput


def check_equal(ports: Mapping[str, int], encoder: str, triton: LocalTriton) -> None:
    """Raises SystemExit if one pass answers otherwise than three services, or is more than one inference of a text."""
    some = texts(WORDS[0])[:3]
    before = inferences(triton, f"{encoder}_{ONE_PASS}")
    for text in some:
        answers = {
            kind: post(port, path(encoder, kind), Body(json.dumps(body(kind, text)).encode()))["predictions"][0]
            for kind, port in ports.items()
        }
        for kind in OUTPUTS:
            pairs = zip(flat(answers[ONE_PASS][kind]), flat(answers[kind][kind]), strict=True)
            if max(abs(a - b) for a, b in pairs) > TOLERANCE:
                raise SystemExit(f"{encoder}: one pass gives another {kind} embedding than a service of its own")
    if (count := inferences(triton, f"{encoder}_{ONE_PASS}") - before) != len(some):
        raise SystemExit(f"{encoder}: {count} inferences for {len(some)} texts")


def flat(value: Any) -> list[float]:
    """All numbers of an answer, in order."""
    parts = value.values() if isinstance(value, dict) else value
    return [number for part in parts for number in flat(part)] if isinstance(value, dict | list) else [float(value)]


def inferences(triton: LocalTriton, name: str) -> int:
    """Triton's count of texts that a model had."""
    stats = json.loads(get(triton.http_port, f"/v2/models/{name}/stats"))["model_stats"][0]
    return int(stats["inference_count"])


def page(device: str | None, cells: Sequence[Cell], options: argparse.Namespace) -> str:
    """The results as Markdown."""
    packages = ("hf-transformer", "torch", "nvidia-pytriton", "tokenizers", "numpy")
    columns = "encoder | words | connections | one pass | dense | sparse | multi-vector | three services | ratio"
    return "\n".join(
        [
            "# Three representations from one pass of the model",
            "",
            f"{device or 'No GPU'}; {os.cpu_count()} CPUs, {platform.platform()}, Python {platform.python_version()}. "
            + ", ".join(f"{name} {version(name)}" for name in packages)
            + ".",
            "",
            f"Written by `python -m benchmarks.representations`: texts per second over V1, {options.rounds} rounds of "
            f"{options.seconds:g} s. *one pass*: all three representations in one request. *dense*, *sparse*, "
            "*multi-vector*: services with one each, measured alone. *three services*: the three one after the other. "
            "*ratio*: one pass over three services, the rounds' median and range. Answers are equal, and a text is "
            "one inference by Triton's statistics.",
            "",
            f"| {columns} |",
            "|" + "---|" * (columns.count("|") + 1),
            *(cell.markdown() for cell in cells),
            "",
        ]
    )


if __name__ == "__main__":
    main()
