"""A closed-loop load generator: each connection sends its next request after the previous answer.

The generator uses the service's HTTP client for Triton, and less than a third of the CPU time of a service worker.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from array import array
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from typing import Any, Final, Self
from urllib.parse import urlsplit

import orjson
import uvloop

from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.predictor.base import Address
from hf_transformer.predictor.http import Client, HttpError
from hf_transformer.types.request import Json

ANSWER_SECONDS: Final = 60.0
"""Timeout of a single request, and of all pending requests after the end of a run."""
MAX_ANSWER_BYTES: Final = 2**30
ROWS: Final = "rows per run"
"""Key in ``Figures.triton`` for the mean number of texts per model execution."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server's address and the HTTP headers of all requests, such as an API key."""

    address: Address
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def at(cls, url: str) -> Self:
        """Parses a URL without a path. Raises ConfigError for an invalid URL."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
                raise ValueError(url)
            tls = parts.scheme == "https"
            return cls(Address(parts.hostname, parts.port or (443 if tls else 80), tls))
        except ValueError:
            raise ConfigError(f"{url}: expected http://HOST:PORT or https://HOST:PORT, without a path") from None

    def client(self) -> Client:
        """Creates an HTTP client for the running event loop."""
        tls = ssl.create_default_context() if self.address.use_ssl else None
        return Client(self.address, tls, lambda size, headers: memoryview(bytearray(size)), MAX_ANSWER_BYTES)

    def request(self, path: str, body: Json = None) -> bytes:
        """A serialized HTTP request: POST with a body, otherwise GET."""
        method, content = ("GET", b"") if body is None else ("POST", orjson.dumps(body))
        fields = {"Host": self.address.authority, "Content-Type": "application/json", **self.headers}
        head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        return "\r\n".join([*head, f"Content-Length: {len(content)}", "", ""]).encode() + content

    def ask(self, path: str, body: Json = None) -> tuple[int, Any]:
        """Sends a request; returns the status and the response's JSON or text. Raises LoadError without a response."""

        async def answer() -> tuple[int, bytes]:
            client = self.client()
            async with asyncio.timeout(ANSWER_SECONDS):
                response = await client.request(self.request(path, body))
            await client.close()
            return response.status, bytes(response.body)

        try:
            status, content = uvloop.run(answer())
        except (OSError, HttpError) as error:
            reason = f"{self.address} does not answer: {error or type(error).__name__}"
            raise LoadError(f"{reason}; is the service running there?") from error
        try:
            return status, orjson.loads(content)
        except orjson.JSONDecodeError:
            return status, content[:500].decode("utf-8", "replace")


@dataclass(slots=True)
class Figures:
    """The result of a run. Durations are in seconds, and timestamps are from time.perf_counter.

    A run counts requests sent from ``counted_from`` until ``until``. Streams have times to the ``first`` token and
    ``gaps`` between tokens. ``stages`` has sums of Server-Timing in milliseconds, over ``timed`` answers. ``busy`` is
    the CPU utilization of the load generator. ``triton`` has Triton's statistics: means in milliseconds, and the rows
    per run (ROWS).
    """

    connections: int = 0
    counted_from: float = 0.0
    until: float = 0.0
    last: float = 0.0
    latencies: array[float] = field(default_factory=lambda: array("d"))
    first: array[float] = field(default_factory=lambda: array("d"))
    gaps: array[float] = field(default_factory=lambda: array("d"))
    tokens: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    timed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    busy: float = 0.0
    triton: Mapping[str, float] = field(default_factory=dict)

    def answered(self, started: float) -> None:
        """Records the latency of a completed request."""
        self.last = time.perf_counter()
        self.latencies.append(self.last - started)

    def per_second(self, count: int) -> float:
        """Divides ``count`` by the duration of the run; returns 0.0 without an answer."""
        return count / (self.last - self.counted_from) if self.last > self.counted_from else 0.0

    @property
    def throughput(self) -> float:
        """Tokens per second for streams, otherwise requests per second."""
        return self.per_second(self.tokens or len(self.latencies))

    @property
    def means(self) -> dict[str, float]:
        """Mean milliseconds per request for the service's stages, the rest of the latency, and Triton's stages."""
        means = {name: total / self.timed for name, total in self.stages.items()}
        if means and self.latencies:
            latency = sum(self.latencies) / len(self.latencies) * 1000
            means["HTTP and client"] = max(0.0, latency - sum(means.values()))
        return means | {f"Triton: {name}": value for name, value in self.triton.items() if name != ROWS}


async def send(
    server: Target,
    requests: Sequence[bytes],
    connections: int,
    seconds: float,
    warmup: float = 0.0,
    *,
    streamed: bool = False,
    progress: Callable[[float, int], None] = lambda share, count: None,
) -> Figures:
    """Sends serialized HTTP requests in rotation for ``seconds``, after ``warmup`` seconds without measurement.

    ``streamed`` expects server-sent events of OpenAI's completions API. ``progress`` receives the elapsed fraction of
    the run and the number of answers.
    """
    began, cpu, client, rotation = time.perf_counter(), time.process_time(), server.client(), cycle(requests)
    figures = Figures(connections, began + warmup, began + warmup + seconds, began + warmup)
    ask = _ask_for_stream if streamed else _ask
    pending = {asyncio.create_task(_send_until_end(ask, client, rotation, figures)) for _ in range(connections)}
    while pending and (now := time.perf_counter()) < figures.until + ANSWER_SECONDS:
        _, pending = await asyncio.wait(pending, timeout=0.2)
        progress(min(1.0, (now - began) / (figures.until - began)), len(figures.latencies))
    for task in pending:
        figures.errors[f"no answer within {ANSWER_SECONDS:g} s"] += 1
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    await client.close()
    figures.busy = (time.process_time() - cpu) / (time.perf_counter() - began)
    return figures


Ask = Callable[[Client, bytes, Figures], Coroutine[Any, Any, None]]
"""Sends a request and records its answer. Raises LoadError, OSError or HttpError if the request fails."""


async def _send_until_end(ask: Ask, client: Client, requests: Iterator[bytes], figures: Figures) -> None:
    """Sends sequential requests over a connection until the run ends."""
    while (now := time.perf_counter()) < figures.until:
        counting = figures if now >= figures.counted_from else Figures()
        try:
            await ask(client, next(requests), counting)
        except (LoadError, OSError, HttpError) as error:
            reason = str(error) if isinstance(error, LoadError) else f"no answer: {error or type(error).__name__}"
            counting.errors[reason[:120]] += 1
            await asyncio.sleep(0.05)  # limits the request rate if the server refuses immediately


async def _ask(client: Client, request: bytes, figures: Figures) -> None:
    started = time.perf_counter()
    answer = await client.request(request)
    if answer.status != 200:
        raise LoadError(f"{answer.status} {bytes(answer.body).decode('utf-8', 'replace')}")
    # Parsing takes time, so the means use only the header of every eighth answer.
    if len(figures.latencies) % 8 == 0 and (timing := answer.headers.get(b"server-timing")):
        figures.timed += 1
        for part in timing.decode("latin-1").split(","):
            stage, _, duration = part.strip().partition(";dur=")
            figures.stages[stage] = figures.stages.get(stage, 0.0) + float(duration or 0)
    figures.answered(started)


async def _ask_for_stream(client: Client, request: bytes, figures: Figures) -> None:
    started, moments, tokens, rest = time.perf_counter(), [], 0, b""
    connection = await client.begin([request])
    try:
        if connection.status != 200:
            raise LoadError(f"{connection.status} {(await connection.read()).decode('utf-8', 'replace')}")
        while piece := await connection.read():
            now = time.perf_counter()
            *lines, rest = (rest + piece).split(b"\n")
            for event in (orjson.loads(line[6:]) for line in lines if line.startswith(b"data: {")):
                if "error" in event:
                    raise LoadError(str(event["error"]))
                if event.get("usage"):
                    tokens = event["usage"]["completion_tokens"]
                if any(choice.get("text") for choice in event.get("choices", ())):
                    moments.append(now)
    finally:
        connection.leave()
    figures.answered(started)
    figures.tokens += tokens or len(moments)
    figures.first.extend(moment - started for moment in moments[:1])
    figures.gaps.extend(after - before for before, after in pairwise(moments))
