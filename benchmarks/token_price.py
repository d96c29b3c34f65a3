"""The price of a token on a stream: rows of ``python -m benchmarks.generation`` without Triton.

A scripted predictor, in a process of its own, streams tokens to chats at a known pace; ``scripted_streams.py`` says
how. CPU times are those of the service's process, measured while all streams run, so a busy machine changes them
little. Runs of all systems alternate; the rows are medians.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import grpc.aio
import numpy as np
import uvloop

from benchmarks.pairs import Checkout
from benchmarks.processes import ROOT, ServiceProcess, cpu_seconds, variables
from hf_transformer.commands.loopback import HOST
from hf_transformer.protocol.grpc import SERVICE, encode_infer_request
from hf_transformer.types.tensors import Tensor

MILLISECONDS: Final = 20.0
STREAMS: Final = (32, 128)
FIRST_STREAMS: Final = (1, 32, 128)
AT_ONCE: Final = 32
OVERLOAD: Final = 200
TOKENS_AT_ONCE: Final = 500
OURS: Final = "this"
RAW: Final = "grpc.aio alone"
PROTOCOLS: Final = {"gRPC": "grpc-v2", "REST": "v2"}
MAX_RATIO: Final = 1.3
"""Goal over gRPC: CPU per token, over that of another checkout; and of each option over the plain stream."""
MAX_PARSED_RATIO: Final = 1.15
"""Goal of text that a response template reads, over the plain stream."""
MAX_REST_US: Final = 50.0
MIN_AT_ONCE: Final = 25_000.0
MAX_FIRST_MS: Final = 1.0
"""Goal: the first token after that of tritonclient, with 32 streams."""
MIN_JAIN: Final = 0.9
INTRODUCTION: Final = (
    "[What is measured](../README.md#the-price-of-a-token). The goals are for those who change the code.\n"
)
TEMPLATE: Final = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m['content'] }}{% endfor %}"
REASONING_TEMPLATE: Final = TEMPLATE + "{% if think %}<|im_start|>assistant\n<think>\n{% endif %}"
TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "plain": {},
    "usage": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "logprobs": {"logprobs": True},
    "stop strings": {"stop": ["never", "written"]},
    "tools": {"tools": [TOOL]},
    "n=2": {"n": 2},
}
"""Options of a chat, on the model ``tokens``."""
PARSED: Final[Mapping[str, Mapping[str, Any]]] = {
    "reasoning": {"chat_template_kwargs": {"think": True}},
    "text of a model with reasoning": {},
    "the same with tools": {"tools": [TOOL]},
}
"""The same with a chat template of a model with reasoning."""


@dataclass(frozen=True, slots=True)
class ScriptedPredictor:
    """Addresses of a scripted predictor, with the attributes that ServiceProcess needs."""

    grpc_address: str
    http_address: str


@contextmanager
def scripted(arrivals: str, milliseconds: float = MILLISECONDS) -> Iterator[ScriptedPredictor]:
    command = [sys.executable, "-m", "benchmarks.scripted_streams", arrivals, str(milliseconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables(), cwd=ROOT) as process:
        assert process.stdout is not None
        ports = process.stdout.readline().split()
        try:
            yield ScriptedPredictor(*(f"{HOST}:{port}" for port in ports))
        finally:
            process.terminate()


# Clients. ``Counts`` has the tokens of each stream so far.

Counts = list[int]


class ChatStream(asyncio.Protocol):
    """A connection that reads chats: counts chunks with text, and notes the moment of the first one."""

    def __init__(self, counts: Counts, index: int) -> None:
        self.first = 0.0
        self._counts = counts
        self._index = index
        self._rest = b""
        self._transport: asyncio.Transport
        self._ended: asyncio.Future[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def chat(self, body: bytes) -> float:
        """Reads one chat; returns the seconds to its first token. Raises SystemExit after an error."""
        self._ended, self.first = asyncio.get_running_loop().create_future(), 0.0
        started = time.perf_counter()
        head = f"POST /openai/v1/chat/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)
        await self._ended
        return self.first - started

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        events, _, self._rest = data.rpartition(b"\n\n")
        count = events.count(b'"content":"') - events.count(b'"content":""') + events.count(b'"reasoning":"')
        if count:
            self._counts[self._index] += count
            self.first = self.first or time.perf_counter()
        if self._ended.done():  # the load has ended
            return
        if data.endswith(b"\r\n0\r\n\r\n"):
            self._rest = b""
            self._ended.set_result(None)
        elif b'"error"' in data:
            self._ended.set_exception(SystemExit(data.decode()))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_exception(SystemExit(f"a stream ended after {self._counts[self._index]} tokens"))


def chat_body(model: str, count: int, options: Mapping[str, Any]) -> bytes:
    messages = [{"role": "user", "content": "The capital of france is"}]
    usual = {"model": model, "messages": messages, "max_tokens": count, "temperature": 0, "stream": True}
    return json.dumps({**usual, **options}).encode()


def raw_request(count: int) -> bytes:
    """A request for ``count`` tokens of the model ``text``."""
    parameters = json.dumps({"max_tokens": count}).encode()
    values = [("text_input", "BYTES", b"x"), ("stream", "BOOL", True), ("sampling_parameters", "BYTES", parameters)]
    dtypes = {"BYTES": np.object_, "BOOL": np.bool_}
    tensors = [Tensor(name, kind, np.array([value], dtypes[kind])) for name, kind, value in values]
    return encode_infer_request("text", tensors, [])


# Measuring


@dataclass(slots=True)
class Run:
    """``cpu`` in microseconds per token, ``rate`` in tokens per second of all streams, ``first`` in milliseconds."""

    cpu: float
    rate: float
    counts: Counts
    first: float = 0.0


@dataclass(slots=True)
class Load:
    """A load of ``streams`` at a time for ``seconds``, whose tokens come each ``milliseconds``."""

    streams: int
    seconds: float
    arrivals: str
    model: str = "text"
    options: Mapping[str, Any] = field(default_factory=dict)
    milliseconds: float = MILLISECONDS

    @property
    def tokens(self) -> int:
        """Tokens of each stream: more than fit into the time, except for those that arrive at once."""
        return TOKENS_AT_ONCE if self.arrivals == "once" else int(1000 * (self.seconds + 1.0) / self.milliseconds)

    def stagger(self, index: int) -> float:
        """Seconds after which a stream starts, so that spread tokens are spread."""
        return 0.0 if self.arrivals == "once" else index * self.milliseconds / 1000 / self.streams


def through(service: ServiceProcess, load: Load) -> Run:
    """Reads chats through the service; its CPU time is measured while all of them run."""

    async def measured() -> Run:
        loop, counts, firsts = asyncio.get_running_loop(), [0] * load.streams, list[float]()
        body = chat_body(load.model, load.tokens, load.options)

        async def one(index: int, end: float) -> None:
            await asyncio.sleep(load.stagger(index))
            _, chat = await loop.create_connection(lambda: ChatStream(counts, index), HOST, service.port)
            firsts.append(await chat.chat(body))
            while time.perf_counter() < end:  # only tokens that arrive at once are all there so soon
                await chat.chat(body)

        end = time.perf_counter() + load.seconds
        tasks = [asyncio.create_task(one(index, end)) for index in range(load.streams)]
        return await window(tasks, counts, load, lambda: cpu_seconds(service.child), firsts)

    return uvloop.run(measured())


async def window(
    tasks: Sequence[asyncio.Task[None]],
    counts: Counts,
    load: Load,
    cpu: Callable[[], float],
    firsts: Sequence[float] = (),
) -> Run:
    """Measures from the time when all streams have begun until the end of the load, and cancels them then."""
    await asyncio.sleep(0.1 if load.arrivals == "once" else 0.6)
    before, used, started = list(counts), cpu(), time.perf_counter()
    await asyncio.sleep(load.seconds - 0.6)
    used, seconds, after = cpu() - used, time.perf_counter() - started, list(counts)
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    await asyncio.wait(tasks)
    made = [late - early for late, early in zip(after, before, strict=True)]
    total = max(sum(made), 1)
    return Run(1e6 * used / total, total / seconds, made, 1000 * statistics.median(firsts) if firsts else 0.0)


def raw(address: str, load: Load) -> Run:
    """Reads the same streams with a grpc.aio client, and does nothing with them."""

    async def measured() -> Run:
        counts = [0] * load.streams

        async def one(index: int) -> None:
            await asyncio.sleep(load.stagger(index))
            while True:  # until the end of the load
                call = method(raw_request(load.tokens))
                while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
                    counts[index] += 1

        async with grpc.aio.insecure_channel(address) as channel:
            method: Any = channel.unary_stream(f"/{SERVICE}/ModelStreamInfer", None, None)
            tasks = [asyncio.create_task(one(index)) for index in range(load.streams)]
            return await window(tasks, counts, load, time.process_time)

    return uvloop.run(measured())


def first_tokens(service: ServiceProcess, streams: int, rounds: int) -> float:
    """The median time to the first token in ms, of short chats that start at moments of their own."""
    return uvloop.run(_first_tokens(service, streams, rounds))


async def _first_tokens(service: ServiceProcess, streams: int, rounds: int) -> float:
    loop, counts, body = asyncio.get_running_loop(), [0] * streams, chat_body("text", 50, {})
    times: list[float] = []

    async def one(index: int) -> None:
        _, chat = await loop.create_connection(lambda: ChatStream(counts, index), HOST, service.port)
        await asyncio.sleep(index / streams)
        await chat.chat(body)  # opens the connections to the predictor
        for _ in range(rounds):
            times.append(await chat.chat(body))

    await asyncio.gather(*(one(index) for index in range(streams)))
    return 1000 * statistics.median(times)


def tritonclient_first(address: str, streams: int, rounds: int) -> float:
    """The same with tritonclient, in a process of its own: protobuf refuses its messages beside the service's."""
    command = [sys.executable, "-m", "benchmarks.tritonclient_streams", address, str(streams), str(rounds)]
    return float(subprocess.run(command, capture_output=True, text=True, env=variables(), cwd=ROOT, check=True).stdout)


def jain(counts: Sequence[int]) -> float:
    """Jain's index of fairness: 1 if all are equal, 1/n if one has everything."""
    return sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts)) if any(counts) else 0.0


# The page


class PricePage:
    """Sections with a table and its missed goals, by title. ``about`` stands in each, since they are measured apart."""

    def __init__(self, about: str) -> None:
        self._about = about
        self._sections: dict[str, str] = {}
        self._title = ""
        self._missed: list[str] = []

    def table(self, title: str, columns: str) -> None:
        self._title = title
        lines = (self._about, "", columns, "|".join(["", *["---"] * (columns.count("|") - 1), ""]))
        self._sections[title] = "\n".join(lines) + "\n"

    def row(self, *cells: object) -> None:
        self._sections[self._title] += f"| {' | '.join(map(str, cells))} |\n"

    def goal(self, name: str, value: float, limit: float, least: bool = False) -> None:
        if (value < limit) if least else (value > limit):
            self._missed.append(f"{name}: {value:,.2f}, goal {limit:,.2f}")

    def end(self) -> bool:
        """Ends the section with its missed goals; returns whether there are any."""
        goals = [f"- missed: {line}" for line in self._missed] or ["All goals are met."]
        self._sections[self._title] += "\n" + "\n".join(goals) + "\n"
        missed, self._missed = bool(self._missed), []
        return missed

    def text(self, before: str = "") -> str:
        """The page, with the sections of the page ``before`` that were not measured again."""
        sections = dict(section.split("\n\n", 1) for section in before.split("\n## ")[1:])
        sections |= self._sections
        parts = [f"## {title}\n\n{content.rstrip()}\n" for title, content in sections.items()]
        return "\n".join(["# The price of a token\n", INTRODUCTION, *parts])


class PriceRuns:
    """All measurements. ``rounds`` and ``seconds`` are those of each row; ``quick`` leaves out slow rows."""

    def __init__(
        self, folder: Path, checkouts: Sequence[Checkout], own_python: bool, rounds: int, seconds: float, quick: bool
    ) -> None:
        self._folder = folder
        self._checkouts: list[Checkout | None] = [None, *checkouts]
        self._own_python = own_python
        self._rounds = rounds
        self._seconds = seconds
        self._quick = quick

    def run(self, page: PricePage, only: str) -> bool:
        """Measures the rows whose names contain ``only``; returns whether a goal was missed."""
        (self._folder / "chat.jinja").write_text(TEMPLATE)
        (self._folder / "reasoning.jinja").write_text(REASONING_TEMPLATE)
        rows: Mapping[str, Callable[[PricePage], None]] = {
            "pace-spread": partial(self.pace, "spread"), "pace-steps": partial(self.pace, "steps"),
            "once": self.once, "first": self.first, "fair": self.fair, "options": self.options,
        }  # fmt: skip
        missed = False
        for name, row in rows.items():
            if only in name:
                row(page)
                missed = page.end() or missed
        return missed

    @contextmanager
    def services(
        self,
        predictor: ScriptedPredictor,
        protocol: str,
        model: str = "text",
        ours: bool = False,
        template: str = "chat",
    ) -> Iterator[Mapping[str, ServiceProcess]]:
        """All versions of the service, or ours alone, ready."""
        with ExitStack() as stack:
            flags = [f"--predictor_protocol={PROTOCOLS[protocol]}", f"--chat_template={self._folder / template}.jinja"]
            started = {}
            for checkout in self._checkouts[:1] if ours else self._checkouts:
                process = ServiceProcess(
                    predictor, self._folder, model, flags, checkout=checkout, own_python=self._own_python
                )
                started[checkout.name if checkout else OURS] = stack.enter_context(process)
            for service in started.values():
                service.wait()
            yield started

    def _medians(self, systems: Mapping[str, Callable[[], Run]]) -> dict[str, Run]:
        """Runs all systems in alternating order; medians of CPU and rate."""
        runs: dict[str, list[Run]] = {name: [] for name in systems}
        for number in range(self._rounds):
            for name in reversed(list(systems)) if number % 2 else systems:
                runs[name].append(systems[name]())
        return {
            name: Run(
                statistics.median(run.cpu for run in made), statistics.median(run.rate for run in made), made[0].counts
            )
            for name, made in runs.items()
        }

    def pace(self, arrivals: str, page: PricePage) -> None:
        """CPU per token at 50 tokens a second per stream."""
        names = [OURS, *(one.name for one in self._checkouts if one), RAW]
        title = "CPU per token, tokens spread" if arrivals == "spread" else "CPU per token, tokens in steps"
        page.table(f"{title}, µs", f"| predictor | streams | {' | '.join(names)} |")
        with scripted(arrivals) as predictor:
            for protocol in PROTOCOLS:
                with self.services(predictor, protocol) as versions:
                    for streams in STREAMS:
                        self._pace_row(page, predictor, versions, Load(streams, self._seconds, arrivals), protocol)

    def _pace_row(
        self,
        page: PricePage,
        predictor: ScriptedPredictor,
        versions: Mapping[str, ServiceProcess],
        load: Load,
        protocol: str,
    ) -> None:
        systems: dict[str, Callable[[], Run]] = {}
        for name, service in versions.items():
            systems[name] = lambda service=service: through(service, load)  # type: ignore[misc]
        if protocol == "gRPC":
            systems[RAW] = lambda: raw(predictor.grpc_address, load)
        measured = self._medians(systems)
        columns = [f"{measured[name].cpu:.0f}" if name in measured else "" for name in (*versions, RAW)]
        page.row(protocol, load.streams, *columns)
        where = f"{protocol}, {load.arrivals}, {load.streams} streams"
        if protocol == "REST" and load.arrivals == "steps":
            page.goal(f"{where}: µs per token", measured[OURS].cpu, MAX_REST_US)
        for name in versions:
            if name != OURS and protocol == "gRPC":
                page.goal(f"{where}: over {name}", measured[OURS].cpu / measured[name].cpu, MAX_RATIO)

    def once(self, page: PricePage) -> None:
        """Tokens per second if the predictor sends all tokens of a request at once."""
        page.table(f"Tokens at once, {AT_ONCE} streams", "| predictor | system | tokens/s | CPU per token, µs |")
        load = Load(AT_ONCE, self._seconds, "once")
        with scripted("once") as predictor:
            for protocol in PROTOCOLS:
                with self.services(predictor, protocol) as versions:
                    systems: dict[str, Callable[[], Run]] = {}
                    for name, service in versions.items():
                        systems[name] = lambda service=service: through(service, load)  # type: ignore[misc]
                    if protocol == "gRPC":
                        systems[RAW] = lambda: raw(predictor.grpc_address, load)
                    for name, run in self._medians(systems).items():
                        page.row(protocol, name, f"{run.rate:,.0f}", f"{run.cpu:.0f}")
                        if name == OURS:
                            page.goal(f"{protocol}, at once: tokens/s", run.rate, MIN_AT_ONCE, least=True)

    def first(self, page: PricePage) -> None:
        """The first token, against tritonclient."""
        columns = "| streams | tritonclient, ms | this, ms | later, ms |"
        page.table(f"First token over gRPC, which the predictor sends after {MILLISECONDS:.0f} ms", columns)
        with scripted("spread") as predictor, self.services(predictor, "gRPC", ours=True) as versions:
            for streams in FIRST_STREAMS:
                pairs = []
                rounds = max(2, (10 if self._quick else 20) // streams)
                for _ in range(self._rounds):
                    alone = tritonclient_first(predictor.grpc_address, streams, rounds)
                    pairs.append((alone, first_tokens(versions[OURS], streams, rounds)))
                later = statistics.median(ours - alone for alone, ours in pairs)
                alone, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
                page.row(streams, f"{alone:.2f}", f"{ours:.2f}", f"{later:.2f}")
                if streams == 32:
                    page.goal("first token, 32 streams: ms later than tritonclient's", later, MAX_FIRST_MS)

    def fair(self, page: PricePage) -> None:
        """How equal the shares of streams are while the service is overloaded."""
        columns = "| predictor | system | Jain's index | least | most | tokens/s |"
        page.table(f"Overloaded: {OVERLOAD} streams for 4 s, tokens of each stream", columns)
        load = Load(OVERLOAD, 4.6, "spread", milliseconds=MILLISECONDS / 4)
        with scripted(load.arrivals, load.milliseconds) as predictor:
            for protocol in ("REST",) if self._quick else PROTOCOLS:
                with self.services(predictor, protocol) as versions:
                    for name, service in versions.items():
                        run = through(service, load)
                        index, least, most = jain(run.counts), min(run.counts), max(run.counts)
                        page.row(protocol, name, f"{index:.2f}", least, most, f"{run.rate:,.0f}")
                        if name == OURS:
                            page.goal(f"{protocol}, overloaded: Jain's index", index, MIN_JAIN, least=True)

    def options(self, page: PricePage) -> None:
        """CPU per token with options of a chat, on a model that returns ids."""
        page.table("Options of a chat, 32 streams in steps", "| predictor | option | CPU per token, µs | to plain |")
        with scripted("steps") as predictor:
            for protocol in ("gRPC",) if self._quick else PROTOCOLS:
                with (
                    self.services(predictor, protocol, "tokens", ours=True) as versions,
                    self.services(predictor, protocol, "tokens", ours=True, template="reasoning") as parsing,
                ):
                    systems: dict[str, Callable[[], Run]] = {}
                    for name, fields in {**OPTIONS, **PARSED}.items():
                        service = parsing[OURS] if name in PARSED else versions[OURS]
                        load = Load(32 // int(fields.get("n", 1)), self._seconds, "steps", "tokens", fields)
                        systems[name] = partial(through, service, load)
                    found = self._medians(systems)
                    for name, run in found.items():
                        ratio = run.cpu / found["plain"].cpu
                        page.row(protocol, name, f"{run.cpu:.0f}", f"{ratio:.2f}")
                        most = MAX_PARSED_RATIO if name in PARSED or name == "tools" else MAX_RATIO
                        page.goal(f"{protocol}, {name}: over the plain stream", ratio, most)
