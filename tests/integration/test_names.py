"""Names with slashes, as on the Hugging Face hub: in bodies, in plain and in escaped paths, and over gRPC."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import grpc
import pytest

from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.integration.conftest import Serve
from tests.support.service import Service

NAME, ALIAS, DEEP = "BAAI/bge-small-en-v1.5", "intfloat/e5", "accounts/x/models/e5:latest"
TEXTS = ["The cat sleeps on the sofa.", "It will rain tomorrow!"]
NAMES = pytest.mark.parametrize("name", [NAME, ALIAS, DEEP])
WRITTEN = pytest.mark.parametrize("written", [str, lambda name: quote(name, safe="")], ids=["plain", "escaped"])


@pytest.fixture
def service(serve: Serve, triton: LocalTriton) -> Service:
    flags = (f"--model_name={NAME}", f"--aliases={ALIAS},{DEEP}", "--predictor_model=minibert_mean")
    return serve("minibert_mean", "v2", *flags, ready=False).wait_until("/v2/health/ready")


@NAMES
@WRITTEN
def test_every_path_of_a_model_takes_its_name(service: Service, name: str, written: Any) -> None:
    client, path = service.client, written(name)
    for route in ("", "/info"):
        assert client.get(f"/v1/models/{path}{route}").json()["name"] in (name, NAME)
    card = client.get(f"/openai/v1/models/{path}").json()
    assert card["id"] == name and client.get(f"/v1/models/{path}").json() == {**card, "name": name, "ready": True}
    vectors = client.post(f"/v1/models/{path}:predict", json={"instances": TEXTS}).json()["predictions"]
    assert len(vectors) == 2 and vectors == service.predict(TEXTS, model=NAME)
    version = client.get(f"/v2/models/{path}").json()["versions"][0]
    for base in (f"/v2/models/{path}", f"/v2/models/{path}/versions/{version}"):
        assert client.get(base).json()["name"] == NAME
        assert client.get(f"{base}/ready").json() == {"name": name, "ready": True}
        assert client.get(f"{base}/config").json()["max_batch_size"] > 0
        assert client.get(f"{base}/stats").json()["model_stats"]
        body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": TEXTS}]}
        answer = client.post(f"{base}/infer", json=body).json()
        assert (answer["model_name"], answer["outputs"][0]["shape"]) == (name, [2, len(vectors[0])])
        assert client.post(f"{base}/generate", json={"text_input": "x"}).status_code == 400
    assert client.post(f"/v1/models/{path}:tokenize", json={"instances": TEXTS}).status_code == 200
    assert client.post(f"/v2/repository/models/{path}/load", json={}).status_code == 400  # --enable_model_control
    assert client.get(f"/v2/models/{path}/versions/9").status_code == 404


@NAMES
def test_every_body_takes_the_name(service: Service, name: str) -> None:
    client = service.client
    for path in ("/openai/v1/embeddings", "/v1/embeddings", "/embeddings"):
        answer = client.post(path, json={"model": name, "input": TEXTS}).json()
        assert answer["model"] == name and len(answer["data"]) == 2
    for path, body in (("/embed", {"inputs": "a"}), ("/v2/embed", {"texts": ["a"], "input_type": "search_query"})):
        assert client.post(path, json={"model": name, **body}).status_code == 200, path
    assert client.post(f"/embed?model={quote(name, safe='')}", json={"inputs": "a"}).status_code == 200
    assert client.post("/tokenize", json={"model": name, "prompt": "a"}).status_code == 200


@NAMES
def test_grpc_takes_the_name(service: Service, name: str) -> None:
    with grpc.insecure_channel(service.grpc_address) as channel:

        def call(method: str, request: Any, kind: Any) -> Any:
            path = f"/inference.GRPCInferenceService/{method}"
            ask = channel.unary_unary(path, request_serializer=type(request).SerializeToString,
                                      response_deserializer=kind.FromString)  # fmt: skip
            return ask(request, timeout=20)

        assert call("ModelReady", pb.ModelReadyRequest(name=name), pb.ModelReadyResponse).ready
        assert call("ModelMetadata", pb.ModelMetadataRequest(name=name), pb.ModelMetadataResponse).name == NAME
        text = pb.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
        text.contents.bytes_contents.append(b"a")
        answer = call("ModelInfer", pb.ModelInferRequest(model_name=name, inputs=[text]), pb.ModelInferResponse)
        assert answer.model_name == name


def test_lists_metrics_and_the_document_have_the_names(service: Service) -> None:
    service.predict(TEXTS, model=ALIAS)
    listed = service.client.get("/v1/models").json()
    assert listed["models"] == [NAME, ALIAS, DEEP] == [card["id"] for card in listed["data"]]
    assert service.client.get("/v2/models").json() == {"models": listed["models"]}
    lines = service.client.get("/metrics").text.splitlines()
    assert any(line.startswith("hf_transformer_requests_total{") and f'"{NAME}"' in line for line in lines)
    assert f"/v1/models/{NAME}:predict" in service.client.get("/openapi.json").json()["paths"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models/BAAI", 404),
        ("GET", "/v1/models/BAAI/other", 404),
        ("GET", "/v1/models//BAAI/bge-small-en-v1.5", 404),
        ("GET", "/v1/models/BAAI//bge-small-en-v1.5", 404),
        ("GET", f"/v1/models/{NAME}/", 404),
        ("GET", f"/v1/models/{NAME}:predict", 405),
        ("POST", f"/v1/models/{NAME}/predict", 405),
        ("POST", f"/v2/models/{NAME}/infer/infer", 404),
        ("GET", f"/v2/models/{NAME}/infer", 405),
        ("GET", "/v1/models/..%2F..%2Fetc%2Fpasswd", 404),
    ],
)
def test_other_paths_are_no_model(service: Service, method: str, path: str, status: int) -> None:
    response = service.client.request(method, path, json={} if method == "POST" else None)
    assert response.status_code == status, response.text
