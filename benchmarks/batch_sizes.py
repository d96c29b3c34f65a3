"""Compares batch sizes and batching rules of the service with a real model.

    .venv-models/bin/python -m benchmarks.batch_sizes [--model build/minilm/minilm/1/model.onnx] [--threads 1]

Runs ONNX Runtime in this process, without Triton and the service, and prints two Markdown tables. The first has the
minimum CPU time per token by rows and tokens of a batch. The second has the CPU time per token of texts in
hf_transformer/core/queue.py with three rules: each text alone, at most a quarter of padding, and the costs learnt by
hf_transformer/core/batch_costs.py.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime

from hf_transformer import __version__
from hf_transformer.core.batch_costs import BatchCosts
from hf_transformer.core.queue import BatchLimits, Queue

MODEL: Final = Path(__file__).resolve().parents[1] / "build/minilm/minilm/1/model.onnx"
ROWS: Final = (1, 2, 4, 8, 16, 32)
LENGTHS: Final = (8, 16, 32, 64, 128, 256)
MAX_TABLE_TOKENS: Final = 4096
"""Tokens of a batch in the first table; larger batches take seconds."""
MIXES: Final = ((8, 256, 64), (8, 256, 16), (8, 32, 64))
"""Minimum tokens, maximum tokens, and the number of waiting texts."""
MAX_ROWS: Final = 64
NO_LIMIT: Final = 10**9
WARM_UP: Final = 32
"""Batches until the costs are learnt."""
TOKENS: Final = 10_000
"""Tokens of texts in one round of a rule."""


class OnnxModel:
    """A model in ONNX Runtime."""

    def __init__(self, path: Path, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._names = [tensor.name for tensor in self._session.get_inputs()]

    def run(self, lengths: list[int]) -> float:
        """CPU seconds of all threads for one batch of texts with these numbers of tokens."""
        mask = (np.arange(max(lengths)) < np.array(lengths)[:, np.newaxis]).astype(np.int64)
        inputs = {"input_ids": 100 * mask, "attention_mask": mask, "token_type_ids": 0 * mask}
        started = time.process_time()
        self._session.run(None, {name: inputs[name] for name in self._names})
        return time.process_time() - started


@dataclass(eq=False)
class WaitingText:
    """A waiting text, see queue.Queueable."""

    length: int
    key: str = ""


class Rule:
    """Makes batches from a constant number of waiting texts of random lengths, see MIXES."""

    def __init__(
        self,
        name: str,
        model: OnnxModel,
        mix: tuple[int, int, int],
        rows: int = MAX_ROWS,
        costs: BatchCosts | None = None,
    ) -> None:
        self.name = name
        self.figures: list[tuple[float, float, float]] = []
        """For each round CPU seconds per token, share of padding, and rows per batch."""
        self._model = model
        self._least, self._most, waiting = mix
        self._costs = costs
        self._random = random.Random(5)
        limits = BatchLimits(rows, 16_384, NO_LIMIT, lambda width: 0, padding=True, costs=costs)
        self._queue: Queue[WaitingText] = Queue(lambda text: limits)
        self._add(waiting)
        for _ in range(0 if costs is None else WARM_UP):
            self._batch()

    def _add(self, count: int) -> None:
        for _ in range(count):
            self._queue.add(WaitingText(self._random.randint(self._least, self._most)))

    def _batch(self) -> tuple[list[int], float]:
        """Run one batch; returns the lengths of its texts, and CPU seconds."""
        lengths = [text.length for text in self._queue.take()]
        took = self._model.run(lengths)
        if self._costs is not None:
            self._costs.stop(self._costs.start(0.0, len(lengths) * max(lengths)), took)
        self._add(len(lengths))
        return lengths, took

    def round(self) -> None:
        """Run batches with TOKENS in total, and record their figures."""
        seconds, tokens, padded, rows, batches = 0.0, 0, 0, 0, 0
        while tokens < TOKENS:
            lengths, took = self._batch()
            size = len(lengths) * max(lengths)
            seconds, tokens, padded = seconds + took, tokens + sum(lengths), padded + size
            rows, batches = rows + len(lengths), batches + 1
        self.figures.append((seconds / tokens, 1 - tokens / padded, rows / batches))


def alone(model: OnnxModel, rounds: int) -> list[str]:
    """The table of CPU time by rows and tokens."""
    cells = [(rows, length) for rows in ROWS for length in LENGTHS if rows * length <= MAX_TABLE_TOKENS]
    least = dict.fromkeys(cells, float("inf"))
    for number in range(rounds + 1):
        for rows, length in cells:
            again = max(1, 512 // (rows * length)) if number else 1  # the first round warms up
            took = sum(model.run([length] * rows) for _ in range(again)) / again
            if number:
                least[rows, length] = min(least[rows, length], took)
    lines = [f"| us per token | {' | '.join(f'{length} tokens' for length in LENGTHS)} |", "|---" * 7 + "|"]
    for rows in ROWS:
        row = ((least.get((rows, length)), rows * length) for length in LENGTHS)
        shown = " | ".join(f"{1e6 * took / tokens:.0f}" if took else "" for took, tokens in row)
        lines.append(f"| {rows} {'text' if rows == 1 else 'texts'} | {shown} |")
    return lines


def compared(model: OnnxModel, rounds: int) -> list[str]:
    """The table of rules."""
    lines = ["| tokens | waiting | batches | us per token | against alone | padding | texts per batch |"]
    lines.append("|---|---:|---|---:|---:|---:|---:|")
    for mix in MIXES:
        rules = [
            Rule("alone", model, mix, rows=1),
            Rule("a quarter of padding", model, mix),
            Rule("learnt costs", model, mix, costs=BatchCosts(1)),
        ]
        for number in range(rounds):
            for rule in reversed(rules) if number % 2 else rules:
                rule.round()
        for rule in rules:
            per_token, padding, rows = map(statistics.median, zip(*rule.figures, strict=True))
            gains = (first[0] / own[0] for first, own in zip(rules[0].figures, rule.figures, strict=True))
            lines.append(
                f"| {mix[0]} to {mix[1]} | {mix[2]} | {rule.name} | {1e6 * per_token:.0f} "
                f"| {statistics.median(gains):.2f} | {padding:.0%} | {rows:.1f} |"
            )
    return lines


def main() -> None:
    """Runs both measurements and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, default=MODEL, help="what scripts/export_minilm wrote")
    parser.add_argument("--threads", type=int, default=1, help="of ONNX Runtime [1]")
    parser.add_argument("--rounds", type=int, default=3, help="[3]")
    options = parser.parse_args()
    if not options.model.is_file():
        parser.error(f"there is no {options.model}: run scripts/export_minilm, or name a model with --model")
    model = OnnxModel(options.model, options.threads)
    cores = f"{os.cpu_count()} CPUs, {options.threads} of them for ONNX Runtime {onnxruntime.__version__}"
    print(f"hf-transformer {__version__}, {cores}\n", flush=True)
    print("\n".join(alone(model, options.rounds)) + "\n", flush=True)
    print("\n".join(compared(model, options.rounds)))


if __name__ == "__main__":
    main()
