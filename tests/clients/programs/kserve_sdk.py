"""KServe's Python SDK; the argument says which of its clients: rest or grpc (which sends typed contents)."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

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


async def rest(task: dict[str, Any]) -> dict[str, Any]:
    client, model = InferenceRESTClient(RESTConfig(protocol="v2")), task["model"]
    url = f"http://{task['http']}"
    answers, ids = [], []
    for number, request in enumerate(task["requests"]):
        response = await client.infer(url, request_of(number, model, request), model_name=model)
        answers.append(output(response))
        ids.append(response.id)
    ready = [await client.is_server_ready(url), await client.is_model_ready(url, model)]
    errors = []
    try:
        await client.infer(url, request_of(0, "nobody", task["requests"][0]), model_name="nobody")
    except httpx.HTTPStatusError as error:
        errors.append([str(error.response.status_code), error.response.text])
    result = {"answers": answers, "ids": ids, "errors": errors, "live": await client.is_server_live(url)}
    await client.close()
    return result | {"ready": ready}


async def grpc(task: dict[str, Any]) -> dict[str, Any]:
    async with InferenceGRPCClient(task["grpc"]) as client:
        answers, ids = [], []
        for number, request in enumerate(task["requests"]):
            response = await client.infer(request_of(number, task["model"], request))
            answers.append(output(response))
            ids.append(response.id)
        ready = [await client.is_server_ready(), await client.is_model_ready(task["model"])]
        return {"answers": answers, "ids": ids, "live": await client.is_server_live(), "ready": ready}


answer(lambda task: asyncio.run({"rest": rest, "grpc": grpc}[sys.argv[1]](task)))
