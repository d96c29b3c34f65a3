"""What batches of several texts can gain with a real model, and what the service's choice of batches does gain.

    .venv-models/bin/python -m benchmarks.batch_sizes [--model build/minilm/minilm/1/model.onnx] [--threads 1]

Three Markdown tables are printed. The first two are of ONNX Runtime in this process, without Triton and the service:
what the model takes per token, by rows and tokens of a batch (the least of the rounds), and the CPU time per token of
texts that wait in hf_transformer/core/queue.py, by four rules in turn: each text alone; at most a quarter of padding; a
plain rule of so many tokens or percent of padding; and what hf_transformer/core/batch_costs.py learns. The third table
has the same rules for models that are made up: a call costs as much as so many tokens.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from hf_transformer.core.batch_costs import BatchCosts
from hf_transformer.core.queue import BatchLimits, Queue

MODEL = Path(__file__).resolve().parents[1] / "build/minilm/minilm/1/model.onnx"
ROWS = (1, 2, 4, 8, 16, 32)
LENGTHS = (8, 16, 32, 64, 128, 256)
MOST_TOKENS = 4096
"""Of a batch in the first table: larger ones take seconds."""
MIXES = ((8, 256, 64), (8, 256, 16), (8, 32, 64))
"""Least tokens, most tokens, and how many texts wait or are on their way at a time."""
MAX_ROWS = 64
NO_LIMIT = 10**9
WARM_UP = 32
"""Batches from which a rule that learns has learnt."""
PLAIN_TOKENS, PLAIN_PART = 32, 0.05
"""The plain rule: this many tokens of padding are allowed in a batch, or this part of it where that is more."""
CALLS = (95, 500, 2000)
"""What a call of a made-up model costs, in tokens. 95 is all-MiniLM-L6-v2 on two CPUs; a GPU that few tokens don't fill
has hundreds or thousands."""
SETTLED = 300
"""Batches of a made-up model before the round that counts."""
TOKENS = 10_000
"""Tokens of texts in one round of a rule."""


class Model:
    """A model in ONNX Runtime; ``run`` takes the tokens of each text."""

    def __init__(self, path: Path, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._names = [tensor.name for tensor in self._session.get_inputs()]

    def run(self, lengths: list[int]) -> float:
        """CPU seconds, of all threads, for one batch."""
        mask = (np.arange(max(lengths)) < np.array(lengths)[:, np.newaxis]).astype(np.int64)
        inputs = {"input_ids": 2000 * mask, "attention_mask": mask, "token_type_ids": 0 * mask}
        started = time.process_time()
        self._session.run(None, {name: inputs[name] for name in self._names})
        return time.process_time() - started


class MadeUpModel:
    """A model whose call costs as much as ``call`` tokens; ``run`` takes the tokens of each text."""

    def __init__(self, call: int) -> None:
        self._call = call

    def run(self, lengths: list[int]) -> float:
        """Seconds for one batch, of 1 us per token."""
        return 1e-6 * (self._call + len(lengths) * max(lengths))


@dataclass(frozen=True, slots=True)
class PlainLimits(BatchLimits):
    """Limits with the plain rule."""

    def allow(self, rows: int, width: int, tokens: int) -> bool:
        padded = rows * width
        fits = rows <= self.max_rows and padded <= self.max_tokens
        return fits and padded - tokens <= max(PLAIN_TOKENS, PLAIN_PART * padded)


@dataclass(eq=False)
class Text:
    """One that waits; see queue.Queueable."""

    length: int
    key: str = ""


class Rule:
    """Makes batches of so many texts that always wait, of so many tokens at random."""

    def __init__(
        self,
        name: str,
        model: Model | MadeUpModel,
        mix: tuple[int, int, int],
        rows: int = MAX_ROWS,
        costs: BatchCosts | None = None,
        kind: type[BatchLimits] = BatchLimits,
    ) -> None:
        self.name = name
        self.figures: list[tuple[float, float, float]] = []
        """CPU seconds per token, part of padding, and rows per batch; of each round."""
        self._model = model
        self._least, self._most, waiting = mix
        self._costs = costs
        self._random = random.Random(5)
        limits = kind(rows, 16_384, NO_LIMIT, lambda width: 0, padding=True, costs=costs)
        self._queue: Queue[Text] = Queue(lambda text: limits)
        self._add(waiting)

    def _add(self, count: int) -> None:
        for _ in range(count):
            self._queue.add(Text(self._random.randint(self._least, self._most)))

    def warm_up(self, batches: int = WARM_UP) -> None:
        """Learns, where it does."""
        for _ in range(0 if self._costs is None else batches):
            self._batch()

    def _batch(self) -> tuple[list[int], float]:
        """One batch: the tokens of its texts, and its CPU seconds."""
        lengths = [text.length for text in self._queue.take()]
        took = self._model.run(lengths)
        if self._costs is not None:
            self._costs.sent(0.0).ended(took, len(lengths) * max(lengths))
        self._add(len(lengths))
        return lengths, took

    def round(self) -> None:
        """Batches with so many TOKENS together."""
        seconds, tokens, padded, rows, batches = 0.0, 0, 0, 0, 0
        while tokens < TOKENS:
            lengths, took = self._batch()
            size = len(lengths) * max(lengths)
            seconds, tokens, padded = seconds + took, tokens + sum(lengths), padded + size
            rows, batches = rows + len(lengths), batches + 1
        self.figures.append((seconds / tokens, 1 - tokens / padded, rows / batches))


def alone(model: Model, rounds: int) -> list[str]:
    """The first table."""
    cells = [(rows, length) for rows in ROWS for length in LENGTHS if rows * length <= MOST_TOKENS]
    times: dict[tuple[int, int], list[float]] = {cell: [] for cell in cells}
    for cell in cells:
        model.run([cell[1]] * cell[0])
    for _ in range(rounds):
        for (rows, length), found in times.items():
            again = max(1, 512 // (rows * length))
            found.append(sum(model.run([length] * rows) for _ in range(again)) / again)
    lines = [
        f"| us per token | {' | '.join(f'{length} tokens' for length in LENGTHS)} |",
        f"|---|{'---:|' * len(LENGTHS)}",
    ]
    for rows in ROWS:
        row = [times.get((rows, length)) for length in LENGTHS]
        shown = [
            f"{1e6 * min(one) / (rows * length):.0f}" if one else "" for one, length in zip(row, LENGTHS, strict=True)
        ]
        lines.append(f"| {rows} {'text' if rows == 1 else 'texts'} | {' | '.join(shown)} |")
    return lines


def rules(model: Model | MadeUpModel, mix: tuple[int, int, int]) -> list[Rule]:
    return [
        Rule("alone", model, mix, rows=1),
        Rule("a quarter of padding", model, mix),
        Rule(f"{PLAIN_TOKENS} tokens or {PLAIN_PART:.0%} of padding", model, mix, kind=PlainLimits),
        Rule("what is worth it", model, mix, costs=BatchCosts(1)),
    ]


def made_up() -> list[str]:
    """The third table."""
    names = [rule.name for rule in rules(MadeUpModel(1), MIXES[0])]
    lines = [
        f"| a call costs | tokens | waiting | {' | '.join(names[1:])} |",
        f"|---:|---|---:|{'---:|' * len(names[1:])}",
    ]
    for call in CALLS:
        for mix in MIXES:
            subjects = rules(MadeUpModel(call), mix)
            for rule in subjects:
                rule.warm_up(SETTLED)
                rule.round()
            first, *others = [rule.figures[0][0] for rule in subjects]
            gains = " | ".join(f"{first / one:.2f}" for one in others)
            lines.append(f"| {call} tokens | {mix[0]} to {mix[1]} | {mix[2]} | {gains} |")
    return lines


def compared(model: Model, rounds: int) -> list[str]:
    """The second table."""
    lines = ["| tokens | waiting | batches | us per token | against alone | padding | texts per batch |"]
    lines.append("|---|---:|---|---:|---:|---:|---:|")
    for mix in MIXES:
        least, most, waiting = mix
        subjects = rules(model, mix)
        for rule in subjects:
            rule.warm_up()
        for number in range(rounds):
            for rule in subjects[:: 1 if number % 2 == 0 else -1]:
                rule.round()
        for rule in subjects:
            per_token, padding, rows = (statistics.median(one) for one in zip(*rule.figures, strict=True))
            gain = statistics.median(
                first[0] / own[0] for first, own in zip(subjects[0].figures, rule.figures, strict=True)
            )
            lines.append(
                f"| {least} to {most} | {waiting} | {rule.name} | {1e6 * per_token:.0f} | {gain:.2f} | {padding:.0%} "
                f"| {rows:.1f} |"
            )
    return lines


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, default=MODEL, help="what scripts/export_minilm wrote")
    parser.add_argument("--threads", type=int, default=1, help="of ONNX Runtime [1]")
    parser.add_argument("--rounds", type=int, default=3, help="[3]")
    options = parser.parse_args()
    if not options.model.is_file():
        parser.error(f"there is no {options.model}: run scripts/export_minilm, or name a model with --model")
    model = Model(options.model, options.threads)
    print(f"{os.cpu_count()} CPUs, {options.threads} of them for ONNX Runtime {onnxruntime.__version__}\n", flush=True)
    print("\n".join(alone(model, options.rounds)) + "\n", flush=True)
    print("\n".join(compared(model, options.rounds)) + "\n", flush=True)
    print("\n".join(made_up()))


if __name__ == "__main__":
    main()
