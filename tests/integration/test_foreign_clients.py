"""What clients of KServe and Triton send beside the protocols, and what they expect back."""

from __future__ import annotations

import json
import zlib
from datetime import datetime
from typing import Any

import grpc
import pytest

from tests.integration.conftest import Serve
from tests.integration.grpc_client import fails, request, stub, values
from tests.integration.v2_rest import post, read
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
    answer = service.post({"instances": [FRANCE], "parameters": parameters})
    assert (answer.status_code, late in answer.text) == (504, True)
    answer = post(service, {"text": [FRANCE]}, parameters=parameters)
    assert (answer.status_code, late in answer.text) == (504, True)
    with stub(service) as calls, fails(grpc.StatusCode.DEADLINE_EXCEEDED, late):
        calls.ModelInfer(request("fault_slow", {"text": [FRANCE]}, parameters=parameters))


@pytest.mark.parametrize("timeout", [-1, 0.5, "soon", True])
def test_a_timeout_that_is_none(serve: Serve, timeout: Any) -> None:
    answer = serve("bert").post({"instances": [FRANCE], "parameters": {"timeout": timeout}})
    assert (answer.status_code, "parameters.timeout: expected microseconds" in answer.text) == (400, True)


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
    folder, text = f"--model_dir=file://{task_model_folder('ner')}", "Anna Smith lives in Berlin."
    service = serve("ner", "v2", folder, "--aggregation_strategy=simple")
    [found] = service.predict([text])
    assert found == service.predict([text], {"output_format": "pipeline", "aggregation_strategy": "simple"})[0]
    assert found[0].keys() >= {"entity_group", "word", "start", "end"}
    assert "pipeline format, since --aggregation_strategy=simple" in service.log
    kept = serve("ner", "v2", folder, "--aggregation_strategy=simple", "--output_format=kserve")
    assert isinstance(kept.predict([text])[0][0][0], int)


def test_a_deflated_body(serve: Serve) -> None:
    body = zlib.compress(json.dumps({"instances": [FRANCE]}).encode())
    assert serve("bert").post(body, headers={"content-encoding": "deflate"}).json() == {"predictions": ["paris"]}


def test_the_servers_metadata_with_a_slash(serve: Serve) -> None:
    client = serve("bert").client
    assert client.get("/v2/").json() == client.get("/v2").json()
