"""The real application in this process, between transports without sockets: clients on one side, a Triton on the other.

    python -P benchmarks/in_process.py --requests N

answers N requests of each form, and prints the mean number of texts in a batch as JSON. It imports nothing else of this
folder, so that PYTHONPATH can name another checkout's package. Under valgrind's callgrind, which
benchmarks/instructions.py starts without instrumentation, it counts only these requests, and dumps the count after each
form under its name.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import mmap
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import uvloop
from uvicorn.lifespan.on import LifespanOn
from uvicorn.server import ServerState

from hf_transformer.app.application import build_app
from hf_transformer.commands.serve import server_config
from hf_transformer.config.options import Config, parse_config
from hf_transformer.server.http import HttpConnection
from hf_transformer.server.memory import freeze_garbage_collector

BERT: Final = Path(__file__).parents[1] / "deploy" / "model_repository" / "bert"
LABELS: Final = 2
LENGTH: Final = 512
TEXTS: Final = 64
"""Different texts in rotation."""
WARM_UP: Final = 200
READY_SECONDS: Final = 30.0
ROWS: Final = re.compile(rb'"shape":\[(\d+)')

MODEL: Final[Mapping[str, Any]] = {
    "name": "m",
    "versions": ["1"],
    "platform": "python",
    "inputs": [{"name": name, "datatype": "INT64", "shape": [-1, -1]} for name in ("input_ids", "attention_mask")],
    "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, LABELS]}],
}
CONFIG: Final = {
    "name": "m",
    "backend": "python",
    "max_batch_size": 64,
    "dynamic_batching": {},
    "input": [{"name": tensor["name"], "data_type": "TYPE_INT64", "dims": [-1]} for tensor in MODEL["inputs"]],
    "output": [{"name": "logits", "data_type": "TYPE_FP32", "dims": [LABELS]}],
}
QUESTIONS: Final = {b"GET /v2/models/m/config": CONFIG, b"GET /v2/models/m ": MODEL}
"""The start of a request to the predictor, and the JSON of its answer; others but inferences get an empty object."""


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of request. ``parts`` are the bytes of each, around a trace id that is new in each request."""

    name: str
    connections: int
    parts: Sequence[tuple[bytes, bytes]]


def forms() -> list[Form]:
    """All forms: texts of different words, and of different lengths but for one of them."""
    draw = random.Random(1)
    vocabulary = (BERT / "vocab.txt").read_text().split()
    words = [word for word in vocabulary if re.fullmatch("[a-z]{3,}", word)]

    def texts(shortest: int, longest: int) -> list[str]:
        return [" ".join(draw.choices(words, k=draw.randint(shortest, longest))) for _ in range(TEXTS)]

    same, short, long = texts(7, 7), texts(4, 12), texts(400, 400)
    return [
        Form("V1, 7 words, 32 at a time", 32, [_v1(text) for text in same]),
        Form("V1, 7 words, 1 at a time", 1, [_v1(text) for text in same]),
        Form("V1, 4 to 12 words, 32 at a time", 32, [_v1(text) for text in short]),
        Form("V2, 7 words, 32 at a time", 32, [_v2(text) for text in same]),
        Form("V2, 7 words, 1 at a time", 1, [_v2(text) for text in same]),
        Form("V1, 400 words, 1 at a time", 1, [_v1(text) for text in long]),
    ]


def _v1(text: str) -> tuple[bytes, bytes]:
    return _post("/v1/models/m:predict", {"instances": [text]})


def _v2(text: str) -> tuple[bytes, bytes]:
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
    return _post("/v2/models/m/infer", {"inputs": [tensor]})


def _post(path: str, content: Any) -> tuple[bytes, bytes]:
    body = json.dumps(content).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\ntraceparent: 00-".encode(), b"-00f067aa0ba902b7-01\r\n\r\n" + body


class Socketless(asyncio.Transport):
    """The base of transports that hand bytes over in this process."""

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        """Does nothing: there is no socket."""

    close = abort


class ClientTransport(Socketless):
    """A connection to the service. ``answered`` gets the first bytes of each answer."""

    def __init__(self, protocol: Any, answered: Callable[[ClientTransport, bytes], object]) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self._answered = answered
        self.receive = protocol.data_received
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        self._answered(self, data)


class Load:
    """Requests of one form: each client sends its next one upon an answer. ``over`` is done when all are answered."""

    def __init__(self, form: Form, requests: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.over = self._loop.create_future()
        self._parts = form.parts
        self._number = random.Random(2).getrandbits(120)
        self._unsent = self._unanswered = requests

    def send(self, client: ClientTransport) -> None:
        if self._unsent:
            self._unsent -= 1
            self._number += 1
            before, after = self._parts[self._number % len(self._parts)]
            client.receive(b"%b%032x%b" % (before, self._number, after))

    def answered(self, client: ClientTransport, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 200 "):
            self.over.set_exception(ValueError(f"expected 200, got {data!r}"))
            return
        self._unanswered -= 1
        if self._unanswered:
            self._loop.call_soon(self.send, client)
        else:
            self.over.set_result(None)


class TritonTransport(Socketless):
    """A connection to a predictor that answers any number of texts with the same logits.

    ``rows`` has the number of texts in each inference.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: Any, rows: list[int], answers: Answers) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._rows = rows
        self._answers = answers

    def writelines(self, data: Any) -> None:
        request = b"".join(data)
        if b"/infer HTTP" in request[:60] and (found := ROWS.search(request)):
            rows = int(found[1])
            self._rows.append(rows)
            answer = self._answers.of(rows)
        else:
            content = next((content for start, content in QUESTIONS.items() if request.startswith(start)), {})
            answer = _answer(json.dumps(content).encode())
        self._loop.call_soon(self._receive, answer)

    def _receive(self, answer: bytes) -> None:
        protocol = self._protocol
        while answer:
            buffer = protocol.get_buffer(-1)
            size = min(len(buffer), len(answer))
            buffer[:size] = answer[:size]
            answer = answer[size:]
            protocol.buffer_updated(size)


class Answers:
    """The predictor's answers by their number of rows, as Triton writes them."""

    def __init__(self) -> None:
        self._known: dict[int, bytes] = {}

    def of(self, rows: int) -> bytes:
        if rows not in self._known:
            data = bytes(4 * rows * LABELS)
            tensor: Any = {"name": "logits", "datatype": "FP32", "shape": [rows, LABELS]}
            tensor["parameters"] = {"binary_data_size": len(data)}
            header = json.dumps({"model_name": "m", "model_version": "1", "outputs": [tensor]}).encode()
            self._known[rows] = _answer(header + data, f"Inference-Header-Content-Length: {len(header)}\r\n")
        return self._known[rows]


def _answer(body: bytes, more: str = "") -> bytes:
    lines = f"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return lines.encode() + body


class Loop(uvloop.Loop):
    """An event loop with such a predictor at the other end of each connection."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []
        self._answers = Answers()

    async def create_connection(self, protocol_factory: Callable[[], Any], *args: Any, **more: Any) -> Any:
        protocol = protocol_factory()
        transport = TritonTransport(self, protocol, self.rows, self._answers)
        protocol.connection_made(transport)
        return transport, protocol


class Service:
    """The running application, an async context manager. It runs in a Loop."""

    def __init__(self, config: Config) -> None:
        self._server = server_config(config, partial(build_app, config))
        self._server.load()
        self._lifespan = LifespanOn(self._server)
        self._state = ServerState()

    async def __aenter__(self) -> Self:
        await self._lifespan.startup()
        freeze_garbage_collector()
        async with asyncio.timeout(READY_SECONDS):
            while not (await self._ready()).startswith(b"HTTP/1.1 200 "):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._lifespan.shutdown()

    async def _ready(self) -> bytes:
        """The answer to a question for the readiness."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        client = self.connect(lambda client, data: answer.set_result(data))
        client.receive(b"GET /v1/models/m HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        return await answer

    def connect(self, answered: Callable[[ClientTransport, bytes], object]) -> ClientTransport:
        """A new connection."""
        return ClientTransport(self.protocol(), answered)

    def protocol(self) -> HttpConnection:
        """The server's side of a new connection."""
        return HttpConnection(self._server, self._state, self._lifespan.state)

    async def answer(self, form: Form, requests: int) -> float:
        """Answers requests; returns the number of texts in a batch, on average."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        loop.rows.clear()
        load = Load(form, requests)
        for client in [self.connect(load.answered) for _ in range(form.connections)]:
            load.send(client)
            await asyncio.sleep(0)  # the clients are not in step
        await load.over
        await asyncio.sleep(0)  # until the last answer is written
        return sum(loop.rows) / len(loop.rows)


@contextmanager
def configuration() -> Iterator[Config]:
    """The configuration of a classifier, whose files are in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: (BERT / name).read_text() for name in ("tokenizer.json", "tokenizer_config.json")}
        files["tokenizer_config.json"] = json.dumps(
            {**json.loads(files["tokenizer_config.json"]), "model_max_length": LENGTH}
        )
        files["config.json"] = json.dumps({"model_type": "bert", "num_labels": LABELS})
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        flags = ["--model_name=m", f"--model_dir={folder}", "--task=sequence_classification", "--enable_grpc=false"]
        yield parse_config([*flags, "--enable_latency_logging=false", "--predictor_host=127.0.0.1:1"], {})[0]


class Callgrind:
    """Requests to the callgrind of this process: instructions that do nothing on a processor.

    Source: valgrind.h and callgrind.h, which valgrind installs.
    """

    TOOL: Final = ord("C") << 24 | ord("T") << 16
    ZERO, DUMP_AT, START, STOP = TOOL + 1, TOOL + 3, TOOL + 4, TOOL + 5
    CODE: Final = bytes.fromhex("4889f831d2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0c3")
    """mov rax, rdi; xor edx, edx; rol rdi by 3, 13, 61 and 51; xchg rbx, rbx; mov rax, rdx; ret"""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, len(self.CODE), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._page.write(self.CODE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        self._call = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64))(address)

    def request(self, number: int, text: bytes = b"") -> None:
        argument = ctypes.create_string_buffer(text)
        self._call((ctypes.c_uint64 * 6)(number, ctypes.addressof(argument)))

    @contextmanager
    def counting(self, name: str) -> Iterator[None]:
        """Counts what runs, and dumps the count under a name."""
        self.request(self.START)
        self.request(self.ZERO)
        yield
        self.request(self.DUMP_AT, name.encode())
        self.request(self.STOP)


async def drive(config: Config, kinds: Sequence[Form], requests: int, callgrind: Callgrind | None) -> dict[str, float]:
    """Answers requests of each form; returns the number of texts in a batch, on average, by the form's name."""
    rows = {}
    async with Service(config) as service:
        for form in kinds:
            await service.answer(form, WARM_UP)
            with nullcontext() if callgrind is None else callgrind.counting(form.name):
                rows[form.name] = await service.answer(form, requests)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, required=True, help="number of requests of each form")
    parser.add_argument("--only", action="append", default=[], help="only forms whose names contain this; repeatable")
    parser.add_argument("--callgrind", action="store_true", help="this process runs under callgrind")
    options = parser.parse_args()
    kinds = [form for form in forms() if not options.only or any(part in form.name for part in options.only)]
    callgrind = Callgrind() if options.callgrind else None
    with configuration() as config, asyncio.Runner(loop_factory=Loop) as runner:
        print(json.dumps(runner.run(drive(config, kinds, options.requests, callgrind))))


if __name__ == "__main__":
    main()
