"""Asks GLiNER models for minutes, each client with labels of its own: every answer has to be the text's own.

    .venv/bin/python -m tests.integration.soak_labels [--minutes 5] [--clients 32] [--models gliner gliner_token]

The texts and labels are those of the goldens; without --models, all of their models are asked. Each text is first asked
alone, of an idle service. Then the clients ask for one to four of them at a time, while batches form of whatever comes
together.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from hf_transformer.commands.local_triton import LocalTriton
from tests.integration.conftest import OPTIONS, Serve, goldens
from tests.support.service import Service
from tests.support.triton_environment import triton_environment
from tests.support.triton_repository import lay_out

TASK = "zero_shot_token_classification"
TOLERANCE = 1e-5
GROUPS = ("threshold", "flat_ner", "multi_label")
Asked = tuple[dict[str, Any], dict[str, Any], list[Any]]
"""Parameters, an instance, and its answer alone."""


def main() -> int:
    """Runs it and prints a table; the exit code is 1 if an answer was another one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--clients", type=int, default=32)
    known = [name for name in goldens(TASK) if name != "about"]
    parser.add_argument("--models", nargs="+", choices=known, default=known, help="[all of the goldens]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lay_out(Path(folder))
        with LocalTriton(
            Path(folder), environment=triton_environment(), config_name=None, models=[], options=OPTIONS
        ) as triton:
            serve = Serve(triton)
            services = {name: serve(name, "grpc-v2") for name in options.models}
            asked = {name: alone(service) for name, service in services.items()}
            found = soak(services, asked, options.clients, options.minutes * 60)
            print(f"{options.clients} clients, {options.minutes:g} minutes\n")
            print("| model | texts | entities | texts per batch | refused | wrong |\n|---|---|---|---|---|---|")
            for name in options.models:
                counts = found[name]
                print(
                    f"| {name} | {counts['texts']:,} | {counts['entities']:,} | {batch(triton, name):.1f} "
                    f"| {counts['refused']} | {counts['wrong']} |"
                )
            serve.close()
    return int(any(counts["wrong"] for counts in found.values()))


def alone(service: Service) -> list[Asked]:
    """Each text of the goldens with its answer to a request of its own."""
    asked = []
    for case in goldens(TASK)[service.model]:
        parameters = {name: case[name] for name in GROUPS}
        instance = {"text": case["text"], "labels": case["labels"]}
        asked.append((parameters, instance, service.predict([instance], parameters)[0]))
    return asked


def soak(services: dict[str, Service], asked: dict[str, list[Asked]], clients: int, seconds: float) -> Any:
    """Asks until the time is over. Each client asks one model after the other, with parameters of one text a time."""
    ends, names = time.monotonic() + seconds, [*services]

    def client(number: int) -> dict[str, Counter[str]]:
        chance, found = random.Random(number), {name: Counter[str]() for name in names}
        sessions = {name: httpx.Client(base_url=services[name].url, trust_env=False, timeout=60.0) for name in names}
        turn = number
        while time.monotonic() < ends:
            turn += 1
            name = names[turn % len(names)]
            parameters = chance.choice(asked[name])[0]
            same = [one for one in asked[name] if one[0] == parameters]
            chosen = chance.choices(same, k=chance.choice((1, 1, 2, 4)))
            body = {"instances": [instance for _, instance, _ in chosen], "parameters": parameters}
            response = sessions[name].post(f"/v1/models/{name}:predict", json=body)
            if response.status_code in (429, 503):
                found[name]["refused"] += 1
                continue
            if response.status_code != 200:
                raise SystemExit(f"{name}: {response.status_code} {response.text}")
            answers = response.json()["predictions"]
            for (_, _, expected), answer in zip(chosen, answers, strict=True):
                found[name]["texts"] += 1
                found[name]["entities"] += len(answer)
                found[name]["wrong"] += not equal(answer, expected)
        for session in sessions.values():
            session.close()
        return found

    total = {name: Counter[str]() for name in names}
    with ThreadPoolExecutor(clients) as pool:
        for found in pool.map(client, range(clients)):
            for name, counts in found.items():
                total[name].update(counts)
    return total


def equal(answer: list[Any], expected: list[Any]) -> bool:
    """Whether both have the same entities, with scores within the tolerance, in any order of equal scores."""
    ours, theirs = (
        sorted((one["start"], one["end"], one["label"], one["score"]) for one in both) for both in (answer, expected)
    )
    return len(ours) == len(theirs) and all(
        one[:3] == other[:3] and abs(one[3] - other[3]) <= TOLERANCE for one, other in zip(ours, theirs, strict=True)
    )


def batch(triton: LocalTriton, name: str) -> float:
    """Texts per execution, as Triton counts them."""
    url = f"http://{triton.http_address}/v2/models/{name}/stats"
    (stats,) = httpx.get(url, trust_env=False, verify=False).json()["model_stats"]
    return float(stats["inference_count"] / stats["execution_count"])


if __name__ == "__main__":
    raise SystemExit(main())
