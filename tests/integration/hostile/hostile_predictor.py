"""A predictor that describes the demo model as Triton does, and answers inferences as a test says."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from hf_transformer.commands.loopback import HOST
from tests.integration.conftest import MODEL_FOLDER
from tests.support.service import Service, flags_for

VOCABULARY = 1024
CONFIG = {
    "name": "bert",
    "max_batch_size": 8,
    "input": [{"name": "input_ids", "data_type": "TYPE_INT64", "dims": [-1]}],
    "output": [{"name": "logits", "data_type": "TYPE_FP32", "dims": [-1, VOCABULARY]}],
}
METADATA = {
    "name": "bert",
    "versions": ["1"],
    "platform": "onnxruntime_onnx",
    "inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [-1, -1]}],
    "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, -1, VOCABULARY]}],
}


TEXT_CONFIG = {
    "name": "bert",
    "input": [
        {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]},
        {"name": "max_tokens", "data_type": "TYPE_INT32", "dims": [1]},
    ],
    "output": [{"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]}],
    "model_transaction_policy": {"decoupled": True},
}
TEXT_METADATA = {
    **METADATA,
    "inputs": [
        {"name": "text_input", "datatype": "BYTES", "shape": [1]},
        {"name": "max_tokens", "datatype": "INT32", "shape": [1]},
    ],
    "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [-1]}],
}
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


class Inference:
    """One request to infer, and the connection that its answer goes to."""

    def __init__(self, header: dict[str, Any], send: Callable[[bytes], object]) -> None:
        self.shape: list[int] = [*header["inputs"][0]["shape"], VOCABULARY]
        self.place: dict[str, Any] = header["outputs"][0]["parameters"]
        """Where in shared memory the output is to be written, if it is."""
        self.send = send

    def answer(self, status: str, body: bytes, *lines: str) -> None:
        head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *lines, "", ""]
        self.send("\r\n".join(head).encode() + body)

    def zeros(self) -> None:
        """A good answer, inline: all logits are zero."""
        size = 4 * self.shape[0] * self.shape[1] * VOCABULARY
        output = {"name": "logits", "datatype": "FP32", "shape": self.shape, "parameters": {"binary_data_size": size}}
        header = json.dumps({"outputs": [output]}).encode()
        self.answer("200 OK", header + bytes(size), f"Inference-Header-Content-Length: {len(header)}")

    def placed(self) -> None:
        """The answer that says that the output is where it was to be written."""
        self.answer(
            "200 OK", json.dumps({"outputs": [{"name": "logits", "datatype": "FP32", "shape": self.shape}]}).encode()
        )


class HostilePredictor:
    """A context manager; ``infer`` answers each inference, in a thread of its connection. With ``stream`` it has a
    model that writes text, and each text is what ``stream`` sends after the head."""

    def __init__(self, stream: Callable[[Callable[[bytes], object]], object] | None = None) -> None:
        self.infer: Callable[[Inference], object] = Inference.zeros
        self.stream = stream
        predictor = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):
                    while predictor.serve_one(self.rfile, self.wfile.write):
                        pass

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self._server = Server((HOST, 0), Handler)
        self.address = f"{HOST}:{self._server.server_address[1]}"

    def serve_one(self, file: Any, send: Callable[[bytes], object]) -> bool:
        first, headers = file.readline().decode(), {}
        while line := file.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        if not first:
            return False
        body, path = file.read(int(headers.get("content-length", 0))), first.split()[1]
        if path.endswith("/infer"):
            header = json.loads(body[: int(headers["inference-header-content-length"])])
            self.infer(Inference(header, send))
            return True
        if path.endswith("/generate_stream") and self.stream is not None:
            send(EVENTS)
            self.stream(send)
            return False
        metadata, config = (METADATA, CONFIG) if self.stream is None else (TEXT_METADATA, TEXT_CONFIG)
        said: Any = {"/v2/models/bert": metadata, "/v2/models/bert/config": config}.get(path, [])
        empty = path.endswith(("/ready", "/register", "/unregister"))
        answer = b"" if empty else json.dumps(said).encode()
        send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
        return True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def behind(predictor: HostilePredictor, *flags: str) -> Iterator[Service]:
    """A service that has found its model, in a process of its own, since tests measure its memory."""
    with Service(*flags_for("bert", MODEL_FOLDER, predictor.address, "v2", flags), forked=False) as service:
        yield service.wait_until("/v1/models/bert")
