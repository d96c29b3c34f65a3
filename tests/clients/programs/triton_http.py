"""tritonclient over HTTP; the argument says how tensors travel: json or binary."""

from __future__ import annotations

import sys
from typing import Any

import tritonclient.http as triton
from task import OUTPUT, SCHEDULING, answer, elements, plain
from tritonclient.utils import InferenceServerException


def run(task: dict[str, Any]) -> dict[str, Any]:
    binary = sys.argv[1] == "binary"
    client, model = triton.InferenceServerClient(task["http"]), task["model"]
    answers, ids = [], []
    for number, request in enumerate(task["requests"]):
        inputs = []
        for name, value in request["inputs"].items():
            array = elements(value)
            tensor = triton.InferInput(name, list(array.shape), "BYTES")
            tensor.set_data_from_numpy(array, binary_data=binary)
            inputs.append(tensor)
        outputs = [triton.InferRequestedOutput(OUTPUT, binary_data=binary)]
        parameters = request.get("parameters") or None
        result = client.infer(
            model, inputs, outputs=outputs, request_id=str(number), parameters=parameters, **SCHEDULING
        )
        answers.append(plain(result.as_numpy(OUTPUT)))
        ids.append(result.get_response()["id"])
    errors = []
    for name, wanted in (("nobody", OUTPUT), (model, "nothing")):
        try:
            client.infer(name, inputs, outputs=[triton.InferRequestedOutput(wanted)])
        except InferenceServerException as error:
            errors.append([error.status(), error.message()])
    return {
        "answers": answers,
        "ids": ids,
        "errors": errors,
        "live": client.is_server_live(),
        "ready": [client.is_server_ready(), client.is_model_ready(model)],
        "metadata": client.get_model_metadata(model),
        "config": client.get_model_config(model),
        "server": client.get_server_metadata(),
    }


answer(run)
