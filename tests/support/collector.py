"""An OTLP collector, and a proxy for a predictor. Both record the requests that they get."""

from __future__ import annotations

import re
import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.loopback import HOST

TRACEPARENT = re.compile(rb"\r\ntraceparent: ([^\r]*)\r\n", re.IGNORECASE)


class Collector:
    """Exported bodies and their spans."""

    def __init__(self, port: int) -> None:
        self.url = f"http://{HOST}:{port}"
        self.bodies: list[bytes] = []
        self.resources: list[dict[str, object]] = []
        self.spans: list[Span] = []

    def take(self, body: bytes) -> None:
        exported = ExportTraceServiceRequest.FromString(body)
        self.bodies.append(body)
        for group in exported.resource_spans:
            self.resources.append(attributes(group.resource.attributes))
            self.spans += [span for scope in group.scope_spans for span in scope.spans]

    def trace(self, trace_id: str, count: int) -> dict[str, Span]:
        """Waits for ``count`` spans of a trace, and returns them by name; '' is the server's span."""
        spans: list[Span] = []

        def complete() -> bool:
            spans[:] = [span for span in list(self.spans) if span.trace_id.hex() == trace_id]
            return len(spans) >= count

        assert poll(complete, 20.0), [(span.name, span.trace_id.hex()) for span in self.spans]
        by_name = {"" if span.kind == Span.SPAN_KIND_SERVER else span.name: span for span in spans}
        assert len(by_name) == len(spans) == count
        return by_name


def attributes(pairs: object) -> dict[str, object]:
    """The attributes of a span or a resource."""
    values: dict[str, object] = {}
    for pair in pairs:  # type: ignore[attr-defined]
        assert isinstance(pair, KeyValue)
        values[pair.key] = getattr(pair.value, str(pair.value.WhichOneof("value")))
    return values


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    """Serves in a thread, and waits for open connections at the end."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            known = self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
            if known:
                collector.take(body)
            self.send_response(200 if known else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((HOST, 0), Handler)
    collector = Collector(server.server_address[1])
    with serving(server):
        yield collector


class Proxy:
    """The address of a proxy, and the bytes of its clients."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.sent: list[bytearray] = []

    @property
    def traceparents(self) -> list[str]:
        """The traceparents of all requests, which have to be HTTP/1."""
        return [value.decode() for sent in self.sent for value in TRACEPARENT.findall(bytes(sent))]


@contextmanager
def proxying(target: str) -> Iterator[Proxy]:
    """Runs a proxy for an address. Clients have to disconnect before the end of the context."""
    host, _, port = target.rpartition(":")

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            proxy.sent.append(sent := bytearray())
            with socket.create_connection((host, int(port))) as server, suppress(OSError):
                while True:
                    for source in select.select((self.request, server), (), ())[0]:
                        data = source.recv(1 << 16)
                        if not data:
                            return
                        if source is self.request:
                            sent += data
                        (server if source is self.request else self.request).sendall(data)

    listening = socketserver.ThreadingTCPServer((HOST, 0), Handler)
    proxy = Proxy(f"{HOST}:{listening.server_address[1]}")
    with serving(listening):
        yield proxy
