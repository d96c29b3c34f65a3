"""Embedding models of Triton's vLLM backend, which take an embedding_request and stream their answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import numpy as np
import pytest

from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.errors import PredictorError
from hf_transformer.predictor.base import ModelCall, PredictorSettings
from hf_transformer.predictor.grpc import GrpcPredictor
from hf_transformer.types.tensors import Tensor
from tests.integration.conftest import Serve, refused
from tests.integration.test_text_embedding import LONG, TEXTS, assert_close, copy_of, mean_cases
from tests.support.service import Service
from tests.support.triton_repository import task_model_folder


@pytest.fixture
def service(serve: Serve, protocol: str) -> Service:
    return serve("minibert_vllm", protocol, f"--model_dir={task_model_folder('minibert_mean')}")


def test_vectors_are_those_of_the_model_itself(service: Service) -> None:
    """Also in one request of many texts, which are as many requests of the model."""
    cases = mean_cases()
    assert_close(service.predict([case["text"] for case in cases]), [case["default"] for case in cases])
    assert_close(service.predict([cases[0]["text"]]), [cases[0]["default"]])
    case = mean_cases("prompt_query")[0]
    assert_close(service.predict([case["text"]], {"prompt_name": "query"}), [case["prompt_query"]])


def test_the_service_cuts_texts_and_vectors(service: Service) -> None:
    vectors = service.predict([LONG, TEXTS[0]], {"dimensions": 16, "normalize": True})
    assert [len(vector) for vector in vectors] == [16, 16]
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=1e-6)
    refused(service, [LONG], {"truncation": False}, "expected at most 128 tokens", 413)


def test_openai_counts_the_tokens_of_the_service(service: Service) -> None:
    body = {"model": service.model, "input": ["The cat sleeps on the sofa.", "cat"]}
    answer = service.client.post("/openai/v1/embeddings", json=body).raise_for_status().json()
    assert answer["usage"]["prompt_tokens"] == 9 + 3
    assert [len(entry["embedding"]) for entry in answer["data"]] == [48, 48]


def test_a_refused_request_is_the_predictors_error(
    serve: Serve, tmp_path_factory: pytest.TempPathFactory, protocol: str
) -> None:
    """The test model reads 128 tokens, its files say 200."""
    files = task_model_folder("minibert_pooled")
    contents = {name: json.loads((files / f"{name}.json").read_text()) for name in ("config", "tokenizer_config")}
    contents["config"]["max_position_embeddings"] = contents["tokenizer_config"]["model_max_length"] = 200
    folder = copy_of(
        "minibert_pooled",
        tmp_path_factory.mktemp("longer"),
        config__json=contents["config"],
        tokenizer_config__json=contents["tokenizer_config"],
    )
    service = serve("minibert_vllm", protocol, f"--model_dir={folder}")
    response = service.post({"instances": ["cat", LONG]})
    assert response.status_code == 502 and "the model's length is 128" in response.json()["error"]
    assert len(service.predict(["cat"])[0]) == 48


async def test_triton_survives_streams_that_it_refuses(triton: LocalTriton, load: Callable[[str], None]) -> None:
    """With the metadata triton_grpc_error, 24.10 crashed within some 100 of them."""
    load("minibert_vllm")
    texts = {"text_input": "", "embedding_request": json.dumps({"input": [7] * 150})}
    inputs = [Tensor(name, "BYTES", np.array([text], np.object_)) for name, text in texts.items()]

    async def refused_calls(client: GrpcPredictor) -> None:
        for _ in range(400):
            with pytest.raises(PredictorError, match="the model's length is 128"):
                await anext(client.stream(ModelCall(inputs, ["text_output"], {})))

    async with GrpcPredictor(PredictorSettings("minibert_vllm", triton.grpc_address)) as client:
        await asyncio.gather(*(refused_calls(client) for _ in range(4)))
        assert await client.model_ready()
