"""The service's protocol class behind nginx and haproxy, whose connections to it serve many clients in turn.

    python -m tests.wire.proxies [--requests 5000] [--proxies nginx,haproxy] [--seed 1]

Needs both programs (Debian: nginx, haproxy). Each request has a mark, which its answer repeats. Others try to smuggle
requests, have broken bodies, disconnect, or are refused during the upload. The proxy numbers each forwarded request.
Exits 1 if an answer belongs to another request, or if the application sees a request without a number, with a repeated
number, or with a mark that only a hidden request has.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import uvloop

from hf_transformer.commands.loopback import HOST, reserved_port
from tests.integration.server.serving import App, body_of, serving
from tests.support.raw_http import connected_to, read_response, request
from tests.wire.corpus import UPGRADE

CLIENTS = 16
SECONDS = 20.0
LARGE = 300_000
NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; client_max_body_size 0;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream service {{ server {host}:{upstream}; keepalive 4; }}
  map $http_upgrade $to_upgrade {{ default upgrade; "" ""; }}
  server {{
    listen {host}:{port};
    location / {{
      proxy_pass http://service; proxy_http_version 1.1; proxy_request_buffering off; proxy_next_upstream off;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $to_upgrade;
      proxy_set_header X-Number $request_id;
    }}
  }}
}}
"""
HAPROXY = """
global
  nbthread 1
defaults
  mode http
  timeout client 20s
  timeout server 20s
  timeout connect 5s
  option http-keep-alive
  http-reuse always
  retries 0
frontend all
  bind {host}:{port}
  http-request set-header X-Number %[uuid()]
  default_backend service
backend service
  server one {host}:{upstream} pool-max-conn 4
"""
COMMANDS = {
    "nginx": (NGINX, ["nginx", "-e", "stderr", "-c"]),
    "haproxy": (HAPROXY, ["haproxy", "-db", "-q", "-f"]),
}
SMUGGLING = (
    "Transfer-Encoding: xchunked", "Transfer-Encoding : chunked", "Transfer-Encoding:\tchunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: x", "Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: \x0bchunked", "X: y\nTransfer-Encoding: chunked", "X: y\r\n Transfer-Encoding: chunked",
    "Transfer-Encoding: chunked, identity", "Transfer-Encoding: gzip, chunked", 'Transfer-Encoding: "chunked"',
    "transfer-encoding: CHUNKED", "Transfer\u00adEncoding: chunked", "Expect: 100-continue", "\r\n".join(UPGRADE),
    "Content-Length: 0", "Content-Length: 5, 5", "Content-Length: +5",
    "Connection: Content-Length", "Connection: Transfer-Encoding",
)  # fmt: skip


class MarkingApp(App):
    """Answers with the request's mark and the size of its body: at once, late, in parts, or before reading it."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: Counter[str] = Counter()
        self.marks: Counter[str] = Counter()
        self.connections: set[Any] = set()

    async def respond(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(name.decode(), value.decode("latin-1")) for name, value in scope["headers"]]
        self.numbers["|".join(value for name, value in headers if name == "x-number")] += 1
        self.connections.add(scope["client"])
        _, kind, mark = (*scope["path"].split("/"), "", "")[:3]
        self.marks[mark] += 1
        size = 0 if kind == "refuse" else len(await body_of(receive) or b"")
        if kind == "late":
            await asyncio.sleep(0.01)
        status = 413 if kind == "refuse" else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        parts = [f"{mark}:{size};".encode()] * (3 if kind == "parts" else 1)
        for number, part in enumerate(parts, 1):
            await send({"type": "http.response.body", "body": part, "more_body": number < len(parts)})


class Sender:
    """Sends requests, and records the marks of those that are not hidden."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self._port = port
        self._rng = rng
        self._count = 0
        self.sent: set[str] = {""}
        self.answered = self.hostile = 0
        self.problems: list[str] = []

    def mark(self) -> str:
        self._count += 1
        mark = f"m{self._count}"
        self.sent.add(mark)
        return mark

    async def send_normal(self, requests: int) -> None:
        """Sends valid requests on kept connections, one by one or pipelined."""
        reader, writer = await asyncio.open_connection(HOST, self._port)
        while self.answered < requests:
            batch = [self._good() for _ in range(self._rng.choice((1, 1, 1, 3)))]
            writer.write(b"".join(sent for sent, _ in batch))
            for _, expected in batch:
                async with asyncio.timeout(SECONDS):
                    while (response := await read_response(reader)).status == 100:
                        pass
                self.answered += 1
                if (response.status, response.body) != (200, expected):
                    self.problems.append(f"{expected!r} wanted, {response.status} {response.body[:200]!r} got")
                    writer.close()
                    reader, writer = await asyncio.open_connection(HOST, self._port)
                    break
        writer.close()

    def _good(self) -> tuple[bytes, bytes]:
        """A request and its expected answer."""
        mark, kind = self.mark(), self._rng.choice(("now", "late", "parts"))
        size = self._rng.choice((0, 1, 100, 100, 20_000))
        expected = f"{mark}:{size};".encode() * (3 if kind == "parts" else 1)
        start, body = f"POST /{kind}/{mark} HTTP/1.1", b"x" * size
        if self._rng.random() < 0.5:
            return request(start, f"Content-Length: {size}", body=body), expected
        chunks = b"%x\r\n%b\r\n" % (size, body) if size else b""
        return request(start, "Transfer-Encoding: chunked", body=chunks + b"0\r\n\r\n"), expected

    async def send_hostile(self, requests: int) -> None:
        """Sends bad requests meanwhile, each on a new connection, and checks the marks in their answers."""
        while self.answered < requests:
            mark = self.mark()
            reader, writer = await asyncio.open_connection(HOST, self._port)
            self.hostile += 1
            writer.write(self._bad(mark))
            if self._rng.random() < 0.6:
                got = b""
                with suppress(TimeoutError, ConnectionError):
                    async with asyncio.timeout(self._rng.choice((0.02, 0.05, 0.2))):
                        while piece := await reader.read(2**16):
                            got += piece
                for answered in re.findall(rb"([mh]\d+):\d+;", got):
                    if answered[1:] != mark[1:].encode():
                        self.problems.append(f"the sender of {mark} got the answer of {answered!r}")
            else:
                await asyncio.sleep(self._rng.choice((0, 0.001, 0.01)))
            writer.transport.abort()

    def _bad(self, mark: str) -> bytes:
        """A bad request with mark m and a hidden request with mark h in its body."""
        hidden = request(f"GET /now/h{mark[1:]} HTTP/1.1", "X-Number: none")
        start, choose = f"POST /now/{mark} HTTP/1.1", self._rng.choice
        match self._rng.randrange(8):
            case 0:  # TE.CL and CL.TE: the length covers all, or the first line of the chunks
                body = b"0\r\n\r\n" + hidden
                length = choose((len(body), 4, len(body)))
                return request(start, f"Content-Length: {length}", choose(SMUGGLING), body=body)
            case 1:
                chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(hidden), hidden)
                return request(start, choose(SMUGGLING), "Transfer-Encoding: chunked", body=chunks)
            case 2:
                return request(start, choose(SMUGGLING), f"Content-Length: {len(hidden)}", body=hidden)
            case 3:  # the client disconnects within the body
                return request(start, "Content-Length: 1000", body=hidden)
            case 4:
                size = choose((b"3e8\r", b"5;\nx\r", b"5", b"0x5\r", b"-5\r", b"5 \r", b"fffffffffffffffff1\r"))
                return request(start, "Transfer-Encoding: chunked", body=size + b"\n" + hidden)
            case 5:  # all or half of an upload that is refused
                part = (hidden * (LARGE // len(hidden) + 1))[: choose((LARGE, LARGE // 2))]
                return request(f"POST /refuse/{mark} HTTP/1.1", f"Content-Length: {LARGE}", body=part)
            case 6:
                target = choose(("other:443", f"/now/{mark}", "*", f"http://x/now/{mark}", "http:///x"))
                method = choose(("CONNECT", "GET", "OPTIONS", "HEAD"))
                return request(f"{method} {target} HTTP/1.1", f"Content-Length: {len(hidden)}", body=hidden)
            case _:  # the client disconnects before the answer
                return request(f"POST /late/{mark} HTTP/1.1", "Content-Length: 4", body=b"text")


@asynccontextmanager
async def proxy(name: str, upstream: int) -> AsyncIterator[int]:
    """Runs a proxy for the port ``upstream``, and yields its port."""
    text, command = COMMANDS[name]
    with reserved_port() as port, tempfile.TemporaryDirectory(prefix="hf-transformer-proxy-") as folder:
        path = Path(folder) / "configuration"
        path.write_text(text.format(host=HOST, port=port, upstream=upstream, folder=folder))
        quiet = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*command, str(path), stdout=quiet)
        try:
            async with asyncio.timeout(SECONDS):
                while True:
                    with suppress(ConnectionError):
                        async with connected_to(port):
                            break
                    await asyncio.sleep(0.05)
            yield port
        finally:
            process.terminate()
            await process.wait()


async def attack(name: str, requests: int, seed: int) -> list[str]:
    """Runs all clients through one proxy, and returns the problems."""
    app = MarkingApp()
    async with serving(app) as (_, upstream), proxy(name, upstream) as port:
        sender = Sender(port, random.Random(f"{name} {seed}"))
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(sender.send_normal(requests))
                group.create_task(sender.send_hostile(requests))
    problems = sender.problems
    problems += [f"a request with the number {number!r}" for number in app.numbers if not 32 <= len(number) <= 36]
    problems += [f"{count} requests with one number" for count in app.numbers.values() if count > 1]
    seen_open = {f"m{mark[1:]}" for mark in app.marks if mark}
    problems += [f"{mark} was never sent" for mark in seen_open - sender.sent]
    hidden = sum(mark.startswith("h") for mark in app.marks)
    print(
        f"{name}: {sender.answered:,} answers to normal requests, {sender.hostile:,} hostile ones meanwhile; the"
        f" service\n  saw {app.numbers.total():,} requests on {len(app.connections):,} connections, {hidden:,} of which"
        f" the proxy itself read behind another; {len(problems)} problems"
    )
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.wire.proxies")
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--proxies", default=",".join(COMMANDS))
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    problems = []
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)  # as the service
    for name in arguments.proxies.split(","):
        if shutil.which(name) is None:
            problems.append(f"{name} is not installed")
        else:
            found = runner.run(attack(name, arguments.requests, arguments.seed))
            problems += [f"{name}: {problem}" for problem in found]
    runner.close()
    print("\n".join(problems[:20]) or "no problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
