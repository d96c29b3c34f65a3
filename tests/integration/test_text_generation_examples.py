"""The requests for text generation in KServe's, Triton's and our own documents, answered as is shown there."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from hf_transformer.protocol.grpc import decode_infer_response
from hf_transformer.types import Tensor
from tests.integration.conftest import ROOT, Serve
from tests.integration.generating import start
from tests.integration.grpc_client import request, stub
from tests.service import Service

KINDS = ["gpt2_past", "gpt2_tokens", "gpt2_vllm"]
PARIS = "The capital of france is"


@pytest.fixture(params=KINDS)
def service(request: pytest.FixtureRequest, serve: Serve) -> Service:
    return start(serve, request.param)


def test_openai_completions(service: Service) -> None:
    """KServe's huggingfaceserver, README."""
    body = {"model": service.model, "prompt": PARIS, "stream": False, "max_tokens": 30}
    found = service.client.post("/openai/v1/completions", json=body).json()
    assert found.keys() == {"id", "choices", "created", "model", "object", "usage"}
    assert found["id"].startswith("cmpl-")
    assert found["object"] == "text_completion"
    (choice,) = found["choices"]
    assert choice.keys() == {"finish_reason", "index", "logprobs", "text"}
    usage = found["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens"] == 7


def test_openai_chat(service: Service) -> None:
    """KServe's huggingfaceserver, README."""
    messages = [{"role": "user", "content": "What is the capital of france?"}]
    body = {"model": service.model, "messages": messages, "stream": False}
    found = service.client.post("/openai/v1/chat/completions", json=body).json()
    assert found.keys() == {"id", "choices", "created", "model", "object", "usage"}
    assert found["object"] == "chat.completion"
    (choice,) = found["choices"]
    assert choice.keys() == {"finish_reason", "index", "message", "logprobs"}
    assert choice["message"].keys() == {"content", "role", "refusal"}
    assert choice["message"]["role"] == "assistant"


def test_v1(service: Service) -> None:
    """KServe's guide to the Hugging Face runtime."""
    prompt = "The future of artificial intelligence is"
    body = {
        "instances": [prompt],
        "parameters": {"max_length": 50, "temperature": 0.7, "do_sample": True},
    }
    response = service.post(body)
    assert response.status_code == 200
    ((answer,),) = response.json()["predictions"]
    assert answer.keys() == {"generated_text"}
    assert answer["generated_text"].startswith(prompt)


def test_v1_streaming(service: Service) -> None:
    """The guide's client: every line that is not empty is JSON."""
    data = {"instances": [PARIS], "parameters": {"max_length": 100, "stream": True}}
    url = f"/v1/models/{service.model}:predict"
    with service.client.stream("POST", url, json=data) as response:
        lines = [json.loads(line) for line in response.iter_lines() if line]
    assert lines[-1]["generated_text"] == f"{PARIS} paris."
    assert len(lines) > 2
    assert "".join(line["text"] for line in lines).endswith("paris.")


def test_the_tutorials_requests(serve: Serve) -> None:
    """Triton's Hugging Face tutorial, against the service instead of Triton."""
    service = start(serve, "gpt2_tutorial")
    path = f"/v2/models/{service.model}"
    generated = service.client.post(f"{path}/generate", json={"text_input": "How can you be"})
    assert generated.status_code == 200
    assert generated.json() == {
        "model_name": "gpt2_tutorial",
        "model_version": "1",
        "text_output": "How can you beijing is the capital of china.",
    }
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [PARIS]}
    inferred = service.client.post(f"{path}/infer", json={"inputs": [tensor]})
    assert inferred.status_code == 200
    (output,) = inferred.json()["outputs"]
    assert (output["datatype"], output["shape"], output["data"]) == ("BYTES", [1], [f"{PARIS} paris."])


def test_generate_stream(service: Service) -> None:
    """Triton's generate extension, as clients of the vLLM backend use it."""
    body = {"text_input": PARIS, "parameters": {"stream": True, "temperature": 0, "max_tokens": 20}}
    with service.client.stream("POST", f"/v2/models/{service.model}/generate_stream", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    pieces = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert all(piece["model_name"] == service.model for piece in pieces)
    assert "".join(piece["text_output"] for piece in pieces) == " paris."


def test_grpc_stream(service: Service) -> None:
    """ModelStreamInfer: one response for each piece."""
    message = request(service.model, {"text_input": [PARIS]}, parameters={"stream": True, "max_new_tokens": 20})
    with stub(service) as calls:
        responses = list(calls.ModelStreamInfer(iter([message])))
    assert not any(response.error_message for response in responses)
    found = [decode_infer_response(one.infer_response.SerializeToString()) for one in responses]
    assert "".join(text for tensors in found for text in _texts(tensors)).endswith(" paris.")
    assert len(responses) > 2


def _texts(tensors: Any) -> list[str]:
    tensor: Tensor
    (tensor,) = tensors.values()
    return [text.decode() for text in tensor.data.flat]


PAGE = (ROOT / "docs" / "text_generation.md").read_text()
EXAMPLE = re.compile(r"```sh\n(?P<command>curl [^\n]+)\n```\n\n```json\n(?P<answer>.+?)\n```", re.DOTALL)
EXAMPLES = list(EXAMPLE.finditer(PAGE))


def test_every_request_of_the_page_has_an_answer() -> None:
    assert PAGE.count("curl -s") == len(EXAMPLES) > 5


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda match: str(match.start()))
def test_the_requests_of_the_page(serve: Serve, example: re.Match[str]) -> None:
    found = re.search(r"/models/(\w+)[:/]|\"model\": \"(\w+)\"", example["command"])
    assert found is not None
    service = start(serve, found[1] or found[2])
    command = example["command"].replace("localhost:8080", service.url)
    output = subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True, timeout=60).stdout
    assert _without_chance(json.loads(output)) == _without_chance(json.loads(example["answer"]))


def _without_chance(answer: Any) -> Any:
    """An answer without what differs each time."""
    if isinstance(answer, list):
        return [_without_chance(one) for one in answer]
    if not isinstance(answer, dict):
        return answer
    return {name: None if name in ("id", "created") else _without_chance(one) for name, one in answer.items()}
