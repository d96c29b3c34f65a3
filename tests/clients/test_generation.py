"""Clients that others wrote, on text generation: the openai package, langchain, tritonclient, curl and requests."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.clients.conftest import Run
from tests.integration.conftest import Serve
from tests.support.service import Service

MODELS = {"tokens": ("gpt2_tokens", "grpc-v2"), "logits": ("gpt2_logits", "v2"), "text": ("gpt2_vllm", "grpc-v2")}
PROMPT = "The capital of france is"
MESSAGE = "What is the capital of france?"
QUESTION = "What is the weather in paris?"
TOOL: dict[str, Any] = {
    **{"type": "function", "name": "get_weather", "description": "The weather in a city"},
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
"""The question and the tool that the demo model knows, in the form of the Responses API."""
CALL = ["get_weather", {"city": "paris"}]


@pytest.fixture(params=MODELS)
def service(request: pytest.FixtureRequest, serve: Serve) -> Service:
    return serve(*MODELS[request.param])


def completed(service: Service, **fields: Any) -> Any:
    body = {"model": service.model, "prompt": PROMPT, "temperature": 0, "max_tokens": 8, **fields}
    return service.client.post("/openai/v1/completions", json=body).json()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_openai_package(service: Service, client: Run, kind: str) -> None:
    text = completed(service)["choices"][0]["text"]
    asked = {"instances": [text], "parameters": {"add_special_tokens": False}}
    [tokens] = service.client.post(f"/v1/models/{service.model}:tokenize", json=asked).json()["predictions"]
    results = client("openai_package", kind, service=service, prompt=PROMPT, message=MESSAGE, end=tokens["ids"][-1])
    assert "paris" in text
    whole = results["completion"]
    assert whole["choices"][0]["text"] == results["completion_stream"]["text"] == text
    assert results["completion_stream"]["finish"] == [whole["choices"][0]["finish_reason"]]
    usage = {name: whole["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert results["completion_stream"]["usage"] == [usage]
    assert results["several"] == [text, text]
    chat = results["chat"]["choices"][0]
    assert results["chat_stream"]["text"] == chat["message"]["content"]
    assert results["chat_stream"]["role"] == ["assistant"]
    assert results["chat_stream"]["finish"] == [chat["finish_reason"]]
    assert results["tools"] == "assistant"
    assert results["extra"] > usage["completion_tokens"]
    assert results["again"]
    [ended] = results["ended"]["choices"]
    assert text.startswith(ended["text"]) and ended["text"] != text and ended["finish_reason"] == "stop"
    assert results["lost"][1] == 404 and "expected /openai/v1/chat/completions" in results["lost"][3]
    wrong = [["BadRequestError", 400, name] for name in ("num_beams", "messages", "response_format.type")]
    assert [one[:3] for one in results["errors"]] == [["NotFoundError", 404, "model"], *wrong]


def test_langchain(service: Service, client: Run) -> None:
    results = client("langchain_chat", service=service, prompt=PROMPT, message=MESSAGE, question=QUESTION, tool=TOOL)
    assert (
        results["chat"]
        and results["chat"] == results["chat_stream"] == results["chat_async"] == results["chat_async_stream"]
    )
    assert results["again"]
    assert results["completion"] == results["completion_stream"] == completed(service)["choices"][0]["text"]
    assert results["usage"]["output_tokens"] <= 8
    responses = results["responses"]
    assert responses["text"] == responses["stream"] and responses["text"].startswith(results["chat"])
    assert responses["usage"]["output_tokens"] > 0
    assert responses["call"] == CALL and responses["invoked"] == CALL[1]
    assert responses["again"] and responses["answered"]


def test_the_openai_package_with_responses(service: Service, client: Run) -> None:
    results = client("openai_responses", service=service, message=MESSAGE, question=QUESTION, tool=TOOL)
    text = results["text"]
    assert text and {text, results["stream"], results["final"], *results["awaited"]} == {results["chat"]}
    assert results["stream_end"] == ["response.completed", text]
    assert results["again"] and results["cut"] == "max_output_tokens"
    assert results["tool"] == ["function_call", json.dumps(CALL[1])]
    assert results["called"][:2] == CALL and results["called"][2]
    wrong = ["store", "previous_response_id", "tools[0].type", "input[0]"]
    assert [one[:3] for one in results["errors"]] == [
        ["NotFoundError", 404, "model"],
        *(["BadRequestError", 400, name] for name in wrong),
    ]


def test_the_ai_sdk(service: Service, client: Run) -> None:
    results = client("ai_sdk", service=service, message=MESSAGE, question=QUESTION, tool=TOOL)
    assert results["text"] and results["stream"]["text"] == results["text"] and results["warnings"] == []
    assert (results["finish"], results["stream"]["finish"], results["cut"]) == ("stop", "stop", "length")
    assert results["stream"]["usage"] == results["usage"] and results["usage"]["outputTokens"] > 0
    assert (results["called"], results["results"], results["steps"]) == ([CALL], ["sunny in paris"], 2)
    assert (
        results["loop"] and results["loop_stream"]["text"] == results["loop"] and results["loop_stream"]["steps"] == 2
    )
    assert results["again"]
    status, message = results["reference"]
    assert status == 400 and "send the item itself" in message


def test_libraries_of_agents(client: Run, serve: Serve) -> None:
    """docs/clients.md has the settings, and what each one can't do."""
    results = client("agents_libraries", service=serve(*MODELS["tokens"]), message=MESSAGE)
    for name in (
        *("openai_agents", "openai_agents_stream", "openai_agents_tools", "pydantic_ai", "pydantic_ai_tools"),
        *("openai_agents_responses", "openai_agents_responses_stream", "pydantic_ai_responses"),
        *("smolagents", "huggingface_hub"),
    ):
        assert results[name][0] == "answered" and results[name][1], results[name]
    for name, status, words in (
        (
            "openai_agents_strict",
            "400",
            "strict: expected a parameter that this tokens model supports; it has no inputs",
        ),
        (
            "huggingface_hub_root",
            "got 'gpt2_tokens' for text_generation",
            "as /v2/models/NAME/generate and the OpenAI API do",
        ),
        ("cohere_v2", "400", "model: expected a model for rerank, got 'gpt2_tokens' for text_generation"),
    ):
        kind, message = results[name]
        assert kind != "answered" and status in message and words in message, results[name]


@pytest.mark.parametrize("shape", [[1], [1, 1]], ids=str)
def test_tritonclient(service: Service, client: Run, shape: list[int]) -> None:
    """The client of the vLLM backend, as it is, in front of every kind of model: the texts are those of generate."""
    sampling = {"temperature": "0", "max_tokens": "8"}
    prompts = [f"The capital of {country} is" for country in ("france", "italy", "japan")]
    results = client("triton_vllm", service=service, prompts=prompts, sampling=sampling, shape=shape)
    for number, prompt in enumerate(prompts):
        body = {"text_input": prompt, "temperature": 0, "max_tokens": 8, "return_num_output_tokens": True}
        body |= {"return_finish_reason": True, "return_num_input_tokens": True}
        answer = service.client.post(f"/v2/models/{service.model}/generate", json=body).json()
        text = answer["text_output"]
        assert text.startswith(prompt) and len(text) > len(prompt)
        assert results["sample"][str(number)] == [text]
        for pieces in (results["sample_stream"][str(number)], results["pieces"][str(number)]):
            assert len(pieces) > 1 and f"{prompt}{''.join(pieces)}" == text
        assert results["whole"][number].startswith(text[:20])
        for kind in ("callback", "callback_stream"):
            one = results[kind][str(number)]
            assert f"{prompt}{one['text']}" == text
            assert (one["new"], set(one["prompt"])) == (answer["num_output_tokens"], {answer["num_input_tokens"]})
            assert one["finish"][-1] == answer["finish_reason"] and set(one["finish"][:-1]) <= {"None"}
    assert "sampling_parameters.prompt_logprobs: expected one of" in results["failure"]


def test_the_sample_of_the_runtime_guide(service: Service) -> None:
    """Its stream_generate (Streaming Responses), with httpx in place of requests."""
    body = {"instances": [PROMPT], "parameters": {"max_length": 100, "stream": True}}
    with service.client.stream("POST", f"/v1/models/{service.model}:predict", json=body) as response:
        found = [json.loads(line) for line in response.iter_lines() if line]
    assert "".join(one["text"] for one in found) == found[-1]["generated_text"]
    assert found[-1]["generated_text"].startswith(PROMPT)


@pytest.mark.parametrize("path", ["openai/v1/completions", "v2/models/{model}/generate_stream"])
def test_curl(service: Service, path: str) -> None:
    curl = shutil.which("curl")
    assert curl is not None
    body: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "stream": True}
    body |= {"model": service.model, "prompt": PROMPT} if "openai" in path else {"text_input": PROMPT}
    url = f"{service.url}/{path.format(model=service.model)}"
    command = [curl, "-sN", "--noproxy", "*", "--max-time", "60", url, "-d", json.dumps(body)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    events = [line.removeprefix("data: ") for line in said.split("\n\n") if line]
    new = completed(service)["choices"][0]["text"]
    if "openai" in path:
        assert events.pop() == "[DONE]"
        assert "".join(json.loads(one)["choices"][0]["text"] for one in events) == new
    else:
        assert "".join(json.loads(one)["text_output"] for one in events) == new
