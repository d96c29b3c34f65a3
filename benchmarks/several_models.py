"""Measures several models in one service, in front of a real Triton.

    python -m benchmarks.several_models [--seconds 60] [--rounds 6] [--triton_environment .venv-triton]
                                        [--minilm build/minilm] [--only changes]

    tokenizers  memory of ten models of one folder, with shared tokenizers and with ten; needs no Triton
    memory      memory and seconds to ready with 1, 2 and 10 models that have BERT's vocabulary (scripts/export_minilm)
    changes     answers of five models while the file of --models changes every two seconds
    isolation   p99 of three models, without and with a hung and a missing model that clients ask too

The demo models answer in a millisecond. Clients of ``isolation`` pause between requests, so that neither they nor the
service use a whole CPU: with a saturated CPU, every additional request delays all others. The exit code is 1 for a
wrong answer.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.pairs import environment
from benchmarks.processes import ROOT, resident_bytes, variables
from benchmarks.texts import Words
from hf_transformer.app.loading import load_model
from hf_transformer.commands.child_process import ChildProcess
from hf_transformer.commands.demo import default_model_repository, demos, entry
from hf_transformer.commands.local_service import service_running
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.commands.loopback import HOST, reserved_ports
from hf_transformer.config.options import parse_config
from hf_transformer.server.memory import held_memory
from hf_transformer.tokenizer.shared import SharedEngines

REPOSITORY: Final = default_model_repository()
TASKS: Final = ("fill_mask", "sequence_classification", "token_classification", "rerank", "text_embedding")
ADDED: Final = "question_answering"
CHANGE_SECONDS: Final = 2.0
CLIENTS: Final = 16
PAUSE_SECONDS: Final = 0.06
"""The longest pause of a client of ``isolation`` between two requests."""
LEARNT_TEXTS: Final = 200
"""Texts of 400 words for each tokenizer."""
SETTLE_SECONDS: Final = 4.0
"""The service returns free memory of the start to the system after this time."""

Entries = Sequence[Mapping[str, Any]]


def main() -> None:
    """Runs the measurements and prints their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--triton_environment", type=environment, default=ROOT / ".venv-triton")
    parser.add_argument("--minilm", type=environment, default=ROOT / "build" / "minilm" / "minilm")
    parser.add_argument("--only", choices=("tokenizers", "memory", "changes", "isolation"))
    options = parser.parse_args()
    wrong = 0
    if options.only in (None, "tokenizers"):
        print_tokenizers(str(options.minilm))
    if options.only == "tokenizers":
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.only in (None, "memory"):
            with LocalTriton(options.minilm.parent, environment=options.triton_environment) as triton:
                asyncio.run(measure_memory(triton, folder, options.minilm))
        models = sorted({demos()[task].model for task in (*TASKS, ADDED)})
        exact = ["--disable-auto-complete-config"]
        with LocalTriton(REPOSITORY, environment=options.triton_environment, models=models, options=exact) as triton:
            if options.only in (None, "changes"):
                wrong = asyncio.run(measure_changes(triton, folder, options.seconds))
            if options.only in (None, "isolation"):
                asyncio.run(measure_isolation(triton, folder, options.rounds))
    sys.exit(int(wrong > 0))


@asynccontextmanager
async def service(
    triton: LocalTriton, file: Path, entries: Entries, *flags: str
) -> AsyncIterator[tuple[httpx.AsyncClient, ChildProcess]]:
    """A ready service with these models. Yields a client and the process."""
    write(file, json.dumps(list(entries)))
    all_flags = [f"--models={file}", f"--predictor_host={triton.http_address}", *flags]
    log = file.with_suffix(".log")
    with (
        reserved_ports(2) as (http_port, grpc_port),
        service_running(all_flags, variables(), log, http_port=http_port, grpc_port=grpc_port) as child,
    ):
        async with httpx.AsyncClient(base_url=f"http://{HOST}:{http_port}", timeout=30.0, trust_env=False) as client:
            yield client, child


def write(file: Path, text: str) -> None:
    """Replaces a file in one step."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def print_tokenizers(folder: str) -> None:
    """Prints the memory of the tokenizers of one and of ten models, each in a process of its own."""
    for count, shares in ((1, False), (10, False), (10, True)):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            loaded, learnt = pool.submit(tokenizers_bytes, folder, count, shares).result()
        kind = "shared" if shares else "apart"
        print(f"{count} tokenizers, {kind}: {loaded / 2**20:.0f} MiB, {learnt / 2**20:.0f} MiB with words")


def tokenizers_bytes(folder: str, count: int, shares: bool) -> tuple[int, int]:
    """Returns the bytes that this process grows by with the models of a folder, and with the words of some texts."""
    before, engines = held_bytes(), SharedEngines() if shares else None
    flags = [f"--model_dir={folder}", "--model_name=m", "--task=text_embedding", "--predictor_host=127.0.0.1:1"]
    models = [load_model(parse_config(flags, {})[0], engines) for _ in range(count)]
    loaded = held_bytes()
    tokenizer = models[0].tokenizer
    words = Words([tokenizer.id_to_token(number) or "" for number in range(tokenizer.vocab_size)], seed=1)
    for model in models:
        model.tokenizer.encode([words.prose(400) for _ in range(LEARNT_TEXTS)])
    del words
    return loaded - before, held_bytes() - before


def held_bytes() -> int:
    """Bytes that this process alone holds, without free memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return held_memory()


async def measure_memory(triton: LocalTriton, folder: Path, minilm: Path) -> None:
    """Prints the memory and the start of services with a different number of equal models."""
    for count in (1, 2, 10):
        entries = [
            {"model_name": f"m{number}", "predictor_model": minilm.name, "model_dir": str(minilm)}
            for number in range(count)
        ]
        began = time.monotonic()
        async with service(triton, folder / "memory.json", entries) as (_, child):
            seconds = time.monotonic() - began
            await asyncio.sleep(SETTLE_SECONDS)
            print(f"{count} models: {resident_bytes(child) / 2**20:.0f} MiB resident, ready after {seconds:.1f} s")


async def measure_changes(triton: LocalTriton, folder: Path, seconds: int) -> int:
    """Prints the answers by status, and returns the number of wrong ones."""
    file, base = folder / "changes.json", [entry(task, REPOSITORY) for task in TASKS]
    added = entry(ADDED, REPOSITORY)
    statuses: Counter[int] = Counter()
    wrong, ends = 0, time.monotonic() + seconds

    async with service(triton, file, base) as (client, _):
        expected = {task: await answer(client, task) for task in TASKS}

        async def ask() -> None:
            nonlocal wrong
            while time.monotonic() < ends:
                task = random.choice(TASKS)
                status, body = await answer(client, task)
                statuses[status] += 1
                wrong += status == 200 and (status, body) != expected[task]

        async def change() -> None:
            number = 0
            while time.monotonic() < ends:
                number += 1
                changed = [{**base[0], "max_model_len": 100 + number}, *base[1:]]
                for text in ([*base, added], [*changed, added], "- [broken", [*base[:-1], added], base):
                    write(file, text if isinstance(text, str) else json.dumps(text))
                    await asyncio.sleep(CHANGE_SECONDS)
                    if time.monotonic() > ends:
                        break

        await asyncio.gather(*[ask() for _ in range(CLIENTS)], change())
    print(f"{seconds} s of changes: {statuses.total()} answers, {wrong} wrong, by status {dict(statuses)}")
    return wrong


async def measure_isolation(triton: LocalTriton, folder: Path, rounds: int) -> None:
    """Prints the p99 of three models in alternating rounds, without and with two models that fail."""
    silent = await asyncio.get_running_loop().create_server(asyncio.Protocol, HOST, 0)
    port = silent.sockets[0].getsockname()[1]
    good = [entry(task, REPOSITORY) for task in TASKS[:3]]
    folder_of_bert = {"model_dir": str(REPOSITORY / "bert")}
    bad = [
        {"model_name": "hung", "predictor_host": f"{HOST}:{port}", **folder_of_bert},
        {"model_name": "missing", **folder_of_bert},
    ]
    figures: dict[str, list[float]] = {"without": [], "with": []}
    async with (
        service(triton, folder / "without.json", good) as (without, _),
        service(triton, folder / "with.json", [*good, *bad], "--ready_when=any") as (both, _),
    ):
        await all_ready(both)
        pairs = [("without", without, ()), ("with", both, ("hung", "missing"))]
        for number in range(rounds):
            for kind, client, failing in pairs if number % 2 else reversed(pairs):
                figures[kind].append(await p99(client, failing))
    silent.close()
    medians = {kind: statistics.median(values) for kind, values in figures.items()}
    ratio = medians["with"] / medians["without"]
    print(
        f"p99 ms, median of {rounds}: {medians['without']:.1f} without, {medians['with']:.1f} with: {ratio:.2f} times"
    )


async def all_ready(client: httpx.AsyncClient) -> None:
    """Waits until the three models are ready."""
    for task in TASKS[:3]:
        while (await client.get(f"/v1/models/{demos()[task].name}")).status_code != 200:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.1)


async def p99(client: httpx.AsyncClient, failing: Sequence[str], seconds: float = 5.0) -> float:
    """The p99 in milliseconds of the three models, while clients ask the failing ones too."""
    times, ends = [], time.monotonic() + seconds

    async def ask() -> None:
        while time.monotonic() < ends:
            began = time.perf_counter()
            status, _ = await answer(client, random.choice(TASKS[:3]))
            times.append((time.perf_counter() - began) * 1e3)
            assert status == 200
            await asyncio.sleep(random.uniform(0, PAUSE_SECONDS))

    async def ask_failing(name: str) -> None:
        while time.monotonic() < ends:
            response = await client.post(f"/v1/models/{name}:predict", json={"instances": ["a [MASK]"]})
            assert response.status_code == 503
            await asyncio.sleep(random.uniform(0, 10 * PAUSE_SECONDS))

    await asyncio.gather(*[ask() for _ in range(3)], *map(ask_failing, failing))
    return statistics.quantiles(times, n=100)[98]


async def answer(client: httpx.AsyncClient, task: str) -> tuple[int, Any]:
    """The status and the body of the answer to a task's example."""
    example = demos()[task]
    response = await client.post(example.path, content=example.body)
    return response.status_code, response.json()


if __name__ == "__main__":
    main()
