"""A model in Triton's Python backend that streams tokens at a known pace, without computation.

Every stream gets a token each ``milliseconds`` from its request on, independent of other streams. The outputs in the
configuration select TensorRT-LLM's interface (output_ids) or vLLM's (text_output). Token n has the id
``FIRST + n % COUNT`` and the text ``n % 10``, so clients can check it.
"""

from __future__ import annotations

import heapq
import itertools
import json
import threading
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
FIRST, COUNT = 300, 200


class TritonPythonModel:
    """One thread sends due tokens, then sleeps."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.pause = float(config["parameters"]["milliseconds"]["string_value"]) / 1000
        self.gives_ids = config["output"][0]["name"] == "output_ids"
        self.due: list[tuple[float, int, Any]] = []
        self.numbers = itertools.count()
        self.changed = threading.Condition()
        threading.Thread(target=self.run, daemon=True).start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            if self.gives_ids:
                asked = pb_utils.get_input_tensor_by_name(request, "request_output_len").as_numpy().reshape(-1)[0]
            else:
                given = pb_utils.get_input_tensor_by_name(request, "sampling_parameters").as_numpy().reshape(-1)[0]
                asked = json.loads(given)["max_tokens"]
            stream = [request.get_response_sender(), int(asked), 0]
            with self.changed:
                heapq.heappush(self.due, (time.monotonic() + self.pause, next(self.numbers), stream))
                self.changed.notify()

    def run(self) -> None:
        while True:
            with self.changed:
                while not self.due:
                    self.changed.wait()
                wait = self.due[0][0] - time.monotonic()
                if wait > 0:
                    self.changed.wait(wait)
                    continue
                moment, number, stream = heapq.heappop(self.due)
            if self.send(*stream):
                stream[2] += 1
                with self.changed:
                    heapq.heappush(self.due, (moment + self.pause, number, stream))

    def send(self, sender: Any, asked: int, number: int) -> bool:
        """Sends the next token; returns whether more follow."""
        if sender.is_cancelled():
            sender.send(flags=FINAL)
            return False
        last = number + 1 == asked
        sender.send(pb_utils.InferenceResponse(self.tensors(number)), flags=FINAL if last else 0)
        return not last

    def tensors(self, number: int) -> list[Any]:
        if not self.gives_ids:
            return [pb_utils.Tensor("text_output", np.array([f" {number % 10}".encode()], np.object_))]
        return [
            pb_utils.Tensor("output_ids", np.array([[[FIRST + number % COUNT]]], np.int32)),
            pb_utils.Tensor("sequence_length", np.array([[1]], np.int32)),
        ]
