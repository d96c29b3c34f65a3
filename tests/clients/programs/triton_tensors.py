"""tritonclient; the argument says how tensors travel: json or binary over HTTP, unary or stream over gRPC."""

from __future__ import annotations

import queue
import sys
from typing import Any

import tritonclient.grpc
import tritonclient.http
from task import OUTPUT, SCHEDULING, answer, elements, plain
from tritonclient.utils import InferenceServerException

KIND = sys.argv[1]
OVER_HTTP = KIND in ("json", "binary")
triton: Any = tritonclient.http if OVER_HTTP else tritonclient.grpc
BINARY = {"binary_data": KIND == "binary"} if OVER_HTTP else {}
AS_JSON = {} if OVER_HTTP else {"as_json": True}


def inputs_of(request: dict[str, Any]) -> list[Any]:
    inputs = []
    for name, value in request["inputs"].items():
        array = elements(value)
        tensor = triton.InferInput(name, list(array.shape), "BYTES")
        tensor.set_data_from_numpy(array, **BINARY)
        inputs.append(tensor)
    return inputs


def fields_of(number: int, request: dict[str, Any]) -> dict[str, Any]:
    fields = {"request_id": str(number), "parameters": request.get("parameters") or None}
    return fields if KIND == "stream" else {**fields, **SCHEDULING}


def one_by_one(client: Any, task: dict[str, Any]) -> list[Any]:
    outputs = [triton.InferRequestedOutput(OUTPUT, **BINARY)] if OVER_HTTP else None
    return [
        client.infer(task["model"], inputs_of(request), outputs=outputs, **fields_of(number, request))
        for number, request in enumerate(task["requests"])
    ]


def streamed(client: Any, task: dict[str, Any]) -> list[Any]:
    """All requests are sent before the first answer is read."""
    arrived: queue.Queue[Any] = queue.Queue()
    client.start_stream(callback=lambda result, error: arrived.put((result, error)))
    for number, request in enumerate(task["requests"]):
        client.async_stream_infer(task["model"], inputs_of(request), **fields_of(number, request))
    results = []
    for _ in task["requests"]:
        result, error = arrived.get(timeout=60)
        if error is not None:
            raise error
        results.append(result)
    client.stop_stream()
    return results


def run(task: dict[str, Any]) -> dict[str, Any]:
    model = task["model"]
    client = triton.InferenceServerClient(task["http" if OVER_HTTP else "grpc"])
    results = (streamed if KIND == "stream" else one_by_one)(client, task)
    errors = []
    for name, wanted in (("nobody", OUTPUT), (model, "nothing")):
        try:
            outputs = [triton.InferRequestedOutput(wanted)]
            client.infer(name, inputs_of(task["requests"][0]), outputs=outputs)
        except InferenceServerException as error:
            errors.append([error.status(), error.message()])
    config = client.get_model_config(model, **AS_JSON)
    return {
        "answers": [plain(result.as_numpy(OUTPUT)) for result in results],
        "ids": [result.get_response()["id"] if OVER_HTTP else result.get_response().id for result in results],
        "errors": errors,
        "live": client.is_server_live(),
        "ready": [client.is_server_ready(), client.is_model_ready(model)],
        "metadata": client.get_model_metadata(model, **AS_JSON),
        "config": config if OVER_HTTP else config["config"],
        "server": client.get_server_metadata(**AS_JSON)["name"],
    }


answer(run)
