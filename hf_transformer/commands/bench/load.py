"""The load generator: a number of connections, each of which sends its next request as soon as it has an answer.

One process sends several times as many requests a second as one worker of the service answers. ``Figures.busy`` says
how near it came to its own limit.
"""

from __future__ import annotations

import asyncio
import http.client
import re
import ssl
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, pairwise
from typing import Any, Final, Self, cast
from urllib.parse import urlsplit

import orjson
from httptools import HttpParserError, HttpResponseParser

from hf_transformer.commands.local_triton import exchange
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.types import Json

ANSWER_SECONDS: Final = 60.0
"""How long after the end of a run its last answers may take."""
PAUSE_SECONDS: Final = 0.05
"""After a request that failed, so that a server that refuses at once is not flooded."""
TIMED: Final = 8
"""Of so many answers one's Server-Timing is read, which costs as much as all the rest."""
TIMING: Final = re.compile(rb"\r\nserver-timing: *([^\r]+)", re.IGNORECASE)
KEPT: Final = 4096
"""Bytes of an answer, for its head or its error."""
SHOWN: Final = 120
"""Characters of an error."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go: over plain TCP without ``tls``. ``headers`` go with each request, such as an API key."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def at(cls, url: str) -> Self:
        """Where a URL leads. Raises ConfigError."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
                raise ValueError(url)
            tls = ssl.create_default_context() if parts.scheme == "https" else None
            return cls(parts.hostname, parts.port or (443 if tls else 80), tls)
        except ValueError:
            raise ConfigError(f"{url}: expected http://HOST:PORT or https://HOST:PORT, without a path") from None

    def ask(self, method: str, path: str, body: Json = None) -> tuple[int, Any]:
        """One request; the status, and the JSON or text of the answer. Raises LoadError where none comes."""
        connect = partial(http.client.HTTPSConnection, context=self.tls) if self.tls else http.client.HTTPConnection
        content = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": "application/json", **self.headers}
        try:
            connection = connect(self.host, self.port, timeout=ANSWER_SECONDS)
            status, text = exchange(connection, method, path, content, headers)
        except (OSError, http.client.HTTPException) as error:
            raise LoadError(f"{self.host}:{self.port} does not answer: {error or type(error).__name__}") from error
        try:
            return status, orjson.loads(text)
        except orjson.JSONDecodeError:
            return status, text[:500]

    def request(self, path: str, body: Json) -> bytes:
        """A whole POST."""
        content = orjson.dumps(body)
        fields = {"Host": f"{self.host}:{self.port}", "Content-Type": "application/json", **self.headers}
        head = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        return "\r\n".join([*head, f"Content-Length: {len(content)}", "", ""]).encode() + content


@dataclass(slots=True)
class Figures:
    """The result of a run over ``connections``. Times are in seconds, of time.perf_counter where they are moments.

    Requests that were sent from ``counted_from`` until ``until`` count, the ``last`` answer may come later. ``stages``:
    sums of Server-Timing, in milliseconds, over ``timed`` answers. Streams have the times to the ``first`` token, the
    ``gaps`` between tokens, and the number of ``tokens``. ``busy``: the load generator's share of a processor.
    ``triton``: means of its statistics.
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

    def per_second(self, count: int) -> float:
        """A rate over the run, 0 where nothing was answered."""
        return count / (self.last - self.counted_from) if self.last > self.counted_from else 0.0

    @property
    def throughput(self) -> float:
        """Tokens per second of streams, else requests per second."""
        return self.per_second(self.tokens or len(self.latencies))

    @property
    def means(self) -> dict[str, float]:
        """Mean milliseconds of a request: each stage of the service, the rest of the latency, and Triton's part."""
        means = {name: total / self.timed for name, total in self.stages.items()}
        if means and self.latencies:
            latency = sum(self.latencies) / len(self.latencies) * 1000
            means["HTTP and client"] = max(0.0, latency - sum(means.values()))
        return means | {f"Triton: {name}": value for name, value in self.triton.items()}


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
    """Sends whole HTTP requests in turn for ``seconds``, after a warm-up that is not counted.

    ``streamed``: answers are server-sent events of OpenAI's completions. ``progress`` gets the share of the run that is
    over, and the requests answered so far.
    """
    began, cpu = time.perf_counter(), time.process_time()
    figures = Figures(connections, began + warmup, began + warmup + seconds, began + warmup)
    connect = partial(_Stream if streamed else _Connection, figures, cycle(requests))
    pending = {asyncio.create_task(_keep_open(server, figures, connect)) for _ in range(connections)}
    while pending and (now := time.perf_counter()) < figures.until + ANSWER_SECONDS:
        _, pending = await asyncio.wait(pending, timeout=0.2)
        progress(min(1.0, (now - began) / (figures.until - began)), len(figures.latencies))
    for task in pending:
        figures.errors[f"no answer within {ANSWER_SECONDS:g} s"] += 1
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    figures.busy = (time.process_time() - cpu) / (time.perf_counter() - began)
    return figures


async def _keep_open(server: Target, figures: Figures, connect: Callable[[], _Connection]) -> None:
    """One connection after the other, until the end."""
    loop = asyncio.get_running_loop()
    while time.perf_counter() < figures.until:
        try:
            transport, connection = await loop.create_connection(connect, server.host, server.port, ssl=server.tls)
        except OSError as error:
            figures.errors[f"no connection: {error.strerror or error}"[:SHOWN]] += 1
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        try:
            await connection.ended
        finally:
            transport.abort()


class _Connection(asyncio.Protocol):
    """Sends and awaits one request after the other. ``ended`` is done when the connection is closed."""

    _transport: asyncio.Transport

    def __init__(self, figures: Figures, requests: Iterator[bytes]) -> None:
        self._figures = figures
        self._requests = requests
        self._waits = False
        self._error = ""
        self._parser = HttpResponseParser(self)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._data = b""
        self._started = now = time.perf_counter()
        self._waits = now < self._figures.until and not self._transport.is_closing()
        if self._waits:
            self._transport.write(next(self._requests))
        else:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        if len(self._data) < KEPT:
            self._data += data
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            self._end("the answer is not HTTP")
            self._transport.abort()

    def on_message_complete(self) -> None:
        if (status := self._parser.get_status_code()) != 200:
            body = self._data.partition(b"\r\n\r\n")[2]
            self._error = f"{status} {body.decode('utf-8', 'replace')}"
        failed, self._error = self._error, ""
        self._end(failed)
        if not self._parser.should_keep_alive():
            self._transport.close()
        elif failed:
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._send)
        else:
            self._send()

    def _end(self, error: str) -> None:
        """Counts a request, unless it belongs to the warm-up."""
        self._waits = False
        if self._started < self._figures.counted_from:
            return
        if error:
            self._figures.errors[error[:SHOWN]] += 1
        else:
            self._answered(time.perf_counter())

    def _answered(self, now: float) -> None:
        figures = self._figures
        if len(figures.latencies) % TIMED == 0:
            head = self._data.partition(b"\r\n\r\n")[0]
            if timing := TIMING.search(head):
                figures.timed += 1
                for part in timing[1].decode().split(","):
                    stage, _, duration = part.strip().partition(";dur=")
                    figures.stages[stage] = figures.stages.get(stage, 0.0) + float(duration or 0)
        figures.last = now
        figures.latencies.append(now - self._started)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waits:
            self._end("the connection ended without an answer")
        if not self.ended.done():
            self.ended.set_result(None)


class _Stream(_Connection):
    """Answers that are streams of tokens."""

    def _send(self) -> None:
        self._rest = b""
        self._moments: list[float] = []
        self._tokens = 0
        super()._send()

    def on_body(self, body: bytes) -> None:
        now = time.perf_counter()
        *lines, self._rest = (self._rest + body).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            event = orjson.loads(line[6:])
            if "error" in event:
                self._error = str(event["error"])
            if event.get("usage"):
                self._tokens = event["usage"]["completion_tokens"]
            if any(choice.get("text") for choice in event.get("choices", ())):
                self._moments.append(now)

    def _answered(self, now: float) -> None:
        super()._answered(now)
        figures = self._figures
        figures.tokens += self._tokens or len(self._moments)
        figures.first.extend(moment - self._started for moment in self._moments[:1])
        figures.gaps.extend(after - before for before, after in pairwise(self._moments))
