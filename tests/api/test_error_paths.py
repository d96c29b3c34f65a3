"""Errors as data: the client's path of a field comes from the error's path in every API, never from its message."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from hf_transformer.errors import FieldError, InvalidInput, Path, TooLarge, show_path
from hf_transformer.observability.metrics import Metrics
from hf_transformer.server.asgi import AsgiApplication
from tests.api.generating import PROMPT, ServedModel, answer_of, application, loaded, post, served_model
from tests.generation.scripted import LIMITS
from tests.integration.api.grpc_model import ScriptedModel, raising, service_of, serving, status_of
from tests.integration.api.grpc_model import request as grpc_request
from tests.support.triton_repository import task_model_folder

OPENAI, V1, V2 = "/openai/v1", "/v1/models/gpt2", "/v2/models/gpt2"
COMPLETION = {"model": "gpt2", "prompt": PROMPT}
CHAT = {"model": "gpt2", "messages": [{"role": "user", "content": "Hi"}]}
TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [PROMPT]}
BACKEND = [{**TENSOR, "name": "text_input"}, {**TENSOR, "name": "stop_words", "data": ["x" * 1001]}]
MANY = [BACKEND[0], {**TENSOR, "name": "stop_words", "shape": [17], "data": [""] * 17}]
NESTED = "parameters.structured_outputs.no"
SAMPLING = {"sampling_parameters": '{"top_p": 9}'}

CASES: list[tuple[str, Any, int, str]] = [
    (f"{OPENAI}/completions", {**COMPLETION, "top_k": "x"}, 400, "top_k"),
    (f"{OPENAI}/completions", {**COMPLETION, "stream": True, "max_tokens": 0}, 400, "max_tokens"),
    (f"{OPENAI}/completions", {**COMPLETION, "prompt": ["a", ""]}, 400, "prompt[1]"),
    (f"{OPENAI}/completions", {**COMPLETION, "prompt": ""}, 400, "prompt"),
    (f"{OPENAI}/completions", {**COMPLETION, "n": 200}, 413, "n"),
    (f"{OPENAI}/completions", {**COMPLETION, "model": "bert"}, 404, "model"),
    (f"{OPENAI}/completions", {**COMPLETION, "num-beams": 1}, 400, "num-beams"),
    (f"{OPENAI}/completions", [1], 400, "body"),
    (f"{OPENAI}/chat/completions", {**CHAT, "messages": [{"role": "me"}]}, 400, "messages[0].role"),
    (f"{OPENAI}/chat/completions", {**CHAT, "max_completion_tokens": 0}, 400, "max_completion_tokens"),
    (f"{OPENAI}/embeddings", {"model": "gpt2", "input": "a", "store": 1}, 400, "store"),
    (f"{OPENAI}/embeddings", {"model": "gpt2", "input": "a"}, 400, "model"),
    (f"{OPENAI}/rerank", {"model": "gpt2", "query": "a", "priority": 1}, 400, "priority"),
    (f"{V1}:predict", {"instances": 7}, 400, "instances"),
    (f"{V1}:predict", {"instances": [PROMPT], "parameters": {"top_k": "x"}}, 400, "parameters.top_k"),
    (f"{V1}:predict", {"instances": [PROMPT], "parameters": {"stream": True, "n": 0}}, 400, "parameters.n"),
    (f"{V1}:tokenize", {"instances": [7]}, 400, "instances[0]"),
    (f"{V1}:detokenize", {"instances": [[10**6]]}, 400, "instances[0]"),
    (f"{V2}/infer", {"inputs": [TENSOR], "parameters": {"top_k": "x"}}, 400, "parameters.top_k"),
    (f"{V2}/infer", {"inputs": BACKEND}, 413, "stop_words"),
    (f"{V2}/infer", {"inputs": MANY}, 413, "inputs[1].shape"),
    (f"{V2}/infer", {"inputs": BACKEND[:1], "outputs": [{"name": "text_output"}, {"name": "x"}]}, 400, "outputs"),
    (f"{V2}/generate", {"text_input": PROMPT, "max_tokens": 0}, 400, "max_tokens"),
    (f"{V2}/generate", {"text_input": PROMPT, "parameters": {"random_seed": "x"}}, 400, "parameters.random_seed"),
    (
        f"{V2}/generate_stream",
        {"text_input": PROMPT, "sampling_parameters": '{"top_p": 9}'},
        400,
        "sampling_parameters.top_p",
    ),
    (f"{V2}/generate_stream", {"text_input": 7}, 400, "text_input"),
    (f"{V2}/generate", {"text_input": PROMPT, "structured_outputs": {"no": 1}}, 400, "structured_outputs.no"),
    (f"{V2}/generate", {"text_input": PROMPT, "parameters": {"structured_outputs": {"no": 1}}}, 400, NESTED),
    ("/v2/repository/index", {"ready": 1}, 400, "ready"),
]


@pytest.fixture(params=["worded", "reworded"])
def wording(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether errors have their own messages, or all the same one after the path."""
    wording: str = request.param
    if wording == "reworded":
        monkeypatch.setattr(FieldError, "__str__", lambda error: f"{show_path(error.path)}: model: other words")
    return wording


def assert_path(answer: Any, path: str) -> None:
    """Asserts that an error's message begins with ``path``, and that OpenAI's ``param`` is the path."""
    error = answer["error"]
    message = error["message"] if isinstance(error, dict) else error
    assert message.startswith(f"{path}: "), message
    if isinstance(error, dict):
        assert error["param"] == (None if path == "body" else path), message


@pytest.mark.parametrize(("url", "body", "status", "path"), CASES, ids=[f"{case[0]} {case[3]}" for case in CASES])
async def test_every_endpoint_names_the_field_whatever_the_message(
    wording: str, made: ServedModel, url: str, body: Any, status: int, path: str
) -> None:
    assert_path(await answer_of(made, url, body, status), path)


async def test_a_tensor_within_the_limit_of_elements_is_named_as_its_parameter(wording: str) -> None:
    async with served_model(limits=replace(LIMITS, max_sequences=17)) as made:
        assert_path(await answer_of(made, f"{V2}/infer", {"inputs": MANY}, 413), "stop_words")


@pytest.mark.parametrize(
    ("url", "body", "path"),
    [
        (f"{OPENAI}/completions", {**COMPLETION, "stream": True}, "top_k"),
        (f"{OPENAI}/chat/completions", {**CHAT, "stream": True}, "top_k"),
        (f"{V1}:predict", {"instances": [PROMPT], "parameters": {"stream": True}}, "parameters.top_k"),
        (f"{V2}/generate_stream", {"text_input": PROMPT, "top_k": 5}, "top_k"),
    ],
    ids=["completions", "chat", "V1", "generate"],
)
async def test_an_error_in_a_stream_has_the_client_s_path(wording: str, url: str, body: Any, path: str) -> None:
    error = InvalidInput(("parameters", "top_k"), "another number", "5")
    async with served_model(text=" paris is large.", fails=error, after=2) as made:
        status, answers = await post(made, url, body)
        assert status == 200
        assert_path(answers[-1], path)


@asynccontextmanager
async def predictive(task: str, model: str, error: FieldError) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service whose model raises the error."""
    scripted = ScriptedModel(raising(error))
    scripted.task = loaded(f"--model_dir={task_model_folder(model)}", f"--task={task}").task
    app: AsgiApplication = application(service_of(scripted, Metrics()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service", verify=False) as client:
        yield client


@pytest.mark.parametrize(
    ("field", "value", "canonical", "path"),
    [
        ("input", "a", ("input", 0), "input"),
        ("input", ["a"], ("input", 0), "input[0]"),
        ("input", "a", ("parameters", "dimensions"), "dimensions"),
        ("documents", ["a"], ("documents", 0, "texts", 3), "documents[3]"),
        ("documents", ["a"], ("documents", 0, "texts"), "documents"),
        ("documents", ["a"], ("documents", 0), "documents"),
        ("documents", ["a"], ("documents", 0, "query"), "query"),
        ("documents", ["a"], ("parameters", "top_n"), "top_n"),
    ],
)
async def test_openai_s_fields_of_an_instance(wording: str, field: str, value: Any, canonical: Path, path: str) -> None:
    url, task, model, more = {
        "input": ("embeddings", "text_embedding", "minibert_mean", {}),
        "documents": ("rerank", "rerank", "cross", {"query": "a"}),
    }[field]
    async with predictive(task, model, TooLarge(canonical, "less")) as client:
        answer = await client.post(f"{OPENAI}/{url}", json={"model": "bert", field: value, **more})
        assert answer.status_code == 413
        assert_path(answer.json(), path)


EVENT = {"specversion": "1.0", "id": "1", "source": "/test", "type": "test"}


@pytest.mark.parametrize(
    ("event", "path"),
    [
        ({**EVENT, "data": 7}, "data"),
        ({**EVENT, "data_base64": "%"}, "data_base64"),
        ({**EVENT, "data_base64": "AAAA"}, "data_base64"),
        ({**EVENT, "data": {"instances": 7}}, "instances"),
        ({**EVENT, "id": 7}, "id"),
        ([], "body"),
    ],
    ids=["data", "no base64", "no JSON", "instances", "attribute", "no event"],
)
async def test_the_data_of_a_cloudevent_is_the_client_s_body(
    wording: str, made: ServedModel, event: Any, path: str
) -> None:
    headers = {"content_type": "application/cloudevents+json"}
    assert_path(await answer_of(made, f"{V1}:predict", event, 400, **headers), path)


async def test_grpc_names_the_field_whatever_the_message(wording: str, made: ServedModel) -> None:
    message = grpc_request(PROMPT, model="gpt2")
    message.parameters["parameters"].string_param = json.dumps({"top_k": "x"})
    async with serving(made.service) as server:
        _, details = await status_of(server.infer(message))
    assert details.startswith("parameters.top_k: ")
