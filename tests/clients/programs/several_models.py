"""Lists the models of a service, and chooses among them, with tritonclient, the openai client and KServe's SDK.

The argument names the client: KServe's SDK and tritonclient can't be imported together, since both register the same
protocol.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from typing import Any


def with_tritonclient(module: Any, address: str, task: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    client = module.InferenceServerClient(address)
    index = client.get_model_repository_index()
    names = [item["name"] for item in index] if isinstance(index, list) else [item.name for item in index.models]
    answers = {}
    for name, text in task["texts"].items():
        assert client.is_model_ready(name)
        given = module.InferInput("text", [1], "BYTES")
        given.set_data_from_numpy(np.array([text], dtype=object))
        result = client.infer(name, [given])
        response = result.get_response()
        assert (response["model_name"] if isinstance(response, dict) else response.model_name) == name
        output = response["outputs"][0]["name"] if isinstance(response, dict) else response.outputs[0].name
        answer = result.as_numpy(output).ravel()[0]
        answers[name] = answer.decode() if isinstance(answer, bytes) else int(answer)
    key = {"x-api-key": task["key"]}
    client.unload_model(task["unload"], headers=key)
    unloaded = client.is_model_ready(task["unload"])
    client.load_model(task["unload"], headers=key)
    return {"names": names, "answers": answers, "ready": [unloaded, client.is_model_ready(task["unload"])]}


def with_openai(address: str, task: dict[str, Any]) -> dict[str, Any]:
    import openai

    client = openai.OpenAI(base_url=f"http://{address}/openai/v1", api_key="none")
    names = [model.id for model in client.models.list()]
    vector = client.embeddings.create(model=task["embedder"], input="a")
    text = client.completions.create(
        model=task["generator"], prompt="The capital of france is", max_tokens=3, temperature=0
    )
    return {"names": names, "models": [vector.model, text.model], "text": text.choices[0].text}


async def with_kserve(address: str, task: dict[str, Any]) -> dict[str, Any]:
    from kserve import InferenceRESTClient, RESTConfig

    client = InferenceRESTClient(RESTConfig(protocol="v1"))
    base, answers = f"http://{address}", {}
    for name, text in task["texts"].items():
        assert await client.is_model_ready(base, name)
        answers[name] = (await client.infer(base, {"instances": [text]}, model_name=name))["predictions"][0]
    return {"answers": answers}


if __name__ == "__main__":
    asked, program = json.load(sys.stdin), sys.argv[1]
    if program in ("http", "grpc"):
        found = with_tritonclient(import_module(f"tritonclient.{program}"), asked[program], asked)
    elif program == "openai":
        found = with_openai(asked["http"], asked)
    else:
        found = asyncio.run(with_kserve(asked["http"], asked))
    print(json.dumps(found))
