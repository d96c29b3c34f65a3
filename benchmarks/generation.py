"""Measures the service's overhead on streams of tokens, and its gain from batched generation steps.

    python -m benchmarks.generation [--seconds 5] [--rounds 5] [--triton_environment .venv-triton]
        [--checkout NAME=PATH] [--only MODEL] [--price [ROW]] [--quick]

A real Triton runs models that send tokens at a known pace; any further delay is overhead. Streams read these models
directly and through the service, over gRPC and over REST, in alternating runs. Then one stream, and 16 at a time, read
a tiny GPT-2 whose tokens the service samples. Writes results/generation.md. The exit code is 1 if a goal was missed.

``--price`` measures the price of a token instead, without Triton (token_price.py), and updates the sections
of its rows in results/token_price.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import grpc.aio
import numpy as np
import uvloop

from benchmarks.pairs import Checkout, add_flags, environment, paired
from benchmarks.processes import RESULTS, ROOT, ServiceProcess, cpu_seconds
from benchmarks.repository import CODE, TensorConfig, python_config
from benchmarks.token_price import PricePage, PriceRuns
from hf_transformer import __version__
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.commands.loopback import HOST
from hf_transformer.protocol.generate import encode_generate_request
from hf_transformer.protocol.grpc import SERVICE, encode_infer_request
from hf_transformer.types.tensors import Tensor
from tests.support.triton_repository import lay_out as lay_out_test_models
from tests.support.triton_repository import task_model_folder

MILLISECONDS: Final = 20.0
"""Pace of a stream: time between two tokens."""
STREAMS: Final = (1, 32)
PROTOCOLS: Final = {"grpc-v2": "gRPC", "v2": "REST"}
"""Protocols to Triton: ModelStreamInfer, and generate_stream."""
OURS: Final = "service"
TOKENS: Final = 100
"""Tokens of each stream."""
TOGETHER: Final = 16
MAX_FIRST_MS: Final = 0.5
"""Goal: largest delay of the first token by the service."""
MAX_CPU_MS: Final = 0.1
"""Goal: largest CPU time of the service per token, with the most streams."""
MIN_GAIN: Final = 4.0
"""Goal: smallest ratio of tokens per second, TOGETHER streams over one."""
MAX_BUSY: Final = 0.7
"""Share of a processor above which the load generator may limit the result."""

PROMPT: Final = "The capital of france is"
PROMPT_IDS: Final = (328, 305, 308, 477, 521, 662, 309)
PACED: Final[Mapping[str, tuple[int, Sequence[TensorConfig], Sequence[TensorConfig]]]] = {
    "tokens": (
        16,
        [
            ("input_ids", "INT32", (-1,)),
            *((name, "INT32", (1,)) for name in ("input_lengths", "request_output_len", "end_id", "runtime_top_k")),
            *((name, "FP32", (1,)) for name in ("runtime_top_p", "temperature")),
            ("random_seed", "UINT64", (1,)),
            ("streaming", "BOOL", (1,)),
        ],
        [("output_ids", "INT32", (-1, -1)), ("sequence_length", "INT32", (-1,))],
    ),
    "text": (
        0,
        [("text_input", "STRING", (1,)), ("stream", "BOOL", (1,)), ("sampling_parameters", "STRING", (1,))],
        [("text_output", "STRING", (-1,))],
    ),
}
"""max_batch_size, inputs and outputs of a model with TensorRT-LLM's tensors, and one with vLLM's."""
DTYPES: Final = {"INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64, "BOOL": np.bool_, "BYTES": np.object_}
STEPPED: Final = {"gpt2_past": 0.0, "gpt2_logits": 0.0, "gpt2_past_10ms": 0.01}
"""Logits model -> extra seconds of each execution, as for a large model whose time hardly depends on rows."""


def lay_out(target: Path) -> Path:
    """Writes target/triton, the model repository, and target/<model>, tokenizer and config.json; returns the former."""
    repository = target / "triton"
    for name, (batch, inputs, outputs) in PACED.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        shutil.copyfile(CODE / "token_stream.py", version / "model.py")
        policy = "model_transaction_policy { decoupled: true }"
        config = python_config(name, inputs, outputs, batch=batch, policy=policy, milliseconds=MILLISECONDS)
        (version.parent / "config.pbtxt").write_text(config)
    lay_out_test_models(repository, ["gpt2_past", "gpt2_logits"])
    for name, seconds in STEPPED.items():
        if seconds:
            origin = name.rpartition("_")[0]
            shutil.copytree(repository / origin, repository / name, symlinks=True)
            file = repository / name / "config.pbtxt"
            text = file.read_text().replace(f'name: "{origin}"', f'name: "{name}"', 1)
            file.write_text(text + f'parameters {{ key: "seconds" value {{ string_value: "{seconds}" }} }}\n')
    for name in (*PACED, *STEPPED):
        shutil.copytree(task_model_folder("gpt2_past"), target / name)
    return repository


# Clients that record the moment of each token. To add little delay they read HTTP from a raw socket, and don't parse
# gRPC responses.


@dataclass(slots=True)
class Timed:
    """One stream of ``count`` tokens: ``started`` and the moment of each, in seconds of perf_counter.

    Tokens without a whole character have no moment.
    """

    started: float
    count: int
    tokens: list[float] = field(default_factory=list)

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.tokens[0] - self.started

    @property
    def gaps(self) -> list[float]:
        """Seconds between one token and the next."""
        return [after - before for before, after in zip(self.tokens, self.tokens[1:], strict=False)]


class Client(Protocol):
    async def stream(self, count: int) -> Timed:
        """Reads one stream of ``count`` tokens. Raises SystemExit after an error."""

    async def close(self) -> None: ...


class HttpStreams:
    """Server-sent events; concurrent streams have separate, persistent connections.

    Args:
        port: port of HOST.
        path: path of the POST.
        body: makes the body for a number of tokens.
        chosen: tokens may have no text, so the response's usage has their number.
    """

    def __init__(self, port: int, path: str, body: Callable[[int], bytes], chosen: bool = False) -> None:
        self._port = port
        self._path = path
        self._body = body
        self._chosen = chosen
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def stream(self, count: int) -> Timed:
        body = self._body(count)
        head = f"POST {self._path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(HOST, self._port)
        timed = Timed(time.perf_counter(), count)
        writer.write(head + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise SystemExit(f"{status.decode().strip()}: {(await reader.read(2000)).decode()}")
        tokens, last = timed.tokens, b""
        while (line := await reader.readline()) != b"0\r\n":  # the end of the chunks, then an empty line
            if not line or b'"error"' in line:
                raise SystemExit(f"a stream ended after {len(tokens)} tokens: {line!r}")
            if line.startswith(b"data: {"):
                last = line
                if b'"text":""' not in line and b'"choices":[]' not in line:
                    tokens.append(time.perf_counter())
        await reader.readline()
        made = json.loads(last[6:])["usage"]["completion_tokens"] if self._chosen else len(tokens)
        if made != count:
            raise SystemExit(f"{made} tokens, expected {count}")
        self._idle.append((reader, writer))
        return timed

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()


def service_client(service: ServiceProcess) -> HttpStreams:
    """A client of OpenAI's completions."""
    chosen = service.model in STEPPED
    more = {"ignore_eos": True, "stream_options": {"include_usage": True}} if chosen else {}

    def body(count: int) -> bytes:
        usual = {"model": service.model, "prompt": PROMPT, "max_tokens": count, "temperature": 0, "stream": True}
        return json.dumps({**usual, **more}).encode()

    return HttpStreams(service.port, "/openai/v1/completions", body, chosen)


def triton_client(triton: LocalTriton, protocol: str, model: str) -> Client:
    """A client of a paced model, without the service."""
    if protocol == "grpc-v2":
        return GrpcStreams(triton.grpc_address, lambda count: encode_infer_request(model, inputs_of(model, count), []))
    path = f"/v2/models/{model}/generate_stream"
    return HttpStreams(triton.http_port, path, lambda count: encode_generate_request(inputs_of(model, count)))


def inputs_of(model: str, count: int) -> list[Tensor]:
    """The inputs of a paced model for ``count`` tokens."""
    if model == "text":
        parameters = json.dumps({"max_tokens": count, "temperature": 0}).encode()
        values = {"text_input": [PROMPT.encode()], "stream": [True], "sampling_parameters": [parameters]}
    else:
        values = {"input_ids": [PROMPT_IDS], "input_lengths": [[len(PROMPT_IDS)]], "request_output_len": [[count]]}
        values |= {"end_id": [[0]], "runtime_top_k": [[1]], "runtime_top_p": [[1]], "temperature": [[1]]}
        values |= {"random_seed": [[1]], "streaming": [[True]]}
    types = {name: "BYTES" if datatype == "STRING" else datatype for name, datatype, _ in PACED[model][1]}
    return [Tensor(name, types[name], np.array(value, DTYPES[types[name]])) for name, value in values.items()]


class GrpcStreams:
    """Triton's ModelStreamInfer with one call per stream; ``body`` makes its request."""

    def __init__(self, address: str, body: Callable[[int], bytes]) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._call = self._channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        self._body = body

    async def stream(self, count: int) -> Timed:
        message = self._body(count)
        timed = Timed(time.perf_counter(), count)
        call = self._call()
        await call.write(message)
        tokens = timed.tokens
        while len(tokens) < count:
            response = await call.read()
            if response is grpc.aio.EOF or b"error" in response:
                raise SystemExit(f"Triton ended a stream after {len(tokens)} tokens: {response!r}")
            tokens.append(time.perf_counter())
        await call.done_writing()
        await call.read()
        return timed

    async def close(self) -> None:
        await self._channel.close()


# Measuring.


@dataclass(frozen=True, slots=True)
class Run:
    """One system under one load. ``cpu`` is the service's seconds per token, 0 for Triton alone; ``busy`` is the load
    generator's share of a processor."""

    streams: Sequence[Timed]
    seconds: float
    cpu: float
    busy: float

    @property
    def first_ms(self) -> float:
        """The median time to the first token."""
        return 1000 * statistics.median(one.first for one in self.streams)

    @property
    def late_ms(self) -> float:
        """The 99th percentile of the time between two tokens, beyond the model's own pace."""
        gaps = sorted(gap for one in self.streams for gap in one.gaps)
        return 1000 * gaps[int(0.99 * (len(gaps) - 1))] - MILLISECONDS

    @property
    def per_token_ms(self) -> float:
        """The mean time between two tokens."""
        return 1000 * statistics.fmean(gap for one in self.streams for gap in one.gaps)

    @property
    def cpu_ms(self) -> float:
        """The service's CPU time per token."""
        return 1000 * self.cpu

    @property
    def rate(self) -> float:
        """Tokens a second, of all streams."""
        return sum(one.count for one in self.streams) / self.seconds


def measure(make: Callable[[], Client], streams: int, seconds: float, cpu: Callable[[], float] = lambda: 0.0) -> Run:
    """Keep ``streams`` running for about ``seconds``, after a warm-up stream on each."""

    async def load() -> Run:
        client, finished = make(), []
        await asyncio.gather(*(client.stream(TOKENS) for _ in range(streams)))
        end = time.perf_counter() + seconds

        async def one(number: int) -> None:
            await asyncio.sleep(number * MILLISECONDS / 1000 / streams)  # not all tokens at the same moment
            while time.perf_counter() < end or not finished:
                finished.append(await client.stream(TOKENS))

        before, own, started = cpu(), time.process_time(), time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(streams)))
        took = time.perf_counter() - started
        busy, used = (time.process_time() - own) / took, cpu() - before
        await client.close()
        return Run(finished, took, used / sum(stream.count for stream in finished), busy)

    return uvloop.run(load())


def through(service: ServiceProcess, streams: int, seconds: float) -> Run:
    """Measure streams through the service."""
    return measure(lambda: service_client(service), streams, seconds, lambda: cpu_seconds(service.child))


def middle(runs: Sequence[Run], figure: str) -> float:
    """The median of a figure over the rounds."""
    return statistics.median(getattr(run, figure) for run in runs)


@dataclass(slots=True)
class Page:
    """The rows of the results' tables, and the goals that were missed."""

    pace: list[str] = field(default_factory=list)
    pairs: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    added: dict[int, list[float]] = field(default_factory=dict)
    """Milliseconds that the service adds to the first token, by streams at a time."""

    def add_pace(self, where: str, streams: int, alone: Sequence[Run], served: Sequence[Run]) -> None:
        """Add Triton alone and the service at a known pace."""
        for system, runs in (("Triton alone", alone), ("service", served)):
            first, per_token, late, cpu = (
                middle(runs, figure) for figure in ("first_ms", "per_token_ms", "late_ms", "cpu_ms")
            )
            self.pace.append(
                f"| {where} | {streams} | {system} | {first:.2f} | {per_token:.2f} | {late:.2f} | "
                f"{f'{cpu:.3f}' if cpu else ''} | {100 * middle(runs, 'busy'):.0f} % |"
            )
        # Compares the runs of the same round.
        added = statistics.median(two.first_ms - one.first_ms for one, two in zip(alone, served, strict=True))
        self.pace.append(f"| {where} | {streams} | *added by the service* | {added:.2f} | | | | |")
        self.added.setdefault(streams, []).append(added)
        name = f"{where.replace(' |', ' over')}, {streams} streams"
        if added > MAX_FIRST_MS:
            self.missed.append(f"{name}: {added:.2f} ms more to the first token, goal {MAX_FIRST_MS}")
        if streams == STREAMS[-1] and (cpu := middle(served, "cpu_ms")) > MAX_CPU_MS:
            self.missed.append(f"{name}: {cpu:.3f} ms of CPU per token, goal {MAX_CPU_MS}")
        if (busy := max(run.busy for run in (*alone, *served))) > MAX_BUSY:
            self.missed.append(f"{name}: the load generator used {100 * busy:.0f} % of a processor")

    def add_pair(self, where: str, version: str, ours: Sequence[Run], theirs: Sequence[Run]) -> None:
        """Add the ratios of this version to another one."""
        for name, figure in (("first token, ms", "first_ms"), ("service's CPU per token, ms", "cpu_ms")):
            ratio = paired(*([getattr(run, figure) for run in runs] for runs in (ours, theirs)))
            medians = f"{middle(ours, figure):.3f} | {middle(theirs, figure):.3f}"
            self.pairs.append(f"| {where} | {name} | {version} | {medians} | {ratio} |")

    def add_steps(self, model: str, single: Sequence[Run], many: Sequence[Run]) -> None:
        """Add a logits model with one stream and with TOGETHER."""
        gain = statistics.median(two.rate / one.rate for one, two in zip(single, many, strict=True))
        rates = f"{middle(single, 'rate'):,.0f} | {middle(many, 'rate'):,.0f}"
        self.steps.append(f"| {model} | {rates} | {gain:.1f} | {middle(many, 'cpu_ms'):.3f} |")
        if gain < MIN_GAIN:
            text = f"{gain:.1f} times the tokens a second at {TOGETHER} streams, goal {MIN_GAIN}"
            self.missed.append(f"{model}: {text}")

    def text(self, options: argparse.Namespace) -> str:
        """The page in Markdown."""
        pairs = [
            "\n## This version and others\n",
            "| model | protocol | streams | figure | other | this | other | this / other | 95 % |\n"
            "|---|---|---:|---|---|---:|---:|---:|---|",
            *self.pairs,
        ]
        lines = [
            "# Text generation\n",
            f"hf-transformer {__version__}, {platform.platform()}, {os.cpu_count()} CPUs, Python "
            f"{platform.python_version()}; `python -m benchmarks.generation --seconds {options.seconds:g} "
            f"--rounds {options.rounds}`; medians of the rounds. [What is measured](../README.md#text-generation).\n",
            *(
                f"- {streams} {'stream' if streams == 1 else 'streams'} at a time: the service adds {min(added):.1f} "
                f"to {max(added):.1f} ms to the first token, by model and protocol."
                for streams, added in self.added.items()
            ),
            "\n## Streams at a known pace\n",
            f"Tokens come every {MILLISECONDS:g} ms, and the first one that long after the request.\n",
            "| model | protocol | streams | | first token, ms | per token, ms | p99 later than the pace, ms | "
            "service's CPU per token, ms | load generator |\n|---|---|---:|---|---:|---:|---:|---:|---:|",
            *self.pace,
            *(pairs if self.pairs else []),
            "\n## Stepping sequences together\n",
            f"| model | tokens/s, one by one | tokens/s, {TOGETHER} at a time | times | service's CPU per token, ms |\n"
            "|---|---:|---:|---:|---:|",
            *self.steps,
            "\n## Goals of those who change the code\n",
            *([f"- missed: {line}" for line in self.missed] or ["All are met."]),
        ]
        return "\n".join(lines) + "\n"


def measure_pace(
    page: Page,
    where: str,
    straight: Callable[[], Client],
    versions: Mapping[str, ServiceProcess],
    streams: int,
    options: argparse.Namespace,
) -> None:
    """Measure one paced model over one protocol: Triton alone and all versions, in alternating order."""
    alone: list[Run] = []
    served: dict[str, list[Run]] = {version: [] for version in versions}
    for number in range(options.rounds):
        alone.append(measure(straight, streams, options.seconds))
        for version in reversed(list(versions)) if number % 2 else versions:
            served[version].append(through(versions[version], streams, options.seconds))
    page.add_pace(where, streams, alone, served[OURS])
    for version, runs in served.items():
        if version != OURS:
            page.add_pair(f"{where} | {streams}", version, served[OURS], runs)


def measure_steps(page: Page, service: ServiceProcess, options: argparse.Namespace) -> None:
    """Measure one logits model with one stream and with TOGETHER."""
    single, many = [], []
    for _ in range(options.rounds):
        single.append(through(service, 1, options.seconds))
        many.append(through(service, TOGETHER, options.seconds))
    page.add_steps(service.model, single, many)


def measure_price(options: argparse.Namespace) -> int:
    """Measures the price of a token, and updates its page; returns 1 if a goal was missed."""
    rounds, seconds = (1, 1.6) if options.quick else (options.rounds, min(options.seconds, 2.6))
    command = f"python -m benchmarks.generation --price {options.price}".strip()
    page = PricePage(
        f"hf-transformer {__version__}, {platform.platform()}, {os.cpu_count()} CPUs, Python "
        f"{platform.python_version()}; `{command} --rounds {rounds}`; load average {os.getloadavg()[0]:.1f} at the "
        "start."
    )
    with tempfile.TemporaryDirectory(prefix="hf-transformer-price-") as name:
        folder = Path(name)
        for model in ("text", "tokens"):
            shutil.copytree(task_model_folder("gpt2_past"), folder / model)
        runs = PriceRuns(folder, options.checkout, options.own_python, rounds, seconds, options.quick)
        missed = runs.run(page, options.price)
    print(page.text())
    if not options.quick:
        options.results.mkdir(parents=True, exist_ok=True)
        file = options.results / "token_price.md"
        file.write_text(page.text(file.read_text() if file.is_file() else ""))
    return int(missed)


def main() -> int:
    """Measures and writes the page; returns 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each run [5]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--triton_environment", type=environment, default=ROOT / ".venv-triton")
    parser.add_argument("--only", default="", help="only models whose names contain this; writes no page")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the page [benchmarks/results]")
    parser.add_argument(
        "--price", nargs="?", const="", metavar="ROW",
        help="only the price of a token, without Triton: the rows whose names contain ROW (pace, once, first, fair, "
        "options); --only has no effect",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="with --price: under two minutes; writes no page")
    add_flags(parser)
    options = parser.parse_args()
    if options.price is not None:
        return measure_price(options)
    checkouts: list[Checkout | None] = [None, *options.checkout]
    page = Page()
    with tempfile.TemporaryDirectory(prefix="hf-transformer-generation-") as name:
        folder = Path(name)
        with LocalTriton(lay_out(folder), environment=options.triton_environment, config_name=None) as triton:

            def served(model: str, protocol: str, checkout: Checkout | None = None) -> ServiceProcess:
                flags = [f"--predictor_protocol={protocol}"]
                own = options.own_python
                return ServiceProcess(triton, folder, model, flags, checkout=checkout, own_python=own)

            for model in (name for name in PACED if options.only in name):
                for protocol, label in PROTOCOLS.items():
                    with ExitStack() as stack:
                        versions = {
                            checkout.name if checkout else OURS: stack.enter_context(served(model, protocol, checkout))
                            for checkout in checkouts
                        }
                        for version in versions.values():
                            version.wait()
                        straight = partial(triton_client, triton, protocol, model)
                        for streams in STREAMS:
                            measure_pace(page, f"{model} | {label}", straight, versions, streams, options)
            for model in (name for name in STEPPED if options.only in name):
                with served(model, "grpc-v2") as service:
                    measure_steps(page, service.wait(), options)
    text = page.text(options)
    print(text)
    if not (options.only or options.checkout):
        options.results.mkdir(parents=True, exist_ok=True)
        (options.results / "generation.md").write_text(text)
    return 1 if page.missed else 0


if __name__ == "__main__":
    sys.exit(main())
