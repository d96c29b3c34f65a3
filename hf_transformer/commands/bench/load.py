"""The load generator: so many connections, each of which sends its next request as soon as it has an answer.

One process sends several times as many requests a second as one worker of the service answers. ``Figures.busy`` says
how near it came to its own limit.
"""

from __future__ import annotations

import asyncio
import http.client
import ssl
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from typing import Any, Final, cast

import numpy as np
import orjson
from httptools import HttpParserError, HttpResponseParser

from hf_transformer.commands.local_triton import exchange
from hf_transformer.errors import LoadError
from hf_transformer.types import Json

ANSWER_SECONDS: Final = 60.0
"""How long after the end of a run its last answers may take."""
PAUSE_SECONDS: Final = 0.05
"""After a request that failed: a server that refuses at once is not to be flooded."""
TIMED: Final = 8
"""One connection of so many reads Server-Timing: parsing all fields of a head costs as much as all the rest."""
JSON: Final = "application/json"
SHOWN: Final = 120
"""Characters of an error."""

Progress = Callable[[float, int], None]
"""Gets the share of a run that is over, and the requests answered so far."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where requests go: over plain TCP without ``tls``. ``headers`` go with each request, such as an API key."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def ask(self, method: str, path: str, body: Json = None) -> tuple[int, Any]:
        """One request; the status, and the JSON or text of the answer. Raises LoadError where none comes."""
        content, headers = None if body is None else orjson.dumps(body), {"Content-Type": JSON, **self.headers}
        more: dict[str, Any] = {"host": self.host, "tls": self.tls, "headers": headers, "seconds": ANSWER_SECONDS}
        try:
            status, text = exchange(self.port, method, path, content, **more)
        except (OSError, http.client.HTTPException) as error:
            raise LoadError(f"{self.host}:{self.port} does not answer: {error or type(error).__name__}") from error
        try:
            return status, orjson.loads(text)
        except orjson.JSONDecodeError:
            return status, text[:500]

    def request(self, path: str, body: Json) -> bytes:
        """A whole POST."""
        content = orjson.dumps(body)
        fields = {"Host": f"{self.host}:{self.port}", "Content-Type": JSON, **self.headers}
        head = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        return "\r\n".join([*head, f"Content-Length: {len(content)}", "", ""]).encode() + content


def _numbers() -> array[float]:
    return array("d")


@dataclass(slots=True)
class Figures:
    """What a run has shown; times in seconds.

    ``seconds``: from the first counted request to the last answer. ``stages``: sums of Server-Timing, in milliseconds,
    over ``timed`` answers. ``busy``: the load generator's share of a processor. Streams have the times to the
    ``first`` token, the ``gaps`` between tokens, and the number of ``tokens``.
    """

    latencies: array[float] = field(default_factory=_numbers)
    first: array[float] = field(default_factory=_numbers)
    gaps: array[float] = field(default_factory=_numbers)
    tokens: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    timed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    busy: float = 0.0

    def per_second(self, count: int) -> float:
        """A rate over the run, 0 where nothing was answered."""
        return count / self.seconds if self.seconds else 0.0


def percentile_ms(times: Sequence[float], percent: float) -> float:
    """A percentile of times in seconds, in milliseconds; NaN where there are none."""
    return float(np.percentile(times, percent)) * 1000 if len(times) else float("nan")


class LoadRun:
    """One run: whole HTTP requests are sent in turn for ``seconds``, after a warm-up that is not counted. ``streamed``:
    answers are server-sent events of OpenAI's completions."""

    def __init__(
        self, server: Server, requests: Sequence[bytes], seconds: float, warmup: float = 1.0, streamed: bool = False
    ) -> None:
        self.figures = Figures()
        self.requests = cycle(requests)
        self._server, self._streamed, self._cpu = server, streamed, time.process_time()
        self.began = time.perf_counter()
        self.counted_from = self.last = self.began + warmup
        self.until = self.counted_from + seconds

    async def send(self, connections: int, progress: Progress = lambda share, count: None) -> Figures:
        """Sends over so many connections; the figures when the last answer is there."""
        pending = set()
        for number in range(connections):
            kind = _Stream if self._streamed else _Connection if number % TIMED else _TimedConnection
            pending.add(asyncio.create_task(self._keep_open(kind)))
        while pending and (now := time.perf_counter()) < self.until + ANSWER_SECONDS:
            _, pending = await asyncio.wait(pending, timeout=0.2)
            progress(min(1.0, (now - self.began) / (self.until - self.began)), len(self.figures.latencies))
        for task in pending:
            self.figures.errors[f"no answer within {ANSWER_SECONDS:g} s"] += 1
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        self.figures.seconds = self.last - self.counted_from
        self.figures.busy = (time.process_time() - self._cpu) / (time.perf_counter() - self.began)
        return self.figures

    async def _keep_open(self, kind: type[_Connection]) -> None:
        """One connection after the other, until the end."""
        loop, server = asyncio.get_running_loop(), self._server
        while time.perf_counter() < self.until:
            try:
                transport, connection = await loop.create_connection(
                    lambda: kind(self), server.host, server.port, ssl=server.tls
                )
            except OSError as error:
                self.figures.errors[f"no connection: {error.strerror or error}"[:SHOWN]] += 1
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            try:
                await connection.ended
            finally:
                transport.abort()


class _Connection(asyncio.Protocol):
    """Sends and awaits one request after the other. ``ended`` is done when the connection is closed."""

    _transport: asyncio.Transport

    def __init__(self, run: LoadRun) -> None:
        self._run = run
        self._waits = False
        self._error = ""
        self._data = b""
        self._parser = HttpResponseParser(self)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._started = now = time.perf_counter()
        self._waits = now < self._run.until and not self._transport.is_closing()
        if self._waits:
            self._transport.write(next(self._run.requests))
        else:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._data = data
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            self._failed("the answer is not HTTP")
            self._transport.abort()

    def on_message_complete(self) -> None:
        self._waits = False
        status = self._parser.get_status_code()
        if status != 200:
            body = self._data.rpartition(b"\r\n\r\n")[2]
            self._error = f"{status} {body.decode('utf-8', 'replace')}"
        failed, self._error = self._error, ""
        if failed:
            self._failed(failed)
        elif self._started >= self._run.counted_from:
            self._answered(time.perf_counter())
        if not self._parser.should_keep_alive():
            self._transport.close()
        elif failed:
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._send)
        else:
            self._send()

    def _answered(self, now: float) -> None:
        self._run.last = now
        self._run.figures.latencies.append(now - self._started)

    def _failed(self, why: str) -> None:
        self._waits = False
        if self._started >= self._run.counted_from:
            self._run.figures.errors[why[:SHOWN]] += 1

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waits:
            self._failed("the connection ended without an answer")
        if not self.ended.done():
            self.ended.set_result(None)


class _TimedConnection(_Connection):
    """Reads Server-Timing too."""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"server-timing" and self._started >= self._run.counted_from:
            figures = self._run.figures
            figures.timed += 1
            for part in value.decode("latin-1").split(","):
                stage, _, duration = part.strip().partition(";dur=")
                figures.stages[stage] = figures.stages.get(stage, 0.0) + float(duration or 0)


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
        figures = self._run.figures
        figures.tokens += self._tokens or len(self._moments)
        figures.first.extend(moment - self._started for moment in self._moments[:1])
        figures.gaps.extend(after - before for before, after in pairwise(self._moments))
