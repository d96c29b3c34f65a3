"""The one model.py of every test model: the weights beside it behind whatever interface config.pbtxt declares.

The names of the inputs say what they are, the names, dtypes and dims of the outputs say what is wanted. An output
that the weights have under its name is that one, any other is made from their first. The parameter `fault` makes the
model misbehave in one way:

    raises          every request ends in a TritonModelException
    slow            each request takes `seconds` [3] longer, and as long as a file "held" is beside the weights; or it
                    ends when the client cancels it
    wrong_shape     one token fewer than there were
    wrong_dtype     FP64 where FP32 is declared
    nan             every logit is NaN
    ignores_mask    padding counts as text
    constant        every text is answered as if it were padding alone
    small_batches   more than two texts at a time are an error
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

IDS_NAMES = ("input_ids", "INPUT__0")
MASK_NAMES = ("attention_mask", "INPUT__1")
TYPES_NAMES = ("token_type_ids",)
POOLED_SIZE = 8


class TritonPythonModel:
    """One onnxruntime session, one thread, one request at a time."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self.fault = parameters.get("fault")
        self.seconds = float(parameters.get("seconds", "3"))
        self.batched = config["max_batch_size"] > 0 or len(config["input"][0]["dims"]) == 2
        self.outputs = config["output"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            str(Path(__file__).with_name("model.onnx")), options, providers=["CPUExecutionProvider"]
        )
        self.taken = {tensor.name for tensor in self.session.get_inputs()}
        self.given = [tensor.name for tensor in self.session.get_outputs()]

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        if self.fault == "raises":
            raise pb_utils.TritonModelException("deliberate failure")
        if self.fault == "slow" and not self.wait(request):
            error = pb_utils.TritonError("cancelled by the client", pb_utils.TritonError.CANCELLED)
            return pb_utils.InferenceResponse([], error)
        results = self.results(request)
        wanted = request.requested_output_names()
        tensors = [self.tensor(output, results) for output in self.outputs if output["name"] in wanted]
        return pb_utils.InferenceResponse(tensors)

    def wait(self, request: Any) -> bool:
        """Sleep in small steps; False as soon as the client has cancelled."""
        end, held = time.monotonic() + self.seconds, Path(__file__).with_name("held")
        while time.monotonic() < end or held.exists():
            if request.is_cancelled():
                return False
            time.sleep(0.01)
        return True

    def results(self, request: Any) -> dict[str, np.ndarray]:
        """Outputs of the weights by name: FP32 [B,...] for a batched model, [...] for one that takes a single text."""
        ids = self.input(request, IDS_NAMES)
        if ids is None:
            raise pb_utils.TritonModelException("the input with the token ids is missing")
        if self.fault == "small_batches" and len(ids) > 2:
            raise pb_utils.TritonModelException(f"deliberately no place for {len(ids)} texts")
        mask = self.input(request, MASK_NAMES)
        types = self.input(request, TYPES_NAMES)
        if self.fault == "ignores_mask":
            mask = None
        elif self.fault == "constant":
            ids = np.zeros_like(ids)
        feeds = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids) if mask is None else mask,
            "token_type_ids": np.zeros_like(ids) if types is None else types,
        }
        arrays = self.session.run(self.given, {name: feeds[name] for name in self.taken})
        return {name: array if self.batched else array[0] for name, array in zip(self.given, arrays, strict=True)}

    def input(self, request: Any, names: tuple[str, ...]) -> np.ndarray | None:
        """The first input of these names as INT64 [B,S], or None."""
        for name in names:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is not None:
                array = tensor.as_numpy().astype(np.int64)
                return array if self.batched else array[np.newaxis]
        return None

    def tensor(self, output: dict[str, Any], results: dict[str, np.ndarray]) -> Any:
        """Bring a result into the declared form of one output, and out of it again if the fault says so."""
        logits = results.get(output["name"], results[self.given[0]])
        if output["name"] == "pooled":
            return pb_utils.Tensor("pooled", np.ascontiguousarray(logits[..., 0, :POOLED_SIZE]))
        if len(output["dims"]) == 1 and self.batched and logits.ndim == 3:
            logits = logits[:, 0]  # one row per text: the declared rank is that of a classifier
        dtype = pb_utils.triton_string_to_numpy(output["data_type"])
        width = int(output["dims"][-1])
        values = (logits if width < 0 else logits[..., :width]).astype(dtype)
        if self.fault == "wrong_shape":
            values = values[..., :-1, :]
        elif self.fault == "wrong_dtype":
            values = values.astype(np.float64)
        elif self.fault == "nan":
            values = np.full_like(values, np.nan)
        return pb_utils.Tensor(output["name"], np.ascontiguousarray(values))
