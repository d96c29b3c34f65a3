"""A predictor that only streams tokens, in a process of its own: the V2 protocol over gRPC and REST.

    python -m benchmarks.scripted_streams ARRIVALS MILLISECONDS -> prints its gRPC and its REST port

Two decoupled models: ``text`` has vLLM's tensors, ``tokens`` TensorRT-LLM's. A stream gets a token each MILLISECONDS.
ARRIVALS says when: ``spread`` at a moment of its own, ``steps`` all streams together, as an engine does, ``once`` all
tokens of a request at its start. Token n has the id ``FIRST + n % COUNT`` and the text `` n % 10``.

It writes frames by hand, since it should cost less than the client: h2 has the rest of HTTP/2.
"""

from __future__ import annotations

import asyncio
import json
import re
import selectors
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import h2.config
import h2.connection
import h2.events
import h2.settings
from google.protobuf.json_format import ParseDict

from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb

HOST: Final = "127.0.0.1"
SERVICE: Final = "/inference.GRPCInferenceService/"
FIRST: Final = 300
COUNT: Final = 200
Tensors = Sequence[tuple[str, str, Sequence[int]]]
MODELS: Final[dict[str, tuple[Tensors, Tensors]]] = {
    "text": (
        [("text_input", "BYTES", [1]), ("stream", "BOOL", [1]), ("sampling_parameters", "BYTES", [1])],
        [("text_output", "BYTES", [-1])],
    ),
    "tokens": (
        [
            ("input_ids", "INT32", [-1]),
            *((name, "INT32", [1]) for name in ("input_lengths", "request_output_len", "end_id", "runtime_top_k")),
            *((name, "FP32", [1]) for name in ("runtime_top_p", "temperature")),
            ("random_seed", "UINT64", [1]),
            ("return_log_probs", "BOOL", [1]),
            ("streaming", "BOOL", [1]),
        ],
        [
            ("output_ids", "INT32", [-1, -1]),
            ("sequence_length", "INT32", [-1]),
            ("output_log_probs", "FP32", [-1, -1]),
        ],
    ),
}


def config_of(model: str) -> dict[str, Any]:
    """The model's configuration as JSON."""
    sides = {
        side: [
            {"name": name, "data_type": f"TYPE_{'STRING' if datatype == 'BYTES' else datatype}", "dims": list(shape)}
            for name, datatype, shape in tensors
        ]
        for side, tensors in zip(("input", "output"), MODELS[model], strict=True)
    }
    return {"name": model, "max_batch_size": 0, "model_transaction_policy": {"decoupled": True}, **sides}


def answer(model: str, number: int, wanted: Sequence[str]) -> list[tuple[str, str, Sequence[int], bytes, Any]]:
    """The outputs of a model's token ``number``: name, datatype, shape, raw contents, JSON."""
    if model == "text":
        text = f" {number % 10}"
        return [("text_output", "BYTES", [1], struct.pack("<I", len(text)) + text.encode(), text)]
    token = FIRST + number % COUNT
    outputs: list[tuple[str, str, Sequence[int], bytes, Any]] = [
        ("output_ids", "INT32", [1, 1, 1], struct.pack("<i", token), [token]),
        ("sequence_length", "INT32", [1, 1], struct.pack("<i", 1), 1),
        ("output_log_probs", "FP32", [1, 1, 1], struct.pack("<f", -0.5), -0.5),
    ]
    return [output for output in outputs if output[0] in wanted or not wanted]


def grpc_answer(model: str, number: int, wanted: Sequence[str]) -> bytes:
    """A token as a gRPC message, as Triton writes it."""
    response = pb.ModelInferResponse(model_name=model, model_version="1")
    response.parameters["triton_final_response"].bool_param = False
    for name, datatype, shape, raw, _ in answer(model, number, wanted):
        response.outputs.add(name=name, datatype=datatype, shape=shape)
        response.raw_output_contents.append(raw)
    content = pb.ModelStreamInferResponse(infer_response=response).SerializeToString()
    return b"\0" + len(content).to_bytes(4) + content


def rest_answer(model: str, number: int, wanted: Sequence[str]) -> bytes:
    """A token as an event in a chunk."""
    values = {name: value for name, _, _, _, value in answer(model, number, wanted)}
    event = b"data: " + json.dumps({"model_name": model, "model_version": "1", **values}).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


class Stream:
    """One stream: ``begin``, then ``count`` items in rotation, then ``end``; ``write`` sends bytes."""

    def __init__(
        self, write: Callable[[bytes], None], items: Sequence[bytes], end: Callable[[], bytes], count: int
    ) -> None:
        self.write = write
        self._items = items
        self._end = end
        self.left = count
        self._number = 0

    def take(self) -> bytes:
        """The next token; the last one with the end of the stream."""
        item = self._items[self._number % len(self._items)]
        self._number += 1
        self.left -= 1
        return item if self.left else item + self._end()


class Pace:
    """Sends the tokens of all streams."""

    def __init__(self, arrivals: str, milliseconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrivals = arrivals
        self._pause = milliseconds / 1000
        self._streams: list[Stream] = []
        if arrivals == "steps":
            self._step(self._loop.time())

    def add(self, stream: Stream) -> None:
        if self._arrivals == "once":
            stream.write(b"".join([stream.take() for _ in range(stream.left)]))
        elif self._arrivals == "steps":
            self._streams.append(stream)
        else:
            self._next(stream, self._loop.time())

    def _next(self, stream: Stream, moment: float) -> None:
        def due() -> None:
            stream.write(stream.take())
            if stream.left:
                self._next(stream, moment)

        moment += self._pause
        self._loop.call_at(moment, due)

    def _step(self, moment: float) -> None:
        """A token for every stream; those of one connection in one write."""
        parts: dict[Callable[[bytes], None], list[bytes]] = {}
        for stream in self._streams:
            parts.setdefault(stream.write, []).append(stream.take())
        self._streams = [stream for stream in self._streams if stream.left]
        for write, data in parts.items():
            write(b"".join(data))
        moment += self._pause
        self._loop.call_at(moment, self._step, moment)


def frame(stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + b"\0\0" + stream.to_bytes(4) + payload


class GrpcConnection(asyncio.Protocol):
    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._transport: asyncio.Transport
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="latin-1"))
        self._h2.local_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 10_000
        self._h2.local_settings.acknowledge()
        self._paths: dict[int, str] = {}
        self._bodies: dict[int, bytes] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._h2.initiate_connection()
        self._flush()

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():  # asyncio would log each write after the client has left
            self._transport.write(data)

    def _flush(self) -> None:
        if data := self._h2.data_to_send():
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            match event:
                case h2.events.RequestReceived():
                    headers = dict(event.headers)
                    self._paths[event.stream_id] = str(headers[":path"]).removeprefix(SERVICE)
                    self._bodies[event.stream_id] = b""
                case h2.events.DataReceived():
                    self._bodies[event.stream_id] += event.data
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case h2.events.StreamEnded():
                    self._answer(event.stream_id)
        self._flush()

    def _answer(self, stream: int) -> None:
        path, body = self._paths.pop(stream), self._bodies.pop(stream)[5:]
        if path == "ModelStreamInfer":
            request = pb.ModelInferRequest.FromString(body)
            wanted = [output.name for output in request.outputs]
            items = [frame(stream, grpc_answer(request.model_name, number, wanted)) for number in range(10)]
            self._h2.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
            self._flush()
            self._pace.add(Stream(self._write, items, lambda: self._end(stream), self._count(request)))
            return
        message = unary(path, body)
        self._h2.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
        if message is not None:
            self._h2.send_data(stream, b"\0" + len(message).to_bytes(4) + message)
        self._h2.send_headers(stream, [("grpc-status", "12" if message is None else "0")], end_stream=True)

    def _count(self, request: pb.ModelInferRequest) -> int:
        names = [tensor.name for tensor in request.inputs]
        if request.model_name == "text":
            raw = request.raw_input_contents[names.index("sampling_parameters")]
            return int(json.loads(raw[4:])["max_tokens"])
        return int(struct.unpack_from("<i", request.raw_input_contents[names.index("request_output_len")])[0])

    def _end(self, stream: int) -> bytes:
        try:
            self._h2.send_headers(stream, [("grpc-status", "0")], end_stream=True)
        except h2.exceptions.ProtocolError:  # the client has cancelled it
            return b""
        return self._h2.data_to_send()


def unary(path: str, body: bytes) -> bytes | None:
    """The answer to a unary call, None for a method that is not there."""
    match path:
        case "ServerLive":
            return pb.ServerLiveResponse(live=True).SerializeToString()
        case "ServerReady":
            return pb.ServerReadyResponse(ready=True).SerializeToString()
        case "ModelReady":
            return pb.ModelReadyResponse(ready=True).SerializeToString()
        case "ModelMetadata":
            name = pb.ModelMetadataRequest.FromString(body).name
            inputs, outputs = MODELS[name]
            metadata = pb.ModelMetadataResponse(name=name, versions=["1"], platform="python")
            for side, tensors in ((metadata.inputs, inputs), (metadata.outputs, outputs)):
                for tensor, datatype, shape in tensors:
                    side.add(name=tensor, datatype=datatype, shape=shape)
            return metadata.SerializeToString()
        case "ModelConfig":
            config = ParseDict(config_of(pb.ModelConfigRequest.FromString(body).name), pb.ModelConfig())
            return pb.ModelConfigResponse(config=config).SerializeToString()
    return None


class RestConnection(asyncio.Protocol):
    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._transport: asyncio.Transport
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while b"\r\n\r\n" in self._data:
            head, _, rest = self._data.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            size = 0 if length is None else int(length[1])
            if len(rest) < size:
                return
            self._data = rest[size:]
            self._answer(head.split()[1].decode(), rest[:size])

    def _answer(self, path: str, body: bytes) -> None:
        parts = path.removeprefix("/v2/models/").split("/")
        model = parts[0]
        if parts[-1] == "generate_stream":
            request = json.loads(body)
            parameters = request.get("sampling_parameters")
            count = json.loads(parameters)["max_tokens"] if parameters else request["request_output_len"]
            items = [rest_answer(model, number, ()) for number in range(10)]
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            self._transport.write(head)
            self._pace.add(Stream(self._write, items, lambda: b"0\r\n\r\n", int(count)))
            return
        answer: dict[str, Any] = {}
        if model in MODELS and len(parts) == 1:
            sides = zip(("inputs", "outputs"), MODELS[model], strict=True)
            tensors = {
                side: [{"name": name, "datatype": kind, "shape": shape} for name, kind, shape in entries]
                for side, entries in sides
            }
            answer = {"name": model, "versions": ["1"], "platform": "python", **tensors}
        elif parts[-1] == "config":
            answer = config_of(model)
        content = json.dumps(answer).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content))


async def serve(arrivals: str, milliseconds: float) -> None:
    loop, pace = asyncio.get_running_loop(), Pace(arrivals, milliseconds)
    grpc = await loop.create_server(lambda: GrpcConnection(pace), HOST, 0)
    rest = await loop.create_server(lambda: RestConnection(pace), HOST, 0, backlog=1000)
    print(*(server.sockets[0].getsockname()[1] for server in (grpc, rest)), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    # select takes a timeout in microseconds; epoll's, and uvloop's, are whole milliseconds, which would form steps.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(serve(sys.argv[1], float(sys.argv[2])))
