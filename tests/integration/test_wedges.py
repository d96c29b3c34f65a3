"""One broken answer on the way from Triton: it costs the calls of its connection, and no later one."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import pytest

from hf_transformer.commands.local_triton import HOST, LocalTriton, poll
from tests.integration.conftest import MODEL_FOLDER, Serve
from tests.service import Service, flags_for

BODY = {"instances": ["The capital of france is [MASK]."] * 8}
RIGHT = ["paris"] * 8
INFERENCE_BYTES = 500
"""The texts of BODY take more, and no other call of the service's takes as much."""
TIMEOUT = 3
"""Seconds that a call of the predictor may take."""
SECONDS = 10.0
"""How long the service may need on a busy machine until it answers right again; it should take less than one."""
FRAME = (16 << 20) - 1
"""The most bytes that the head of an HTTP/2 frame can announce."""

WEDGES = {
    "16 MB announced": {
        "v2": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (16 << 20),
        "grpc-v2": FRAME.to_bytes(3, "big") + b"\0\0" + (1).to_bytes(4, "big"),  # DATA of the first stream
    },
    "HTTP/1.1 400": dict.fromkeys(("v2", "grpc-v2"), b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "random bytes": dict.fromkeys(("v2", "grpc-v2"), random.Random(5).randbytes(4096)),
}


class Proxy:
    """Passes bytes between clients and ``target``, host:port. An inference may be answered with other bytes, once:
    from then on that connection stays open, and nothing passes it any more."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listening = socket.create_server((HOST, 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._answer: bytes | None = None
        self.address = f"{HOST}:{self._listening.getsockname()[1]}"

    def answer_once(self, answer: bytes) -> None:
        self._answer = answer

    @property
    def answered(self) -> bool:
        """Whether the answer was sent."""
        return self._answer is None

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections, and takes no further ones."""
        for one in (self._listening, *self._sockets):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # its other end has closed it
        for thread in self._threads:
            thread.join(SECONDS)
        for one in (self._listening, *self._sockets):
            one.close()

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._sockets += [client, server]
            silent = threading.Event()
            self._start(self._pass, client, server, silent, True)
            self._start(self._pass, server, client, silent, False)

    def _pass(self, source: socket.socket, sink: socket.socket, silent: threading.Event, asks: bool) -> None:
        try:
            while data := source.recv(65536):
                if asks and self._answer is not None and len(data) >= INFERENCE_BYTES:
                    silent.set()
                    answer, self._answer = self._answer, None
                    source.sendall(answer)
                if not silent.is_set():
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one of both has gone


@pytest.fixture
def proxy(triton: LocalTriton, serve: Serve, protocol: str) -> Iterator[Proxy]:
    serve("bert")  # has Triton load it
    with Proxy(triton.http_address if protocol == "v2" else triton.grpc_address) as running:
        yield running


@pytest.fixture
def service(proxy: Proxy, protocol: str) -> Iterator[Service]:
    flags = (
        f"--predictor_request_timeout_seconds={TIMEOUT}",
        "--predictor_shared_memory=off",
        "--enable_predictor_health_check=true",
    )
    with Service(*flags_for("bert", MODEL_FOLDER, proxy.address, protocol, flags)) as running:
        yield running.wait_until("/v1/models/bert")


def is_right(service: Service) -> bool:
    """Whether a request succeeds; an answer has to be right, and an error one of the predictor's."""
    response = service.post(BODY)
    assert response.status_code in (200, 502, 503, 504), response.text
    assert response.status_code != 200 or response.json()["predictions"] == RIGHT
    return response.status_code == 200


def test_one_broken_answer_costs_no_later_call(service: Service, proxy: Proxy, protocol: str) -> None:
    assert is_right(service)
    for wedge in WEDGES.values():
        proxy.answer_once(wedge[protocol])
        with ThreadPoolExecutor(1) as others:
            wedged = others.submit(is_right, service)
            assert poll(lambda: proxy.answered, SECONDS)
            assert poll(lambda: is_right(service), SECONDS)
            assert [is_right(service) for _ in range(20)] == [True] * 20
            wedged.result(SECONDS)  # of this call it is only known that it ends, and with no wrong answer
    assert service.client.get("/v2/health/ready").status_code == 200
    assert is_right(service)
    proxy.close()
    service.wait_until("/v2/health/ready", 503)
    assert not is_right(service)
