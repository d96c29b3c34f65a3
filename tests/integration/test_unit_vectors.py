"""Vectors of length 1 of the APIs that promise them, at every size and precision; V1, V2 and gRPC follow the files."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_transformer.tasks.quantization import quantize
from tests.integration.conftest import Serve
from tests.integration.grpc_client import request, stub, values
from tests.integration.test_text_embedding import copy_of
from tests.support.service import Service

TEXTS = ["The cat sleeps on the sofa.", "It will rain tomorrow!"]
SIZES = (2, 8, 47, 48)
Ask = Callable[[Service, str, int], Any]


def post(service: Service, path: str, body: dict[str, Any]) -> Any:
    response = service.client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def openai(service: Service, model: str, size: int, **fields: Any) -> Any:
    answer = post(service, "/v1/embeddings", {"model": model, "input": TEXTS, "dimensions": size, **fields})
    return [one["embedding"] for one in answer["data"]]


def openai_base64(service: Service, model: str, size: int) -> Any:
    return [
        np.frombuffer(base64.b64decode(one), "<f4") for one in openai(service, model, size, encoding_format="base64")
    ]


def voyage(service: Service, model: str, size: int) -> Any:
    return [
        one["embedding"]
        for one in post(service, "/v1/embeddings", {"model": model, "input": TEXTS, "output_dimension": size})["data"]
    ]


def named(service: Service, model: str, size: int) -> Any:
    return [one["dense"] for one in openai(service, model, size, representations=["dense"])]


def late_chunks(service: Service, model: str, size: int) -> Any:
    return openai(service, model, size, late_chunking=True)


def contextualized(service: Service, model: str, size: int) -> Any:
    answer = post(
        service, "/v1/contextualizedembeddings", {"model": model, "inputs": [TEXTS], "output_dimension": size}
    )
    return [one["embedding"] for one in answer["data"][0]["data"]]


def cohere(service: Service, model: str, size: int) -> Any:
    body = {"model": model, "texts": TEXTS, "input_type": "clustering", "output_dimension": size}
    return post(service, "/v2/embed", body)["embeddings"]["float"]


def nim(service: Service, model: str, size: int) -> Any:
    parameters = {"truncate": "END", "dimensions": size}
    with stub(service) as methods:
        answer = methods.ModelInfer(request(model, {"text": [[one] for one in TEXTS]}, parameters=parameters, raw=True))
    return np.array(values(answer, "embeddings")).reshape(len(TEXTS), size)


def tei(service: Service, model: str, size: int) -> Any:
    return post(service, "/embed", {"inputs": TEXTS, "dimensions": size})


PROMISES: dict[str, Ask] = {
    **{"openai": openai, "base64": openai_base64, "voyage": voyage, "representations": named, "cohere": cohere},
    **{"nim_v2": nim, "tei": tei, "late_chunking": late_chunks, "contextualized": contextualized},
}
NEED_MEAN_POOLING = (late_chunks, contextualized)
CASES = [
    pytest.param(ask, model, id=f"{name}-{model}")
    for name, ask in PROMISES.items()
    for model in ("minibert_mean", "minibert_cls")
    if model == "minibert_mean" or ask not in NEED_MEAN_POOLING
]
"""minibert_mean's files have a Normalize module, minibert_cls's have none."""


@pytest.mark.parametrize(("ask", "model"), CASES)
def test_an_api_that_promises_unit_vectors_has_them_at_every_size(serve: Serve, ask: Ask, model: str) -> None:
    service = serve(model)
    whole = np.array(ask(service, model, 48), np.float64)
    for size in SIZES:
        vectors = np.array(ask(service, model, size), np.float64)
        assert vectors.shape == (len(TEXTS), size)
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
        cut = whole[:, :size]
        assert np.allclose(vectors, cut / np.linalg.norm(cut, axis=1, keepdims=True), atol=1e-6)


def test_all_types_of_a_cohere_answer_are_those_of_one_vector(serve: Serve) -> None:
    types = ["float", "int8", "uint8", "binary", "ubinary"]
    body = {"texts": TEXTS, "input_type": "clustering", "output_dimension": 8, "embedding_types": types}
    embeddings = post(serve("minibert_mean"), "/v2/embed", body)["embeddings"]
    vectors = np.array(embeddings["float"], np.float32)
    for name in types[1:]:
        assert np.abs(np.array(embeddings[name], int) - quantize(vectors, name, zero=True).astype(int)).max() <= 1, name
    assert embeddings["ubinary"] == np.packbits(vectors >= 0, axis=1).tolist()


@pytest.mark.parametrize("precision", ["int8", "uint8"])
@pytest.mark.parametrize("model", ["minibert_mean", "minibert_cls"], ids=["normalize", "no_normalize"])
def test_a_byte_per_component_is_that_of_the_unit_vector(serve: Serve, model: str, precision: str) -> None:
    service = serve(model)
    unit = np.array(openai(service, model, 8), np.float32)
    found = np.array(openai(service, model, 8, output_dtype=precision), int)
    assert np.abs(found - quantize(unit, precision).astype(int)).max() <= 1
    assert found.tolist() == service.predict(TEXTS, {"dimensions": 8, "precision": precision})


def test_a_request_may_keep_the_model_s_own_length(serve: Serve) -> None:
    service = serve("minibert_cls")
    for field in ("normalize", "normalized", "use_activation"):
        found = openai(service, "minibert_cls", 8, **{field: False})
        assert np.allclose(found, service.predict(TEXTS, {"dimensions": 8, "normalize": False}))
        assert not np.allclose(np.linalg.norm(found, axis=1), 1, atol=0.01)


@pytest.mark.parametrize(("model", "length"), [("minibert_mean", 1.0), ("minibert_cls", None)])
def test_vllm_s_pooling_normalizes_after_the_cut_where_the_files_normalize(
    serve: Serve, model: str, length: float | None
) -> None:
    service = serve(model)
    found = [one["data"] for one in post(service, "/pooling", {"input": TEXTS, "dimensions": 8})["data"]]
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6) is (length is not None)
    if length is None:
        assert np.allclose(found, service.predict(TEXTS, {"dimensions": 8}))


def test_v1_v2_and_grpc_cut_after_the_normalize_module(serve: Serve) -> None:
    service = serve("minibert_mean")
    whole = np.array(service.predict(TEXTS), np.float64)
    assert np.allclose(service.predict(TEXTS, {"dimensions": 8}), whole[:, :8])
    inputs = [{"name": "text", "datatype": "BYTES", "shape": [2], "data": TEXTS}]
    body = {"inputs": inputs, "parameters": {"dimensions": 8}}
    [output] = post(service, "/v2/models/minibert_mean/infer", body)["outputs"]
    assert np.allclose(np.array(output["data"]).reshape(2, 8), whole[:, :8])
    with stub(service) as methods:
        answer = methods.ModelInfer(request("minibert_mean", {"text": TEXTS}, parameters={"dimensions": 8}))
    assert np.allclose(np.array(values(answer, "output-0")).reshape(2, 8), whole[:, :8])


def test_truncate_dim_of_the_files_gives_unit_vectors_where_the_api_promises_them(serve: Serve, tmp_path: Path) -> None:
    folder = copy_of("minibert_mean", tmp_path / "model")
    file = folder / "config_sentence_transformers.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "truncate_dim": 8}))
    service = serve("minibert_mean", "v2", f"--model_id={folder}")
    [vector] = service.predict(TEXTS[:1])
    [promised] = post(service, "/v1/embeddings", {"input": TEXTS[0]})["data"]
    assert len(vector) == len(promised["embedding"]) == 8
    assert np.linalg.norm(vector) < 0.9
    assert np.allclose(promised["embedding"], np.array(vector) / np.linalg.norm(vector))


def test_other_representations_keep_the_lengths_of_the_files(serve: Serve) -> None:
    service, names = serve("m3"), ["dense", "sparse", "multi_vector"]
    body = {"input": TEXTS, "representations": names}
    found = [one["embedding"] for one in post(service, "/v1/embeddings", body)["data"]]
    for one, other in zip(found, service.predict(TEXTS, {"representations": names}), strict=True):
        assert one["sparse"] == other["sparse"] and np.allclose(one["multi_vector"], other["multi_vector"])
        assert np.isclose(np.linalg.norm(one["dense"]), 1)
    [sparse] = post(serve("splade"), "/v1/embeddings", {"input": TEXTS[:1]})["data"]
    assert sparse["embedding"] == serve("splade").predict(TEXTS[:1])[0]
