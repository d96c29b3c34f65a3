"""What /openapi.json says is so: its examples work, and the answers are those that it describes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from tests.integration.conftest import Serve
from tests.service import Service
from tests.triton_repository import task_model_folder

MODELS = {
    "fill_mask": ("bert",),
    "token_classification": ("ner", f"--model_dir={task_model_folder('ner')}"),
    "text_embedding": ("minibert_mean", f"--model_dir={task_model_folder('minibert_mean')}"),
    "rerank": ("cross", f"--model_dir={task_model_folder('cross')}", "--task=rerank"),
    "text_generation": ("gpt2_past", f"--model_dir={task_model_folder('gpt2_past')}"),
}
"""Models with flags that other tests give them too, so that the services are shared."""
NEEDS = {
    "openaiEmbeddings": "text_embedding",
    "openaiRerank": "rerank",
    "openaiCompletions": "text_generation",
    "openaiChat": "text_generation",
    "generate": "text_generation",
    "generateVersion": "text_generation",
    "generateStream": "text_generation",
    "generateStreamVersion": "text_generation",
}
"""Operations that one task alone answers."""
FORMS: dict[str, list[Any]] = {
    "fill_mask": [
        {"output_format": "pipeline"},
        {"output_format": "pipeline", "top_k": None, "targets": "paris"},
        {"return_probabilities": True},
        {"return_raw_logits": True, "truncation": False},
    ],
    "token_classification": [
        {"output_format": "pipeline"},
        {"output_format": "pipeline", "aggregation_strategy": "first", "ignore_labels": []},
        {"return_probabilities": True, "return_offsets_mapping": True},
        {"return_raw_logits": True, "stride": 2},
    ],
    "text_embedding": [{"normalize": False, "dimensions": 3}, {"prompt": "query: ", "output_format": "pipeline"}],
    "rerank": [{"top_n": 1, "return_documents": True}, {"output_format": "pipeline", "raw_scores": True}],
    "text_generation": [{"max_new_tokens": 3}, {"do_sample": True, "seed": 1, "num_return_sequences": 2, "top_k": 5}],
}


@pytest.fixture(params=MODELS)
def task(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def service(serve: Serve, task: str) -> Service:
    model, *flags = MODELS[task]
    return serve(model, "v2", *flags)


@pytest.fixture
def document(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = service.client.get("/openapi.json").json()
    return found


def validate(document: dict[str, Any], operation: dict[str, Any], response: httpx.Response) -> None:
    """The response is one that the operation describes."""
    described = operation["responses"][str(response.status_code)]["content"]
    content_type = response.headers["content-type"].partition(";")[0]
    schema = {**described[content_type]["schema"], "components": document["components"]}
    if content_type == "text/event-stream":
        for event in response.text.strip().split("\n\n"):
            Draft202012Validator(schema).validate({"data": event.removeprefix("data: ")})
        return
    body = response.json() if content_type == "application/json" else response.text
    Draft202012Validator(schema).validate(body)


def calls(document: dict[str, Any], model: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path.replace("{model}", model).replace("{version}", "1"), operation


def test_every_operation_answers_as_described(service: Service, document: dict[str, Any], task: str) -> None:
    for method, path, operation in calls(document, service.model):
        content = operation.get("requestBody", {"content": {}})["content"]
        body = content["application/json"]["example"] if content else None
        response = service.client.request(method, path, json=body)
        works = NEEDS.get(operation["operationId"], task) == task
        assert response.status_code == (200 if works else 400), f"{method} {path}: {response.text}"
        validate(document, operation, response)


def test_answers_in_every_form_are_described(service: Service, document: dict[str, Any], task: str) -> None:
    operation = document["paths"]["/v1/models/{model}:predict"]["post"]
    example = operation["requestBody"]["content"]["application/json"]["example"]
    request = {
        **operation["requestBody"]["content"]["application/json"]["schema"],
        "components": document["components"],
    }
    for parameters in FORMS[task]:
        body = {**example, "parameters": parameters}
        Draft202012Validator(request).validate(body)
        response = service.post(body)
        assert response.status_code == 200, response.text
        validate(document, operation, response)


def test_errors_are_described(service: Service, document: dict[str, Any]) -> None:
    for method, path, operation in calls(document, "nobody"):
        if "nobody" in path:
            response = service.client.request(method, path, json={})
            assert response.status_code == 404, f"{method} {path}: {response.text}"
            validate(document, operation, response)
        elif method == "post":
            response = service.client.post(path, content=b"{")
            assert response.status_code == 400, f"{path}: {response.text}"
            validate(document, operation, response)
