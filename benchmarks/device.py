"""A predictor whose batch takes FIXED + ROW * rows milliseconds, in a process of its own: the V2 protocol over REST.

    python -m benchmarks.device FIXED ROW [--dynamic_batching] -> prints its port

One instance of the model ``classifier`` runs one batch at a time. With --dynamic_batching it joins waiting batches of
equal width, as Triton does. SIGUSR1 prints the number of batches and rows so far.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import uvloop

HOST: Final = "127.0.0.1"
NAME: Final = "classifier"
MAX_ROWS: Final = 1024
LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
JSON_LENGTH: Final = re.compile(rb"inference-header-content-length: *(\d+)", re.IGNORECASE)
TENSORS: Final = {
    "input": [("input_ids", "INT64", -1), ("attention_mask", "INT64", -1)],
    "output": [("logits", "FP32", 2)],
}


@dataclass(slots=True)
class Batch:
    """A call that waits for the model, and the function that writes its answer."""

    rows: int
    width: int
    write: Callable[[bytes], None]


class Device:
    """The model: a thread that sleeps for the time of each batch, since an event loop rounds times to milliseconds."""

    def __init__(self, fixed: float, row: float, *, dynamic_batching: bool) -> None:
        self._fixed, self._row, self._joins = fixed / 1000, row / 1000, dynamic_batching
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Batch] = deque()
        self._changed = threading.Condition()
        self.runs = self.rows = 0
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, batch: Batch) -> None:
        with self._changed:
            self._waiting.append(batch)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                batches = [self._waiting.popleft()]
                while self._joins and self._waiting and self._waiting[0].width == batches[0].width:
                    batches.append(self._waiting.popleft())
            rows = sum(batch.rows for batch in batches)
            time.sleep(self._fixed + self._row * rows)
            self.runs += 1
            self.rows += rows
            for batch in batches:
                self._loop.call_soon_threadsafe(batch.write, answer(batch.rows))


class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, device: Device, config: bytes) -> None:
        self._device, self._config = device, config
        self._data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._data[:end])
            length = int(found[1]) if (found := LENGTH.search(head)) else 0
            if len(self._data) < end + 4 + length:
                return
            body = bytes(self._data[end + 4 : end + 4 + length])
            del self._data[: end + 4 + length]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if path.endswith(b"/infer"):
            json_length = JSON_LENGTH.search(head)
            rows, width = json.loads(body[: int(json_length[1])] if json_length else body)["inputs"][0]["shape"]
            self._device.add(Batch(rows, width, self._transport.write))
        elif path.endswith(b"/config"):
            self._transport.write(message(self._config))
        elif path.endswith(b"/ready") or path.endswith(b"/live"):
            self._transport.write(message(b""))
        elif path.endswith(b"/" + NAME.encode()):
            self._transport.write(message(json.dumps(metadata()).encode()))
        else:
            self._transport.write(message(b'{"name":"device","version":"1","extensions":["binary_tensor_data"]}'))


def message(content: bytes, headers: bytes = b"") -> bytes:
    start = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % len(content)
    return start + headers + b"\r\n" + content


def answer(rows: int) -> bytes:
    """The logits -3 and 3 for each row, in Triton's binary form."""
    data = np.tile(np.array([-3, 3], np.float32), rows).tobytes()
    output = {"name": "logits", "datatype": "FP32", "shape": [rows, 2], "parameters": {"binary_data_size": len(data)}}
    text = json.dumps({"model_name": NAME, "model_version": "1", "outputs": [output]}).encode()
    return message(text + data, b"inference-header-content-length: %d\r\n" % len(text))


def metadata() -> dict[str, Any]:
    sides = {
        f"{side}s": [{"name": name, "datatype": datatype, "shape": [-1, size]} for name, datatype, size in tensors]
        for side, tensors in TENSORS.items()
    }
    return {"name": NAME, "versions": ["1"], "platform": "device", **sides}


def config_of(*, dynamic_batching: bool) -> dict[str, Any]:
    sides = {
        side: [{"name": name, "data_type": f"TYPE_{datatype}", "dims": [size]} for name, datatype, size in tensors]
        for side, tensors in TENSORS.items()
    }
    batching = {"dynamic_batching": {}} if dynamic_batching else {}
    return {"name": NAME, "max_batch_size": MAX_ROWS, "instance_group": [{"count": 1}], **batching, **sides}


async def serve(fixed: float, row: float, *, dynamic_batching: bool) -> None:
    loop = asyncio.get_running_loop()
    device = Device(fixed, row, dynamic_batching=dynamic_batching)
    config = json.dumps(config_of(dynamic_batching=dynamic_batching)).encode()
    server = await loop.create_server(lambda: Connection(device, config), HOST, 0)
    loop.add_signal_handler(signal.SIGUSR1, lambda: print(f"{device.runs} {device.rows}", flush=True))
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Runs the device until a signal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fixed", type=float, metavar="FIXED", help="milliseconds of a batch")
    parser.add_argument("row", type=float, metavar="ROW", help="milliseconds of a row")
    parser.add_argument("--dynamic_batching", action="store_true", help="join waiting batches of equal width")
    options = parser.parse_args()
    uvloop.run(serve(options.fixed, options.row, dynamic_batching=options.dynamic_batching))


if __name__ == "__main__":
    main()
