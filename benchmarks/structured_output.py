"""Measures the cost of token masks: CPU time per mask, and tokens per second with a schema and without.

    python -m benchmarks.structured_output [--vocabulary 50000] [--tokens 300] [--rounds 7]

A predictor in the same process answers each step at once with random logits of a vocabulary of made-up words, so that
only the service's own work is measured. Prints a table. The exit code is 1 if the goal was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from hf_transformer.generation.children import ChildPool
from hf_transformer.generation.constraint import Constraint
from hf_transformer.generation.logits import LogitsGenerator
from hf_transformer.generation.masks import GrammarCompiler, Sandbox
from hf_transformer.generation.types import Prompt, Sampling
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import Outputs
from hf_transformer.types.tensors import ModelSpec, Tensor, TensorSpec
from tests.generation.scripted_models import settings, steps
from tests.support.scripted_predictor import RecordedCall, ScriptedPredictor

MAX_MASK_MS: Final = 0.1
"""Goal: largest CPU time of a mask for a vocabulary of 50,000."""
SCHEMA: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
        "id": {"type": "string", "pattern": "^[a-z]{3}-[0-9]{4}$"},
        "when": {"type": "string", "format": "date-time"},
        "text": {"type": "string"},
    },
    "required": ["name", "age", "tags", "id", "when", "text"],
    "additionalProperties": False,
}


class Words:
    """A vocabulary of bytes, of parts of JSON, and of words with and without a space. Its last token ends a text."""

    def __init__(self, size: int) -> None:
        chance = random.Random(1)
        names = dict.fromkeys(bytes((byte,)) for byte in range(256))
        names |= dict.fromkeys(part.encode() for part in ('":', '{"', '","', '"}', '": "', '", "', "[{", "}]", '": '))
        while len(names) < size - 1:
            word = "".join(chance.choices("etaoinshrdlucmfwypvbgk", k=chance.randint(2, 8)))
            names[(chance.choice(("", " ")) + word).encode()] = None
        self.names = [*names, b"<end>"]
        self.size = size

    def is_special(self, token: int) -> bool:
        return token == self.size - 1

    def text_and_bytes(self, token: int) -> tuple[str, bytes]:
        return "", self.names[token]


class Random(ScriptedPredictor):
    def __init__(self, size: int) -> None:
        super().__init__()
        self._logits = np.random.default_rng(3).standard_normal((64, size)).astype(np.float32)
        self._number = 0

    async def respond(self, made: RecordedCall) -> Outputs:
        self.calls.clear()
        self._number += 1
        rows = len(made.given.inputs[0].data)
        return {"logits": Tensor("logits", "FP32", np.roll(self._logits, self._number, 0)[:rows])}


def mask_times(compiler: GrammarCompiler, constraint: Constraint, ends: frozenset[int], tokens: int) -> list[float]:
    """CPU milliseconds of each mask of one text of random tokens."""
    mask, chance = compiler.mask(constraint, "", ends, tokens), np.random.default_rng(5)
    times: list[float] = []
    scores = np.random.default_rng(6).standard_normal(mask._size).astype(np.float32)
    while len(times) < tokens and not mask.is_over:
        started = time.thread_time()
        masked = mask.apply(scores)
        times.append((time.thread_time() - started) * 1e3)
        mask.add(int(chance.choice(np.flatnonzero(masked > -np.inf))))
    return times


async def rates(made: LogitsGenerator, sampling: Sampling, rounds: int, together: int) -> float:
    """Median of tokens per second, with several texts together."""
    rates_of_rounds = []
    for _ in range(rounds):
        started = time.perf_counter()
        texts = await asyncio.gather(*(steps(made, Prompt("a", (97,)), sampling) for _ in range(together)))
        count = sum(len(step.ids) for text in texts for step in text)
        rates_of_rounds.append(count / (time.perf_counter() - started))
    return statistics.median(rates_of_rounds)


async def measure(size: int, tokens: int, rounds: int) -> bool:
    words: Any = Words(size)
    ends, constraint = frozenset({size - 1}), Constraint.of("json_schema", SCHEMA)
    async with ChildPool() as children:
        return await measure_with(Sandbox(children), words, ends, constraint, tokens, rounds)


async def measure_with(
    sandbox: Sandbox, words: Any, ends: frozenset[int], constraint: Constraint, tokens: int, rounds: int
) -> bool:
    size, compiler = words.size, GrammarCompiler(words, sandbox)
    with ThreadPoolExecutor(1) as thread:
        await compiler.prepare(Constraint.of("regex", "a"), "", thread)  # makes the tokenizer, and a child
        started = time.perf_counter()
        await compiler.prepare(constraint, "", thread)
    print(f"schema of {len(json.dumps(SCHEMA))} bytes: compiled in {(time.perf_counter() - started) * 1e3:.1f} ms")
    times = [one for _ in range(rounds) for one in mask_times(compiler, constraint, ends, tokens)]
    mean, worst = statistics.mean(times), max(times)
    print(
        f"mask of {size} tokens, applied: mean {mean:.3f} ms, median {statistics.median(times):.3f}, most {worst:.2f}"
    )
    spec = ModelSpec("m", "1", (TensorSpec("input_ids", "INT64", (-1,)),), (TensorSpec("logits", "FP32", (size,)),), 64)
    tokenizer: Any = SimpleNamespace(vocab_size=size)
    with ThreadPoolExecutor(2) as executor:
        made = LogitsGenerator(
            spec, Random(size), tokenizer, settings(eos_ids=ends, max_length=tokens + 8),
            executor=executor, metrics=Metrics().of("m"), grammars=compiler,
        )  # fmt: skip
        for together in (1, 16):
            for greedy in (True, False):
                options: dict[str, Any] = {"max_tokens": tokens, "greedy": greedy, "ignore_eos": True}
                free = await rates(made, Sampling(**options), rounds, together)
                held = await rates(made, Sampling(**options, constraint=constraint), rounds, together)
                kind = "greedy" if greedy else "sampled"
                print(f"{together:2} texts, {kind:7}: {free:6.0f} tokens/s free, {held:6.0f} with the schema")
    return mean <= MAX_MASK_MS * size / 50_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=50_000)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    flags = parser.parse_args()
    return 0 if asyncio.run(measure(flags.vocabulary, flags.tokens, flags.rounds)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
