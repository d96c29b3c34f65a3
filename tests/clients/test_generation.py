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
    said = client("openai_package", kind, service=service, prompt=PROMPT, message=MESSAGE, end=tokens["ids"][-1])
    assert "paris" in text
    whole = said["completion"]
    assert whole["choices"][0]["text"] == said["completion_stream"]["text"] == text
    assert said["completion_stream"]["finish"] == [whole["choices"][0]["finish_reason"]]
    usage = {name: whole["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert said["completion_stream"]["usage"] == [usage]
    assert said["several"] == [text, text]
    chat = said["chat"]["choices"][0]
    assert said["chat_stream"]["text"] == chat["message"]["content"]
    assert said["chat_stream"]["role"] == ["assistant"]
    assert said["chat_stream"]["finish"] == [chat["finish_reason"]]
    assert said["tools"] == "assistant"
    assert said["extra"] > usage["completion_tokens"]
    assert said["again"]
    [ended] = said["ended"]["choices"]
    assert text.startswith(ended["text"]) and ended["text"] != text and ended["finish_reason"] == "stop"
    assert said["lost"][1] == 404 and "expected /openai/v1/chat/completions" in said["lost"][3]
    wrong = [["BadRequestError", 400, name] for name in ("num_beams", "messages", "response_format")]
    assert [one[:3] for one in said["errors"]] == [["NotFoundError", 404, "model"], *wrong]


def test_langchain(service: Service, client: Run) -> None:
    said = client("langchain_chat", service=service, prompt=PROMPT, message=MESSAGE, question=QUESTION, tool=TOOL)
    assert said["chat"] and said["chat"] == said["chat_stream"] == said["chat_async"] == said["chat_async_stream"]
    assert said["again"]
    assert said["completion"] == said["completion_stream"] == completed(service)["choices"][0]["text"]
    assert said["usage"]["output_tokens"] <= 8
    found = said["responses"]
    assert found["text"] == found["stream"] and found["text"].startswith(said["chat"])
    assert found["usage"]["output_tokens"] > 0
    assert found["call"] == CALL and found["invoked"] == CALL[1]
    assert found["again"] and found["answered"]


def test_the_openai_package_with_responses(service: Service, client: Run) -> None:
    said = client("openai_responses", service=service, message=MESSAGE, question=QUESTION, tool=TOOL)
    text = said["text"]
    assert text and {text, said["stream"], said["final"], *said["awaited"]} == {said["chat"]}
    assert said["stream_end"] == ["response.completed", text]
    assert said["again"] and said["cut"] == "max_output_tokens"
    assert said["tool"] == ["function_call", json.dumps(CALL[1])]
    assert said["called"][:2] == CALL and said["called"][2]
    wrong = ["store", "previous_response_id", "tools[0]", "input[0]"]
    assert [one[:3] for one in said["errors"]] == [
        ["NotFoundError", 404, "model"],
        *(["BadRequestError", 400, name] for name in wrong),
    ]


def test_the_ai_sdk(service: Service, client: Run) -> None:
    said = client("ai_sdk", service=service, message=MESSAGE, question=QUESTION, tool=TOOL)
    assert said["text"] and said["stream"]["text"] == said["text"] and said["warnings"] == []
    assert (said["finish"], said["stream"]["finish"], said["cut"]) == ("stop", "stop", "length")
    assert said["stream"]["usage"] == said["usage"] and said["usage"]["outputTokens"] > 0
    assert (said["called"], said["results"], said["steps"]) == ([CALL], ["sunny in paris"], 2)
    assert said["loop"] and said["loop_stream"]["text"] == said["loop"] and said["loop_stream"]["steps"] == 2
    assert said["again"]
    status, message = said["reference"]
    assert status == 400 and "send the item itself" in message


def test_libraries_of_agents(client: Run, serve: Serve) -> None:
    """docs/clients.md has the settings, and what each one can't do."""
    said = client("agents_libraries", service=serve(*MODELS["tokens"]), message=MESSAGE)
    for name in (
        *("openai_agents", "openai_agents_stream", "openai_agents_tools", "pydantic_ai", "pydantic_ai_tools"),
        *("openai_agents_responses", "openai_agents_responses_stream", "pydantic_ai_responses"),
        *("smolagents", "huggingface_hub"),
    ):
        assert said[name][0] == "answered" and said[name][1], said[name]
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
        kind, message = said[name]
        assert kind != "answered" and status in message and words in message, said[name]


@pytest.mark.parametrize("shape", [[1], [1, 1]], ids=str)
def test_tritonclient(service: Service, client: Run, shape: list[int]) -> None:
    """The client of the vLLM backend, as it is, in front of every kind of model: the texts are those of generate."""
    sampling = {"temperature": "0", "max_tokens": "8"}
    prompts = [f"The capital of {country} is" for country in ("france", "italy", "japan")]
    said = client("triton_vllm", service=service, prompts=prompts, sampling=sampling, shape=shape)
    for number, prompt in enumerate(prompts):
        body = {"text_input": prompt, "temperature": 0, "max_tokens": 8, "return_num_output_tokens": True}
        body |= {"return_finish_reason": True, "return_num_input_tokens": True}
        found = service.client.post(f"/v2/models/{service.model}/generate", json=body).json()
        text = found["text_output"]
        assert text.startswith(prompt) and len(text) > len(prompt)
        assert said["sample"][str(number)] == [text]
        for pieces in (said["sample_stream"][str(number)], said["pieces"][str(number)]):
            assert len(pieces) > 1 and f"{prompt}{''.join(pieces)}" == text
        assert said["whole"][number].startswith(text[:20])
        for kind in ("callback", "callback_stream"):
            one = said[kind][str(number)]
            assert f"{prompt}{one['text']}" == text
            assert (one["new"], set(one["prompt"])) == (found["num_output_tokens"], {found["num_input_tokens"]})
            assert one["finish"][-1] == found["finish_reason"] and set(one["finish"][:-1]) <= {"None"}
    assert "sampling_parameters.prompt_logprobs: expected one of" in said["failure"]


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
