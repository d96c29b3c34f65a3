"""tritonclient over gRPC as the sample of Triton's vLLM backend uses it: a stream with a request for each prompt,
sampling parameters as a tensor and as the request's own. Beside what every program is given it takes "prompts",
"sampling" and "shape", and answers with the texts of each prompt by request id, streamed or not.

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
from task import answer

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
    """What the sample's results file has."""
    found: dict[str, list[str]] = {}

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number, prompt in enumerate(task["prompts"]):
            found[str(number)] = []
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
                found[result.get_response().id].append(text.decode())
    return found


def callbacks(task: dict[str, Any], streamed: bool) -> dict[str, Any]:
    """The client with a callback: start_stream, async_stream_infer, and what is told beside the text."""
    results: queue.Queue[Any] = queue.Queue()
    client = threaded.InferenceServerClient(task["grpc"])
    client.start_stream(callback=lambda result, error: results.put((result, error)))
    switches = {f"return_{name}": True for name in TOLD}
    for number, prompt in enumerate(task["prompts"]):
        inputs = inputs_of(task, prompt, streamed, exclude_input_in_output=True, **switches)
        client.async_stream_infer(task["model"], inputs, request_id=str(number), enable_empty_final_response=True)
    left = len(task["prompts"])
    found: dict[str, Any] = {str(number): {"text": "", "new": 0, "finish": [], "prompt": []} for number in range(left)}
    while left:
        result, error = results.get(timeout=SECONDS)
        if error is not None:
            raise error
        response = result.get_response()
        one = found[response.id]
        one["text"] += result.as_numpy("text_output")[0].decode()
        one["finish"].append(result.as_numpy("finish_reason")[0].decode())
        one["prompt"].append(int(result.as_numpy("num_input_tokens")[0]))
        one["new"] += int(result.as_numpy("num_output_tokens")[0])
        left -= response.parameters["triton_final_response"].bool_param
    client.stop_stream()
    return found


def failure(task: dict[str, Any]) -> str:
    """What a client is told of a parameter that nobody honours."""
    results: queue.Queue[Any] = queue.Queue()
    client = threaded.InferenceServerClient(task["grpc"])
    client.start_stream(callback=lambda result, error: results.put((result, error)))
    wrong = {**task, "sampling": {"prompt_logprobs": 3}}
    client.async_stream_infer(task["model"], inputs_of(wrong, task["prompts"][0], True))
    _, error = results.get(timeout=SECONDS)
    client.stop_stream()
    return str(error)


def run(task: dict[str, Any]) -> dict[str, Any]:
    return {
        "sample": asyncio.run(sample(task, False)),
        "sample_stream": asyncio.run(sample(task, True)),
        "callback": callbacks(task, False),
        "callback_stream": callbacks(task, True),
        "failure": failure(task),
    }


answer(run)
