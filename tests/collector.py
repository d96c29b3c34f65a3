"""An OTLP collector and a proxy in front of a predictor, both for looking at what arrives."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from hf_transformer.commands.local_triton import HOST, poll

TRACEPARENT = re.compile(rb"\r\ntraceparent: ([^\r]*)\r\n", re.IGNORECASE)


class Collector:
    """What has been exported so far: the bodies, and the spans in them."""

    def __init__(self, port: int) -> None:
        self.url = f"http://{HOST}:{port}"
        self.bodies: list[bytes] = []
        self.resources: list[dict[str, object]] = []
        self.spans: list[Span] = []

    def take(self, body: bytes) -> None:
        exported = ExportTraceServiceRequest.FromString(body)
        self.bodies.append(body)
        for one in exported.resource_spans:
            self.resources.append(attributes(one.resource.attributes))
            self.spans += [span for scope in one.scope_spans for span in scope.spans]

    def trace(self, trace_id: str, count: int) -> dict[str, Span]:
        """The spans of one trace by their names, once there are so many; their server's span is named ''."""
        found: list[Span] = []

        def complete() -> bool:
            found[:] = [span for span in list(self.spans) if span.trace_id.hex() == trace_id]
            return len(found) >= count

        assert poll(complete, 20.0), [(span.name, span.trace_id.hex()) for span in self.spans]
        named = {"" if span.kind == Span.SPAN_KIND_SERVER else span.name: span for span in found}
        assert len(named) == len(found) == count
        return named


def attributes(pairs: object) -> dict[str, object]:
    """The attributes of a span or a resource."""
    values: dict[str, object] = {}
    for pair in pairs:  # type: ignore[attr-defined]
        assert isinstance(pair, KeyValue)
        values[pair.key] = getattr(pair.value, str(pair.value.WhichOneof("value")))
    return values


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

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        collector = Collector(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


class Proxy:
    """Passes connections on to an address, and keeps what clients send."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listening = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listening.getsockname()[1]}"
        self._sent: list[bytearray] = []
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def traceparents(self) -> list[str]:
        """Those of all requests so far, which have to be HTTP/1."""
        return [found.decode() for sent in self._sent for found in TRACEPARENT.findall(bytes(sent))]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._open += [client, server]
            self._sent.append(bytearray())
            for source, sink, kept in ((client, server, self._sent[-1]), (server, client, None)):
                self._threads.append(threading.Thread(target=self._pass_on, args=(source, sink, kept)))
                self._threads[-1].start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, kept: bytearray | None) -> None:
        try:
            while data := source.recv(1 << 16):
                if kept is not None:
                    kept += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one side is gone
            pass

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._threads[0].join()
        for one in self._open:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:  # it is already
                pass
        for thread in self._threads[1:]:
            thread.join()
        for one in self._open:
            one.close()
