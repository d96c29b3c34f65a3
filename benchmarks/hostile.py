"""Requests of a hostile client whose fields multiply: `python benchmarks/hostile.py [ROW ...]`.

Each row starts a service in a memory group of 1,024 MiB in front of Triton's demo models, and sends its bodies
together. It shows the statuses, the time, the 99th percentile of another client that asks 20 times a second meanwhile,
and the peak of the group. `--root` measures another checkout. It needs a writable memory controller (cgroup v1).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.commands.loopback import HOST

ROOT: Final = Path(__file__).parents[1]
MODELS: Final = ROOT / "deploy" / "model_repository"
GROUP: Final = Path("/sys/fs/cgroup/memory")
LIMIT: Final = 1024 * 2**20
SECONDS: Final = 60.0
PAUSE: Final = 0.05
LISTENING: Final = re.compile(r"listening on https?://[\d.]+:(\d+)")


@dataclass(frozen=True, slots=True)
class Row:
    """``count`` equal bodies to a path, in front of a demo model, with further flags. ``ask`` is the other client's."""

    path: str
    body: Callable[[], Any]
    count: int
    model: str
    ask: Any
    flags: tuple[str, ...] = ()


def words(count: int, word: str = "a") -> str:
    return " ".join([word] * count)


def rank_fields() -> Any:
    return {"query": "a", "documents": [{"t": "x" * 50_000}], "rank_fields": ["t"] * 16_000}


def template_query() -> Any:
    return {"query": "q" * 200_000, "documents": ["a"] * 2048}


def strides() -> Any:
    question = {"question": words(100), "context": words(2070)}
    return {"instances": [question], "parameters": {"doc_stride": 24, "max_seq_len": 128}}


def windows() -> Any:
    return {"instances": [words(2172)], "parameters": {"stride": 125}}


def bodies() -> Any:
    labels = {"candidate_labels": [*"abcdefghijklmnopqrstuvwxy"]}
    return {"instances": [{"inputs": "a", "parameters": labels}] * 2048}


def late_chunks() -> Any:
    return {"instances": [{"chunks": ["a"] * 4096}] * 488}


def masks() -> Any:
    texts = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [words(30, "[MASK]")]}
    return {"inputs": [texts], "parameters": {"return_probabilities": True}}


def echo() -> Any:
    return {"prompt": ["x" * 240_000] * 15, "echo": True, "max_tokens": 0, "n": 128}


def values() -> Any:
    return {"instances": ["a"], "ignored": ["a"] * 2_000_000}


def escapes() -> Any:
    return {"instances": ["a"], "ignored": ['"[' * 5_000_000]}


TEXT, PAIR = {"instances": ["The cat sleeps."]}, {"instances": [{"query": "a", "texts": ["b"]}]}
LABELS = {"instances": ["a"], "parameters": {"candidate_labels": ["b"]}}
QUESTION = {"instances": [{"question": "Who?", "context": "Anna works there."}]}
PREDICT: Final = "/v1/models/m:predict"
TEMPLATE: Final = "--rerank_template={{ messages[0].content }} {{ messages[1].content }}"
ROWS: Mapping[str, Row] = {
    "rank_fields": Row("/v1/rerank", rank_fields, 1, "cross", PAIR, ("--task=rerank",)),
    "template": Row("/v1/rerank", template_query, 1, "cross", PAIR, ("--task=rerank", TEMPLATE)),
    "doc_stride": Row(PREDICT, strides, 40, "squad", QUESTION),
    "stride": Row(PREDICT, windows, 60, "ner", TEXT),
    "vertex": Row("/vertex", bodies, 1, "nli", LABELS, ("--task=zero_shot_classification",)),
    "fill_mask over V2": Row("/v2/models/m/infer", masks, 8, "bert", {"instances": ["a [MASK]."]}),
    "late chunking": Row(PREDICT, late_chunks, 2, "minibert_mean", TEXT),
    "echo": Row("/openai/v1/completions", echo, 1, "gpt2", TEXT),
    "parsed values": Row(PREDICT, values, 10, "minibert_mean", TEXT),
    "escaped quotes": Row(PREDICT, escapes, 10, "minibert_mean", TEXT),
    "bodies of /vertex": Row("/vertex", lambda: {"instances": [{"inputs": "a"}] * 2048}, 10, "minibert_mean", TEXT),
    "2,048 embeddings": Row("/v1/embeddings", lambda: {"input": ["a"] * 2048}, 4, "minibert_mean", TEXT),
}


@contextmanager
def service(row: Row, root: Path, triton: LocalTriton, group: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A service of the checkout ``root`` in a memory group, and its address."""
    flags = (f"--model_dir={MODELS / row.model}", "--model_name=m", f"--predictor_model={row.model}")
    where = (f"--predictor_host={triton.http_address}", f"--host={HOST}", "--http_port=0", "--grpc_port=0")
    command = [sys.executable, "-m", "hf_transformer", *flags, *where, *row.flags]
    with tempfile.NamedTemporaryFile() as log:
        enter = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
        process = subprocess.Popen([*enter, *command], cwd=root, stdout=log, stderr=log)
        try:
            while not (listening := LISTENING.search(text := Path(log.name).read_text())) and process.poll() is None:
                time.sleep(PAUSE)
            if listening is None:
                raise SystemExit(text)
            yield process, f"http://{HOST}:{listening[1]}"
        finally:
            process.terminate()
            process.wait()


async def attack(row: Row, url: str) -> str:
    """Sends the bodies and asks meanwhile. Returns the statuses, the seconds and the percentile."""
    body, waits, done = json.dumps(row.body()).encode(), list[float](), asyncio.Event()
    answers: Counter[str] = Counter()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=SECONDS, limits=limits, trust_env=False) as client:

        async def post() -> None:
            try:
                response = await client.post(row.path, content=body)
                answers[str(response.status_code)] += 1
            except httpx.TransportError as error:
                answers[type(error).__name__] += 1

        async def ask() -> None:
            begun = time.perf_counter()
            try:
                response = await client.post(PREDICT, json=row.ask)
                answers[f"other {response.status_code}"] += response.status_code != 200
            except httpx.TransportError:
                answers["other lost"] += 1
            waits.append(time.perf_counter() - begun)

        async def keep_asking() -> None:
            async with asyncio.TaskGroup() as group:
                while not done.is_set():
                    group.create_task(ask())
                    await asyncio.sleep(PAUSE)

        while (await client.get("/v1/models/m")).status_code != 200:  # noqa: ASYNC110 - no event
            await asyncio.sleep(PAUSE)
        await ask()
        waits.clear()
        asking = asyncio.create_task(keep_asking())
        await asyncio.sleep(10 * PAUSE)
        begun = time.perf_counter()
        await asyncio.gather(*(post() for _ in range(row.count)))
        seconds = time.perf_counter() - begun
        done.set()
        await asking
    statuses = ", ".join(f"{count} x {name}" for name, count in sorted(answers.items()) if count)
    percentile = sorted(waits)[len(waits) * 99 // 100]
    return f"{row.count} x {len(body):,} bytes | {statuses} | {seconds:.2f} | {percentile * 1e3:,.0f}"


def measure(name: str, root: Path, triton: LocalTriton) -> str:
    """The line of a row."""
    row, group = ROWS[name], GROUP / f"hostile_{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(LIMIT))
        with service(row, root, triton, group) as (process, url):
            line = asyncio.run(attack(row, url))
            killed = " killed" if process.poll() is not None else ""
            end = int((group / "memory.usage_in_bytes").read_text()) >> 20
        peak = int((group / "memory.max_usage_in_bytes").read_text()) >> 20
        return f"| {name} | {line} | {peak}{killed} | {end} |"
    finally:
        group.rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout to measure")
    arguments = parser.parse_args()
    names = arguments.rows or list(ROWS)
    models = sorted({ROWS[name].model for name in names})
    print("| row | bodies | statuses | s | p99 of the other client, ms | peak, MiB | end, MiB |")
    print("|---|---|---|---:|---:|---:|---:|", flush=True)
    with LocalTriton(MODELS, environment=ROOT / ".venv-triton", models=models) as triton:
        for name in names:
            print(measure(name, arguments.root.resolve(), triton), flush=True)


if __name__ == "__main__":
    main()
