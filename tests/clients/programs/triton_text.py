"""tritonclient over gRPC on a model that writes text. Beside what every program is given it takes "prompt", and answers
with the text of one call, with the pieces of a stream and with those of several requests of one stream."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from task import OUTPUT, answer


def prompt_of(text: str) -> list[triton.InferInput]:
    tensor = triton.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], dtype=np.object_))
    return [tensor]


def run(task: dict[str, Any]) -> dict[str, Any]:
    client = triton.InferenceServerClient(task["grpc"])
    model, inputs = task["model"], prompt_of(task["prompt"])
    whole = client.infer(model, inputs).as_numpy(OUTPUT)
    found: queue.Queue[Any] = queue.Queue()
    client.start_stream(callback=lambda result, error: found.put((result, error)))
    parameters = {"stream": True, "return_full_text": False, "max_tokens": 8}
    ids = [str(number) for number in range(8)]
    for one in ids:
        client.async_stream_infer(
            model, inputs, request_id=one, parameters=parameters, enable_empty_final_response=True
        )
    pieces: dict[str, list[str]] = {one: [] for one in ids}
    left = len(ids)
    while left:
        result, error = found.get(timeout=60)
        if error is not None:
            raise error
        response = result.get_response()
        pieces[response.id].append(result.as_numpy(OUTPUT)[0].decode())
        left -= response.parameters["triton_final_response"].bool_param
    client.stop_stream()
    return {"whole": whole[0].decode(), "pieces": pieces}


answer(run)
