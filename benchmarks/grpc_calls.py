"""What a ModelInfer call over gRPC costs the service, beside a bare grpc.aio server that answers at once.

    python -m benchmarks.grpc_calls [--checkout NAME=PATH] [--rounds 6] [--seconds 2] [--in_flight 32]

A real Triton serves the classifier of benchmarks.speed, one text of 9 tokens a call. This service, those of other
checkouts and the bare server take turns in alternating order. One connection carries the load. Its client writes and
counts HTTP/2 frames without reading their headers, so that the server is the one that is busy. Prints one Markdown
table: medians of the rounds, and the ratio of calls per second to the bare server's, round by round.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import uvloop

from benchmarks.pairs import Checkout, add_flags, paired
from benchmarks.speed.cases import CLASSIFIER, Case
from benchmarks.speed.http_calls import ready
from benchmarks.speed.lineup import variables
from benchmarks.speed.repository import hugging_face_folder, lay_out
from benchmarks.speed.texts import texts_of
from benchmarks.speed.usage import cpu_seconds
from hf_transformer.commands.local_triton import HOST, ChildProcess, LocalTriton, free_ports, poll
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb

ROOT = Path(__file__).parents[1]
CASE = Case(CLASSIFIER, "9")
BARE = "bare grpc.aio"
WINDOW = 1 << 30
"""Bytes that the server may send before it needs another window: more than it sends in a run."""
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4


class LoadClient:
    """One HTTP/2 connection with a number of calls in flight. Source: RFC 9113, and RFC 7541 for the headers: the first
    call teaches the server's table its fields, the others name them by their index, as clients do."""

    def __init__(self, port: int, bodies: Sequence[bytes]) -> None:
        self._socket = socket.create_connection((HOST, port), 20)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._bodies = [b"\0" + len(body).to_bytes(4, "big") + body for body in bodies]
        self._stream = 1
        self._unread = b""
        self._begun = 0  # answers whose DATA has come, and not yet their end
        settings = (4).to_bytes(2, "big") + WINDOW.to_bytes(4, "big")
        window = _frame(WINDOW_UPDATE, 0, 0, (WINDOW - 1).to_bytes(4, "big"))
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(SETTINGS, 0, 0, settings) + window)
        fields = {
            ":method": "POST", ":scheme": "http", ":path": f"/{SERVICE}/ModelInfer", ":authority": f"{HOST}:{port}",
            "te": "trailers", "content-type": "application/grpc", "user-agent": "grpc-python/1.85.1 grpc-c/53.0.0",
            "grpc-accept-encoding": "identity, deflate, gzip",
        }  # fmt: skip
        self._first = b"".join(b"\x40" + _text(name) + _text(value) for name, value in fields.items())
        self._more = bytes(0x80 | 62 + index for index in reversed(range(len(fields))))

    def close(self) -> None:
        self._socket.close()

    def run(self, in_flight: int, seconds: float) -> tuple[int, float]:
        """Calls that were answered, and the seconds that they took together. Raises ValueError for a failed one."""
        began = time.perf_counter()
        self._send(in_flight)
        done = 0
        while (now := time.perf_counter()) < began + seconds:
            answered = self._answered()
            done += answered
            self._send(answered)
        open_ones = in_flight
        while open_ones:
            open_ones -= self._answered()
        return done, now - began

    def _send(self, count: int) -> None:
        frames = []
        for _ in range(count):
            block = self._first if self._stream == 1 else self._more
            body = self._bodies[(self._stream >> 1) % len(self._bodies)]
            frames.append(_frame(HEADERS, END_HEADERS, self._stream, block))
            frames.append(_frame(DATA, END_STREAM, self._stream, body))
            self._stream += 2
        if frames:
            self._socket.sendall(b"".join(frames))

    def _answered(self) -> int:
        """Reads once, and counts the calls that ended. A call without DATA has failed."""
        read = self._socket.recv(1 << 18)
        if not read:
            raise ValueError("the server closed the connection")
        bytes_ = self._unread + read
        position = ended = data = received = 0
        while position + 9 <= len(bytes_):
            size = int.from_bytes(bytes_[position : position + 3], "big")
            kind, flags = bytes_[position + 3], bytes_[position + 4]
            if position + 9 + size > len(bytes_):
                break
            if kind == DATA:
                data += 1
                received += size
            elif kind == HEADERS and flags & END_STREAM:
                ended += 1
            elif kind == PING and not flags & ACK:
                self._socket.sendall(_frame(PING, ACK, 0, bytes_[position + 9 : position + 9 + size]))
            elif kind == SETTINGS and not flags & ACK:
                self._socket.sendall(_frame(SETTINGS, ACK, 0, b""))
            elif kind in (RESET, GOAWAY):
                raise ValueError(f"frame {kind}: {bytes_[position : position + 9 + size]!r}")
            position += 9 + size
        self._unread = bytes_[position:]
        self._begun += data - ended
        if self._begun < 0:
            raise ValueError(f"a call failed: {bytes_[-300:]!r}")
        if received:
            self._socket.sendall(_frame(WINDOW_UPDATE, 0, 0, received.to_bytes(4, "big")))
        return ended


def _text(value: str) -> bytes:
    """A header's name or value of less than 127 bytes, without Huffman's code."""
    return bytes((len(value),)) + value.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def bodies(texts: Sequence[str]) -> list[bytes]:
    """A serialized request for each text, as tritonclient writes them."""
    found = []
    for text in texts:
        message = pb.ModelInferRequest(model_name=CLASSIFIER.name)
        message.inputs.add(name="text", datatype="BYTES", shape=[1])
        message.raw_input_contents.append(len(text.encode()).to_bytes(4, "little") + text.encode())
        found.append(message.SerializeToString())
    return found


@dataclass
class Subject:
    """One server: its command, without the flag of the gRPC port."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    http_port: int = 0
    grpc_port: int = 0
    child: ChildProcess | None = None
    client: LoadClient | None = None
    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def start(self, folder: Path, requests: Sequence[bytes]) -> None:
        self.http_port, self.grpc_port = free_ports(2)
        ports = [f"--http_port={self.http_port}", f"--grpc_port={self.grpc_port}"]
        self.child = ChildProcess([*self.command, *ports], self.environ, folder / f"{self.name}.log")
        if not poll(self._is_ready, 60.0):
            raise SystemExit(f"{self.name} did not get ready:\n{self.child.output_tail()}")
        self.client = LoadClient(self.grpc_port, requests)

    def _is_ready(self) -> bool:
        if self.name != BARE:
            return ready(self.http_port, f"/v1/models/{CLASSIFIER.name}")
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.grpc_port)) == 0

    def measure(self, in_flight: int, seconds: float, keep: bool) -> None:
        assert self.child is not None and self.client is not None
        before = cpu_seconds(self.child)
        calls, took = self.client.run(in_flight, seconds)
        used = cpu_seconds(self.child) - before
        if keep:
            self.rates.append(calls / took)
            self.cpu.append(1e3 * used / (calls + in_flight))

    def stop(self) -> None:
        if self.client is not None:
            self.client.close()
        if self.child is not None:
            self.child.terminate(10.0)


async def serve_bare(port: int) -> None:
    """Answers each call with the same message until SIGTERM comes."""
    answer = pb.ModelInferResponse(model_name=CLASSIFIER.name, model_version="1")
    answer.outputs.add(name="output-0", datatype="INT64", shape=[1])
    answer.raw_output_contents.append(bytes(8))
    content = answer.SerializeToString()

    async def infer(body: bytes, context: Any) -> bytes:
        return content

    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    handlers = {"ModelInfer": grpc.unary_unary_rpc_method_handler(infer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"{HOST}:{port}")
    await server.start()
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    await over.wait()
    await server.stop(0)


def subjects(folder: Path, triton: LocalTriton, checkouts: Sequence[Checkout]) -> list[Subject]:
    flags = [
        *("-m", "hf_transformer", f"--host={HOST}", f"--model_name={CLASSIFIER.name}", f"--task={CLASSIFIER.task}"),
        *(f"--model_dir={hugging_face_folder(folder, CLASSIFIER)}", f"--predictor_host={triton.http_address}"),
    ]
    python, own = Path(sys.executable), {**variables(), "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))}
    return [
        Subject("this", [str(python), *flags], own),
        *(Subject(one.name, [*one.command(python, False), *flags], one.environ(variables())) for one in checkouts),
        Subject(BARE, [str(python), "-m", "benchmarks.grpc_calls", "--bare"], own),
    ]


def report(found: Sequence[Subject]) -> None:
    bare = next(one for one in found if one.name == BARE)
    print("| server | calls/s | CPU ms per call | calls/s over bare | 95 % |\n|---|---:|---:|---:|---|")
    for one in found:
        rate, cpu = statistics.median(one.rates), statistics.median(one.cpu)
        print(f"| {one.name} | {rate:,.0f} | {cpu:.3f} | {paired(one.rates, bare.rates)} |")
    for one in found[1:-1]:
        print(f"\nthis over {one.name}: calls/s {paired(found[0].rates, one.rates)}", end="")
        print(f", CPU {paired(found[0].cpu, one.cpu)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6, help="[6]")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run [2]")
    parser.add_argument("--in_flight", type=int, default=32, help="calls [32]")
    parser.add_argument("--triton_environment", type=Path, default=ROOT / ".venv-triton", help="[.venv-triton]")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--http_port", help=argparse.SUPPRESS)
    parser.add_argument("--grpc_port", type=int, help=argparse.SUPPRESS)
    add_flags(parser)
    options = parser.parse_args()
    if options.bare:
        uvloop.run(serve_bare(options.grpc_port))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_out(folder, folder, None)
        texts = texts_of(CASE, hugging_face_folder(folder, CLASSIFIER))
        with LocalTriton(
            folder / "triton",
            environment=options.triton_environment,
            environ=variables(),
            log=folder / "triton.log",
            models=[CLASSIFIER.name],
        ) as triton:
            found = subjects(folder, triton, options.checkout)
            try:
                for one in found:
                    one.start(folder, bodies(texts))
                for number in range(options.rounds + 1):
                    for one in found if number % 2 else reversed(found):
                        one.measure(options.in_flight, options.seconds, keep=number > 0)
            finally:
                for one in found:
                    one.stop()
            report(found)


if __name__ == "__main__":
    main()
