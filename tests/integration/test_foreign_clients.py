"""What clients of KServe and Triton send beside the protocols, and what they expect back."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import grpc
import pytest

from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.integration.conftest import Serve, message_of, refused
from tests.integration.grpc_client import fails, request, stub, values
from tests.integration.v2_rest import post, read
from tests.service import Service
from tests.triton_repository import task_model_folder

FRANCE = "The capital of france is [MASK]."
SCHEDULING = {"priority": 1, "sequence_id": 7, "sequence_start": True, "sequence_end": False}
OURS = {**SCHEDULING, "timeout": 30_000_000}


def test_parameters_of_tritons_clients_change_nothing(serve: Serve) -> None:
    service = serve("bert")
    assert service.predict([FRANCE], {**OURS, "binary_data_output": True}) == ["paris"]
    _, outputs = read(post(service, {"text": [FRANCE]}, parameters={**OURS, "sequence_id": "a"}))
    assert outputs == {"output-0": ["paris"]}
    message = request("bert", {"text": [FRANCE]}, parameters=OURS)
    message.parameters["priority"].uint64_param = 3
    with stub(service) as calls:
        assert values(calls.ModelInfer(message)) == ["paris"]
        [streamed] = calls.ModelStreamInfer(iter([message]))
        assert values(streamed.infer_response) == ["paris"]


def test_their_timeout_is_a_deadline(serve: Serve) -> None:
    """In microseconds; fault_slow takes longer."""
    service, parameters = serve("fault_slow"), {"timeout": 50_000}
    late = "the caller's deadline"
    for answer in (
        service.post({"instances": [FRANCE], "parameters": parameters}),
        post(service, {"text": [FRANCE]}, parameters=parameters),
    ):
        assert late in message_of(answer, 504)
    with stub(service) as calls, fails(grpc.StatusCode.DEADLINE_EXCEEDED, late):
        calls.ModelInfer(request("fault_slow", {"text": [FRANCE]}, parameters=parameters))
    for wrong in (-1, 0.5, "soon", True):
        refused(service, [FRANCE], {"timeout": wrong}, "parameters.timeout: expected microseconds")


def test_a_cloudevent_is_answered_as_one(serve: Serve) -> None:
    service = serve("bert")
    event = {"ce-specversion": "1.0", "ce-id": "7", "ce-source": "test", "ce-type": "my.request"}
    answer = service.post({"instances": [FRANCE]}, headers=event)
    assert answer.json() == {"predictions": ["paris"]}
    own = {name: value for name, value in answer.headers.items() if name.startswith("ce-")}
    assert own.pop("ce-id") not in ("", "7")
    assert datetime.fromisoformat(own.pop("ce-time")).tzinfo is not None
    assert own == {
        "ce-specversion": "1.0",
        "ce-source": "io.kserve.inference.bert",
        "ce-type": "io.kserve.inference.response",
    }
    del event["ce-id"]
    plain = service.post({"instances": [FRANCE]}, headers=event)
    assert not [name for name in plain.headers if name.startswith("ce-")]


def test_a_strategy_for_entities_asks_for_the_pipeline_format(serve: Serve) -> None:
    """As AGGREGATION_STRATEGY alone does in KServe's runtime guide."""
    text = "Anna Smith lives in Berlin."
    service = serve("ner", "v2", f"--model_dir=file://{task_model_folder('ner')}", "--aggregation_strategy=simple")
    [found] = service.predict([text])
    assert found == service.predict([text], {"output_format": "pipeline", "aggregation_strategy": "simple"})[0]
    assert found[0].keys() >= {"entity_group", "word", "start", "end"}
    assert "pipeline format, since --aggregation_strategy=simple" in service.log
    kept = serve("ner", "v2", "--aggregation_strategy=simple", "--output_format=kserve")
    assert isinstance(kept.predict([text])[0][0][0], int)


def test_the_servers_metadata_with_a_slash(serve: Serve) -> None:
    client = serve("bert").client
    assert client.get("/v2/").json() == client.get("/v2").json()


def statistics_of(service: Service) -> Any:
    """Over HTTP; over gRPC they are the same."""
    [found] = service.client.get("/v2/models/bert/versions/1/stats").json()["model_stats"]
    with stub(service) as calls:
        [message] = calls.ModelStatistics(pb.ModelStatisticsRequest(name="bert")).model_stats
        [same] = calls.ModelStatistics(pb.ModelStatisticsRequest()).model_stats
    assert same == message
    for name in ("name", "version", "inference_count", "execution_count"):
        assert getattr(message, name) == found[name]
    for field, value in message.inference_stats.ListFields():
        assert found["inference_stats"][field.name] == {"count": value.count, "ns": value.ns}
    return found


def test_statistics(serve: Serve) -> None:
    service = serve("bert")
    service.predict([FRANCE])
    refused(service, ["no mask"], {}, "no [MASK]")
    before = statistics_of(service)
    assert (before["name"], before["version"]) == ("bert", "1")
    service.predict([FRANCE] * 3)
    assert post(service, {"text": [FRANCE]}).status_code == 200
    refused(service, ["no mask"], {}, "no [MASK]")
    after = statistics_of(service)
    assert after["inference_count"] - before["inference_count"] == 4
    assert after["execution_count"] - before["execution_count"] == 2
    old, new = before["inference_stats"], after["inference_stats"]
    assert new["fail"]["count"] - old["fail"]["count"] == 1
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    for name in ("success", *parts):
        assert new[name]["count"] - old[name]["count"] == 2
        assert new[name]["ns"] > old[name]["ns"]
    assert abs(new["success"]["ns"] - sum(new[name]["ns"] for name in parts)) < 10


def test_the_repository_index(serve: Serve) -> None:
    service = serve("bert")
    ready = {"name": "bert", "version": "1", "state": "READY", "reason": ""}
    for body in (b"", b"{}", b'{"ready": true}'):
        assert service.client.post("/v2/repository/index", content=body).json() == [ready]
    for body in (b"[]", b'{"ready": 1}', b"{"):
        assert service.client.post("/v2/repository/index", content=body).status_code == 400
    with stub(service) as calls:
        [entry] = calls.RepositoryIndex(pb.RepositoryIndexRequest()).models
        assert (entry.name, entry.version, entry.state) == ("bert", "1", "READY")


@pytest.mark.parametrize("model", ["bert", "paraphrase", "squad"])
def test_a_generic_client_can_make_a_request_of_the_configuration_alone(serve: Serve, model: str) -> None:
    """As perf_analyzer does: a text for each input, of the shape [batch, *dims], and every output by name."""
    service = serve(model)
    config = service.client.get(f"/v2/models/{model}/config").json()
    metadata = service.client.get(f"/v2/models/{model}").json()
    assert config["max_batch_size"] > 2
    assert [[-1, *one["dims"]] for one in config["input"]] == [one["shape"] for one in metadata["inputs"]]
    assert all(one["dims"] == [1] for one in config["input"])
    texts = {one["name"]: [[FRANCE], [FRANCE]] for one in config["input"]}
    _, outputs = read(post(service, texts, outputs=[{"name": one["name"]} for one in config["output"]]))
    assert [len(one) for one in outputs.values()] == [2]
    assert "text_pair" not in texts
