"""Asks six exported architectures through the service for minutes: every answer has to be the text's own.

    .venv-models/bin/python -m tests.models.soak [--minutes 20] [--clients 32] [--texts 400]

Texts of all lengths hold special tokens as words; some are pairs, some empty. Each is first asked alone, of an idle
service. Then the clients ask for one to eight of them at a time, at random, while batches form of whatever comes
together. Random weights are large, so that an answer that reads a neighbour or its padding is far off.
"""

# Types are checked in an environment without torch.
# mypy: ignore-errors

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import httpx

from hf_transformer.commands.local_triton import LocalTriton
from tests.models import test_export_families as families
from tests.models.exporting import Exports, triton_with_torch
from tests.support.service import Service

CLASSIFIER = "ForSequenceClassification"
DECODER = {"num_key_value_heads": 2, "head_dim": 8}
ARCHITECTURES = {
    "Bert": families.SIZES,
    "Bart": families.FAMILIES[f"Bart{CLASSIFIER}"],
    "XLNet": families.FAMILIES[f"XLNet{CLASSIFIER}"],
    "Qwen3": families.SIZES | DECODER,
    "DebertaV2": families.FAMILIES[f"DebertaV2{CLASSIFIER}"],
    "ModernBert": families.FAMILIES["ModernBertForMaskedLM"],
}
LARGE = {"init_std": 0.4, "initializer_range": 0.4, "num_labels": 3}
LONGEST = 380
"""Tokens that the tokenizer lets through; the models have 400 positions."""
WORDS = "the a of in cat dog paris france is was not very good bad 7 , . [SEP] [CLS] [MASK] [PAD] [UNK] </s>".split()
LOGITS = {"output_format": "pipeline", "top_k": 3, "function_to_apply": "none"}
TOLERANCE = 1e-4
"""As in the export: of the largest number of an answer, or of 1 if that is less."""


@dataclass
class Tally:
    """What came of one architecture's answers."""

    requests: int = 0
    texts: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    most: float = 0.0


def main() -> int:
    """Runs it and prints a table; the exit code is 1 if an answer was another one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--texts", type=int, default=400, help="for each architecture")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        repository = Path(folder) / "repository"
        repository.mkdir()
        triton = stack.enter_context(
            LocalTriton(
                repository,
                environment=triton_with_torch(),
                config_name=None,
                models=[],
                options=("--disable-auto-complete-config",),
            )
        )
        exports = Exports(Path(folder), triton)
        services = {name: stack.enter_context(served(exports, name)) for name in ARCHITECTURES}
        for name, service in services.items():
            service.wait_until(f"/v1/models/{name}")
        asked = {name: alone(service, inputs(options.texts)) for name, service in services.items()}
        print(f"{options.clients} clients for {options.minutes:g} minutes", flush=True)
        tallies = soak(services, asked, options.clients, options.minutes * 60)
        columns = "architecture, requests, texts, texts per batch, different answers, refused, wrong, most off"
        print(f"| {columns.replace(', ', ' | ')} |")
        print("|---" * 8 + "|")
        for name, tally in tallies.items():
            different = len({tuple(answer) for _, answer in asked[name]})
            print(
                f"| {name} | {tally.requests:,} | {tally.texts:,} | {batch(triton, name):.1f} "
                f"| {different} of {len(asked[name])} | {tally.refused} | {len(tally.wrong)} | {tally.most:.0e} |"
            )
    wrong = [line for tally in tallies.values() for line in tally.wrong]
    print(*wrong[:10], sep="\n", file=sys.stderr)
    return int(bool(wrong))


def served(exports: Exports, name: str) -> Service:
    """A service of one architecture, exported as ONNX."""
    architecture = name + CLASSIFIER
    with patch.dict(families.FAMILIES, {architecture: ARCHITECTURES[name] | LARGE}):
        source = families.made(architecture, exports.repository.parent / "sources" / name)
    path = source / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": LONGEST}))
    exports.export(source, "--task=sequence_classification", name=name)
    exports.load(name)
    return Service(
        f"--model_name={name}",
        f"--model_dir={exports.repository / name}",
        f"--predictor_host={exports.grpc_address}",
        "--predictor_protocol=grpc-v2",
    )


def inputs(count: int) -> list[object]:
    """Texts of up to twice LONGEST words, short ones more often, and pairs of them; the first are hard cases."""
    chance = random.Random(0)

    def text() -> str:
        return " ".join(chance.choices(WORDS, k=int(2 ** chance.uniform(0, 9.5)) - 1))

    found: list[object] = ["", "[SEP]", "[SEP] [SEP] [SEP]", "[PAD] [PAD]", {"text": "", "text_pair": ""}]
    while len(found) < count:
        found.append({"text": text(), "text_pair": text()} if chance.random() < 0.3 else text())
    return found


def scores(answer: list[dict]) -> list[float]:
    return [one["score"] for one in sorted(answer, key=lambda one: one["label"])]


def alone(service: Service, texts: list[object]) -> list[tuple[object, list[float]]]:
    """Each text with its answer to a request of its own."""
    with httpx.Client(base_url=service.url, trust_env=False, timeout=60.0) as client:
        return [(text, scores(ask(client, service.model, [text]).json()["predictions"][0])) for text in texts]


def ask(client: httpx.Client, model: str, instances: list[object]) -> httpx.Response:
    return client.post(f"/v1/models/{model}:predict", json={"instances": instances, "parameters": LOGITS})


def soak(
    services: dict[str, Service], asked: dict[str, list[tuple[object, list[float]]]], clients: int, seconds: float
) -> dict[str, Tally]:
    """Asks until the time is over. Each client asks one architecture after the other."""
    names = list(services)
    ends = time.monotonic() + seconds

    def client(number: int) -> dict[str, Tally]:
        chance, tallies = random.Random(number), {name: Tally() for name in names}
        sessions = {name: httpx.Client(base_url=services[name].url, trust_env=False, timeout=60.0) for name in names}
        turn = number
        while time.monotonic() < ends:
            turn += 1
            name = names[turn % len(names)]
            chosen = chance.choices(asked[name], k=chance.choice((1, 1, 1, 2, 4, 8)))
            response = ask(sessions[name], name, [text for text, _ in chosen])
            tally = tallies[name]
            tally.requests += 1
            if response.status_code == 429 or response.status_code == 503:
                tally.refused += 1
                continue
            answers = response.raise_for_status().json()["predictions"]
            for (text, expected), answer in zip(chosen, answers, strict=True):
                largest = max(1.0, *map(abs, expected))
                off = max(abs(a - b) for a, b in zip(scores(answer), expected, strict=True)) / largest
                tally.texts += 1
                tally.most = max(tally.most, off)
                if not off <= TOLERANCE:
                    tally.wrong.append(f"{name}: off by {off:.1e}: {str(text)[:80]}")
        for session in sessions.values():
            session.close()
        return tallies

    total = {name: Tally() for name in names}
    with ThreadPoolExecutor(clients) as pool:
        for tallies in pool.map(client, range(clients)):
            for name, tally_of_model in tallies.items():
                whole = total[name]
                whole.requests += tally_of_model.requests
                whole.texts += tally_of_model.texts
                whole.refused += tally_of_model.refused
                whole.wrong += tally_of_model.wrong
                whole.most = max(whole.most, tally_of_model.most)
    return total


def batch(triton: LocalTriton, name: str) -> float:
    """Texts per execution, as Triton counts them."""
    url = f"http://{triton.http_address}/v2/models/{name}/stats"
    (stats,) = httpx.get(url, trust_env=False).json()["model_stats"]
    return stats["inference_count"] / stats["execution_count"]


if __name__ == "__main__":
    raise SystemExit(main())
