"""What /openapi.json says is so: its examples work, and the answers are those that it describes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from tests.integration.conftest import Serve
from tests.service import Service

MODELS = {
    "fill_mask": "bert",
    "sequence_classification": "sentiment",
    "token_classification": "ner",
    "question_answering": "squad",
    "zero_shot_classification": "nli",
    "rerank": "cross",
    "text_embedding": "minibert_mean",
    "feature_extraction": "minibert_mean",
    "text_generation": "gpt2_past",
    "text2text_generation": "t5_logits",
}
GENERATIVE = ("text_generation", "text2text_generation")
NEEDS = {
    "openaiEmbeddings": ("text_embedding",),
    "openaiRerank": ("rerank",),
    "openaiCompletions": GENERATIVE,
    "openaiChat": ("text_generation",),  # t5_logits has no chat template
    "generate": GENERATIVE,
    "generateVersion": GENERATIVE,
    "generateStream": GENERATIVE,
    "generateStreamVersion": GENERATIVE,
}
"""The tasks of operations that not every model answers."""
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
    "sequence_classification": [{"return_probabilities": True}, {"return_raw_logits": True}],
    "question_answering": [{"handle_impossible_answer": True, "max_seq_len": 20, "doc_stride": 4}],
    "rerank": [{"top_n": 1, "return_documents": True}, {"output_format": "pipeline", "raw_scores": True}],
    "text_generation": [{"max_new_tokens": 3}, {"do_sample": True, "seed": 1, "num_return_sequences": 2, "top_k": 5}],
}


@pytest.fixture(params=MODELS)
def task(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def service(serve: Serve, task: str) -> Service:
    return serve(MODELS[task], "v2", *(("--task=feature_extraction",) if task == "feature_extraction" else ()))


@pytest.fixture
def document(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = service.client.get("/openapi.json").json()
    return found


def validate(document: dict[str, Any], operation: dict[str, Any], response: httpx.Response) -> None:
    """The response is one that the operation describes."""
    described = operation["responses"][str(response.status_code)]
    if "$ref" in described:
        described = document["components"]["responses"][described["$ref"].rpartition("/")[2]]
    content_type = response.headers["content-type"].partition(";")[0]
    schema = {**described["content"][content_type]["schema"], "components": document["components"]}
    for body in bodies(response, content_type):
        Draft202012Validator(schema).validate(body)


def bodies(response: httpx.Response, content_type: str) -> list[Any]:
    """What the schema of the content type is about: the body, or each line or event of a stream."""
    if content_type == "text/event-stream":
        return [{"data": event.removeprefix("data: ")} for event in response.text.strip().split("\n\n")]
    if content_type == "application/jsonl":
        return [json.loads(line) for line in response.text.splitlines()]
    return [response.json() if content_type == "application/json" else response.text]


def calls(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                yield method, path.replace("{version}", "1"), operation


def examples(operation: dict[str, Any]) -> list[Any]:
    """The bodies that an operation shows; None for one without a body."""
    if "requestBody" not in operation:
        return [None]
    return [one["value"] for one in operation["requestBody"]["content"]["application/json"]["examples"].values()]


def test_every_example_is_answered_as_described(service: Service, document: dict[str, Any], task: str) -> None:
    for method, path, operation in calls(document):
        for body in examples(operation):
            response = service.client.request(method, path, json=body)
            works = task in NEEDS.get(operation["operationId"], (task,))
            assert response.status_code == (200 if works else 400), f"{method} {path} {body}: {response.text}"
            validate(document, operation, response)


def test_answers_in_every_form_are_described(service: Service, document: dict[str, Any], task: str) -> None:
    operation = document["paths"][f"/v1/models/{service.model}:predict"]["post"]
    example = examples(operation)[0]
    content = operation["requestBody"]["content"]["application/json"]
    request = {**content["schema"], "components": document["components"]}
    for parameters in FORMS.get(task, ()):
        body = {**example, "parameters": parameters}
        Draft202012Validator(request).validate(body)
        response = service.post(body)
        assert response.status_code == 200, response.text
        validate(document, operation, response)


def test_errors_are_described(service: Service, document: dict[str, Any]) -> None:
    name = service.model
    for method, path, operation in calls(document):
        other = re.sub(rf"/{name}\b", "/nobody", path)
        if other != path:
            response = service.client.request(method, other, json={})
            assert response.status_code == 404, f"{method} {other}: {response.text}"
            validate(document, operation, response)
        if method == "post":
            response = service.client.post(path, content=b"{")
            assert response.status_code == 400, f"{path}: {response.text}"
            validate(document, operation, response)
