"""tritonclient over gRPC on a model that writes text: a stream with a request for each prompt, as the sample of
Triton's vLLM backend uses it, with sampling parameters as a tensor and as the request's own, and as the V2 API has it.

Beside what every program is given it takes "prompts", "sampling" and "shape", and answers with the texts of each prompt
by request id, streamed or not.

Source: https://github.com/triton-inference-server/vllm_backend/blob/main/samples/client.py
"""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import tritonclient.grpc as threaded
import tritonclient.grpc.aio as triton
from task import OUTPUT, answer

TOLD = ("finish_reason", "num_input_tokens", "num_output_tokens")
SECONDS = 60


def tensor(name: str, value: Any, shape: list[int]) -> threaded.InferInput:
    kind = "BOOL" if isinstance(value, bool) else "BYTES"
    found = threaded.InferInput(name, shape, kind)
    array = np.array([value], bool) if kind == "BOOL" else np.array([value.encode()], np.object_)
    found.set_data_from_numpy(array.reshape(shape))
    return found


def inputs_of(task: dict[str, Any], prompt: str, streamed: bool, **more: bool) -> list[threaded.InferInput]:
    values = {"text_input": prompt, "stream": streamed, "sampling_parameters": json.dumps(task["sampling"]), **more}
    return [tensor(name, value, task["shape"]) for name, value in values.items()]


async def sample(task: dict[str, Any], streamed: bool) -> dict[str, list[str]]:
    """The texts in the sample's results file."""
    texts: dict[str, list[str]] = {}

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number, prompt in enumerate(task["prompts"]):
            texts[str(number)] = []
            yield {
                "model_name": task["model"],
                "inputs": inputs_of(task, prompt, streamed),
                "outputs": [triton.InferRequestedOutput("text_output")],
                "request_id": str(number),
                "parameters": task["sampling"],
            }

    async with triton.InferenceServerClient(url=task["grpc"]) as client:
        async for result, error in client.stream_infer(inputs_iterator=requests(), stream_timeout=SECONDS):
            if error:
                raise error
            for text in result.as_numpy("text_output"):
                texts[result.get_response().id].append(text.decode())
    return texts


class Calls:
    """The client with a callback: start_stream, async_stream_infer, and what comes back for each request."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._results: queue.Queue[Any] = queue.Queue()
        self._client = threaded.InferenceServerClient(task["grpc"])
        self._client.start_stream(callback=lambda result, error: self._results.put((result, error)))

    def send(self, number: int, inputs: list[threaded.InferInput], **more: Any) -> None:
        self._client.async_stream_infer(self._task["model"], inputs, request_id=str(number), **more)

    def ended(self) -> dict[str, list[Any]]:
        """All results by request, once each request has had its last one."""
        left = len(self._task["prompts"])
        results: dict[str, list[Any]] = {str(number): [] for number in range(left)}
        while left:
            result, error = self._results.get(timeout=SECONDS)
            if error is not None:
                raise error
            response = result.get_response()
            results[response.id].append(result)
            left -= response.parameters["triton_final_response"].bool_param
        self._client.stop_stream()
        return results

    def error(self) -> str:
        _, error = self._results.get(timeout=SECONDS)
        self._client.stop_stream()
        return str(error)


def callbacks(task: dict[str, Any], streamed: bool) -> dict[str, Any]:
    calls, switches = Calls(task), {f"return_{name}": True for name in TOLD}
    for number, prompt in enumerate(task["prompts"]):
        inputs = inputs_of(task, prompt, streamed, exclude_input_in_output=True, **switches)
        calls.send(number, inputs, enable_empty_final_response=True)
    return {
        id: {
            "text": "".join(one.as_numpy("text_output")[0].decode() for one in results),
            "finish": [one.as_numpy("finish_reason")[0].decode() for one in results],
            "prompt": [int(one.as_numpy("num_input_tokens")[0]) for one in results],
            "new": sum(int(one.as_numpy("num_output_tokens")[0]) for one in results),
        }
        for id, results in calls.ended().items()
    }


def pieces(task: dict[str, Any]) -> dict[str, list[str]]:
    """With parameters of the V2 API, whose output has another name."""
    calls = Calls(task)
    parameters = {"stream": True, "return_full_text": False, "max_tokens": 8}
    for number, prompt in enumerate(task["prompts"]):
        inputs = [tensor("text_input", prompt, task["shape"])]
        calls.send(number, inputs, parameters=parameters, enable_empty_final_response=True)
    return {id: [one.as_numpy(OUTPUT)[0].decode() for one in found] for id, found in calls.ended().items()}


def failure(task: dict[str, Any]) -> str:
    """The error for a parameter that no model supports."""
    calls, wrong = Calls(task), {**task, "sampling": {"prompt_logprobs": 3}}
    calls.send(0, inputs_of(wrong, task["prompts"][0], True))
    return calls.error()


def whole(task: dict[str, Any]) -> list[str]:
    """One call for each prompt, with as many tokens as the model's default allows."""
    client = threaded.InferenceServerClient(task["grpc"])
    inputs = [[tensor("text_input", prompt, task["shape"])] for prompt in task["prompts"]]
    return [client.infer(task["model"], one).as_numpy(OUTPUT)[0].decode() for one in inputs]


def run(task: dict[str, Any]) -> dict[str, Any]:
    return {
        "sample": asyncio.run(sample(task, False)),
        "sample_stream": asyncio.run(sample(task, True)),
        "callback": callbacks(task, False),
        "callback_stream": callbacks(task, True),
        "pieces": pieces(task),
        "whole": whole(task),
        "failure": failure(task),
    }


answer(run)
