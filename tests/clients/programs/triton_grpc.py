"""tritonclient over gRPC; the argument says how requests travel: unary or stream."""

from __future__ import annotations

import queue
import sys
from typing import Any

import tritonclient.grpc as triton
from task import OUTPUT, SCHEDULING, answer, elements, plain
from tritonclient.utils import InferenceServerException


def inputs_of(request: dict[str, Any]) -> list[triton.InferInput]:
    inputs = []
    for name, value in request["inputs"].items():
        array = elements(value)
        tensor = triton.InferInput(name, list(array.shape), "BYTES")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


def unary(client: Any, task: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    answers, ids = [], []
    for number, request in enumerate(task["requests"]):
        named = {"request_id": str(number), "parameters": request.get("parameters") or None}
        result = client.infer(task["model"], inputs_of(request), **named, **SCHEDULING)
        answers.append(plain(result.as_numpy(OUTPUT)))
        ids.append(result.get_response().id)
    return answers, ids


def stream(client: Any, task: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """All requests are sent before the first answer is read."""
    found: queue.Queue[Any] = queue.Queue()
    client.start_stream(callback=lambda result, error: found.put((result, error)))
    answers, ids = [], []
    for number, request in enumerate(task["requests"]):
        parameters = request.get("parameters") or None
        client.async_stream_infer(task["model"], inputs_of(request), request_id=str(number), parameters=parameters)
    for _ in task["requests"]:
        result, error = found.get(timeout=60)
        if error is not None:
            raise error
        answers.append(plain(result.as_numpy(OUTPUT)))
        ids.append(result.get_response().id)
    client.stop_stream()
    return answers, ids


def run(task: dict[str, Any]) -> dict[str, Any]:
    client, model = triton.InferenceServerClient(task["grpc"]), task["model"]
    answers, ids = {"unary": unary, "stream": stream}[sys.argv[1]](client, task)
    errors = []
    for name, wanted in (("nobody", OUTPUT), (model, "nothing")):
        try:
            client.infer(name, inputs_of(task["requests"][0]), outputs=[triton.InferRequestedOutput(wanted)])
        except InferenceServerException as error:
            errors.append([error.status(), error.message()])
    return {
        "answers": answers,
        "ids": ids,
        "errors": errors,
        "live": client.is_server_live(),
        "ready": [client.is_server_ready(), client.is_model_ready(model)],
        "metadata": client.get_model_metadata(model, as_json=True),
        "config": client.get_model_config(model, as_json=True)["config"],
        "server": client.get_server_metadata(as_json=True),
    }


answer(run)
