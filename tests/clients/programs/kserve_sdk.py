"""KServe's Python SDK; the argument says which of its clients: rest or grpc (which sends typed contents)."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import httpx
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from task import OUTPUT, answer, elements, plain


def request_of(number: int, model: str, request: dict[str, Any]) -> InferRequest:
    inputs = []
    for name, value in request["inputs"].items():
        array = elements(value)
        texts = [one.decode() for one in array.reshape(-1)]
        inputs.append(InferInput(name=name, shape=list(array.shape), datatype="BYTES", data=texts))
    return InferRequest(model, inputs, request_id=str(number), parameters=request.get("parameters") or {})


def output(response: Any) -> Any:
    (found,) = [one for one in response.outputs if one.name == OUTPUT]
    return plain(found.as_numpy())


async def use(task: dict[str, Any], kind: str) -> dict[str, Any]:
    url, model = f"http://{task['http']}", task["model"]
    client: Any = (
        InferenceRESTClient(RESTConfig(protocol="v2")) if kind == "rest" else InferenceGRPCClient(task["grpc"])
    )
    about = (url,) if kind == "rest" else ()

    async def infer(number: int, name: str) -> Any:
        named = {"model_name": name} if kind == "rest" else {}
        return await client.infer(*about, request_of(number, name, task["requests"][number]), **named)

    responses = [await infer(number, model) for number in range(len(task["requests"]))]
    errors = []
    try:
        await infer(0, "nobody")
    except httpx.HTTPStatusError as error:
        errors.append([str(error.response.status_code), error.response.text])
    except grpc.RpcError as error:
        errors.append([error.code().name, error.details()])
    result = {
        "answers": [output(response) for response in responses],
        "ids": [response.id for response in responses],
        "errors": errors,
        "live": await client.is_server_live(*about),
        "ready": [await client.is_server_ready(*about), await client.is_model_ready(*about, model)],
    }
    await client.close()
    return result


answer(lambda task: asyncio.run(use(task, sys.argv[1])))
