"""The same inputs through every protocol, sent by clients that others wrote, give the same answers."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.clients.conftest import Run
from tests.integration.conftest import Serve, goldens

COUNT = 100
CLIENTS = {
    "V2 JSON": ("triton_tensors", "json"),
    "V2 binary": ("triton_tensors", "binary"),
    "V2 JSON of KServe's SDK": ("kserve_sdk", "rest"),
    "gRPC raw": ("triton_tensors", "unary"),
    "gRPC raw, streamed": ("triton_tensors", "stream"),
    "gRPC typed, of KServe's SDK": ("kserve_sdk", "grpc"),
    "gRPC typed, by reflection": ("reflection",),
}
TASKS = {
    "fill_mask": ("bert", ()),
    "sequence_classification": ("paraphrase", ("--return_probabilities",)),
    "token_classification": ("ner", ()),
    "question_answering": ("squad", ()),
    "zero_shot_classification": ("nli", ()),
    "rerank": ("cross", ()),
    "text_embedding": ("minibert_mean", ()),
    "feature_extraction": ("minibert_mean", ("--task=feature_extraction",)),
}
"""Each task's model and flags."""


def texts(task: str) -> list[str]:
    found = [
        case["text"] for case in goldens(task)["cases"] if isinstance(case.get("text"), str) and case["text"].strip()
    ]
    return list(dict.fromkeys(found))


def instances_of(task: str) -> list[Any]:
    """COUNT instances, as V1 takes them."""
    instances: list[Any]
    if task == "question_answering":
        # A question that leaves its context no room in a window is refused.
        cases = [case for case in goldens(task)["cases"] if len(case["question"]) < 200]
        instances = [{"question": case["question"], "context": case["context"]} for case in cases]
    elif task == "zero_shot_classification":
        instances = [{"text": item, "candidate_labels": ["sport", "rain", "food"]} for item in texts("text_embedding")]
    elif task == "rerank":
        instances = [{"query": case["query"], "texts": case["texts"]} for case in goldens(task)["cases"]]
        instances += [{**item, "texts": item["texts"][::-1]} for item in instances]
    elif task == "sequence_classification":
        sentences = texts("text_embedding")
        instances = [{"text": item, "text_pair": two} for item, two in pairwise(sentences)]
    else:
        instances = texts({"feature_extraction": "text_embedding"}.get(task, task))
    assert instances
    return (instances * COUNT)[:COUNT]


def inputs_of(instance: Any) -> dict[str, Any]:
    """One instance as named inputs of one row."""
    fields = instance if isinstance(instance, dict) else {"text": instance}
    return {name: [value] for name, value in fields.items()}


def comparable(task: str, row: Any) -> Any:
    """A prediction, or what output-0 holds of one, its only row."""
    if task in ("text_embedding", "feature_extraction"):
        return np.array(row, np.float32).tolist()
    return json.loads(row) if isinstance(row, str) and task != "fill_mask" else row


@pytest.mark.parametrize("task", TASKS)
def test_the_same_answers(serve: Serve, client: Run, task: str) -> None:
    model, flags = TASKS[task]
    service = serve(model, "grpc-v2", *flags)
    instances = instances_of(task)
    golden = [comparable(task, service.predict([item])[0]) for item in instances]
    requests = [{"inputs": inputs_of(item)} for item in instances]
    for name, program in CLIENTS.items():
        results = client(*program, service=service, requests=requests)
        assert [comparable(task, answer[0]) for answer in results["answers"]] == golden, name
        assert results["ids"] == [str(number) for number in range(COUNT)], name
        assert results["live"] is True and results["ready"][:2] == [True, True], name
        if "errors" in results:
            assert "'nobody'" in results["errors"][0][1], name
        if "config" in results:
            assert results["server"] == "hf_transformer" and "'nothing'" in results["errors"][1][1], name
            for item, other in (("input", "inputs"), ("output", "outputs")):
                names = [tensor["name"] for tensor in results["config"][item]]
                assert names == [tensor["name"] for tensor in results["metadata"][other]], name


def test_embeddings_and_reranking_through_openai(serve: Serve, client: Run) -> None:
    embedding = serve("minibert_mean", "grpc-v2", "--enable_token_inputs=true")
    instances = instances_of("text_embedding")
    golden = [comparable("text_embedding", embedding.predict([item])[0]) for item in instances]
    results = client("openai_package", "embeddings", service=embedding, texts=instances)
    for kind in ("float", "base64", "undecoded", "list"):
        assert [np.array(item, np.float32).tolist() for item in results[kind]] == golden, kind
    assert results["answer"] == ["list", "minibert_mean", "embedding"]
    assert [item["id"] for item in results["models"]] == ["minibert_mean"]
    assert (results["ids"], results["dimensions"]) == ([1, 2], 2)
    wrong = [["BadRequestError", 400, name] for name in ("input[1]", "dimensions", "top_k", "messages")]
    assert [item[:3] for item in results["errors"]] == [["NotFoundError", 404, "model"]] * 2 + wrong
    rerank = serve("cross", "grpc-v2")
    for instance in instances_of("rerank"):
        golden = [[item["index"], item["score"]] for item in rerank.predict([instance])[0]]
        body = {"model": "cross", "query": instance["query"], "documents": instance["texts"]}
        response = rerank.client.post("/openai/v1/rerank", json=body)
        assert [[item["index"], item["relevance_score"]] for item in response.json()["results"]] == golden
