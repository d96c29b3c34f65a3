"""The time to the first token of tritonclient's streams, for ``token_price.py``.

    python -m benchmarks.tritonclient_streams ADDRESS STREAMS ROUNDS -> prints the median in ms

Each stream has a client and, by tritonclient, a thread.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from typing import Any, Final

import numpy as np
import tritonclient.grpc

TOKENS: Final = 50


class Client:
    """One client, which reads one stream after the other; ``times`` has the seconds to each first token."""

    def __init__(self, address: str) -> None:
        self.times: list[float] = []
        self._client = tritonclient.grpc.InferenceServerClient(address)
        self._first, self._count, self._ended = 0.0, 0, threading.Event()
        self._inputs = []
        for name, value in {"text_input": b"x", "sampling_parameters": json.dumps({"max_tokens": TOKENS})}.items():
            tensor = tritonclient.grpc.InferInput(name, [1], "BYTES")
            tensor.set_data_from_numpy(np.array([value], np.object_))
            self._inputs.append(tensor)

    def _receive(self, result: Any, error: Any) -> None:
        self._first = self._first or time.perf_counter()
        self._count += 1
        if self._count == TOKENS:
            self._ended.set()

    def run(self, delay: float, rounds: int) -> None:
        """Reads a stream to open the connection, then ``rounds`` more."""
        time.sleep(delay)
        for number in range(rounds + 1):
            self._client.start_stream(self._receive)
            self._first, self._count = 0.0, 0
            self._ended.clear()
            started = time.perf_counter()
            self._client.async_stream_infer("text", self._inputs)
            self._client._stream._request_queue.put(None)  # ends the requests, for which the predictor waits
            if not self._ended.wait(20):
                raise SystemExit("a stream has not ended")
            if number:
                self.times.append(self._first - started)
            self._client.stop_stream()


def main(address: str, streams: int, rounds: int) -> None:
    clients = [Client(address) for _ in range(streams)]
    threads = [
        threading.Thread(target=client.run, args=(index / streams, rounds)) for index, client in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(1000 * statistics.median([one for client in clients for one in client.times]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
