"""Compares the project's own implementations with the libraries that they replace.

    .venv-bench/bin/python -m benchmarks.by_hand [--rounds 9] [--results benchmarks/results]

Runs in the environment of scripts/bench. Library and own part alternate. A figure is the median of the rounds, in
microseconds of this process's CPU time unless its row says otherwise. Prints a Markdown table and writes it to
by_hand.md. docs/by_hand.md has the reason for each part.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import logging
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
import prometheus_client
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from benchmarks.processes import RESULTS
from benchmarks.report import machine
from benchmarks.tokenizing import NATURAL
from benchmarks.tokenizing import measure as measure_words
from benchmarks.wire import canned_server, cpu_per_request
from hf_transformer import __version__
from hf_transformer.commands.loopback import HOST
from hf_transformer.observability.logging import FORMAT, LATENCY_LOGGER, TIME_FORMAT, LatencyLog, LineHandler
from hf_transformer.observability.metrics import SECONDS
from hf_transformer.observability.series import LightCounter, LightHistogram
from hf_transformer.predictor.base import Address
from hf_transformer.predictor.http import Client
from hf_transformer.server.http import ClientLimits, HttpConnection
from hf_transformer.types.http import Request, Response
from hf_transformer.types.request import Context

PACKAGES: Final = ("uvicorn", "aiohttp", "prometheus_client", "tokenizers", "httptools", "uvloop")
REQUESTS, CALLS, IN_FLIGHT, TIMES, TEXTS = 3000, 2000, 16, 20_000, 1000
"""In a round: requests to the server, calls of the client, calls in flight, repetitions of other parts, texts."""
BODY: Final = b'{"instances":["the capital of france is a large city ."]}'
TYPE: Final = (b"content-type", b"application/json")
HEAD: Final = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
REQUEST: Final = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
ANSWER: Final = b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 200\r\nContent-Length: 456\r\n\r\n" + bytes(456)
"""A response as long as Triton's for a batch of a classifier."""
Row = tuple[str, str, Sequence[float], Sequence[float]]
"""Part, library, and microseconds of library and own part for each round."""


async def turns(rounds: int, *measures: Callable[[], Awaitable[float]]) -> list[list[float]]:
    """Microseconds of each measure for each round, after a warm-up round."""
    columns: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds + 1):
        for figures, measure in zip(columns, measures, strict=True):
            figures.append(1e6 * await measure())
    return [figures[1:] for figures in columns]


def times(call: Callable[[], object], finish: Callable[[], object] = lambda: None) -> Callable[[], Awaitable[float]]:
    """A measure of CPU seconds per call, over TIMES calls and ``finish``."""

    async def measure() -> float:
        began = time.process_time()
        for _ in range(TIMES):
            call()
        finish()
        return (time.process_time() - began) / TIMES

    return measure


def serving(rounds: int) -> list[Row]:
    """A request with a small body to an endpoint that echoes it, without sockets."""

    async def bare(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        headers = [TYPE, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def handle(request: Request) -> Response:
        return Response(200, await request.read(), [TYPE])

    config = uvicorn.Config(bare, http="httptools", ws="none", log_config=None, access_log=False)
    config.load()
    application, limits = SimpleNamespace(handle=handle), ClientLimits(1000, 2**16, 60.0, 60.0)
    settings: Any = SimpleNamespace(client_limits=limits, ending=False, application=application)
    library = partial(cpu_per_request, lambda: HttpToolsProtocol(config, ServerState(), {}), [[REQUEST]], REQUESTS)
    own = partial(cpu_per_request, lambda: HttpConnection(settings, ServerState(), {}), [[REQUEST]], REQUESTS)
    found = uvloop.run(turns(rounds, library, own))
    return [("server/http.py: one request", "uvicorn's httptools class with a bare ASGI app", *found)]


def calling(rounds: int) -> list[Row]:
    """Calls over loopback to a process with one canned answer."""

    async def run(port: int) -> list[Row]:
        client = Client(Address(HOST, port, False), None, lambda size, fields: memoryview(bytearray(size)), 2**20)
        async with aiohttp.ClientSession() as session:

            async def library() -> None:
                url, headers = f"http://{HOST}:{port}/v1/models/m:predict", {"Content-Type": "application/json"}
                async with session.post(url, data=BODY, headers=headers) as response:
                    await response.read()

            async def own() -> None:
                await client.request(REQUEST)

            found = await turns(rounds, partial(cpu_of_calls, library), partial(cpu_of_calls, own))
        await client.close()
        return [(f"predictor/http.py: one call, {IN_FLIGHT} in flight", "aiohttp", *found)]

    with canned_server(BODY, ANSWER) as port:
        return uvloop.run(run(port))


async def cpu_of_calls(call: Callable[[], Awaitable[None]]) -> float:
    """CPU seconds per call, over CALLS with IN_FLIGHT at a time."""

    async def client() -> None:
        for _ in range(CALLS // IN_FLIGHT):
            await call()

    began = time.process_time()
    await asyncio.gather(*(client() for _ in range(IN_FLIGHT)))
    return (time.process_time() - began) / CALLS


def counting(rounds: int) -> list[Row]:
    """A counter with two labels, and four histograms."""
    registry = prometheus_client.CollectorRegistry()
    counter = prometheus_client.Counter("requests", "text", ("api", "status"), registry=registry)
    stages = [prometheus_client.Histogram(f"h{one}", "text", buckets=SECONDS, registry=registry) for one in range(4)]
    light = LightCounter("requests", "text", "api", "status")
    lights = [LightHistogram(f"h{one}", "text", SECONDS) for one in range(4)]
    counters = times(lambda: counter.labels("v1", 200).inc()), times(lambda: light.add(1, "v1", 200))
    observe = times(lambda: [stage.observe(0.003) for stage in stages])
    observe_own = times(lambda: [light.observe(0.003) for light in lights])
    rows = (("add to a counter", counters), ("observe the four stages", (observe, observe_own)))
    where, library = "observability/series.py", "prometheus_client"
    return [(f"{where}: {name}", library, *uvloop.run(turns(rounds, *measures))) for name, measures in rows]


def logging_lines(rounds: int) -> list[Row]:
    """A line of the latency log to /dev/null, with the service's handler or as a record of another handler."""
    logger, context = logging.getLogger(LATENCY_LOGGER), Context("0b9c1f0e-6f0f-4d7b-9d53-3e1a1f0d3c55", {})
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logs = []
    with open(os.devnull, "w") as nowhere:
        for handler in (LineHandler(nowhere), logging.StreamHandler(nowhere)):
            handler.setFormatter(logging.Formatter(FORMAT, TIME_FORMAT))
            logger.handlers = [handler]
            logs.append(LatencyLog())
        own, library = logs
        measures = times(lambda: library.add(context)), times(lambda: own.add(context), own.flush)
        found = uvloop.run(turns(rounds, *measures))
    return [("observability/logging.py: a line of the latency log", "logging", *found)]


def tokenizing(rounds: int) -> list[Row]:
    """Natural text of 8 words with BERT's vocabulary. The first half fills the cache."""
    cost = measure_words("BERT", NATURAL, 2 * TEXTS * rounds)
    half = len(cost.cache) // 2
    return [("tokenizer/words.py: a text of 8 words", "tokenizers", cost.library[half:], cost.cache[half:])]


def main() -> None:
    """Runs all measurements, prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="[9]")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    lines = [
        "# Parts written by hand, and libraries\n",
        f"`python -m benchmarks.by_hand --rounds {options.rounds}`, {time.strftime('%Y-%m-%d')}, {machine()}; "
        f"hf-transformer {__version__}, "
        + ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
        + ". Microseconds of CPU, where the row says nothing else. [Why they are there](../../docs/by_hand.md).\n",
        "| part | library | its cost | ours | ours / library's |\n|---|---|---:|---:|---:|",
    ]
    for measure in (serving, calling, counting, logging_lines, tokenizing):
        for part, name, library, own in measure(options.rounds):
            its, ours = statistics.median(library), statistics.median(own)
            lines.append(f"| {part} | {name} | {its:.3g} | {ours:.3g} | {ours / its:.2f} |")
    page = "\n".join(lines) + "\n"
    print(page)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "by_hand.md").write_text(page)


if __name__ == "__main__":
    main()
