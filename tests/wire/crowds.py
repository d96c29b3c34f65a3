"""Crowds of clients that hold on to what they have, and a normal one between them; the real Triton answers.

    python -m tests.wire.crowds [--idle 10000] [--halves 6000] [--unread 500]

Prints the service's memory (without what it shares), its descriptors, and how long the normal client waits, with each
crowd and after it. Exits 1 if a normal request is not answered, one of a crowd gets another answer than it should, or
descriptors do not come back. Needs about two descriptors for each client: ``ulimit -n`` is raised as far as allowed.
"""

from __future__ import annotations

import argparse
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from hf_transformer.commands.local_triton import HOST, LocalTriton, poll
from tests.integration.conftest import MODEL_FOLDER, OPTIONS
from tests.integration.hostile.wire import ANSWER, BODY, SECONDS, head, next_answer, post, send
from tests.service import Service, flags_for
from tests.triton_environment import triton_environment
from tests.triton_repository import lay_out

TIMEOUT = 30
"""--client_timeout_seconds."""
AT_ONCE = 500
"""Fewer than wait in the kernel to be accepted."""
BESIDE = 500
"""Descriptors for other things."""
NORMAL = 300
SPARE = 20
"""Descriptors that may be more or less afterwards: connections to Triton."""
MOST_GROWTH = 8.0
"""Megabytes that the service may hold more after all has come a second time: Python keeps what it has, for others."""
LARGE = head("accept-encoding: gzip", start="GET /docs/swagger-ui-bundle.js HTTP/1.1") * 20
"""Requests with answers of some hundred kilobytes, more than the kernel takes."""
HALF_HEAD = post()[:60]
HALF_BODY = head(f"content-length: {len(BODY)}", "connection: close") + BODY[:9]


class Crowds:
    """One service, and what its clients see."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._process = psutil.Process(service.process.pid)
        self.problems: list[str] = []

    @property
    def descriptors(self) -> int:
        return self._process.num_fds()

    @property
    def megabytes(self) -> float:
        memory = self._process.memory_info()
        return (memory.rss - memory.shared) / 2**20

    def report(self, title: str) -> None:
        """A line: memory, descriptors, and the waits of a normal client."""
        waits = []
        with socket.create_connection((HOST, self._service.port), SECONDS) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(NORMAL):
                began = time.perf_counter()
                send(connection, post())
                if next_answer(connection).body != ANSWER:
                    self.problems.append(f"a normal request failed with {title}")
                waits.append((time.perf_counter() - began) * 1000)
        waits.sort()
        median, most = statistics.median(waits), waits[-1]
        tail = waits[len(waits) * 99 // 100]
        print(
            f"{title:44} {self.megabytes:6.1f} MB {self.descriptors:6,} descriptors; a normal request"
            f" {median:5.2f} ms, 1 of 100 {tail:6.2f}, at most {most:6.2f}",
            flush=True,
        )

    @contextmanager
    def crowd(self, sent: Sequence[bytes], buffer: int = 0) -> Iterator[list[socket.socket]]:
        """Connections, one for each of what is sent, all of them accepted; closed at the end."""
        before = self.descriptors
        with ExitStack() as stack:
            connections: list[socket.socket] = []
            for number, data in enumerate(sent, 1):
                connection = stack.enter_context(socket.socket())
                if buffer:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
                connection.settimeout(SECONDS)
                connection.connect((HOST, self._service.port))
                if buffer:
                    connection.setblocking(False)
                with suppress(BlockingIOError):
                    connection.send(data)
                connections.append(connection)
                if number % AT_ONCE == 0 or number == len(sent):
                    assert poll(lambda: self.descriptors >= before + len(connections) - SPARE, SECONDS)
            yield connections
        self.come_back(before)

    def come_back(self, before: int) -> None:
        if not poll(lambda: self.descriptors <= before + SPARE, SECONDS + TIMEOUT):
            self.problems.append(f"{self.descriptors} descriptors, {before} before")

    def expect(self, statuses: Counter[int], expected: dict[int, int]) -> None:
        print(f"{'':6}answers: {dict(statuses)}")
        if statuses != expected:
            self.problems.append(f"{dict(statuses)} and not {expected}")


def run(crowds: Crowds, idle: int, halves: int, unread: int) -> None:
    crowds.report("before")
    with crowds.crowd([b""] * idle) as connections:
        crowds.report(f"{idle:,} idle connections")
        asked = connections[::50]
        for connection in asked:
            send(connection, post())
        crowds.expect(Counter(next_answer(one).status for one in asked), {200: len(asked)})
    crowds.report("after")
    with crowds.crowd([HALF_HEAD, HALF_BODY] * (halves // 2)) as connections:
        crowds.report(f"{halves:,} half heads and bodies")
        asked = connections[1::50]
        for connection in asked:
            send(connection, BODY[9:])
        crowds.expect(Counter(next_answer(one).status for one in asked), {200: len(asked)})
        rest = [one for number, one in enumerate(connections) if number % 50 != 1]
        for connection in rest:
            connection.settimeout(SECONDS + TIMEOUT)
        crowds.expect(Counter(next_answer(one).status for one in rest), {408: len(rest)})
    crowds.report("after they were told so")
    before = crowds.descriptors
    with crowds.crowd([post() + LARGE] * unread, buffer=4096):
        crowds.report(f"{unread:,} that never read")
        crowds.come_back(before)  # the service closes them
        crowds.report("after their time is over")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.wire.crowds")
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--halves", type=int, default=6_000)
    parser.add_argument("--unread", type=int, default=500)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the service inherits it
    most = max(arguments.idle, arguments.halves, arguments.unread)
    if most + BESIDE > hard:
        print(f"{most} connections need more descriptors than {hard}; ulimit -n", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="hf-transformer-crowds-") as name:
        lay_out(Path(name), ["bert"])
        with LocalTriton(
            Path(name), environment=triton_environment(), config_name=None, models=["bert"], options=OPTIONS
        ) as triton:
            more = (
                "--enable_docs_url=true",
                f"--client_timeout_seconds={TIMEOUT}",
                f"--max_connections={most + BESIDE}",
            )
            with Service(*flags_for("bert", MODEL_FOLDER, triton.http_address, "v2", more)) as service:
                crowds = Crowds(service.wait_until("/v1/models/bert"))
                run(crowds, arguments.idle, arguments.halves, arguments.unread)
                held = crowds.megabytes
                run(crowds, arguments.idle, arguments.halves, arguments.unread)
                if crowds.megabytes - held > MOST_GROWTH:
                    crowds.problems.append(f"{crowds.megabytes:.1f} MB the second time, {held:.1f} the first")
                if "Traceback" in service.log:
                    crowds.problems.append(service.log[service.log.find("Traceback") - 500 :][:5000])
    print("\n".join(crowds.problems) or "no problems")
    return 1 if crowds.problems else 0


if __name__ == "__main__":
    sys.exit(main())
